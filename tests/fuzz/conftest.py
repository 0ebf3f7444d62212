"""The law of every parser: a GpuwiseError that says what to do, or an object whose numbers are all finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from gpuwise.errors import GpuwiseError


def all_finite(value: object) -> bool:
    """No NaN or infinity anywhere in a value, its fields, its items."""
    if isinstance(value, float):
        return math.isfinite(value)
    if is_dataclass(value) and not isinstance(value, type):
        return all(all_finite(getattr(value, f.name)) for f in fields(value))
    if isinstance(value, Mapping):
        return all(all_finite(v) for v in value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return all(all_finite(v) for v in value)
    return True


@pytest.fixture(scope="session")
def lawful() -> Callable[..., Any]:
    """``lawful(call, hint=True)``: its value with finite numbers, or None when it refused as it should.

    Any exception but a GpuwiseError goes through and fails the test; so does a refusal without a message,
    or without a hint where ``hint`` asks for one.
    """

    def check(call: Callable[[], Any], *, hint: bool = False) -> Any:
        try:
            value = call()
        except GpuwiseError as error:
            assert error.message.strip(), "a refusal without words"
            assert len(error.message) < 2000, "a refusal that repeats its input without end"
            assert error.hint or not hint, f"no hint: {error.message}"
            return None
        assert all_finite(value), "a number that is not finite"
        return value

    return check
