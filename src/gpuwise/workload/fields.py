"""The table of training options: its columns, beside type and neutral value.

The table is :class:`gpuwise.workload.strategy.Strategy` itself: each of its fields is made by :func:`option`. The command
line, the pages in the browser, the axes of the search, the requests of a plan and the layout of ranks come from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeVar

T = TypeVar("T", int, str, bool, tuple[str, ...], float | None)
Axis = Literal["row", "state", "activation"]
"""Part of a strategy that a searched field belongs to: layout, stored states, saved activations. The search evaluates the
product of the three."""


Often = Literal["common", "sometimes", "expert"]


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table. An option without ``help`` cannot be set by the user: the stack or another option decides it."""

    help: str = ""
    """Help of the command line, without the choices and the default, which the parser prints."""
    choices: tuple[str, ...] = ()
    unit: str = ""
    """Unit of a number, as the command line's placeholder."""
    usual: str = ""
    """Default, in words; empty: the plan chooses."""
    name: str = ""
    """How the command line spells it, with underscores; empty: as the field is called."""
    label: str = ""
    """Label on a browser page; empty: on no page."""
    negative: bool = True
    """Whether a flag can be refused as well (``--no-...``)."""
    axis: Axis | None = None
    """The search varies it, and sweeps hold it as a column of numbers."""
    ranks: bool = False
    """Given to the ranks of ``gpuwise run``."""
    own_code: bool = False
    """Whether it applies to own code too, not only to catalogue models."""
    needs: str = ""
    """The field that has to be another than its neutral value for this one to mean anything."""
    often: Often = "expert"
    """How often people need it: the help shows what is common first, and what is for experts where it is asked for."""


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
    often: Often = "expert",
) -> T:
    """A field of a dataclass with ``neutral`` as its default and the rest as its :class:`Option`, which its metadata holds."""
    about = Option(help, choices, unit, usual, name, label, negative, axis, ranks, own_code, needs, often)
    return field(default=neutral, metadata={"option": about})
