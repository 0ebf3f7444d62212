"""Facts of a script and a machine that the tuner reads from one watched run before it tries a lever."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuwise.train.hook.journal import Journal
from gpuwise.train.levers.workers import free_cores
from gpuwise.train.tune.peak import processor_has_bf16
from gpuwise.train.tune.trial import Trial, shares_of


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of the untouched script."""

    device: str
    """``cuda`` or ``cpu``: where the model's parameters are."""
    threads: int
    cores: int
    """Cores that this process may use."""
    n_workers: int | None
    """Workers of the first loader; None without one."""
    epoch_steps: int | None
    """Optimizer steps of one pass over the first loader's data, if both sizes are known."""
    epochs: float | None = None
    """Passes over its data that the script makes; None where that cannot be read."""
    item_s: float | None = None
    """Seconds per item of the first loader's dataset, in the loop's own process."""
    item_cpu_s: float | None = None
    free_cores: float | None = None
    """Those of ``cores`` that were idle when the tuning began."""
    taken_rate: float | None = None
    """Samples a second that the step would take if it never waited for data."""
    shares: Mapping[str, float] = field(default_factory=dict[str, float])
    padding: float | None = None
    """Share of the batches' columns that are padding; None where batches hold no ids."""
    convolutions: bool = False
    compiled: bool = False
    autocast: str | None = None
    """Format of the script's own autocast."""
    scaler: bool = False
    optimizers: tuple[str, ...] = ()
    fused: bool = False
    dtypes: tuple[str, ...] = ()
    compiler: bool = False
    """Whether torch.compile has what it needs on this device (a C++ compiler for a CPU, Triton for a GPU)."""
    bf16_units: bool | None = None
    """Whether the processor multiplies in bf16 (AMX, AVX512_BF16 or Arm's bf16); None if unknown, and on a GPU."""
    capability: tuple[int, int] | None = None
    """Compute capability of an NVIDIA GPU."""
    batch: int | None = None
    """Samples in a batch of the first loader."""
    n_samples: int | None = None
    """In its dataset."""
    accumulation: int = 1
    """Batches that one optimizer step takes."""
    checkpoints: float = 0.0
    """Calls of torch.utils.checkpoint a step."""


def facts_of(journal: Journal, trial: Trial) -> Facts:
    """From the journal of a watched run of the untouched script (with its own observations on)."""
    models, optimizers, loader = journal.of("model"), journal.of("optimizer"), next(iter(journal.of("loader")), None)
    devices = {str(d).split(":")[0] for m in models for d in m["devices"]} or {d for o in optimizers for d in o["devices"]}
    device = "cuda" if "cuda" in devices else "cpu"
    script: dict[str, Any] = {k: v for e in journal.of("script") for k, v in e.items()}
    padding, items = journal.last("padding"), journal.last("items")
    shares = trial.shares or shares_of(journal.steady)
    return Facts(
        device=device,
        threads=int(journal.begin.get("threads", 1)),
        cores=usable_cores(),
        n_workers=None if loader is None else int(loader["num_workers"]),
        epoch_steps=_epoch_steps(loader, journal),
        epochs=_epochs(loader, journal),
        shares=shares,
        item_s=items.get("item_s"),
        item_cpu_s=items.get("cpu_s"),
        free_cores=free_cores(usable_cores()),
        taken_rate=trial.rate / max(1.0 - shares.get("data", 0.0), 1e-3) if trial.rate and trial.per == "samples" else None,
        padding=1.0 - padding["useful"] / padding["columns"] if padding.get("columns") else None,
        convolutions=any(m["convolutions"] for m in models),
        compiled=bool(script.get("compile")) or any(m["compiled"] for m in models),
        autocast=script.get("autocast"),
        scaler=bool(script.get("scaler")),
        optimizers=tuple(str(o["name"]) for o in optimizers),
        fused=bool(optimizers) and all(o.get("fused") for o in optimizers),
        dtypes=tuple(sorted({str(d) for m in models for d in m["dtypes"]})),
        compiler=has_compiler(device),
        bf16_units=processor_has_bf16() if device == "cpu" else None,
        capability=capability() if device == "cuda" else None,
        batch=_number(loader, "batch_size"),
        n_samples=_number(loader, "n_samples"),
        accumulation=round(taken_batches(journal)),
        checkpoints=checkpoints_of(journal),
    )


def _epoch_steps(loader: Mapping[str, Any] | None, journal: Journal) -> int | None:
    if loader is None or not loader.get("n_samples") or not loader.get("batch_size"):
        return None
    batches = -(-int(loader["n_samples"]) // int(loader["batch_size"]))
    return max(round(batches / taken_batches(journal)), 1)


def _epochs(loader: Mapping[str, Any] | None, journal: Journal) -> float | None:
    length, an_epoch = journal.last("length"), _epoch_steps(loader, journal)
    if length.get("steps") and an_epoch:
        return float(length["steps"]) / an_epoch
    epochs = length.get("epochs")
    return None if epochs is None else float(epochs)


def taken_batches(journal: Journal) -> float:
    """Batches that a step takes, at least 1."""
    steps = journal.steady
    return max(sum(s.n_batches for s in steps) / len(steps) if steps else 1.0, 1.0)


def checkpoints_of(journal: Journal) -> float:
    """Calls of torch.utils.checkpoint a step."""
    event = journal.last("checkpoints")
    return float(event["calls"]) / float(event["ticks"]) if event.get("ticks") else 0.0


def _number(event: Mapping[str, Any] | None, name: str) -> int | None:
    value = None if event is None else event.get(name)
    return value if isinstance(value, int) else None


def usable_cores() -> int:
    """Cores that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def has_compiler(device: str) -> bool:
    """Compiler used by inductor: ``CXX``, g++ or clang++ for a CPU; Triton for a GPU."""
    if device == "cuda":
        import importlib.util

        return importlib.util.find_spec("triton") is not None
    return any(shutil.which(name) for name in (os.environ.get("CXX", ""), "g++", "clang++", "c++") if name)


def capability() -> tuple[int, int] | None:
    """Compute capability of the first NVIDIA GPU, from torch."""
    import torch

    return torch.cuda.get_device_capability(0) if torch.cuda.is_available() and torch.version.cuda else None
