"""Type checks of user input against the annotations of functions; each argument may be given once. Errors have a hint."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import numbers
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ParamSpec, TypeVar

from gpuwise.errors import InputError

P = ParamSpec("P")
T = TypeVar("T")
_TYPES: dict[str, type] = {
    "str": str,
    "int": numbers.Integral,
    "float": numbers.Real,
    "bool": numbers.Integral,
    "tuple": Sequence,
}
_TYPES |= {"None": type(None), "Mapping": Mapping, "Iterable": Iterable, "Sequence": Sequence}
_CLASSES = ("Accelerator", "Architecture", "Cluster", "Launch", "Strategy", "Task", "Wishes", "Path", "date")
"""Classes by name, as a signature's modules are not imported for it."""
_PARTS = re.compile(r"\[.*\]")


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """``function``, which raises InputError for an argument, or a field of one of the package's dataclasses, of another type
    than it is annotated with. Other annotations are not checked."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: P.args, **keywords: P.kwargs) -> T:
        for name, value in signature.bind(*args, **keywords).arguments.items():
            parameter = signature.parameters[name]
            for one in value if parameter.kind is parameter.VAR_POSITIONAL else (value,):
                _check(name, one, parameter.annotation)
            if dataclasses.is_dataclass(value) and type(value).__module__.startswith("gpuwise."):
                for field in dataclasses.fields(value):
                    _check(f"{name}.{field.name}", getattr(value, field.name), field.type)
        return function(*args, **keywords)

    return call


def keyed(pairs: Iterable[tuple[str, T]], option: str) -> dict[str, T]:
    """``pairs`` as a mapping. Raises InputError for a key that ``option`` gives twice."""
    values: dict[str, T] = {}
    for key, value in pairs:
        if key in values:
            raise InputError(f"{option} gives {key} more than once", hint="leave one of them out")
        values[key] = value
    return values


def _check(name: str, value: object, annotation: object) -> None:
    if not isinstance(annotation, str):
        return
    names = [part.strip().rpartition(".")[2] for part in _PARTS.sub("", annotation).split("|")]
    if any(n not in _TYPES and n not in _CLASSES for n in names) or any(_is(value, n) for n in names):
        return
    wanted = " or ".join(n for n in names if n != "None")
    raise InputError(f"{name} is {value!r:.60}, of type {type(value).__name__}", hint=f"give {name} as {wanted}")


def _is(value: object, name: str) -> bool:
    if name in _CLASSES:
        return any(c.__name__ == name for c in type(value).__mro__)
    whole = name == "int" and isinstance(value, float) and value.is_integer()
    return whole or (isinstance(value, _TYPES[name]) and (name == "str" or not isinstance(value, str)))
