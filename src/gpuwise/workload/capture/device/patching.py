# pyright: basic
"""Attributes replaced for the length of a capture and put back exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_ABSENT = object()


class Patches:
    """A stack of replaced attributes; :meth:`undo` restores them in reverse order, also what was not there before."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []
        self._suspended = False

    def set(self, owner: Any, name: str, value: Any) -> Any:
        """Replace ``owner.name``; returns what the attribute gave before (``None`` if there was none)."""
        original = vars(owner).get(name, _ABSENT)
        before = getattr(owner, name, None)
        self._originals.append((owner, name, original))
        setattr(owner, name, value)
        return before

    @property
    def is_suspended(self) -> bool:
        """Whether everything is as torch has it for the moment."""
        return self._suspended

    def undo(self) -> None:
        while self._originals:
            owner, name, original = self._originals.pop()
            _restore(owner, name, original)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Everything as torch has it, for the length of the context."""
        if self._suspended:
            yield
            return
        self._suspended = True
        now = [(owner, name, vars(owner)[name]) for owner, name, _ in self._originals]
        for owner, name, original in reversed(self._originals):
            _restore(owner, name, original)
        try:
            yield
        finally:
            self._suspended = False
            for owner, name, value in now:
                setattr(owner, name, value)


def _restore(owner: Any, name: str, original: Any) -> None:
    if original is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, original)


def register_kernel(library: Any, name: str, function: Any, key: str) -> None:
    """Register a Python kernel for an aten overload.

    Below ``Library.impl``, which refuses meta kernels of composite operations; here they replace what the composite
    would choose, for the length of a capture.
    """
    library.m.impl(name, key, function, False)


def default_device() -> Callable[[], None]:
    """A function that makes torch's default device again what it is now. Where it was never set, that is forgotten too:
    ``get_default_device`` of torch 2.7 fails after ``set_default_device(None)``."""
    import torch  # not before: what watches a script patches without it

    place: Any = torch._GLOBAL_DEVICE_CONTEXT  # type: ignore[attr-defined]
    context = getattr(place, "device_context", None)

    def restore() -> None:
        torch.set_default_device(None if context is None else context.device)
        if context is None:
            del place.device_context

    return restore
