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
