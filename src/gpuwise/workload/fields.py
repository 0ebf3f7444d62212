"""What is known of an option of a training beside its type and its neutral value: the columns of the table of options.

The table is :class:`gpuwise.workload.strategy.Strategy` itself: each of its fields is made by :func:`option`. The command line,
the pages in the browser, the axes of the search, what is asked of a plan and what ranks are given come from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeVar

T = TypeVar("T", int, str, bool, tuple[str, ...], float | None)
Axis = Literal["row", "state", "activation"]
"""Which part of a strategy a field that the search varies belongs to: the layout, what is held of the weights, what is held of
the forward pass. The search evaluates the product of the three."""


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table. An option without ``help`` cannot be asked for: the stack or another option decides it."""

    help: str = ""
    """For the command line; without the choices and without the default, which the parser prints."""
    choices: tuple[str, ...] = ()
    unit: str = ""
    """What a number counts, as the command line's placeholder for it."""
    usual: str = ""
    """What is taken where nothing is asked for, in words; empty: the plan chooses."""
    name: str = ""
    """How the command line spells it, with underscores; empty: as the field is called."""
    label: str = ""
    """On a page in the browser; empty: no page asks for it."""
    negative: bool = True
    """Whether a flag can be refused as well (``--no-...``)."""
    axis: Axis | None = None
    """The search varies it, and sweeps hold it as a column of numbers."""
    ranks: bool = False
    """Given to the ranks of ``gpuwise run``."""
    own_code: bool = False
    """Asked for with a person's own code too, not only with models of the catalogue."""
    needs: str = ""
    """The field that has to be another than its neutral value for this one to mean anything."""


def option(
    neutral: T,
    help: str = "",
    *,
    choices: tuple[str, ...] = (),
    unit: str = "",
    usual: str = "",
    name: str = "",
    label: str = "",
    negative: bool = True,
    axis: Axis | None = None,
    ranks: bool = False,
    own_code: bool = False,
    needs: str = "",
) -> T:
    """A field of a dataclass with ``neutral`` as its default and the rest as its :class:`Option`, which its metadata holds."""
    about = Option(help, choices, unit, usual, name, label, negative, axis, ranks, own_code, needs)
    return field(default=neutral, metadata={"option": about})
