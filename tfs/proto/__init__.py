"""The wire messages: generated modules, in a descriptor pool of their own."""
