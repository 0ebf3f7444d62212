"""Checks of the errors that the NVIDIA driver wrote to the kernel's log (XIDs), by NVIDIA's catalogue."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwise.facts.hardware.xids import XidFact, xid
from gpuwise.machine.devices.readings import Xid
from gpuwise.machine.doctor import fixes
from gpuwise.machine.doctor.checks.cards import FALLEN_OFF
from gpuwise.machine.doctor.finding import Finding, Fix, Severity
from gpuwise.machine.doctor.observation import Machine
from gpuwise.machine.doctor.probes.kernel import same_bus
from gpuwise.text import capital


def xid_log(m: Machine) -> Iterator[Finding]:
    """One finding for each XID code since boot; a code that concerns an application only is a note."""
    by_code: dict[int, list[Xid]] = {}
    for event in m.xids:
        by_code.setdefault(event.code, []).append(event)
    for code, events in by_code.items():
        if code == FALLEN_OFF:
            continue
        fact, last = xid(code), events[-1]
        cards = tuple(sorted({i for e in events if (i := _index(m, e)) is not None}))
        times = f"{len(events)} times" if len(events) > 1 else "once"
        severity = Severity.LIMIT if fact and fact.is_fault else Severity.NOTE
        yield Finding(
            f"xid-{code}",
            severity,
            f"The driver reported XID {code} {times}: {fact.meaning if fact else 'not in the catalogue'}",
            (f"at {last.pci_bus_id}: {last.text}"[:200],),
            "Reported since the machine was started. A code says where an error showed, not always where it came from.",
            _fixes(m, fact, cards[0] if cards else None),
            "sudo dmesg | grep -i xid",
            cards,
            sources=(fact.source,) if fact else (),
        )


def _fixes(m: Machine, fact: XidFact | None, index: int | None) -> tuple[Fix, ...]:
    if fact is None:
        return (Fix("Look the code up: https://docs.nvidia.com/deploy/xid-errors/", where="person"),)
    one = "" if index is None else f" -i {index}"
    words = capital(fact.advice)
    if fact.action == "restart-host":
        return (Fix(words, ("sudo reboot",), reboot=True),)
    if fact.action == "update-software":
        return fixes.install_driver(m, what="Install a newer driver")
    commands = {
        "reset-gpu": (f"sudo nvidia-smi --gpu-reset{one}",),
        "read-recovery-action": (f"nvidia-smi -q{one} | grep -i -A2 recovery",),
        "check-nvlink": (f"nvidia-smi nvlink -e{one}", f"sudo nvidia-smi --gpu-reset{one}"),
        "contact-support": ("sudo nvidia-bug-report.sh",),
        "check-application": ("compute-sanitizer python train.py",),
    }.get(fact.action)
    return (Fix(words, commands) if commands else Fix(words, where="person"),)


def _index(m: Machine, event: Xid) -> int | None:
    """The index of the NVIDIA GPU that an event names; None where it is not listed."""
    return next((c.identity.index for c in m.nvidia_cards if same_bus(c.identity.pci_bus_id, event.pci_bus_id)), None)
