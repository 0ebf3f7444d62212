"""Packages with the name of a command: ``gpuwise.plan`` is a package and, called, the command. The commands are above the
packages, so ``gpuwise`` registers them here on import."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

_commands: dict[str, Callable[..., Any]] = {}


class CallablePackage(ModuleType):
    """A package that answers as the command of its name."""

    def __call__(self, *values: Any, **options: Any) -> Any:
        return _commands[self.__name__](*values, **options)


def call_with(package: str, command: Callable[..., Any]) -> None:
    """Register the ``command`` that calling ``package`` asks."""
    _commands[package] = command
