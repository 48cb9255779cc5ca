"""What a server counts, as a page for Prometheus: --monitoring_config_file."""
