"""``tfs package``: makes a version from a model's code, a file or an edited version."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tfs.cli.argument_range import Subparsers, version_number
from tfs.core.errors import InvalidArgument, ServingError
from tfs.core.version.version_layout import SAVED_FORMS

if TYPE_CHECKING:
    from tfs.export import DependencyReport

N = TypeVar("N", int, float)

_EPILOG = """\
SPEC is one of
  my.module:net      an nn.Module, or a function without arguments that returns one
  servable.py        a Python file with a class that has `predict`
  table.csv, .json   a lookup table
  path/to/1/         a version directory whose files were edited: published again

examples
  tfs package nets:resnet --example nets:images --out /models/resnet
  tfs package nets:resnet --explain
  tfs package text:net --default temperature=1.0 --out /models/text
  tfs package servable.py --weights weights.safetensors --out /models/tokens
  tfs package servable.py --example nets:texts --out /models/tokens
"""


def add_parser(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "package",
        help="make a servable version of a model",
        description="Makes a version of a model: from code, from a file, or from an "
        "edited version.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("spec", metavar="SPEC", help="what to package, see below")
    parser.add_argument("--out", metavar="BASE", help="the model's directory")
    parser.add_argument(
        "--version", type=version_number, help="its number; default: the next free one"
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help="show which modules would be packaged and why; write nothing",
    )
    model = parser.add_argument_group("of an nn.Module")
    _add_signature(model)
    _add_packaging(model)
    beside = parser.add_argument_group("beside the model")
    beside.add_argument("--weights", help="of a servable.py: .safetensors or .pt")
    beside.add_argument("--assets", metavar="DIR", help="copied to assets/")
    beside.add_argument("--batching_parameters_file", metavar="FILE")
    parser.set_defaults(run=run)


def _add_signature(model: argparse._ArgumentGroup) -> None:
    model.add_argument(
        "--example",
        metavar="MODULE:NAME",
        help="example inputs, or a function that returns them; default: "
        "`example_inputs` beside the model. Of a servable.py: by name",
    )
    model.add_argument(
        "--form",
        "--platform",
        default="torch_package",
        choices=SAVED_FORMS,
        help="how to store it; default: torch_package",
    )
    model.add_argument(
        "--method", default="predict", choices=("predict", "classify", "regress")
    )
    model.add_argument("--labels", help="class names in score order, with commas")
    model.add_argument("--output_names", help="names of the outputs, with commas")
    model.add_argument(
        "--unbatched", action="store_true", help="dimension 0 is not the batch"
    )
    for option, value, meaning in (
        ("dynamic", "DIMS", "dimensions besides 0 that callers may size: tokens=1"),
        ("pad", "NUMBER", "what fills up shorter rows: tokens=0"),
        ("mask", "INPUT", "the input that tells where: tokens=attention"),
        ("default", "JSON", "what an input is that callers leave out: temperature=1.0"),
        ("signature", "MODULE:NAME", "one more, a Signature: embed=nets:embed"),
    ):
        model.add_argument(
            f"--{option}",
            action="append",
            default=[],
            metavar=f"NAME={value}",
            help=meaning,
        )
    model.add_argument(
        "--features",
        metavar="MODULE:NAME",
        help="tf.Example features, a dict of FeatureSpecs; default: one per input",
    )
    model.add_argument(
        "--concurrency",
        type=int,
        default=1,
        help="requests it takes at once, to batch parts of itself; default: 1",
    )


def _add_packaging(model: argparse._ArgumentGroup) -> None:
    for rule, meaning in (
        ("intern", "put the source of these modules into the archive"),
        ("extern", "import these from the server's environment"),
        ("mock", "replace these by stubs"),
        ("include", "put in modules that nothing imports visibly"),
    ):
        model.add_argument(
            f"--{rule}", action="append", default=[], metavar="GLOB", help=meaning
        )
    model.add_argument(
        "--resource",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help="put a file into the archive under a name",
    )
    model.add_argument(
        "--source",
        action="append",
        default=[],
        metavar="MODULE=PATH",
        help="take a module's code from this file or folder",
    )


def run(args: argparse.Namespace) -> int:
    """Runs the command; returns the exit status, 1 with a message on a mistake."""
    try:
        with _told_warnings():
            return _run(args)
    except ServingError as error:
        print(f"tfs package: {error.message}", file=sys.stderr)
    except OSError as error:
        what = error.strerror or str(error)
        where = f"{error.filename}: " if error.filename else ""
        print(f"tfs package: {where}{what}", file=sys.stderr)
    return 1


@contextlib.contextmanager
def _told_warnings() -> Iterator[None]:
    """Prints the exporter's warnings in a block; the form of a log suits programs."""

    class Sentence(logging.Formatter):
        def formatMessage(self, record: logging.LogRecord) -> str:
            event, _, told = record.getMessage().removeprefix("event=").partition(" ")
            return f"tfs package: warning: {event.replace('_', ' ')}: {told}"

    log = logging.getLogger("tfs")
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(Sentence())
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def _run(args: argparse.Namespace) -> int:
    if args.explain:
        if os.path.exists(args.spec):
            raise InvalidArgument(
                f"--explain is about an nn.Module, MODULE:NAME; {args.spec} is a file "
                "or folder, packaged as it is"
            )
        from tfs.export import Packaging, explain

        module, _ = _named_module(args.spec)
        found = explain(module, Packaging(**_rules(args)))
        print(found.tree())
        if not found.is_complete:
            print(f"\n{found.advice()}")
        return 0 if found.is_complete else 1
    if not args.out:
        raise InvalidArgument("--out names the model's directory; or use --explain")
    print(_write(args))
    return 0


def _write(args: argparse.Namespace) -> str:
    spec: str = args.spec
    _refuse_unused(args)
    batching_parameters = None
    if args.batching_parameters_file:
        batching_parameters = _text(args.batching_parameters_file)
    if os.path.isdir(spec):
        from tfs.export import reseal

        return reseal(spec, args.out, args.version)
    suffix = os.path.splitext(spec)[1]
    if suffix in (".csv", ".json"):
        return _write_table(spec, args.out, args.version)
    if suffix == ".py":
        return _write_python(args, batching_parameters)
    return _write_module(args, batching_parameters)


def _write_python(args: argparse.Namespace, batching_parameters: str | None) -> str:
    from tfs.export import Packaging, save_python

    return save_python(
        args.spec,
        args.out,
        args.version,
        weights=args.weights,
        example_inputs=_named_example(args.example, "") if args.example else None,
        assets=args.assets,
        packaging=Packaging(
            extern=args.extern,
            include=args.include,
            batching_parameters=batching_parameters,
        ),
    )


def _write_module(args: argparse.Namespace, batching_parameters: str | None) -> str:
    from tfs.export import Packaging, Signature, save
    from tfs.export.signatures.named_inputs import default_values

    module, home = _named_module(args.spec)
    example = _named_example(args.example, home)
    signature = Signature(
        example,
        method=args.method,
        labels=_names(args.labels) or (),
        output_names=_names(args.output_names),
        batched=not args.unbatched,
        dynamic={
            name: [_number(int, "dynamic", each) for each in dimensions.split(",")]
            for name, dimensions in _pairs(args.dynamic, "dynamic").items()
        },
        pad={
            name: _number(float, "pad", number)
            for name, number in _pairs(args.pad, "pad").items()
        },
        mask=_pairs(args.mask, "mask"),
        features=_named_value(args.features) if args.features else None,
        defaults=default_values(_pairs(args.default, "default"), module, example),
    )
    packaging = Packaging(
        concurrency=args.concurrency,
        batching_parameters=batching_parameters,
        report=_print_report,
        **_rules(args),
    )
    return save(
        module,
        signature,
        args.out,
        args.version,
        signatures=_signatures(args.signature),
        platform=args.form,
        packaging=packaging,
        assets=args.assets,
    )


_OF_MODULES: Final = (
    "form", "method", "labels", "output_names", "unbatched", "dynamic", "pad", "mask",
    "intern", "extern", "mock", "include", "resource", "default", "signature",
    "features", "concurrency", "source",
)  # fmt: skip
_TAKEN: Final = {
    "an nn.Module": (*_OF_MODULES, "example", "assets", "batching_parameters_file"),
    "a servable.py": (
        "example",
        "weights",
        "extern",
        "include",
        "assets",
        "batching_parameters_file",
    ),
    "a table": (),
    "an edited version": (),
}
_DEFAULTS: Final = {"form": "torch_package", "method": "predict", "concurrency": 1}


def _refuse_unused(args: argparse.Namespace) -> None:
    """Refuses options that have no effect on what is packaged and would be ignored."""
    suffix = os.path.splitext(args.spec)[1]
    if os.path.isdir(args.spec):
        kind = "an edited version"
    elif suffix in (".csv", ".json"):
        kind = "a table"
    else:
        kind = "a servable.py" if suffix == ".py" else "an nn.Module"
    for option in dict.fromkeys(each for taken in _TAKEN.values() for each in taken):
        value = getattr(args, option)
        if option in _TAKEN[kind] or not value or value == _DEFAULTS.get(option):
            continue
        raise InvalidArgument(
            f"--{option} says nothing about {kind}, which {args.spec} is"
            + (
                "; its class says it itself, in signatures, methods and concurrency"
                if kind == "a servable.py"
                else ""
            )
        )


def _write_table(path: str, base_path: str, version: int | None) -> str:
    from tfs.core.version_directory import commit
    from tfs.export.publish import producer, publish
    from tfs.servables.platforms.hashmap import read_table, table_signatures

    target = f"table{os.path.splitext(path)[1]}"
    text = _text(path)

    def fill(folder: str) -> None:
        file = Path(folder, target)
        file.write_text(text, encoding="utf-8")
        signatures = table_signatures(read_table(str(file)))
        commit(folder, "hashmap", signatures, {}, producer())

    return publish(base_path, version, fill)


def _print_report(report: DependencyReport) -> None:
    print(report.tree(), file=sys.stderr)


def _rules(args: argparse.Namespace) -> dict[str, Any]:
    resources: dict[str, bytes] = {}
    for name, file in _pairs(args.resource, "resource").items():
        try:
            resources[name] = Path(file).read_bytes()
        except OSError as error:
            raise InvalidArgument(
                f"--resource {name}={file}: {error.strerror}"
            ) from error
    return {
        "intern": args.intern,
        "extern": args.extern,
        "mock": args.mock,
        "include": args.include,
        "sources": _pairs(args.source, "source"),
        "resources": resources,
    }


def _signatures(given: Sequence[str]) -> dict[str, Any]:
    from tfs.export import Signature

    signatures = {}
    for key, spec in _pairs(given, "signature").items():
        signatures[key] = made = _named_value(spec)
        if not isinstance(made, Signature):
            raise InvalidArgument(
                f"--signature {key}={spec}: {spec} is no tfs.export.Signature "
                "and gives none"
            )
    return signatures


def _pairs(given: Sequence[str], option: str) -> dict[str, str]:
    """Returns the values of NAME=VALUE options by name."""
    pairs = {}
    for each in given:
        name, separator, value = each.partition("=")
        if not separator:
            raise InvalidArgument(f"--{option} {each}: write NAME=VALUE")
        pairs[name] = value
    return pairs


def _number(kind: Callable[[str], N], option: str, text: str) -> N:
    try:
        return kind(text)
    except ValueError:
        raise InvalidArgument(f"--{option}: {text!r} is no number") from None


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",")]


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path}: {error}") from error


def _named_module(spec: str) -> tuple[Any, str]:
    """Returns the ``nn.Module``, and the name of the Python module it was found in."""
    value = _import(spec)
    # An nn.Module can be called too; a class or function makes one.
    is_made = hasattr(value, "named_parameters") and not isinstance(value, type)
    made = value if is_made or not callable(value) else _called(spec, value)
    if not hasattr(made, "named_parameters"):
        raise InvalidArgument(f"{spec} is no nn.Module and gives none")
    return made, spec.partition(":")[0]


def _named_example(spec: str | None, home: str) -> Any:
    """Returns example inputs; without a name, ``example_inputs`` of the module ``home``."""
    try:
        return _named_value(spec or f"{home}:example_inputs")
    except InvalidArgument as error:
        if spec:
            raise
        raise InvalidArgument(
            f"{error.message}; put them there, or name them with --example MODULE:NAME"
        ) from error


def _named_value(spec: str) -> Any:
    """Returns the object, or what it returns if it is a function or a class."""
    value = _import(spec)
    return _called(spec, value) if callable(value) else value


def _called(spec: str, value: Callable[[], object]) -> Any:
    try:
        return value()
    except ServingError:
        raise
    except Exception as error:
        raise _raised(spec, error) from error


def _raised(spec: str, error: Exception) -> InvalidArgument:
    """Returns what to say of an exception of a user's own code, and its last line there."""
    installed = [sysconfig.get_path(each) for each in ("stdlib", "purelib")]
    others = (*installed, "<frozen", __file__)
    lines = [
        f" ({each.filename}:{each.lineno})"
        for each in traceback.extract_tb(error.__traceback__)
        if not each.filename.startswith(others)
    ]
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return InvalidArgument(f"{spec} raises {what}{lines[-1] if lines else ''}")


def _import(spec: str) -> Any:
    """Returns the object that ``module:name`` names; the current folder is searched first."""
    name, separator, attribute = spec.partition(":")
    if not separator:
        raise InvalidArgument(
            f"{spec}: no such file or directory, and no MODULE:NAME either"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        value: Any = importlib.import_module(name)
        for part in attribute.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError) as error:
        hint = ""
        if name.endswith(".py") and os.path.isfile(name):
            hint = f"; modules are named without .py: {name[:-3]}:{attribute}"
        raise InvalidArgument(f"{spec}: {error}{hint}") from error
    except Exception as error:
        raise _raised(spec, error) from error
    return value
