"""Values as plain lists and dictionaries and back, by the types their fields declare: for JSON, recordings and tests."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from gpuwise.errors import DataError

T = TypeVar("T")
Read = Callable[[Any], Any]


def to_plain(value: Any) -> Any:
    """A value as JSON knows it: dataclasses as dictionaries, enums by their value, tuples as lists. NaN and infinities, which
    JSON does not know, are unknown: None."""
    kind = type(value)  # pyright: ignore[reportUnknownVariableType]
    return _writer(kind)(value)  # pyright: ignore[reportUnknownArgumentType]


@cache
def _writer(kind: type) -> Callable[[Any], Any]:
    """Function that converts one type to plain values."""
    if kind in _AS_THEY_ARE:
        return lambda value: value
    if kind is float:
        return lambda value: value if math.isfinite(value) else None
    if dataclasses.is_dataclass(kind):
        names = field_names(kind)
        return lambda value: dict(zip(names, [_part(getattr(value, n)) for n in names], strict=True))
    if issubclass(kind, Enum):
        return lambda value: value.value
    if issubclass(kind, Mapping):
        return lambda value: {str(k): _part(v) for k, v in value.items()}
    if issubclass(kind, (tuple, list)):
        return lambda value: [_part(v) for v in value]
    return str


def _part(value: Any) -> Any:
    # most are these: to look the type up for each would be most of the work
    kind = type(value)  # pyright: ignore[reportUnknownVariableType]
    if kind in _AS_THEY_ARE:
        return value
    if kind is float:
        return value if math.isfinite(value) else None
    return _writer(kind)(value)  # pyright: ignore[reportUnknownArgumentType]


_AS_THEY_ARE = frozenset((str, int, bool, type(None)))


def from_plain(kind: type[T], plain: Any) -> T:
    """The dataclass ``kind`` from the result of :func:`to_plain`. Missing fields take their default, unknown fields (from a
    newer version) are ignored. Raises DataError for a value of the wrong type."""
    return _reader(kind)(plain)


@cache
def field_names(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass, in order."""
    return tuple(f.name for f in dataclasses.fields(kind))


@cache
def field_types(kind: type) -> Mapping[str, Any]:
    """The types of the fields of a dataclass."""
    hints = get_type_hints(kind)
    return {name: hints[name] for name in field_names(kind)}


@cache
def _reader(hint: Any) -> Read:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda v: v
    if origin in (Union, types.UnionType):
        (one,) = [a for a in inner if a is not type(None)]
        reader = _reader(one)
        return lambda v: None if v is None else reader(v)
    if origin is tuple:
        return _tuple(inner)
    if origin is not None and issubclass(origin, Mapping):
        key, item = _reader(inner[0]), _reader(inner[1])
        return lambda v: {key(k): item(x) for k, x in cast("Mapping[Any, Any]", _expect(v, Mapping)).items()}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return lambda v: _enum(hint, v)
    if dataclasses.is_dataclass(hint):  # pyright: ignore[reportUnknownArgumentType]
        return _record(hint)  # type: ignore[arg-type]
    if hint is float:
        return lambda v: float(_expect(v, (int, float)))
    if hint is bool:
        return lambda v: bool(_expect(v, (bool, int)))
    return lambda v: _expect(v, hint)


def _tuple(inner: tuple[Any, ...]) -> Read:
    if len(inner) == 2 and inner[1] is Ellipsis:
        item = _reader(inner[0])
        return lambda v: tuple(item(x) for x in _expect(v, (list, tuple)))
    items = [_reader(i) for i in inner]
    return lambda v: tuple(reader(x) for reader, x in zip(items, _expect(v, (list, tuple)), strict=False))


def _record(kind: type) -> Read:
    def read(plain: Any) -> Any:
        values = _expect(plain, Mapping)
        values_by_field = {n: _reader(t)(values[n]) for n, t in field_types(kind).items() if n in values}
        try:
            return kind(**values_by_field)
        except TypeError as error:
            raise DataError(f"a {kind.__name__} lacks a field: {error}") from error

    return read


def _enum(kind: type[Enum], value: Any) -> Enum:
    try:
        return kind(value)
    except ValueError as error:
        raise DataError(f"{value!r} is not a {kind.__name__}") from error


def _expect(value: Any, kind: Any) -> Any:
    if not isinstance(value, kind):
        raise DataError(f"{value!r} where {getattr(kind, '__name__', kind)} is meant")
    return value
