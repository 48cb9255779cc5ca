"""Our definitions against those that the real packages register.

The other side is tests/data/upstream_descriptors.binpb: tensorflow-serving-api 2.21.0,
what it imports of TensorFlow, gRPC's health and reflection, google.rpc.
"""

from __future__ import annotations

import functools

import pytest

from tests.proto.descriptors import Symbol, our_files, symbols, upstream_files

# Files of which we declare nothing, because they describe a TensorFlow graph: no
# request or answer holds one, and their messages survive as unknown fields.
LEFT_OUT_FILES = {
    "tensorflow/core/framework/allocation_description.proto",
    "tensorflow/core/framework/cost_graph.proto",
    "tensorflow/core/framework/full_type.proto",
    "tensorflow/core/framework/function.proto",
    "tensorflow/core/framework/graph.proto",
    "tensorflow/core/framework/graph_debug_info.proto",
    "tensorflow/core/framework/node_def.proto",
    "tensorflow/core/framework/op_def.proto",
    "tensorflow/core/framework/step_stats.proto",
    "tensorflow/core/framework/tensor_description.proto",
    "tensorflow/core/framework/variable.proto",
    "tensorflow/core/framework/versions.proto",
    "tensorflow/core/protobuf/saved_object_graph.proto",
    "tensorflow/core/protobuf/trackable_object_graph.proto",
}

# Symbols left out of files that we do have.
LEFT_OUT_SYMBOLS = {
    # Of graphs, like the field that it is for.
    "tensorflow.RunMetadata.FunctionGraphs",
    # A profiler's own settings; no method of the service takes them.
    "tensorflow.RemoteProfilerSessionManagerOptions",
    # Details of a status that TFS does not send.
    "google.rpc.BadRequest",
    "google.rpc.DebugInfo",
    "google.rpc.ErrorInfo",
    "google.rpc.Help",
    "google.rpc.LocalizedMessage",
    "google.rpc.PreconditionFailure",
    "google.rpc.QuotaFailure",
    "google.rpc.RequestInfo",
    "google.rpc.ResourceInfo",
}

# Fields left out of messages that we do have, because of their types.
LEFT_OUT_FIELDS = {
    "tensorflow.MetaGraphDef": {"field graph_def", "field object_graph_def"},
    "tensorflow.MetaGraphDef.MetaInfoDef": {"field stripped_op_list"},
    "tensorflow.RunMetadata": {
        "field step_stats",
        "field cost_graph",
        "field partition_graphs",
        "field function_graphs",
    },
}

# What we declare on top, as number by name.
ADDITIONS = {
    "tensorflow.serving.ModelConfig": {
        "field traffic": 20001,
        "field transition": 20002,
        "field runtime": 20003,
        "field examples_gate": 20004,
        "field residency": 20005,
        "field validation": 20006,
        "field excluded_versions": 20007,
    },
    "tensorflow.serving.BatchingParameters": {"field policy": 20001},
}

OWN = ("Traffic", "Transition", "Runtime", "Residency", "Validation", "BatchingPolicy")

# The Python packages of gRPC rename the files; gRPC itself has them where we do.
RENAMED_FILES = {
    "grpc_health/v1/health.proto": "grpc/health/v1/health.proto",
    "grpc_reflection/v1alpha/reflection.proto": (
        "grpc/reflection/v1alpha/reflection.proto"
    ),
}

# Declared by TensorFlow Serving's sources but by no Python package; test_server_only
# holds the facts.
SERVER_ONLY_FILES = {
    "tensorflow_serving/apis/internal/serialized_input.proto",
    "tensorflow_serving/config/monitoring_config.proto",
    "tensorflow_serving/config/ssl_config.proto",
    "tensorflow_serving/resources/resources.proto",
    "tensorflow_serving/servables/hashmap/hashmap_source_adapter.proto",
    "tensorflow_serving/servables/tensorflow/saved_model_bundle_source_adapter.proto",
    "tensorflow_serving/servables/tensorflow/session_bundle_config.proto",
    "tensorflow_serving/servables/tensorflow/tfrt_saved_model_source_adapter.proto",
    "tensorflow_serving/servables/tensorflow/thread_pool_factory_config.proto",
    "tensorflow_serving/sources/storage_path/static_storage_path_source.proto",
    "tsl/profiler/protobuf/profiler_service.proto",
    # v1alpha under another package name; compared with it below.
    "grpc/reflection/v1/reflection.proto",
}


@functools.cache
def upstream() -> dict[str, Symbol]:
    return symbols(upstream_files())


@functools.cache
def ours() -> dict[str, Symbol]:
    return symbols(our_files())


def is_left_out(name: str) -> bool:
    if upstream()[name].file in LEFT_OUT_FILES:
        return True
    return any(
        name == symbol or name.startswith(f"{symbol}.") for symbol in LEFT_OUT_SYMBOLS
    )


@pytest.mark.parametrize("name", sorted(upstream()))
def test_a_symbol_of_upstream_is_ours_too_with_the_same_facts(name: str) -> None:
    """Whoever speaks upstream's definitions finds each of them here, unchanged."""
    theirs = upstream()[name]
    if is_left_out(name):
        assert name not in ours()
        return
    assert name in ours()
    own = ours()[name]
    assert own.file == RENAMED_FILES.get(theirs.file, theirs.file)
    expected = {
        declared: fact
        for declared, fact in theirs.facts.items()
        if declared not in LEFT_OUT_FIELDS.get(name, ())
    }
    additions = ADDITIONS.get(name, {})
    found = {
        declared: fact
        for declared, fact in own.facts.items()
        if declared not in additions
    }
    assert found == expected


def test_what_we_add_to_upstream_messages_has_numbers_and_types_of_our_own() -> None:
    """Additions have numbers from 20001 on, and types of our own package or plain ones."""
    for name, additions in ADDITIONS.items():
        for declared, number in additions.items():
            fact = ours()[name].facts[declared]
            assert ("number", number) in fact
            assert number >= 20001
            assert ("type name", "") in fact or any(
                f"('type name', '.tfs.v1.{kind}')" in repr(fact) for kind in OWN
            )


def test_every_exception_is_needed() -> None:
    """The lists of exceptions name nothing that is not there (any more)."""
    files = {symbol.file for symbol in upstream().values()}
    assert files >= LEFT_OUT_FILES
    assert upstream().keys() >= LEFT_OUT_SYMBOLS
    for name, fields in LEFT_OUT_FIELDS.items():
        assert upstream()[name].facts.keys() >= fields
        assert not ours()[name].facts.keys() & fields


def test_a_file_of_ours_is_upstreams_or_server_only_or_tfs_own() -> None:
    """We define nothing else in packages that are not ours."""
    known = {RENAMED_FILES.get(file.name, file.name) for file in upstream_files()}
    others = {file.name for file in our_files()} - known - SERVER_ONLY_FILES
    assert others == {
        "inference/open_inference_grpc.proto",  # of KServe and Triton
        "tfs/v1/admin_service.proto",
        "tfs/v1/batching_policy.proto",
        "tfs/v1/controller.proto",
        "tfs/v1/model_config.proto",
    }


def test_files_of_ours_have_upstreams_package() -> None:
    """A file's package is part of every full name in it."""
    packages = {file.name: file.package for file in our_files()}
    for file in upstream_files():
        name = RENAMED_FILES.get(file.name, file.name)
        if name in packages:
            assert packages[name] == file.package


def test_reflection_v1_differs_from_v1alpha_by_its_package_only() -> None:
    """One implementation serves both, so that both must have the same messages."""
    v1, v1alpha = "grpc.reflection.v1.", "grpc.reflection.v1alpha."

    def facts_of(prefix: str) -> dict[str, str]:
        return {
            name.removeprefix(prefix): repr(symbol.facts).replace(prefix, "")
            for name, symbol in ours().items()
            if name.startswith(prefix)
        }

    assert facts_of(v1) == facts_of(v1alpha)
    assert facts_of(v1)
