"""Classify, Regress and MultiInference: requests of tf.Examples."""
