"""This machine: its hardware, activity and performance. Independent of planning.

>>> import gpuwise.machine as machine                 # doctest: +SKIP
>>> frame = machine.sample()                          # every card now
>>> print([c.sentence for c in machine.why_slow(frame)])
>>> with machine.measure() as m:                      # what a block of code costs
...     train()
>>> print(m.energy_j, m.energy_basis, m.peak_memory_bytes, m.held_back_s)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuwise.machine.devices.backend import Devices
    from gpuwise.machine.telemetry.causes.cause import Cause
    from gpuwise.machine.telemetry.frames import Frame
    from gpuwise.machine.telemetry.measure import Measure

__all__ = ["measure", "sample", "why_slow"]


def sample(devices: Sequence[Devices] | None = None, *, quick: bool = False) -> Frame:
    """Every card of this machine now, with its health, its processes and the host around it.

    Takes about a quarter of a second: the use of the processor is a difference of two readings. ``quick`` takes one reading of
    the cards and nothing slow. ``devices`` are opened backends; default: those of every vendor. A machine without cards gives
    a frame without cards, and ``frame.failed`` lists what did not answer.
    """
    from gpuwise.machine.telemetry.monitor import Monitor

    with Monitor(devices, health=not quick, watch_xids=False) as monitor:
        return monitor.refresh() if quick else monitor.settle()


def why_slow(frame: Frame) -> tuple[Cause, ...]:
    """Causes that slow down each card of a frame, worst first: a sentence, the evidence, the cost."""
    from gpuwise.machine.telemetry.causes.table import find_causes

    return find_causes(frame)


def measure(
    devices: Sequence[Devices] | None = None, *, cards: Sequence[int] | None = None, interval_s: float | None = None
) -> Measure:
    """Cost of a block of code: ``with measure() as m: ...``; then ``m.energy_j``, ``m.peak_memory_bytes``, ``m.held_back_s``,
    ``m.wall_s`` and each card in ``m.cards``.

    Energy is the GPU's own counter where it has one, else the driver's power integrated over samples every ``interval_s`` (0.1
    s), and ``energy_basis`` names the one used. ``cards`` limits the measurement to these numbers. All work on the cards is
    counted, not only what this process does. Without a card the readings are None and ``m.unknown`` has the reason; the block
    runs anyway.
    """
    from gpuwise.machine.telemetry.measure import INTERVAL_S, Measure

    return Measure(devices, cards=cards, interval_s=INTERVAL_S if interval_s is None else interval_s)
