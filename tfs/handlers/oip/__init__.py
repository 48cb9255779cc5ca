"""The Open Inference Protocol, over the handlers of TensorFlow Serving's API."""
