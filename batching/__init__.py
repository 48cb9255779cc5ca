"""Cross-request batching for any task type. Plain Python."""
