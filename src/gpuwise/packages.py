"""Packages with the name of a command: ``gpuwise.plan`` is a package and, called, the command. The commands are above the
packages, so ``gpuwise`` registers how to call them here on import."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

_call: list[Callable[..., Any]] = []


class CallablePackage(ModuleType):
    """A package that answers as the command of its name."""

    def __call__(self, *values: Any, **options: Any) -> Any:
        return _call[0](self.__name__.rpartition(".")[2], *values, **options)


def call_with(call: Callable[..., Any]) -> None:
    """Register ``call``, which asks the command of a name with these values and options."""
    _call[:] = [call]
