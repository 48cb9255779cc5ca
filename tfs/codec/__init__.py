"""Converts between protobuf bytes and TensorViews: no sockets, no models, no gRPC."""
