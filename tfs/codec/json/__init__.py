"""JSON bodies of TensorFlow Serving's REST API: requests in, replies out."""
