"""Serves models on many servers: users name models, the fleet decides where to load them.

This is TFS² of "TensorFlow-Serving: Flexible, High-Performance ML Serving", section
3.1: a controller, a synchronizer and a router over ordinary ``tfs serve`` processes.
See docs/hosted.md.
"""
