"""Classes of ``gpuwise.dataclass`` do what those of the standard library do."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import field
from typing import Any

import pytest

from gpuwise.dataclass import dataclass

OPTIONS: tuple[dict[str, bool], ...] = (
    {},
    {"frozen": True},
    {"slots": True},
    {"frozen": True, "slots": True},
    {"frozen": True, "slots": True, "kw_only": True},
    {"frozen": True, "slots": True, "eq": False},
)


def classes(dataclass: Any, options: dict[str, bool]) -> tuple[type[Any], type[Any]]:
    """A class with every kind of field, and one that inherits from it."""

    @dataclass(**options)
    class Base:
        """A base."""

        a: int
        hidden: str = field(default="h", repr=False)
        listed: list[int] = field(default_factory=list, hash=False)
        apart: float = field(default=1.0, compare=False, kw_only=True)
        made: int = field(init=False, default=7)

        def __post_init__(self) -> None:
            if self.a < 0:
                raise ValueError("negative")

    @dataclass(**options)
    class Child(Base):
        """A child."""

        b: tuple[int, ...] = ()

        def __repr__(self) -> str:
            return f"child {self.a}"

    return Base, Child


def outcome(do: Callable[[], object]) -> object:
    try:
        return do()
    except (TypeError, ValueError, AttributeError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_agrees_with_the_standard_library(options: dict[str, bool]) -> None:
    def seen(of: Any) -> list[object]:
        base, child = classes(of, options)
        x, y, z = base(a=1), base(a=1, apart=2.0), child(a=1, b=(2,))

        def assign() -> None:
            x.a = 2

        def delete() -> None:
            del y.a

        return [
            *(str(inspect.signature(one)) for one in (base, child)),
            *(repr(one) for one in (x, y, z)),
            (x == y, x == z, z == child(a=1, b=(2,)), x == 1, x != y),
            [outcome(lambda one=one: hash(one)) == hash((1, "h", 7)) for one in (x, y)],
            base.__hash__ is None,
            outcome(lambda: base(a=-1)),
            outcome(base),
            dataclasses.replace(x, a=3).a,
            dataclasses.asdict(z),
            copy.deepcopy(z).b,
            base.__match_args__,
            outcome(assign),
            outcome(delete),
            base(a=1).listed is base(a=1).listed,
        ]

    assert seen(dataclass) == seen(dataclasses.dataclass)


@dataclass(frozen=True, slots=True)
class Point:
    """Pickles need a class that can be imported."""

    x: int
    y: int = 2


def test_frozen_slotted_objects_are_pickled() -> None:
    assert pickle.loads(pickle.dumps(Point(1))) == Point(1, 2)


def test_a_plain_class_below_a_frozen_one_has_further_attributes() -> None:
    class Plain(Point):
        pass

    one: Any = Plain(1)
    one.more = 3
    assert one.more == 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.x = 3
