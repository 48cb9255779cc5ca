"""The transport over grpcio, which express is tested against."""
