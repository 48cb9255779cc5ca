"""TFS serves PyTorch models behind TensorFlow Serving's gRPC API."""
