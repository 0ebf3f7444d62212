"""What of an answer a command prints: its first screen, the parts that are asked for, or all of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields, make_dataclass
from typing import TYPE_CHECKING, Annotated, Any, cast

from cyclopts import Group, Parameter

from gpuwise.report.answers.parts import PARTS

if TYPE_CHECKING:

    class Shown:
        """The options as they were given."""

        all: bool
        steps: bool
        """Of ``cost own``, which counts them only where they are asked for."""


WHAT = Group("Show more", sort_key=90)


def options_shown(command: str) -> type[Any]:
    """A dataclass of ``--all`` and a flag for each part of the command's answer."""
    made: list[tuple[str, Any, bool]] = []
    for name, title in {**PARTS[command], "all": "All of these"}.items():
        flag = Parameter(name=f"--{name}", help=f"{title}.", negative="", group=WHAT)
        made.append((name.replace("-", "_"), Annotated[bool, flag], False))
    namespace = {"__module__": __name__, "__doc__": "What to show."}
    return Parameter(name="*")(make_dataclass("Shown", made, namespace=namespace, frozen=True, slots=True))


def parts_shown(shown: Shown) -> Collection[str] | None:
    """Names of the parts that are asked for; none for the first screen, None for all of them."""
    if shown.all:
        return None
    return {f.name.replace("_", "-") for f in fields(cast(Any, shown)) if getattr(shown, f.name)}


def shows_part(shown: Shown | None, name: str) -> bool:
    """Whether the whole of a part is asked for, not only its rows on the first screen."""
    asked = () if shown is None else parts_shown(shown)
    return asked is None or name in asked
