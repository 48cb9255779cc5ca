"""How a model is called by names only, also one that takes or returns dicts and tuples.

A request has one name per tensor. A tensor inside a container is named by the way to
it, with dots between: ``boxes.0``, ``state.hidden``. The exporter writes into the
manifest's entry where that is needed; other models are called as they are. Arguments
that are named tuples or dataclasses are made by their classes, which the archive
contains.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from typing import Final, TypeAlias, cast

import torch
from torch.nn.modules import module as torch_module

from tfs.core.errors import InvalidArgument
from tfs.runtime.guest.model_source import ModelSource


def check_parameters(
    function: Callable[..., object], inputs: Collection[str], who: str
) -> None:
    """Checks that a function can be called with these inputs by name.

    Args:
        function: What is to be called; one that does not tell its parameters is fine.
        inputs: The names.
        who: The version and signature, for the message.

    Raises:
        InvalidArgument: Every call would fail; says what the function takes.

    """
    try:
        wanted = _signature_of(function)
    except (TypeError, ValueError):
        return
    try:
        wanted.bind(**dict.fromkeys(inputs))
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise InvalidArgument(
            f"{who}: {name} takes ({', '.join(map(str, wanted.parameters.values()))}), "
            f"but is called with the signature's inputs by name: "
            f"{', '.join(sorted(inputs)) or 'none'} ({error}); give its parameters these "
            "names"
        ) from error


def check_returns(function: Callable[..., object], who: str) -> None:
    """Checks that a function returns values, which asynchronous ones do not.

    Raises:
        InvalidArgument: It returns something that has to be awaited, or iterated over.

    """
    name = getattr(function, "__name__", type(function).__name__)
    if inspect.iscoroutinefunction(function):
        raise InvalidArgument(
            f"{who}: {name} is asynchronous, and calls are not awaited: write def, not "
            "async def (asyncio.run in it, if need be)"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidArgument(
            f"{who}: {name} is a generator: return what it yields, all at once"
        )


def _signature_of(function: Callable[..., object]) -> inspect.Signature:
    """Returns what a function takes.

    Raises:
        TypeError: It does not tell.
        ValueError: It does not tell.

    """
    if isinstance(function, torch.nn.Module):
        own_call = type(function).__call__ is not torch.nn.Module.__call__
        if function._forward_pre_hooks or (
            own_call and not isinstance(function, torch.jit.ScriptModule)
        ):
            raise ValueError("forward may be called with something else")
        function = function.forward
    scripted = scripted_parameters(function)
    if scripted is not None:
        return inspect.Signature(scripted)
    # A wrapper takes what it takes itself, not what it says it wraps.
    return inspect.signature(function, follow_wrapped=False)


def scripted_parameters(
    function: Callable[..., object],
) -> list[inspect.Parameter] | None:
    """Returns what a function of TorchScript takes; None for any other."""
    schema = getattr(function, "schema", None)
    if not isinstance(schema, torch.FunctionSchema):
        return None
    empty = inspect.Parameter.empty
    return [
        inspect.Parameter(
            each.name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=each.default_value if each.has_default_value() else empty,
        )
        for each in schema.arguments
        if each.name != "self"
    ]


_OWN_TABLES: Final = (
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks",
    "_forward_pre_hooks",
)
_COMMON_TABLES: Final = (
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
)


def module_call(module: torch.nn.Module) -> Callable[..., object]:
    """Returns a function that calls a module with inputs by name, including its hooks.

    It is the module itself if that is not called in the usual way, because it was
    compiled, is scripted, or its class has a way of its own.
    """
    own, common = vars(module), vars(torch_module)
    tables = [own.get(name) for name in _OWN_TABLES]
    tables += [common.get(name) for name in _COMMON_TABLES]
    if (
        type(module).__call__ is not torch.nn.Module.__call__
        or isinstance(module, torch.jit.ScriptModule)
        or own.get("_compiled_call_impl") is not None
        or not all(isinstance(table, dict) for table in tables)
    ):
        return module
    a, b, c, d, e, f, g, h = tables

    def call(**inputs: object) -> object:
        if a or b or c or d or e or f or g or h:
            return _with_hooks(module, inputs)
        return module.forward(**inputs)

    return call


def _with_hooks(module: torch.nn.Module, inputs: dict[str, object]) -> object:
    """Calls a module by position as far as it goes, if that is how its hooks get inputs.

    A hook sees what is passed by keyword only if it was registered with ``with_kwargs``;
    others would be called with no inputs at all.
    """
    names: list[str] = []
    if any(
        key not in with_keywords
        for hooks, with_keywords in (
            (module._forward_hooks, module._forward_hooks_with_kwargs),
            (module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs),
            (torch_module._global_forward_hooks, ()),
            (torch_module._global_forward_pre_hooks, ()),
        )
        for key in hooks
    ):
        names = _leading(module.forward, inputs)
    rest = {name: value for name, value in inputs.items() if name not in names}
    return module(*(inputs[name] for name in names), **rest)


def _leading(function: Callable[..., object], inputs: Container[str]) -> list[str]:
    """Returns the first parameters of a function, up to one for which there is no input."""
    names = []
    for each in inspect.signature(function).parameters.values():
        if each.kind is not each.POSITIONAL_OR_KEYWORD or each.name not in inputs:
            break
        names.append(each.name)
    return names


Function: TypeAlias = Callable[..., object]

Form: TypeAlias = "str | Mapping[str, object] | None"
"""How one argument is put together: an input's name, None, ``{"dict": {key: form}}``,
``{"list": [form]}``, ``{"tuple": [form]}`` or ``{"class": "module:Name", "fields": {name:
form}}``; all of it goes into JSON."""

FindClass: TypeAlias = Callable[[str, str], Function]
"""Returns the class of a module, both by their names."""

_PLAIN = (str, bytes, int, float, complex)


def parts_of(value: object) -> list[tuple[str, object]] | None:
    """Returns the contents of a container by key, field or index; None for a single value.

    Lists of numbers alone, and lists or tuples of strings, are single values: tensors.
    """
    if isinstance(value, Mapping):
        return [(str(key), part) for key, part in value.items()]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [each.name for each in dataclasses.fields(value)]
        return [(name, getattr(value, name)) for name in names]
    fields = getattr(value, "_fields", None)
    if isinstance(value, tuple):
        if fields is None and value and _holds_only(value, (str, bytes)):
            return None
    elif not isinstance(value, list) or _holds_only(value, _PLAIN):
        return None
    return list(zip(fields or map(str, range(len(value))), value, strict=True))


def _holds_only(value: object, kinds: tuple[type, ...]) -> bool:
    if isinstance(value, tuple | list):
        return all(_holds_only(part, kinds) for part in value)
    return isinstance(value, kinds)


def leaves(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Yields every single value within ``value`` and its name; None is left out."""
    if value is None:
        return
    parts = parts_of(value)
    if parts is None:
        yield name, value
        return
    for key, part in parts:
        yield from leaves(f"{name}.{key}" if name else key, part)


def flattening(function: Function) -> Function:
    """Returns ``function`` with its result made flat: values in order, or by name.

    The values of a tuple come in order, because the signature names its outputs in that
    order; those of other containers come by name.
    """

    def call(**inputs: object) -> object:
        result = function(**inputs)
        if parts_of(result) is None:
            return result
        flat = dict(leaves("", result))
        return tuple(flat.values()) if isinstance(result, tuple | list) else flat

    return call


def class_in(modules: Callable[[str], object], module: str, name: str) -> Function:
    """Returns a class by its name, or by the way to it: ``Outer.Inner``.

    Raises:
        InvalidArgument: It is not there.

    """
    try:
        found = modules(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise InvalidArgument(
            f"the class {name} of {module}, of which an argument is made, is not "
            f"there: {error}"
        ) from error
    return cast("Function", found)


def importable_class(module: str, name: str) -> Function:
    """Returns a class that this program can import; raises as ``class_in``."""
    return class_in(importlib.import_module, module, name)


def nesting(
    function: Function,
    forms: Mapping[str, Form],
    find_class: FindClass = importable_class,
) -> Function:
    """Returns a function of single inputs that makes the arguments of ``function``.

    Args:
        function: Takes the arguments in ``forms``, and further inputs by their names.
        forms: The form of each argument.
        find_class: Finds the classes that forms name.

    Raises:
        InvalidArgument: A class is not there.

    """
    if not forms:
        return function
    classes = {
        path: find_class(*path.split(":"))
        for form in forms.values()
        for path in classes_in(form)
    }
    used = {name for form in forms.values() for name in names_in(form)}

    def call(**inputs: object) -> object:
        built = {name: _built(form, inputs, classes) for name, form in forms.items()}
        others = {name: v for name, v in inputs.items() if name not in used}
        return function(**others, **built)

    return call


def names_in(form: object) -> Iterator[str]:
    """Yields the inputs a form is made of.

    Raises:
        ValueError: It is no form.

    """
    match form:
        case None:
            return
        case str():
            yield form
        case {"dict": Mapping() as parts, **more} if not more:
            for part in parts.values():
                yield from names_in(part)
        case {"list": list() as items, **more} if not more:
            for part in items:
                yield from names_in(part)
        case {"tuple": list() as items, **more} if not more:
            for part in items:
                yield from names_in(part)
        case {"class": str() as path, "fields": Mapping() as parts, **more} if (
            not more and path.count(":") == 1
        ):
            for part in parts.values():
                yield from names_in(part)
        case _:
            raise ValueError(f"{form!r} is no argument's form")


def classes_in(form: object) -> Iterator[str]:
    """Yields the classes that a form names: ``module:Name``."""
    match form:
        case {"class": str() as path, "fields": Mapping() as parts}:
            yield path
        case {"dict": Mapping() as parts}:
            pass
        case {"list": list() as items} | {"tuple": list() as items}:
            parts = dict(enumerate(items))
        case _:
            return
    for part in parts.values():
        yield from classes_in(part)


def _built(
    form: object, inputs: Mapping[str, object], classes: Mapping[str, Function]
) -> object:
    match form:
        case str():
            return inputs[form]
        case {"dict": parts}:
            return {key: _built(part, inputs, classes) for key, part in parts.items()}
        case {"list": items}:
            return [_built(part, inputs, classes) for part in items]
        case {"tuple": items}:
            return tuple(_built(part, inputs, classes) for part in items)
        case {"class": path, "fields": parts}:
            fields = {key: _built(part, inputs, classes) for key, part in parts.items()}
            return classes[path](**fields)
    return None


def called_by_name(
    source: ModelSource, key: str, function: Function, find_class: FindClass
) -> Function:
    """Returns a signature's function as requests call it, by what the entry says.

    Entry "arguments": by signature, the form of each argument that is a container.
    Entry "flattened": the signatures whose result is made flat.

    Raises:
        InvalidArgument: The entry is malformed or names inputs or classes there are
            none of.

    """
    everything = source.entry.get("arguments", {})
    forms = everything.get(key, {}) if isinstance(everything, Mapping) else None
    flattened = source.entry.get("flattened", [])
    try:
        if not isinstance(forms, Mapping) or not isinstance(flattened, list | tuple):
            raise ValueError('"arguments" is an object, "flattened" a list')
        named = {name for form in forms.values() for name in names_in(form)}
    except ValueError as error:
        raise InvalidArgument(
            f"{source.id.slashed}: entry of the manifest, signature {key!r}: {error}"
        ) from error
    if not named <= source.signatures[key].inputs.keys():
        raise InvalidArgument(
            f"{source.id.slashed}: entry 'arguments' of the manifest names "
            f"{', '.join(sorted(named - source.signatures[key].inputs.keys()))}, "
            f"which signature {key!r} does not have as inputs"
        )
    given = {*(source.signatures[key].inputs.keys() - named), *forms}
    check_parameters(function, given, f"{source.id.slashed}, signature {key!r}")
    if isinstance(function, torch.nn.Module):
        function = module_call(function)
    try:
        function = nesting(function, cast("Mapping[str, Form]", forms), find_class)
    except InvalidArgument as error:
        raise InvalidArgument(f"{source.id.slashed}: {error.message}") from error
    return flattening(function) if key in flattened else function
