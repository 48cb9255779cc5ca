"""The requests that a version brings to be warmed up with.

A TFRecord file of PredictionLog, as TensorFlow Serving reads it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from google.protobuf.message import DecodeError

from tfs.codec.tfrecord import read_records
from tfs.core.errors import DataLoss, InvalidArgument
from tfs.core.version_directory import WARMUP_REQUESTS, read_failure
from tfs.proto.tensorflow_serving.apis import prediction_log_pb2

MAX_RECORDS: Final = 1000


def read_warmup_requests(path: str) -> Iterator[prediction_log_pb2.PredictionLog]:
    """Yields the records of a version directory's file; none if there is no file.

    Raises:
        InvalidArgument: A record is no PredictionLog; the message says which.
        DataLoss: The file is no TFRecord file, or cut off.
        FailedPrecondition: The file exists and may not be read.
        Unavailable: It cannot be read now.

    """
    where = os.path.join(path, WARMUP_REQUESTS)
    try:
        file = open(where, "rb")  # noqa: SIM115  # closed below; a generator's
    except FileNotFoundError:
        return
    except OSError as error:
        raise read_failure(error, f"cannot read {where}") from error
    with file:
        records = read_records(file)
        index = 0
        while True:
            try:
                record = next(records, None)
            except DataLoss as error:
                raise DataLoss(
                    f"{error.message}. Please verify your warmup data is in TFRecord "
                    "format."
                ) from error
            if record is None:
                return
            try:
                yield prediction_log_pb2.PredictionLog.FromString(record)
            except DecodeError as error:
                raise InvalidArgument(
                    f"Failed to parse warmup record: {index} from {where}"
                ) from error
            index += 1
