"""Writes a module as TorchScript."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from tfs.core.errors import InvalidArgument
from tfs.core.version.version_layout import ARCHIVE
from tfs.export.packaging.archive_file import archive_file
from tfs.export.writers.described_module import DescribedModule


def write_script(folder: str, module: DescribedModule) -> dict[str, object]:
    """Writes a module that is scripted already, or can be; returns the manifest's entry.

    Raises:
        InvalidArgument: It cannot be stored in this form; says why.

    """
    name = module.name
    if classes := module.argument_classes:
        raise InvalidArgument(
            f"{name} takes objects of {', '.join(classes)}, and a script brings no "
            "classes along: save it as torch_package, or have it take plain tuples"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            scripted = _scripted(module.module)
            _refuse_own_tensors(scripted, name)
            with archive_file(os.path.join(folder, ARCHIVE)) as file:
                torch.jit.save(scripted, file)
        except (OSError, InvalidArgument):
            raise  # the first is about the disk and not the script
        except Exception as error:
            raise InvalidArgument(
                f"{name} cannot be scripted: {error}\nPass the result of "
                "torch.jit.trace instead, or save it as torch_package, which "
                "takes any Python"
            ) from error
    methods = [each.call for each in module.options.values()]
    unknown = [call for call in methods if not hasattr(scripted, call)]
    if unknown:
        raise InvalidArgument(
            f"{name} was scripted without {', '.join(unknown)}: scripting takes "
            "forward and what it calls; decorate other methods that clients "
            "call with @torch.jit.export"
        )
    return module.entry


def _scripted(module: torch.nn.Module) -> Any:
    if isinstance(module, torch.jit.ScriptModule):
        return module
    try:
        return torch.jit.script(module)
    except OSError as error:  # what has no file has no source, as a dataclass's methods
        raise ValueError(str(error)) from error


def _refuse_own_tensors(scripted: torch.jit.ScriptModule, name: str) -> None:
    """Refuses tensors of classes that compute by themselves.

    They may have no memory of their own, and torch.jit.save then ends the process: the
    program that trained the model.
    """
    for path, tensor in _tensors_of(scripted):
        kind = type(tensor)
        if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            raise InvalidArgument(
                f"{name} cannot be scripted: its {path} is a {kind.__qualname__}, a "
                "tensor that computes by itself, and TorchScript holds plain ones. Make "
                "it plain, or save the model as torch_package, which takes any Python"
            )


def _tensors_of(scripted: torch.jit.ScriptModule) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the parameters, buffers, attributes and constants of a script by place."""
    for name, part in scripted.named_modules():
        prefix = f"{name}." if name else ""
        yield from part.named_parameters(prefix=name, recurse=False)
        yield from part.named_buffers(prefix=name, recurse=False)
        # torch's own, with its methods; without it, no constants and attributes are seen.
        script: Any = getattr(part, "_c", None)
        for method in script._method_names() if script is not None else ():
            graph = script._get_method(method).graph
            for node in graph.findAllNodes("prim::Constant"):
                if node.hasAttribute("value") and node.kindOf("value") == "t":
                    yield f"{prefix}{method} (a constant)", node.t("value")
            for node in graph.findAllNodes("prim::GetAttr"):
                attribute = node.s("name")
                value = script.getattr(attribute) if script.hasattr(attribute) else None
                yield from _tensors_in(prefix + attribute, value)


def _tensors_in(path: str, value: object) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors_in(path, each)
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _tensors_in(path, each)
