"""Settings of a watched run, written by the parent as JSON and read by the child."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gpuwise.errors import InputError
from gpuwise.files import read_bytes


class Stop(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When the child ends the script. Without any limit, the script runs to its own end."""

    steps: int | None = None
    """Steady steps after the warm-up."""
    most_steps: int | None = None
    """All steps, the warm-up with them."""
    seconds: float | None = None
    """Since the first step."""
    at_least_s: float = 0.0
    """Steady steps go on until they have covered this long, less what other programs took of it."""
    skip: int = 0
    """Steps before the warm-up that count for nothing, as an epoch in which a cache fills."""


class Parity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Recording of losses and gradients for the comparison of two runs."""

    steps: int
    """Losses of this many steps; gradients of the first."""
    record_batches: str | None = None
    """Folder for the batches of these steps."""
    replay_batches: str | None = None
    """Folder of batches that loaders give in place of their own."""
    note_batches: str | None = None
    """File for a line a batch: digests of its tensors and of the random generators' states."""
    reseed: bool = True
    """Random numbers restart at every step from ``seed`` and the step's number, so that draws elsewhere (workers,
    augmentation) do not affect dropout."""


class Profiling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A trace by ``torch.profiler`` of some steps."""

    trace: str
    """File for the Chrome trace; gzip where it ends in ``.gz``."""
    skip: int = 3
    """Steps before it."""
    steps: int = 3
    stacks: bool = True
    shapes: bool = True
    note_steps: int = 0
    """Steps between those that are skipped and those that are traced, in which calls that stop a step are noted by line."""
    after_s: float | None = None
    """Time after the first step at which it begins before ``skip`` steps have passed, but after at least ``least``."""
    least: int = 4


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings of one watched run."""

    script: str
    """A file, or a module's name with ``module``."""
    arguments: list[str]
    journal: str
    """File it writes its journal to."""
    module: bool = False
    stop: Stop = Stop()
    seed: int | None = None
    """Seed of torch, numpy and random before the script begins; a script may set its own later."""
    levers: dict[str, object] = {}
    """Values by lever name."""
    parity: Parity | None = None
    profiling: Profiling | None = None
    constant_batch: bool = False
    """Loaders give their first batch again and again, so that no time goes into data."""
    trial: str | None = None
    """A folder for what ``torch.save`` writes: a trial leaves the person's files alone."""
    tidies: bool = False
    """Report other files that the script creates below its working folder (event ``made``) and delete them afterwards."""
    losses: bool = True
    """Whether losses are stored (read from the device together, without waiting for it at a step)."""
    device_memory_bytes: int | None = None
    """Limit of the caching allocator."""
    count_flop: bool = False
    """One turn of the loop is counted, operation by operation, and takes longer for it."""
    live: bool = False
    """For a run watched for days: losses and memory are reported every second or so, and only some of many ticks are stored."""


def write_settings(settings: Settings, path: Path) -> None:
    """Write the settings as JSON."""
    path.write_bytes(msgspec.json.encode(settings))


def read_settings(path: Path) -> Settings:
    """Read settings. Raises InputError where the file was not written by :func:`write_settings`."""
    try:
        return msgspec.json.decode(read_bytes(path), type=Settings)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InputError(f"{path}: no settings of a watched run: {error}") from None
