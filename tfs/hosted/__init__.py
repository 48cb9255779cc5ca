"""Many servers as one: users name models, the fleet decides which servers load them.

TFS² of "TensorFlow-Serving: Flexible, High-Performance ML Serving", section 3.1: a
controller, a synchronizer and a router over ordinary ``tfs serve`` processes. See
docs/hosted.md.
"""
