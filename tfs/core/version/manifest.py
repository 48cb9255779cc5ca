"""The manifest of a version directory: what the version is, file by file, and its signatures.

docs/version-directory.md describes the form. No key is repeated in it: Python's reader keeps
the last of several equal keys without a word, but in a file that people write, a repeated
key is a line that was copied and of which one half was to be changed.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

from tfs.core.dtype import DTYPES, STRING, DType
from tfs.core.errors import DataLoss, InvalidArgument
from tfs.core.signature import (
    FREE,
    ExampleSlot,
    FeatureKind,
    FeatureSpec,
    Method,
    Signature,
    TensorSpec,
)
from tfs.core.tensor_view import TensorView

JsonValue: TypeAlias = object

_MOST_SIZE: Final = (1 << 63) - 1  # of a dimension on the wire
_MAX_DEFAULT_VALUES: Final = 1 << 24  # a scalar default is repeated this often at most


def signature_to_json(signature: Signature) -> dict[str, JsonValue]:
    """Returns the manifest's form; ``signature_from_json`` reads it back equal."""
    form: dict[str, JsonValue] = {
        "method": signature.method.value,
        "inputs": {name: _spec_json(spec) for name, spec in signature.inputs.items()},
        "outputs": {name: _spec_json(spec) for name, spec in signature.outputs.items()},
    }
    if signature.defaults:
        form["defaults"] = {n: _tensor_json(v) for n, v in signature.defaults.items()}
    if signature.labels:
        form["labels"] = list(signature.labels)
    if signature.features:
        form["features"] = {n: _feature_json(f) for n, f in signature.features.items()}
    if not signature.batched:
        form["batched"] = False
    if signature.examples:
        form["example"] = {n: _slot_json(s) for n, s in signature.examples.items()}
    return form


def signature_from_json(form: object, where: str) -> Signature:
    """Reads one signature of a manifest.

    Args:
        form: The value that ``json.loads`` returned.
        where: The file and the signature's name, for messages.

    Raises:
        InvalidArgument: Saying where and what is wrong.

    """
    try:
        return _signature(_object(form))
    except (KeyError, TypeError, ValueError) as error:
        what = f"missing {error}" if isinstance(error, KeyError) else str(error)
        raise InvalidArgument(f"bad signature in {where}: {what}") from error


def _signature(form: dict[str, object]) -> Signature:
    _check_keys(
        form,
        "method", "inputs", "outputs", "defaults", "labels", "features", "batched",
        "example",
    )  # fmt: skip
    inputs = {name: _spec(spec) for name, spec in _object(form["inputs"]).items()}
    outputs = {name: _spec(spec) for name, spec in _object(form["outputs"]).items()}
    batched = form.get("batched", True)
    if not isinstance(batched, bool):
        raise TypeError("batched must be true or false")
    _check_tensors(inputs, outputs, batched)
    defaults = {n: _tensor(t) for n, t in _object(form.get("defaults", {})).items()}
    _check_defaults(defaults, inputs)
    features = {n: _feature(f) for n, f in _object(form.get("features", {})).items()}
    _check_features(features, inputs)
    labels = form.get("labels", [])
    if not isinstance(labels, list) or not all(isinstance(x, str) for x in labels):
        raise TypeError("labels must be a list of strings")
    _check_labels(labels, outputs)
    examples = {n: _slot(s) for n, s in _object(form.get("example", {})).items()}
    _check_examples(examples, inputs, defaults.keys(), batched)
    return Signature(
        method=Method(form["method"]),
        inputs=inputs,
        outputs=outputs,
        defaults=defaults,
        labels=tuple(labels),
        features=features,
        batched=batched,
        examples=examples,
    )


def _check_tensors(
    inputs: Mapping[str, TensorSpec], outputs: Mapping[str, TensorSpec], batched: bool
) -> None:
    for kind, specs in (("input", inputs), ("output", outputs)):
        for name, spec in specs.items():
            if batched and not spec.shape:
                raise ValueError(f"{kind} {name!r} has no batch dimension")
            if spec.mask is not None and spec.mask not in inputs:
                raise ValueError(f"{kind} {name!r} has an unknown mask {spec.mask!r}")
            if spec.length_of is not None and spec.length_of not in inputs:
                raise ValueError(f"{kind} {name!r} has the length of no input")
    if not outputs:
        raise ValueError("a signature needs at least one output")


def _check_defaults(
    defaults: Mapping[str, TensorView], inputs: Mapping[str, TensorSpec]
) -> None:
    for name, view in defaults.items():
        if name not in inputs or view.dtype is not inputs[name].dtype:
            raise ValueError(f"default {name!r} fits no input")
        if not inputs[name].accepts(view.shape):
            raise ValueError(
                f"default {name!r} has shape {list(view.shape)}, its input "
                f"{list(inputs[name].shape)}"
            )


def _check_features(
    features: Mapping[str, FeatureSpec], inputs: Mapping[str, TensorSpec]
) -> None:
    for name, feature in features.items():
        if feature.input not in inputs:
            raise ValueError(f"feature {name!r} fills an unknown input")
        if trouble := feature.trouble(inputs[feature.input]):
            raise ValueError(f"feature {name!r} {trouble}")
        num = math.prod(feature.shape)
        default = feature.default if feature.kind is FeatureKind.FIXED else None
        if default is not None and len(default) != num:
            raise ValueError(
                f"feature {name!r} has a default of {len(default)} values, its shape "
                f"takes {num}"
            )


def _check_labels(labels: Sequence[str], outputs: Mapping[str, TensorSpec]) -> None:
    scores = outputs.get("scores")
    num = scores.shape[1] if scores is not None and len(scores.shape) == 2 else FREE
    if labels and num not in (FREE, len(labels)):
        raise ValueError(f"{len(labels)} labels for {num} scores")


def _check_examples(
    examples: Mapping[str, ExampleSlot],
    inputs: Mapping[str, TensorSpec],
    defaults: Collection[str],
    batched: bool,
) -> None:
    for name, slot in examples.items():
        if name not in inputs:
            raise ValueError(f"example {name!r} fits no input")
        spec = inputs[name]
        if not spec.accepts(slot.shape):
            raise ValueError(
                f"example {name!r} has shape {list(slot.shape)}, its input "
                f"{list(spec.shape)}"
            )
        if (slot.value is not None) != (spec.dtype is STRING):
            where = "as its value" if spec.dtype is STRING else "at an offset"
            raise ValueError(f"example {name!r} must be given {where}: {spec.dtype}")
        if slot.value is not None and len(slot.value) != math.prod(slot.shape):
            raise ValueError(
                f"example {name!r} has {len(slot.value)} strings, its shape takes "
                f"{math.prod(slot.shape)}"
            )
    # One row of an input with a default stands for every row.
    rows = {
        n: slot.shape[0]
        for n, slot in examples.items()
        if batched and n not in defaults
    }
    if len(set(rows.values())) > 1:
        raise ValueError(f"examples differ in their number of rows: {rows}")


def _check_keys(form: Mapping[str, object], *known: str) -> None:
    unknown = sorted(form.keys() - set(known))
    if unknown:
        raise ValueError(f"unknown keys {unknown}; known: {', '.join(known)}")


def _object(form: object) -> dict[str, object]:
    if not isinstance(form, dict) or not all(isinstance(key, str) for key in form):
        raise TypeError(f"expected an object, got {type(form).__name__}")
    return cast(dict[str, object], form)


def _shape(form: object, lowest: int = FREE) -> tuple[int, ...]:
    if not isinstance(form, list):
        raise TypeError("shape must be a list")
    for size in form:
        if type(size) is not int or not lowest <= size <= _MOST_SIZE:
            raise ValueError(f"bad dimension {size!r} in shape {form}")
    return tuple(form)


def _dtype(form: object) -> DType:
    if not isinstance(form, str) or form not in DTYPES:
        raise ValueError(f"unknown dtype {form!r}; known: {', '.join(DTYPES)}")
    return DTYPES[form]


def _spec(form: object) -> TensorSpec:
    fields = _object(form)
    _check_keys(fields, "dtype", "shape", "pad", "mask", "length_of")
    pad = fields.get("pad")
    mask = fields.get("mask")
    if pad is not None and not isinstance(pad, int | float):
        raise TypeError("pad must be a number")
    if mask is not None and not isinstance(mask, str):
        raise TypeError("mask must name an input")
    length_of = fields.get("length_of")
    if length_of is not None and not isinstance(length_of, str):
        raise TypeError("length_of must name an input")
    shape = _shape(fields["shape"])
    return TensorSpec(_dtype(fields["dtype"]), shape, pad, mask, length_of)


def _spec_json(spec: TensorSpec) -> dict[str, JsonValue]:
    form: dict[str, JsonValue] = {"dtype": spec.dtype.name, "shape": list(spec.shape)}
    if spec.pad is not None:
        form["pad"] = spec.pad
    if spec.mask is not None:
        form["mask"] = spec.mask
    if spec.length_of is not None:
        form["length_of"] = spec.length_of
    return form


def _feature(form: object) -> FeatureSpec:
    fields = _object(form)
    _check_keys(fields, "input", "kind", "dtype", "shape", "default", "pad")
    dtype = _dtype(fields["dtype"])
    shape = _shape(fields.get("shape", []), lowest=0)
    name = fields["input"]
    if not isinstance(name, str):
        raise TypeError("a feature's input must be a name")
    default = _values(fields.get("default"), dtype, math.prod(shape))
    pad = _values(fields.get("pad"), dtype, 1)
    return FeatureSpec(
        input=name,
        kind=FeatureKind(fields["kind"]),
        dtype=dtype,
        shape=shape,
        default=default,
        pad=None if pad is None else pad[0],
    )


def _values(
    form: object, dtype: DType, num: int
) -> tuple[float, ...] | tuple[bytes, ...] | None:
    """Reads a scalar (repeated ``num`` times) or a list of numbers or strings."""
    if form is None:
        return None
    if num > _MAX_DEFAULT_VALUES:
        raise ValueError(f"a feature of {num} values is too large")
    values = form if isinstance(form, list) else [form] * num
    if dtype is STRING:
        strings = tuple(str(v).encode() for v in values if isinstance(v, str))
        if len(strings) != len(values):
            raise TypeError("a string feature's default must be strings")
        return strings
    if not all(isinstance(value, int | float) for value in values):
        raise TypeError("a numeric feature's default must be numbers")
    return tuple(values)


def _feature_json(feature: FeatureSpec) -> dict[str, JsonValue]:
    form: dict[str, JsonValue] = {
        "input": feature.input,
        "kind": feature.kind.value,
        "dtype": feature.dtype.name,
        "shape": list(feature.shape),
    }
    if feature.default is not None:
        form["default"] = [_plain(value) for value in feature.default]
    if feature.pad is not None:
        form["pad"] = _plain(feature.pad)
    return form


def _plain(value: float | bytes) -> JsonValue:
    return value.decode() if isinstance(value, bytes) else value


def _tensor(form: object) -> TensorView:
    fields = _object(form)
    _check_keys(fields, "dtype", "shape", "value")
    dtype = _dtype(fields["dtype"])
    shape = _shape(fields["shape"], lowest=0)
    return TensorView.checked(dtype, shape, _payload(fields["value"], dtype))


def _payload(form: object, dtype: DType) -> bytes | tuple[bytes, ...]:
    if dtype is STRING:
        if not isinstance(form, list):
            raise TypeError("strings are a list of base64 texts")
        return tuple(base64.b64decode(item, validate=True) for item in form)
    if not isinstance(form, str):
        raise TypeError("a tensor's value is one base64 text")
    return base64.b64decode(form, validate=True)


def _tensor_json(view: TensorView) -> dict[str, JsonValue]:
    value: JsonValue
    if isinstance(view.data, tuple):
        value = [base64.b64encode(item).decode() for item in view.data]
    else:
        value = base64.b64encode(view.data).decode()
    return {"dtype": view.dtype.name, "shape": list(view.shape), "value": value}


def _slot(form: object) -> ExampleSlot:
    fields = _object(form)
    _check_keys(fields, "shape", "offset", "value")
    offset = fields.get("offset", 0)
    if type(offset) is not int or offset < 0:
        raise ValueError(f"bad offset {offset!r}")
    value = fields.get("value")
    strings = None if value is None else _payload(value, STRING)
    shape = _shape(fields["shape"], lowest=0)
    return ExampleSlot(shape, offset, cast("tuple[bytes, ...] | None", strings))


def _slot_json(slot: ExampleSlot) -> dict[str, JsonValue]:
    form: dict[str, JsonValue] = {"shape": list(slot.shape)}
    if slot.value is None:
        form["offset"] = slot.offset
    else:
        form["value"] = [base64.b64encode(item).decode() for item in slot.value]
    return form


FORMAT: Final = 1
MANIFEST: Final = "servable.json"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A payload file's promise: size and hex digest."""

    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Producer:
    """Who wrote the version: versions of TFS and torch, ISO time of creation."""

    tfs: str = ""
    torch: str = ""
    created: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of ``servable.json``. Immutable.

    Attributes:
        platform: "torch_package" and so on.
        files: Every payload file by its path relative to the version directory,
            ``/``-separated, inside it.
        entry: The platform's own: which pickle, which resource.
        signatures: The signatures, by key.
        producer: Who wrote it.

    """

    platform: str
    files: Mapping[str, FileEntry]
    signatures: Mapping[str, Signature]
    entry: Mapping[str, object] = field(default_factory=dict)
    producer: Producer = field(default_factory=Producer)

    def to_json(self) -> str:
        """Returns the file's text."""
        form = {
            "format": FORMAT,
            "platform": self.platform,
            "files": {
                name: {"size_bytes": entry.size_bytes, "sha256": entry.sha256}
                for name, entry in self.files.items()
            },
            "entry": dict(self.entry),
            "signatures": {n: signature_to_json(s) for n, s in self.signatures.items()},
            "producer": {
                "tfs": self.producer.tfs,
                "torch": self.producer.torch,
                "created": self.producer.created,
            },
        }
        return json.dumps(form, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str, where: str) -> Manifest:
        """Reads the file's text.

        Raises:
            DataLoss: Not a manifest, or of a newer format; says where.

        """
        try:
            form: Any = read_strict(text)
            if not isinstance(form, dict):
                raise TypeError("not an object")
            if form["format"] != FORMAT:
                raise ValueError(f"format {form['format']!r} is not {FORMAT}")
            files = {
                inside(name): FileEntry(int(f["size_bytes"]), str(f["sha256"]))
                for name, f in form["files"].items()
            }
            signatures = read_signatures(form["signatures"], where)
            producer = form.get("producer", {})
            return cls(
                platform=str(form["platform"]),
                files=files,
                signatures=signatures,
                entry=dict(form.get("entry", {})),
                producer=Producer(
                    **{k: str(producer.get(k, "")) for k in ("tfs", "torch", "created")}
                ),
            )
        except (
            KeyError, TypeError, ValueError, AttributeError, RecursionError,
            OverflowError,
        ) as error:  # fmt: skip
            what = f"missing {error}" if isinstance(error, KeyError) else str(error)
            raise DataLoss(f"bad {MANIFEST} in {where}: {what}") from error
        except InvalidArgument as error:
            raise DataLoss(error.message) from error


def read_signatures(form: object, where: str) -> dict[str, Signature]:
    """Reads the ``signatures`` object of a manifest or of ``signatures.json``.

    Raises:
        InvalidArgument: Saying where and what is wrong.

    """
    if not isinstance(form, dict) or not form:
        raise InvalidArgument(f"{where}: signatures must be a non-empty object")
    return {
        str(name): signature_from_json(part, f"{where}, signature {name!r}")
        for name, part in form.items()
    }


def inside(name: str) -> str:
    """Returns a file's name if it stays inside the version directory.

    Raises:
        ValueError: It leads out of it; names it.

    """
    parts = name.split("/")
    if "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"file name {name!r} leaves the version directory")
    return name


def read_strict(text: str) -> object:
    """Returns the value of a JSON text.

    Raises:
        ValueError: It is not JSON, or an object has a key twice; names the key.
        RecursionError: Lists or objects are nested too deeply.

    """
    value: object = json.loads(text, object_pairs_hook=_without_repeats)
    return value


def _without_repeats(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is there twice")
        found[key] = value
    return found
