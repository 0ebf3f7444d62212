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


class Roots:
    """Calls ``prepare`` once for every outermost module with parameters, at its first call."""

    def __init__(self, prepare: Prepare) -> None:
        self._prepare = prepare
        self._seen: dict[int, nn.Module] = {}
        self._torch_call = nn.Module.__call__
        self._patches = Patches()
        call, torch_call = self._called, self._torch_call

        def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return call(module, *args, **kwargs)

        called.__wrapped__ = torch_call  # type: ignore[attr-defined]
        self._wrapper = called
        self._patches.set(nn.Module, "__call__", called)
        self._done = False

    def _called(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if id(module) not in self._seen:
            # a checkpoint runs inner modules again in the backward pass, where nothing is around them
            inside = any(module is inner for root in self._seen.values() for inner in root.modules())
            self._seen[id(module)] = module
            if not inside and any(True for _ in module.parameters()):
                self._prepare(module)
        # neither inner modules nor a compiler may meet the wrapper
        nn.Module.__call__ = self._torch_call  # type: ignore[method-assign]
        try:
            return self._torch_call(module, *args, **kwargs)
        finally:
            if not self._done:
                nn.Module.__call__ = self._wrapper  # type: ignore[method-assign]

    def end_discovery(self) -> None:
        """No new outermost modules come any more."""
        if not self._done:
            self._done = True
            if vars(nn.Module).get("__call__") is self._wrapper:
                nn.Module.__call__ = self._torch_call  # type: ignore[method-assign]

    def close(self) -> None:
        self._done = True
        self._patches.undo()


class Forward:
    """Stands for ``module.forward`` of one instance. A deep copy of the module gets its own, a pickle of it the plain one."""

    def __init__(self, module: nn.Module, wrap: Callable[[nn.Module, Callable[..., Any]], Callable[..., Any]]) -> None:
        inner = module.forward
        functools.update_wrapper(self, inner)
        self._module, self._wrap = module, wrap
        self._run = wrap(module, inner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copy = memo.get(id(self._module))
        if copy is None:
            return self
        plain = types.MethodType(type(copy).forward, copy)
        return plain

    def __reduce__(self) -> Any:
        # names nothing of ours: the file is read where gpuwise is not
        return getattr, (self._module, "forward")


def replace_forward(module: nn.Module, wrap: Callable[[nn.Module, Callable[..., Any]], Callable[..., Any]]) -> Callable[[], None]:
    """``wrap(module, forward)`` in place of ``forward``; returns what puts it back."""
    before = module.__dict__.get("forward")
    module.forward = Forward(module, wrap)  # type: ignore[method-assign]

    def back() -> None:
        if before is None:
            module.__dict__.pop("forward", None)
        else:
            module.forward = before  # type: ignore[method-assign]

    return back
