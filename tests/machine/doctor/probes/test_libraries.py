"""Libraries imported in several processes: each once, in the order asked, a crash kept to its own process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import pytest

from gpuwise.machine.doctor.host import CommandResult, Host
from gpuwise.machine.doctor.probes.libraries import MOST_PROCESSES, try_imports

NAMES = ("a", "b", "c", "d", "e", "f", "g", "h", "i")


class Importing:
    """A host whose interpreter imports every name but ``crash``, which ends it."""

    def __init__(self, crash: str = "") -> None:
        self.crash = crash
        self.asked: list[tuple[str, ...]] = []

    def run(self, command: Sequence[str], **_: Any) -> CommandResult:
        names = tuple(command[4:])
        self.asked.append(names)
        lines: list[dict[str, object]] = []
        for name in names:
            lines.append({"library": name})
            if name == self.crash:
                return CommandResult(-11, "\n".join(map(json.dumps, lines)), "")
            lines.append({"imported": name, "error": None})
        return CommandResult(0, "\n".join(map(json.dumps, lines)), "")


@pytest.mark.parametrize(("cpus", "processes"), [(1, 1), (2, 1), (3, 1), (8, 4), (16, MOST_PROCESSES), (128, MOST_PROCESSES)])
def test_every_library_is_imported_once_in_as_many_processes_as_there_is_room_for(cpus: int, processes: int) -> None:
    host = Importing()
    outcomes = try_imports(cast("Host", host), "python", NAMES, 90.0, cpus=cpus)
    assert [(one.name, one.error) for one in outcomes] == [(name, None) for name in NAMES]
    assert len(host.asked) == processes
    assert sorted(name for names in host.asked for name in names) == list(NAMES)


def test_a_crash_names_its_library_and_the_others_are_tried() -> None:
    outcomes = try_imports(cast("Host", Importing(crash="b")), "python", NAMES, 90.0, cpus=16)
    assert [one.name for one in outcomes] == list(NAMES)
    assert [one.name for one in outcomes if one.error] == ["b"]


class Slow:
    """A host on which the time for all ends at ``last``, which was begun after ``after_s`` seconds."""

    def __init__(self, last: str, after_s: float) -> None:
        self.last, self.after_s = last, after_s

    def run(self, command: Sequence[str], **_: Any) -> CommandResult:
        before = [*command[4:]][: list(command[4:]).index(self.last)] if self.last in command[4:] else []
        lines: list[dict[str, object]] = []
        for name in before:
            lines += [{"library": name}, {"imported": name, "error": None}]
        lines.append({"library": self.last, "after_s": self.after_s})
        return CommandResult(None, "\n".join(map(json.dumps, lines)), "", timed_out=True, seconds=90.0)


@pytest.mark.parametrize(("after_s", "blamed"), [(4.0, ["c"]), (80.0, [])])
def test_one_that_began_late_is_not_said_to_hang(after_s: float, blamed: list[str]) -> None:
    outcomes = try_imports(cast("Host", Slow("c", after_s)), "python", ("a", "b", "c"), 90.0)
    assert [one.name for one in outcomes if one.error] == blamed
    assert {"a", "b"} <= {one.name for one in outcomes}
