"""What every scenario is held to, faulty and healthy."""

from __future__ import annotations

from collections.abc import Callable

from gpuwise.machine.doctor.report import diagnose
from studies.scripted_machine import ScriptedMachine

Scenario = tuple[Callable[[], ScriptedMachine], str, tuple[str, ...]]
"""How to make the machine, the finding that names its cause, and words of the commands that mend it."""


def assert_cause(scenario: Scenario) -> None:
    """The cause is the one fault that is named, with what shows it, why it matters, what mends it and how to check that."""
    make, cause, words = scenario
    found = diagnose(make().look())
    assert [f.id for f in found.faults] == [cause]
    assert found.exit_code in (1, 2)
    fault = found.faults[0]
    commands = "".join(f"{command}\n" for fix in fault.fixes for command in fix.commands)
    assert [word for word in words if word not in commands] == []
    assert fault.fixes and fault.evidence and fault.why and fault.check


def assert_healthy(make: Callable[[], ScriptedMachine]) -> None:
    """Nothing is found at fault."""
    found = diagnose(make().look())
    assert [f.id for f in found.faults] == []
    assert (found.verdict.value, found.exit_code) == ("ready", 0)
