"""TensorFlow Serving's flags that are refused, or mean nothing, here."""

from __future__ import annotations

from typing import Final

REFUSED: Final[dict[str, str]] = {
    "use_alts_credentials": "Google's ALTS",
}
"""Flags that are refused, because ignoring them would do harm, by what they ask for."""

WITHOUT_MEANING: Final = frozenset(
    {
        "rest_api_num_threads",
        "flush_filesystem_caches",
        "tensorflow_inter_op_parallelism",
        "tensorflow_session_config_file",
        "per_process_gpu_memory_fraction",
        "saved_model_tags",
        "grpc_max_threads",
        "remove_unused_fields_from_bundle_metagraph",
        "prefer_tflite_model",
        "num_tflite_pools",
        "num_tflite_interpreters_per_pool",
        "xla_cpu_compilation_enabled",
        "xla_gpu_compilation_enabled",
        "enable_profiler",
        "thread_pool_factory_config_file",
        "mixed_precision",
        "skip_initialize_tpu",
        "enable_grpc_healthcheck_service",
        # The loop looked for the next request of a lone client; accepted for one release.
        "loop_spin_us",
        # Processes had a shared copy of weights on a GPU once; accepted for one release.
        "share_gpu_weights",
        # Platforms are detected from the files; batching has flags and files of its
        # own.
        "platform_config_file",
        # A version's batching_params.pbtxt is always read; the health service is always
        # on.
        "enable_per_model_batching_parameters",
        # A label may always be set before its version is loaded.
        "allow_version_labels_for_unavailable_models",
    }
)
"""TensorFlow Serving's flags that mean nothing here: accepted with a warning."""
