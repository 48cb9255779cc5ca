"""Between protobuf bytes and TensorViews: no sockets, no models, no gRPC."""
