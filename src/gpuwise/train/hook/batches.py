# pyright: basic
"""What loaders give in place of their own batches: the first again and again, or those that were kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import dataloader as torch_dataloader

from gpuwise.errors import InputError
from gpuwise.train.hook.parity import reseed
from gpuwise.train.hook.settings import Settings
from gpuwise.workload.capture.device.patching import Patches

Next = Callable[[], Any]
Give = Callable[[Any, Next], Any]
_save, _load = torch.save, torch.load


@contextmanager
def replace_batches(settings: Settings) -> Iterator[None]:
    """Have every ``DataLoader`` give what the settings say; nothing where they say nothing."""
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
    return ConstantBatch() if settings.constant_batch else None


class ConstantBatch:
    """The first batch of each loader, as often as the loader has batches: what the loop does without its data."""

    def __init__(self) -> None:
        self._first: dict[str, Any] = {}
        self._given: dict[int, int] = {}

    def __call__(self, iterator: Any, following: Next) -> Any:
        key, turn = loader_key(iterator), id(iterator)
        if key not in self._first:
            self._first[key] = following()
        self._given[turn] = self._given.get(turn, 0) + 1
        try:
            most = len(iterator)
        except TypeError:
            most = None
        if most is not None and self._given[turn] > most:
            del self._given[turn]
            raise StopIteration
        return self._first[key]


class BatchRecorder:
    """What loaders give, kept in files as it comes: also where one ends."""

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


class BatchReplayer:
    """Kept batches, in the order in which they were given. Raises InputError where more are asked for than were kept.

    With ``seed``, random numbers begin anew at the first: what the loop drew for its data before differs between runs.
    """

    def __init__(self, folder: Path, *, seed: int | None) -> None:
        self._seed = seed
        self._files = sorted([*folder.glob("*.pt"), *folder.glob("*.stop")])
        self._folder, self._n = folder, 0

    def __call__(self, iterator: Any, following: Next) -> Any:
        if self._n >= len(self._files):
            raise InputError(f"the loop asks for more than the {len(self._files)} batches that were kept in {self._folder}")
        if self._n == 0 and self._seed is not None:
            reseed(self._seed, 0)
        file, self._n = self._files[self._n], self._n + 1
        if file.suffix == ".stop":
            raise StopIteration
        return _load(file, weights_only=False)


def loader_key(iterator: Any) -> str:
    """Names a loader by what it reads, which is the same in every epoch."""
    dataset = getattr(iterator, "_dataset", None)
    return f"{type(dataset).__qualname__}:{id(dataset)}"
