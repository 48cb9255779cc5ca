"""OpenTelemetry, by the standard OTEL_* variables: the extra ``otel``."""
