# pyright: basic
"""Files, copies and exports of a script under watch or levers equal those of the plain script.

Levers and watch modify single modules: a ``forward`` in front of the class's, a compiled call, hooks. None of them may be in a
file, which would then need gpuwise to load, nor in a copy, whose calls would be the original's. :func:`plain_entries` returns
a module's attributes without them. Pickles and copies (``torch.save``, ``pickle``, ``copy``) use these; ``torch.jit``,
``torch.export``, ``torch.onnx`` and ``torch.fx`` read modules with all modifications removed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

from gpuwise.train.levers.forward import ABSENT, Forward
from gpuwise.workload.capture.device.patching import Patches

HOOKS = (
    ("_forward_pre_hooks", ("_forward_pre_hooks_with_kwargs",)),
    ("_forward_hooks", ("_forward_hooks_with_kwargs", "_forward_hooks_always_called")),
    ("_backward_pre_hooks", ()),
    ("_backward_hooks", ()),
    ("_state_dict_hooks", ()),
)
"""A module's dictionaries of hooks, and those that say more of the same hooks by their numbers."""
EXPORTERS = (
    ("jit", "script"),
    ("jit", "trace"),
    ("jit", "trace_module"),
    ("export", "export"),
    ("export", "draft_export"),
    ("onnx", "export"),
    ("fx", "symbolic_trace"),
)
"""Functions of torch that write a module down by reading or running it."""

FLAGS: list[tuple[Any, str, Any]] = []
"""Settings of torch that levers have changed, with their values before: a trace writes some of them down."""

COMPILER_MARK = "_dynamo_static_input_type"
"""Attribute that ``torch.compile`` sets on a module's parameters, which PyTorch then pickles."""
COMPILED = WeakTensorKeyDictionary()
"""Parameters that a lever has compiled and the script has not."""


def compiled_by_lever(module: nn.Module) -> None:
    """Keep the compiler's mark out of the files of ``module``'s parameters that don't have it yet."""
    for parameter in module.parameters():
        if not hasattr(parameter, COMPILER_MARK):
            COMPILED[parameter] = True


def plain_entries(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a module's own attributes that refer to gpuwise, with their values without it (``ABSENT``: no attribute)."""
    plain: dict[str, Any] = {}
    forward = attributes.get("forward")
    if isinstance(forward, Forward):
        plain["forward"] = forward.plain
    compiled = attributes.get("_compiled_call_impl")
    if compiled is not None and hasattr(compiled, "_gpuwise_before"):
        plain["_compiled_call_impl"] = compiled._gpuwise_before
    for name, others in HOOKS:
        hooks = attributes.get(name)
        ours = [n for n, hook in hooks.items() if _is_ours(hook)] if hooks else []
        if ours:
            for each in (name, *others):
                entry = attributes[each]
                plain[each] = type(entry)((n, v) for n, v in entry.items() if n not in ours)
    return plain


def _is_ours(hook: Any) -> bool:
    return str(getattr(getattr(hook, "__func__", hook), "__module__", "")).startswith("gpuwise.")


def without(value: Any) -> Any:
    """``value`` of a pickle's parts: attributes of a module without anything of gpuwise; any other as it is."""
    if not isinstance(value, dict):
        return value
    changed = plain_entries(value)
    if not changed:
        return value
    merged = {k: changed.get(k, v) for k, v in value.items()}
    return {k: v for k, v in merged.items() if v is not ABSENT}


def pickled_plain(patches: Patches) -> None:
    """Modules and their parameters are pickled and copied as the script made them, without what a lever added."""

    def __reduce_ex__(module: nn.Module, protocol: Any) -> Any:
        reduced = object.__reduce_ex__(module, protocol)
        if not isinstance(reduced, tuple):
            return reduced
        function, arguments, *rest = reduced
        arguments = tuple(map(without, arguments)) if isinstance(arguments, tuple) else arguments
        return (function, arguments, *map(without, rest))

    patches.set(nn.Module, "__reduce_ex__", __reduce_ex__)
    reduce_parameter = nn.Parameter.__reduce_ex__

    def reduce_unmarked(parameter: nn.Parameter, protocol: Any) -> Any:
        attributes: dict[str, Any] = vars(parameter)
        mark = attributes.pop(COMPILER_MARK, ABSENT) if parameter in COMPILED else ABSENT
        try:
            return reduce_parameter(parameter, protocol)
        finally:
            if mark is not ABSENT:
                attributes[COMPILER_MARK] = mark

    patches.set(nn.Parameter, "__reduce_ex__", reduce_unmarked)


def exported_plain(patches: Patches) -> None:
    """Functions that read or run a module to write it down see the script's own module."""
    for place, name in EXPORTERS:
        owner = getattr(torch, place, None)
        original = getattr(owner, name, None)
        if owner is not None and original is not None:
            patches.set(owner, name, _lifting(original, by_frames=name == "script"))
    patches.set(torch.fx.Tracer, "trace", _lifting(torch.fx.Tracer.trace, at=1))


def _lifting(original: Callable[..., Any], *, at: int = 0, by_frames: bool = False) -> Callable[..., Any]:
    @functools.wraps(original)
    def lifting(*args: Any, **kwargs: Any) -> Any:
        if by_frames:
            # names in what is compiled are looked up in the caller's frame
            kwargs["_frames_up"] = kwargs.get("_frames_up", 0) + 1
        argument = args[at] if len(args) > at else next(iter(kwargs.values()), None)
        module = getattr(argument, "__self__", argument)
        if not isinstance(module, nn.Module):
            return original(*args, **kwargs)
        with lifted(module):
            return original(*args, **kwargs)

    return lifting


@contextmanager
def lifted(module: nn.Module) -> Iterator[None]:
    """``module`` and those in it as the script made them, and ``Module.__call__`` as torch has it."""
    call = vars(nn.Module)["__call__"]
    plain_call = call
    while hasattr(plain_call, "__wrapped__"):
        plain_call = plain_call.__wrapped__
    replaced: list[tuple[dict[str, Any], str, Any, Any]] = []
    for each in module.modules():
        attributes = vars(each)
        for name, plain in plain_entries(attributes).items():
            replaced.append((attributes, name, attributes[name], plain))
            _put(attributes, name, plain)
    flags = [(owner, name, getattr(owner, name)) for owner, name, _ in FLAGS]
    for owner, name, before in FLAGS:
        setattr(owner, name, before)
    nn.Module.__call__ = plain_call  # type: ignore[method-assign]
    try:
        yield
    finally:
        for owner, name, now in flags:
            setattr(owner, name, now)
        if vars(nn.Module)["__call__"] is plain_call:
            nn.Module.__call__ = call  # type: ignore[method-assign]
        for attributes, name, ours, plain in reversed(replaced):
            if attributes.get(name, ABSENT) is plain:
                attributes[name] = ours


def _put(attributes: dict[str, Any], name: str, value: Any) -> None:
    if value is ABSENT:
        attributes.pop(name, None)
    else:
        attributes[name] = value


@contextmanager
def saves_plain() -> Iterator[None]:
    """All of it, for the length of the context."""
    patches = Patches()
    pickled_plain(patches)
    exported_plain(patches)
    try:
        yield
    finally:
        patches.undo()
        FLAGS.clear()
