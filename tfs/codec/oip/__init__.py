"""The Open Inference Protocol on the wire: requests and replies of ModelInfer and /infer."""
