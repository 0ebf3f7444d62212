"""Memory that a training run may fill, and that a run has filled."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwise.train.hook.journal import Journal
from gpuwise.train.hook.launch import Outcome
from gpuwise.units import format_bytes

DEVICE_RESERVE, HOST_RESERVE = 0.05, 0.1
"""Default reserves: for activities that a trial lacks (evaluation, checkpoints, other processes). A host that runs out of
memory stops more than the training. Rules of this project."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """Bytes that may be filled, on which device, and where the number comes from."""

    memory_bytes: float
    device: bool
    """Memory of a GPU's allocator; else resident memory of the process and its children."""
    words: str


def capacity_of(journal: Journal, given_bytes: float | None = None) -> Capacity:
    """Capacity of the device from a run's journal, or free memory of this machine now; ``given_bytes`` has priority."""
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
    """The peak: bytes reserved by the device's allocator, or resident bytes; None if unknown."""
    memory = outcome.journal.last("memory")
    if capacity.device:
        reserved = memory.get("peak_reserved_bytes")
        return float(reserved) if reserved else None
    return None if outcome.peak_memory_bytes is None else float(outcome.peak_memory_bytes)


def n_retries(outcome: Outcome) -> int:
    """Number of times the device's allocator had to free its cache and retry: such a run is at its limit."""
    return int(outcome.journal.last("memory").get("retries") or 0)
