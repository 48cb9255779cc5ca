"""Files that users write: text protos, as TensorFlow Serving's users write them."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from tests.proto.samples import EXTENDED_CONFIG, model_config
from tfs.proto._pool import POOL
from tfs.proto.tensorflow_serving.config import (
    model_server_config_pb2,
    monitoring_config_pb2,
    platform_config_pb2,
    ssl_config_pb2,
)
from tfs.proto.tensorflow_serving.servables.tensorflow import (
    saved_model_bundle_source_adapter_pb2,
    session_bundle_config_pb2,
)
from tfs.proto.tfs.v1 import model_config_pb2


def parse_config(text: str) -> model_server_config_pb2.ModelServerConfig:
    return text_format.Parse(
        text, model_server_config_pb2.ModelServerConfig(), descriptor_pool=POOL
    )


def test_a_config_file_with_our_fields_parses() -> None:
    """The example that the documentation shows is a valid file."""
    config = parse_config(EXTENDED_CONFIG).model_config_list.config[0]
    assert config.traffic.primary == 1
    canary = config.traffic.canary
    assert (canary.version, canary.tee_fraction) == (2, 0.1)
    assert canary.guard.min_samples == 500
    assert canary.guard.max_top1_disagreement == 0.02
    assert canary.guard.max_mean_abs_diff == 0.05
    assert canary.guard.max_latency_ratio == 1.5
    assert canary.guard.max_error_rate == 0.01
    assert config.transition == model_config_pb2.RESOURCE_PRESERVING
    assert config.runtime.backend == model_config_pb2.Runtime.PROCESS
    assert config.runtime.isolation == model_config_pb2.Runtime.REQUIRED
    assert config.runtime.num_interpreters == 2
    assert config.runtime.device == "cpu"
    assert config.runtime.intra_op_threads == 1


def test_a_config_written_out_and_read_back_is_the_same() -> None:
    """`tfs config show` loses nothing."""
    config = model_server_config_pb2.ModelServerConfig()
    config.model_config_list.config.add().CopyFrom(model_config())
    assert parse_config(text_format.MessageToString(config)) == config


def test_a_config_of_tensorflow_serving_parses() -> None:
    """Every idiom of existing files: quotes, commas, colons, comments, maps."""
    config = parse_config(
        """
        # one model
        model_config_list: {
          config: {
            name: 'half_plus_two', base_path: "/models/half_plus_two",
            model_platform: "tensorflow"
            model_type: TENSORFLOW
            model_version_policy: { latest: { num_versions: 2 } }
            version_labels { key: 'canary' value: 43 }
            version_labels { key: 'stable' value: 42 }
            logging_config {
              log_collector_config { type: "file" filename_prefix: "/tmp/log" }
              sampling_config { sampling_rate: 0.01 }
            }
          }
          config { name: "other" base_path: "/models/other"
                   model_version_policy { all {} } }
        }
        """
    )
    first, second = config.model_config_list.config
    assert dict(first.version_labels) == {"canary": 43, "stable": 42}
    assert first.model_version_policy.latest.num_versions == 2
    assert second.model_version_policy.WhichOneof("policy_choice") == "all"


def test_zero_in_a_field_of_ours_can_be_told_from_absent() -> None:
    """Version 0 is a version, and a limit of 0 is a limit."""
    config = parse_config(
        "model_config_list { config { traffic { primary: 0 "
        "canary { guard { max_error_rate: 0 } } } transition: AVAILABILITY_PRESERVING "
        "} }"
    ).model_config_list.config[0]
    assert config.traffic.HasField("primary")
    assert not config.traffic.canary.HasField("version")
    assert config.traffic.canary.guard.HasField("max_error_rate")
    assert not config.traffic.canary.guard.HasField("max_latency_ratio")
    assert config.HasField("transition")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("model_config_list { config { name: } }", "1:"),
        ("model_config_list { config { nme: 'x' } }", "nme"),
        ("model_config_list { config { runtime { backend: THREAD } } }", "THREAD"),
        ("model_config_list { config { name: 'x' }", "Expected"),
    ],
)
def test_an_error_in_a_config_file_names_the_place(text: str, complaint: str) -> None:
    """Someone has to find it in the file."""
    with pytest.raises(text_format.ParseError, match=complaint):
        parse_config(text)


def test_batching_parameters_are_written_with_wrappers() -> None:
    """Numbers in a batching file stand in braces, sizes do not."""
    parameters = text_format.Parse(
        """
        max_batch_size { value: 128 }
        batch_timeout_micros { value: 0 }
        num_batch_threads { value: 8 }
        max_enqueued_batches { value: 1000000 }
        thread_pool_name { value: "shared" }
        enable_large_batch_splitting { value: true }
        max_execution_batch_size { value: 64 }
        allowed_batch_sizes: 32
        allowed_batch_sizes: 64
        pad_variable_length_inputs: true
        """,
        session_bundle_config_pb2.BatchingParameters(),
        descriptor_pool=POOL,
    )
    assert parameters.max_batch_size.value == 128
    assert parameters.HasField("batch_timeout_micros")
    assert parameters.batch_timeout_micros.value == 0
    assert parameters.thread_pool_name.value == "shared"
    assert parameters.enable_large_batch_splitting.value is True
    assert list(parameters.allowed_batch_sizes) == [32, 64]


def test_the_small_config_files_parse() -> None:
    """The files of --ssl_config_file and --monitoring_config_file are messages of ours
    too.
    """
    ssl = text_format.Parse(
        'server_key: "-----BEGIN" server_cert: "-----BEGIN" client_verify: true',
        ssl_config_pb2.SSLConfig(),
        descriptor_pool=POOL,
    )
    assert ssl.client_verify
    monitoring = text_format.Parse(
        'prometheus_config { enable: true path: "/metrics" }',
        monitoring_config_pb2.MonitoringConfig(),
        descriptor_pool=POOL,
    )
    assert monitoring.prometheus_config.path == "/metrics"


def test_a_platform_config_file_expands_any_from_our_pool() -> None:
    """--platform_config_file writes the adapter's message inside an Any."""
    platforms = text_format.Parse(
        """
        platform_configs { key: "tensorflow" value { source_adapter_config {
          [type.googleapis.com/tensorflow.serving.SavedModelBundleSourceAdapterConfig] {
            legacy_config {
              session_config { intra_op_parallelism_threads: 2 }
              batching_parameters { max_batch_size { value: 16 } }
            }
          }
        } } }
        """,
        platform_config_pb2.PlatformConfigMap(),
        descriptor_pool=POOL,
    )
    adapter = (
        saved_model_bundle_source_adapter_pb2.SavedModelBundleSourceAdapterConfig()
    )
    packed = platforms.platform_configs["tensorflow"].source_adapter_config
    assert packed.Unpack(adapter)
    assert adapter.legacy_config.batching_parameters.max_batch_size.value == 16
    assert adapter.legacy_config.session_config.intra_op_parallelism_threads == 2
