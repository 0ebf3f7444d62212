"""Which devices CUDA shows a program: the rules of ``CUDA_VISIBLE_DEVICES``, as CUDA itself reads it.

- Numbers are read as C's ``strtoul`` does (``1abc`` is 1); what has no digits first, and what is below zero, ends the list, as
  does a number that no device has.
- A list that begins with ``GPU-`` or ``MIG-`` holds uuids or beginnings of them that fit one device only; the first that does
  not fit ends the list.
- A device named twice leaves none at all.
- Of MIG devices CUDA uses the first one only.

Numbers count in the order of ``CUDA_DEVICE_ORDER``: ``PCI_BUS_ID``, which is NVML's, or ``FASTEST_FIRST``, which is the default
and is the driver's own judgement: for cards of different kinds it can only be guessed here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpuwise.machine.devices.readings import Identity

PCI_BUS_ID = "PCI_BUS_ID"
_NUMBER = re.compile(r"\s*([+-]?\d+)", re.ASCII)
_NOT_A_NUMBER = -1


@dataclass(frozen=True, slots=True)
class Visible:
    """What CUDA shows."""

    indices: tuple[int, ...]
    """NVML's indices, in CUDA's order: the first is ``cuda:0``."""
    certain: bool = True
    """False: the order of different cards without CUDA_DEVICE_ORDER=PCI_BUS_ID is a guess, and so are numbers that mean it."""
    stopped_by: str | None = None
    """The entry that ended the list early."""
    reason: str | None = None
    """Why it did, or why nothing is visible."""
    mig_uuid: str | None = None
    """The MIG device that is used."""


def visible(identities: Sequence[Identity], value: str | None, order: str | None = None) -> Visible:
    """The devices that ``value`` of CUDA_VISIBLE_DEVICES shows; None: it is not set. ``order`` is CUDA_DEVICE_ORDER."""
    by_cuda, certain = _cuda_order(identities, order)
    if value is None:
        return Visible(tuple(by_cuda), certain)
    if not value.strip():
        return Visible((), reason="the variable is set and empty")
    if value.startswith(("GPU-", "MIG-")):
        return _by_uuid(identities, value)
    return _by_number(by_cuda, certain, value)


def _cuda_order(identities: Sequence[Identity], order: str | None) -> tuple[list[int], bool]:
    """NVML's indices in CUDA's order, and whether that is certain."""
    nvml = [i.index for i in identities]
    alike = len({i.name for i in identities}) <= 1
    if order == PCI_BUS_ID or alike:
        return nvml, True
    fastest = sorted(identities, key=lambda i: (-_speed(i), i.index))
    return [i.index for i in fastest], False


def _speed(identity: Identity) -> float:
    """Cores times clock: the driver's own measure is not published."""
    return float(identity.n_cores or 0) * (identity.sm_clock_max_hz or 0.0)


def _by_number(by_cuda: list[int], certain: bool, value: str) -> Visible:
    numbers, seen = list[int](), set[int]()
    stopped_by = reason = None
    for entry in value.split(","):
        found = _NUMBER.match(entry)
        number = int(found[1]) if found else _NOT_A_NUMBER
        if number in seen:
            return Visible((), stopped_by=entry, reason=f"device {number} is named twice, which hides all")
        if number < 0:
            what = f"{number} ends the list" if found else f"{entry!r} is no number" if entry.strip() else "an entry is empty"
            return Visible(tuple(by_cuda[n] for n in numbers), certain, stopped_by or entry, reason or what)
        seen.add(number)
        if number >= len(by_cuda) and stopped_by is None:
            stopped_by, reason = entry, f"there is no device {number}: there are {len(by_cuda)}, counted from 0"
        elif stopped_by is None:
            numbers.append(number)
    return Visible(tuple(by_cuda[n] for n in numbers), certain, stopped_by, reason)


def _by_uuid(identities: Sequence[Identity], value: str) -> Visible:
    prefix = value[:4]
    whole = (
        [(i.uuid, i.index) for i in identities if i.uuid]
        if prefix == "GPU-"
        else [(uuid, i.index) for i in identities for uuid in i.mig_uuids]
    )
    entries: list[str] = []
    for entry in value.split(","):
        if entry in entries:
            return Visible((), stopped_by=entry, reason=f"{entry} is named twice, which hides all")
        entries.append(entry)
        if not entry.startswith(prefix):
            break
    chosen: list[tuple[str, int]] = []
    stopped_by = reason = None
    for entry in entries:
        fits = [(uuid, index) for uuid, index in whole if uuid.startswith(entry)] if entry.startswith(prefix) else []
        if len(fits) != 1:
            stopped_by = entry
            reason = f"{entry!r} fits several devices" if fits else f"no device has a uuid that begins with {entry!r}"
            break
        if fits[0] in chosen:
            return Visible((), stopped_by=entry, reason=f"{fits[0][0]} is named twice, which hides all")
        chosen.append(fits[0])
    if prefix == "MIG-" and chosen:
        uuid, index = chosen[0]
        more = "CUDA uses one MIG device only" if len(chosen) > 1 else reason
        return Visible((index,), stopped_by=entries[1] if len(chosen) > 1 else stopped_by, reason=more, mig_uuid=uuid)
    return Visible(tuple(index for _, index in chosen), stopped_by=stopped_by, reason=reason)
