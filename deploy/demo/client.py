"""An ordinary gRPC client of the serving API, as any program would write it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import grpc
import numpy as np
import numpy.typing as npt

from tfs.proto.tensorflow.core.framework import types_pb2
from tfs.proto.tensorflow_serving.apis import classification_pb2, predict_pb2

SERVICE = "/tensorflow.serving.PredictionService/"
TIMEOUT_S = 20.0

Images = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Answer:
    """One image's result.

    Attributes:
        digit: The most likely one.
        scores: float32 [10].
        version: The version that answered; None if the reply does not say.
        latency_s: Wall time of the call.

    """

    digit: int
    scores: npt.NDArray[np.float32]
    version: int
    latency_s: float


class DigitsClient:
    """Calls Predict and Classify on one channel. Thread-safe."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)
        self._predict = self._channel.unary_unary(
            SERVICE + "Predict",
            request_serializer=predict_pb2.PredictRequest.SerializeToString,
            response_deserializer=predict_pb2.PredictResponse.FromString,
        )
        self._classify = self._channel.unary_unary(
            SERVICE + "Classify",
            request_serializer=classification_pb2.ClassificationRequest.SerializeToString,
            response_deserializer=classification_pb2.ClassificationResponse.FromString,
        )

    def predict(self, image: Images) -> Answer:
        """Sends one image as a tensor."""
        request = predict_pb2.PredictRequest()
        request.model_spec.name = "digits"
        tensor = request.inputs["images"]
        tensor.dtype = types_pb2.DT_FLOAT
        for size in (1, 64):
            tensor.tensor_shape.dim.add(size=size)
        tensor.tensor_content = image.astype("<f4").tobytes()
        begun_s = time.perf_counter()
        response = self._predict(request, timeout=TIMEOUT_S, wait_for_ready=True)
        latency_s = time.perf_counter() - begun_s
        scores = np.array(response.outputs["scores"].float_val, dtype=np.float32)
        version = response.model_spec.version.value
        return Answer(int(scores.argmax()), scores, version, latency_s)

    def classify(self, image: Images) -> Answer:
        """Sends one image as a tf.Example."""
        request = classification_pb2.ClassificationRequest()
        request.model_spec.name = "digits"
        example = request.input.example_list.examples.add()
        example.features.feature["images"].float_list.value.extend(image.tolist())
        begun_s = time.perf_counter()
        response = self._classify(request, timeout=TIMEOUT_S, wait_for_ready=True)
        latency_s = time.perf_counter() - begun_s
        classes = response.result.classifications[0].classes
        scores = np.array([item.score for item in classes], dtype=np.float32)
        best = max(classes, key=lambda item: item.score)
        version = response.model_spec.version.value
        return Answer(int(best.label), scores, version, latency_s)

    def close(self) -> None:
        """Closes the channel."""
        self._channel.close()


@dataclass
class Traffic:
    """Keeps sending until stopped; counts answers by version, and failures."""

    client: DigitsClient
    images: Images
    num_requests: int = 0
    failures: list[str] = field(default_factory=list)
    num_by_version: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Guards num_by_version; wakes wait_for.
        self._changed = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="traffic", daemon=True)

    def start(self) -> None:
        """Begins to send, on a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stops sending after the request that is in flight."""
        self._stopping = True
        self._thread.join()

    def wait_for(self, version: int, num_answers: int, timeout_s: float) -> None:
        """Blocks until ``version`` has given that many answers from now on.

        Raises:
            TimeoutError: It did not within ``timeout_s``.

        """
        with self._changed:
            wanted = self.num_by_version.get(version, 0) + num_answers
            if not self._changed.wait_for(
                lambda: self.num_by_version.get(version, 0) >= wanted, timeout_s
            ):
                raise TimeoutError(f"version {version} did not answer")

    def _run(self) -> None:
        while not self._stopping:
            image = self.images[self.num_requests % len(self.images)]
            self.num_requests += 1
            try:
                version = self.client.predict(image).version
            except grpc.RpcError as error:
                self.failures.append(f"{error.code().name}: {error.details()}")
                continue
            with self._changed:
                self.num_by_version[version] = self.num_by_version.get(version, 0) + 1
                self._changed.notify_all()
