"""Memory that a training run may fill, and that a run has filled."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwise.train.hook.journal import Journal
from gpuwise.train.hook.launch import Outcome
from gpuwise.units import format_bytes

DEVICE_RESERVE, HOST_RESERVE = 0.05, 0.1
"""Left free where nobody says how much may be used: for what a trial does not do (evaluation, checkpoints, other processes). A
host that runs out stops more than the training. Rules of this project."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Bytes that may be filled, on which device, and where the number comes from."""

    memory_bytes: float
    device: bool
    """Of a GPU's allocator; else resident, of the process and its children."""
    words: str


def capacity_of(journal: Journal, given_bytes: float | None = None) -> Capacity:
    """As a run's journal tells of its device, or as this machine has it free now; ``given_bytes`` goes before both."""
    on_device = journal.last("device_memory")
    if given_bytes is not None:
        return Capacity(given_bytes, bool(on_device), f"{format_bytes(given_bytes)}, as given")
    if on_device:
        free = float(on_device["free_bytes"]) + float(on_device["reserved_bytes"])
        words = f"{format_bytes(free)} free on the device, less {DEVICE_RESERVE:.0%}"
        return Capacity(free * (1.0 - DEVICE_RESERVE), True, words)
    free = host_free_bytes()
    return Capacity(free * (1.0 - HOST_RESERVE), False, f"{format_bytes(free)} free on this machine, less {HOST_RESERVE:.0%}")


def host_free_bytes() -> float:
    """Available memory, or what the process's control group has left where that is less."""
    import psutil

    from gpuwise.machine.devices.cpu import read_cpu

    free = float(psutil.virtual_memory().available)
    cpu = read_cpu()
    if cpu.memory_limit_bytes is not None:
        free = min(free, float(cpu.memory_limit_bytes - (cpu.memory_limit_used_bytes or 0)))
    return max(free, 1.0)


def filled_bytes(outcome: Outcome, capacity: Capacity) -> float | None:
    """The peak: what the device's allocator had reserved, or what was resident; None where nothing tells."""
    memory = outcome.journal.last("memory")
    if capacity.device:
        reserved = memory.get("peak_reserved_bytes")
        return float(reserved) if reserved else None
    peaks = [float(v) for v in (memory.get("peak_host_bytes"), outcome.peak_memory_bytes) if v]
    return max(peaks, default=None)


def n_retries(outcome: Outcome) -> int:
    """Times the device's allocator had to give back what it kept, and ask again: a run that does so is at its end."""
    return int(outcome.journal.last("memory").get("retries") or 0)
