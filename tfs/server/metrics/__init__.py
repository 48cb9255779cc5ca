"""The counters of a server, as a page for Prometheus: --monitoring_config_file."""
