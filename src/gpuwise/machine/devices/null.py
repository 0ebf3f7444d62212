"""Scripted devices, so that every command and screen runs on any machine.

A script is a function of time, :data:`Script`: seconds since the start -> what changes of each :class:`Sample` and
:class:`Health`. Without one, each card idles at its specification.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from gpuwise.errors import DeviceLostError, InputError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.machine.devices.readings import Driver, GpuProcess, Health, Identity, Peer, Sample, State, Xid

IDLE_C = 35.0
IDLE_SHARE = 0.1
"""Power of an idle scripted card, as a share of the power limit."""

Script = Callable[[float], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class NullCard:
    """One scripted card: a catalogue name, and what differs from a healthy idle one.

    ``identity``, ``sample`` and ``health`` replace fields of what the card would say, by their names; ``script`` gives, for
    seconds since the start, fields of the sample or of the health that replace those.
    """

    name: str
    identity: Mapping[str, Any] = field(default_factory=dict[str, Any])
    sample: Mapping[str, Any] = field(default_factory=dict[str, Any])
    health: Mapping[str, Any] = field(default_factory=dict[str, Any])
    script: Script | None = None
    processes: tuple[GpuProcess, ...] = ()


class NullDevices:
    """Scripted devices behind the interface of a backend. ``clock`` returns seconds; tests pass their own."""

    vendor = "null"

    def __init__(
        self, cards: Sequence[NullCard], *, driver: Driver | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cards = tuple(cards)
        self._accelerators = tuple(find_accelerator(c.name) for c in cards)
        self._driver = driver or Driver("null", None)
        self._clock = clock
        self._start_s = clock()

    def driver(self) -> Driver:
        return self._driver

    def identities(self) -> tuple[Identity, ...]:
        return tuple(self._identity(i) for i in range(len(self._cards)))

    def sample(self, index: int, *, processes: bool = True) -> Sample:
        card, identity = self._card(index), self._identity(index)
        sample = Sample(
            index,
            self._clock(),
            utilization=0.0,
            memory_utilization=0.0,
            memory_used_bytes=0,
            memory_total_bytes=identity.memory_bytes,
            memory_reserved_bytes=0,
            power_w=None if identity.power_limit_default_w is None else IDLE_SHARE * identity.power_limit_default_w,
            power_limit_w=identity.power_limit_default_w,
            temperature_c=IDLE_C,
            sm_clock_hz=identity.sm_clock_max_hz,
            performance_state=0,
            event_reasons=0,
            pcie_generation=identity.pcie_generation_max,
            pcie_width=identity.pcie_width_max,
            processes=card.processes if processes else None,
        )
        return replace(sample, **(_fields_of(Sample, card.sample) | _fields_of(Sample, self._simulated(card))))

    def health(self, index: int) -> Health:
        card = self._card(index)
        if self.sample(index).state is not State.OK:
            raise DeviceLostError(index, f"device {index} is lost", vendor=self.vendor)
        return replace(
            Health(index, self._clock()), **(_fields_of(Health, card.health) | _fields_of(Health, self._simulated(card)))
        )

    def peers(self) -> tuple[Peer, ...]:
        n = len(self._cards)
        return tuple(Peer(a, b, "unknown") for a in range(n) for b in range(a + 1, n))

    def wait_for_xid(self, timeout_s: float) -> Xid | None:
        time.sleep(timeout_s)
        return None

    def close(self) -> None:
        """Does nothing: no handle is open."""

    def _card(self, index: int) -> NullCard:
        if not 0 <= index < len(self._cards):
            raise InputError(f"no device {index}", hint=f"there are {len(self._cards)}, counted from 0")
        return self._cards[index]

    def _simulated(self, card: NullCard) -> Mapping[str, Any]:
        return card.script(self._clock() - self._start_s) if card.script else {}

    def _identity(self, index: int) -> Identity:
        card, accelerator = self._card(index), self._accelerators[index]
        identity = Identity(
            "null",
            index,
            accelerator.name,
            uuid=f"NULL-{index}",
            compute_capability=_capability(accelerator),
            memory_bytes=int(accelerator.memory_bytes),
            unified_memory=accelerator.unified_memory,
            power_limit_default_w=accelerator.tdp_w,
        )
        return replace(identity, **card.identity)


def _fields_of(of: type[Sample | Health], changes: Mapping[str, Any]) -> dict[str, Any]:
    names = {f.name for f in fields(of)}
    return {k: v for k, v in changes.items() if k in names}


def _capability(accelerator: Accelerator) -> tuple[int, int] | None:
    if accelerator.compute_capability is None:
        return None
    major, minor = accelerator.compute_capability.split(".")
    return int(major), int(minor)
