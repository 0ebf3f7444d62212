# pyright: basic
"""Replaces the batches of every loader: by its first one repeated, or by recorded ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import dataloader as torch_dataloader

from gpuwise.errors import InputError
from gpuwise.train.hook.generators import random_digest, reseed
from gpuwise.train.hook.settings import Settings
from gpuwise.workload.capture.device.patching import Patches
from gpuwise.workload.capture.ops.nested import tensors_in

Next = Callable[[], Any]
Give = Callable[[Any, Next], Any]
_save, _load = torch.save, torch.load


@contextmanager
def replace_batches(settings: Settings) -> Iterator[None]:
    """Make every ``DataLoader`` yield what the settings ask for (constant, recorded or replayed batches); else change nothing."""
    give = _give(settings)
    patches = Patches()
    if give is not None:
        following = torch_dataloader._BaseDataLoaderIter.__next__
        patches.set(torch_dataloader._BaseDataLoaderIter, "__next__", lambda it: give(it, lambda: following(it)))
    try:
        yield
    finally:
        patches.undo()


def _give(settings: Settings) -> Give | None:
    if settings.parity is not None and settings.parity.replay_batches is not None:
        return BatchReplayer(Path(settings.parity.replay_batches), seed=(settings.seed or 0) if settings.parity.reseed else None)
    if settings.parity is not None and settings.parity.record_batches is not None:
        return BatchRecorder(Path(settings.parity.record_batches))
    if settings.parity is not None and settings.parity.note_batches is not None:
        return BatchNotes(Path(settings.parity.note_batches))
    return ConstantBatch() if settings.constant_batch else None


class ConstantBatch:
    """Yields the first batch of each loader as often as the loader has batches: the speed of the loop without its data."""

    def __init__(self) -> None:
        self._first: dict[str, Any] = {}
        self._n_batches: dict[int, int] = {}

    def __call__(self, iterator: Any, following: Next) -> Any:
        key, turn = loader_key(iterator), id(iterator)
        if key not in self._first:
            self._first[key] = following()
        self._n_batches[turn] = self._n_batches.get(turn, 0) + 1
        try:
            most = len(iterator)
        except TypeError:
            most = None
        if most is not None and self._n_batches[turn] > most:
            del self._n_batches[turn]
            raise StopIteration
        return self._first[key]


class BatchRecorder:
    """Writes the batches of each loader to files as they come, and where each loader ends."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._n = folder, 0

    def __call__(self, iterator: Any, following: Next) -> Any:
        n, self._n = self._n, self._n + 1
        try:
            batch = following()
        except StopIteration:
            (self._folder / f"{n:06d}.stop").touch()
            raise
        _save(batch, self._folder / f"{n:06d}.pt")
        return batch


class BatchNotes:
    """Writes a line a batch: its tensors (type, shape, digest; mean and deviation of floats) and the generators' states."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file.open("w")

    def __call__(self, iterator: Any, following: Next) -> Any:
        try:
            batch = following()
        except StopIteration:
            self._write({"end": True, "random": random_digest()})
            raise
        self._write({"tensors": [_noted(t) for t in tensors_in(batch)], "random": random_digest()})
        return batch

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def _noted(tensor: torch.Tensor) -> list[Any]:
    tensor = tensor.detach().cpu().contiguous()
    digest = hashlib.blake2b(tensor.flatten().view(torch.uint8).numpy().tobytes(), digest_size=16).hexdigest()
    spread = [float(tensor.double().mean()), float(tensor.double().std(correction=0))] if tensor.is_floating_point() else []
    return [str(tensor.dtype), list(tensor.shape), digest, *spread]


class BatchReplayer:
    """Stored batches, in their original order. Raises InputError if more are requested than were stored.

    With ``seed``, random numbers restart at the first: the loop's earlier draws for its data differ between runs.
    """

    def __init__(self, folder: Path, *, seed: int | None) -> None:
        self._seed = seed
        self._files = sorted([*folder.glob("*.pt"), *folder.glob("*.stop")])
        self._folder, self._n = folder, 0

    def __call__(self, iterator: Any, following: Next) -> Any:
        if self._n >= len(self._files):
            raise InputError(f"the loop needs more than the {len(self._files)} batches saved in {self._folder}")
        if self._n == 0 and self._seed is not None:
            reseed(self._seed, 0)
        file, self._n = self._files[self._n], self._n + 1
        if file.suffix == ".stop":
            raise StopIteration
        return _load(file, weights_only=False)


def loader_key(iterator: Any) -> str:
    """A name of a loader made from what it reads: the same in every epoch."""
    dataset = getattr(iterator, "_dataset", None)
    return f"{type(dataset).__qualname__}:{id(dataset)}"
