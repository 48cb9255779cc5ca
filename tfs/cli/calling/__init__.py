"""Commands that call models: predictions, request logs, measurements."""
