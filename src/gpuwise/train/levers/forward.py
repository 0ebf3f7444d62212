# pyright: basic
"""The outermost modules of a script, made ready at their first call, and their ``forward`` replaced without trace in copies."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from torch import nn

from gpuwise.workload.capture.device.patching import Patches

Prepare = Callable[[nn.Module], None]
ABSENT: Any = type("ABSENT", (), {"__bool__": lambda self: False})()
"""An attribute that an instance has not."""


class Roots:
    """Calls ``prepare`` once for every outermost module with parameters, at its first call."""

    def __init__(self, prepare: Prepare) -> None:
        self._prepare = prepare
        self._modules_by_id: dict[int, nn.Module] = {}
        self._torch_call = nn.Module.__call__
        self._patches = Patches()
        call, torch_call = self._called, self._torch_call

        def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return call(module, *args, **kwargs)

        called.__wrapped__ = torch_call  # type: ignore[attr-defined]
        self._wrapper = called
        self._patches.set(nn.Module, "__call__", called)
        self._is_over = False

    def _called(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if id(module) not in self._modules_by_id:
            # a checkpoint runs inner modules again in the backward pass, where nothing is around them
            inside = any(module is inner for root in self._modules_by_id.values() for inner in root.modules())
            self._modules_by_id[id(module)] = module
            if not inside and any(True for _ in module.parameters()):
                self._prepare(module)
        # neither inner modules nor a compiler may meet the wrapper
        nn.Module.__call__ = self._torch_call  # type: ignore[method-assign]
        try:
            return self._torch_call(module, *args, **kwargs)
        finally:
            if not self._is_over:
                nn.Module.__call__ = self._wrapper  # type: ignore[method-assign]

    def end_discovery(self) -> None:
        """No new outermost modules come any more."""
        if not self._is_over:
            self._is_over = True
            if vars(nn.Module).get("__call__") is self._wrapper:
                nn.Module.__call__ = self._torch_call  # type: ignore[method-assign]

    def close(self) -> None:
        """Undo the replacements; nothing is looked for any more."""
        self._is_over = True
        self._patches.undo()


class Forward:
    """Replacement of ``module.forward`` on one instance. ``plain``: the attribute before, ``ABSENT`` for the class's own;
    copies and files of the module have that one (:mod:`gpuwise.train.levers.saving`)."""

    def __init__(self, module: nn.Module, wrap: Callable[[nn.Module, Callable[..., Any]], Callable[..., Any]]) -> None:
        inner = module.forward
        functools.update_wrapper(self, inner)
        self._module = module
        self.before = module.__dict__.get("forward", ABSENT)
        self._run = wrap(module, inner)

    @property
    def plain(self) -> Any:
        """The script's own value."""
        return self.before.plain if isinstance(self.before, Forward) else self.before

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # reached where a script copies attributes itself
        copy = memo.get(id(self._module))
        return self if copy is None else types.MethodType(type(copy).forward, copy)

    def __reduce__(self) -> Any:
        # like the bound method that it replaces: names nothing of gpuwise
        return getattr, (self._module, "forward")


def replace_forward(module: nn.Module, wrap: Callable[[nn.Module, Callable[..., Any]], Callable[..., Any]]) -> Callable[[], None]:
    """``wrap(module, forward)`` in place of ``forward``; returns what puts it back."""
    ours = Forward(module, wrap)
    # not by setattr: Fabric's wrapper hands what is set on to the module that it calls
    module.__dict__["forward"] = ours

    def back() -> None:
        if module.__dict__.get("forward") is not ours:
            # the script has put its own there since
            return
        if ours.before is ABSENT:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = ours.before

    return back


def replace_compiled_call(module: nn.Module, call: Callable[..., Any]) -> Callable[[], None]:
    """``call`` in place of the module's compiled call (``nn.Module.compile``), or of its plain one; returns what puts it back."""
    before = module.__dict__.get("_compiled_call_impl", ABSENT)

    def ours(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    ours._gpuwise_before = getattr(before, "_gpuwise_before", before)  # type: ignore[attr-defined]
    module.__dict__["_compiled_call_impl"] = ours

    def back() -> None:
        if module.__dict__.get("_compiled_call_impl") is ours:
            del module.__dict__["_compiled_call_impl"]
            if before is not ABSENT:
                module.__dict__["_compiled_call_impl"] = before

    return back
