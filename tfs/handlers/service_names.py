"""The names of gRPC services, for those who need no handlers."""

from __future__ import annotations

from typing import Final

PREDICTION: Final = "tensorflow.serving.PredictionService"
MODEL: Final = "tensorflow.serving.ModelService"
HEALTH: Final = "grpc.health.v1.Health"
REFLECTION: Final = (
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
)
OIP: Final = "inference.GRPCInferenceService"
