"""TensorFlow Serving's REST API, over the handlers of its gRPC API."""
