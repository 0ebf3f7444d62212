"""Samples of a step and of each rank: one order of all samples per epoch, and a cursor independent of ranks.

The order depends only on the seed and the epoch, so every sample is used once per epoch for any number of ranks and loader
workers, even if that number changes within an epoch. The random numbers of a sample (augmentation) restart from the seed, the
epoch and the sample's number, so they do not depend on the process either.
"""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from gpuwise.errors import InputError
from gpuwise.train.levers.items import random_numbers_kept
from gpuwise.train.levers.items import seed as seed_generators

Key = tuple[int, int]
"""Epoch and number of a sample."""


def derived(*parts: int) -> int:
    """A seed of 32 bits (numpy takes no more) from several numbers."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=4).digest(), "big")


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far all ranks together have come: ``position`` samples into ``epoch``."""

    epoch: int = 0
    position: int = 0


@dataclass(frozen=True, slots=True)
class Order:
    """The order of ``n`` samples in every epoch."""

    n: int
    global_batch: int
    seed: int

    def epoch(self, epoch: int) -> list[int]:
        """A permutation of the samples."""
        generator = torch.Generator().manual_seed(derived(self.seed, epoch))
        return torch.randperm(self.n, generator=generator).tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]

    def steps(self, cursor: Cursor) -> Iterator[tuple[Cursor, list[Key]]]:
        """The samples of every step from ``cursor`` on, each with the cursor after it. The last step of an epoch may be short."""
        while True:
            order = self.epoch(cursor.epoch)
            while cursor.position < self.n:
                end = min(cursor.position + self.global_batch, self.n)
                keys = [(cursor.epoch, i) for i in order[cursor.position : end]]
                cursor = replace(cursor, position=end)
                yield (Cursor(cursor.epoch + 1) if end == self.n else cursor), keys
            cursor = Cursor(cursor.epoch + 1)

    def n_steps(self, cursor: Cursor, epochs: float) -> int:
        """Steps from ``cursor`` until that many epochs are complete."""
        last, position, n = int(epochs), round(self.n * (epochs - int(epochs))), 0
        while (cursor.epoch, cursor.position) < (last, position):
            end = self.n if cursor.epoch < last else position
            n += -(-(end - cursor.position) // self.global_batch)
            cursor = Cursor(cursor.epoch + 1)
        return n


def shares(keys: Sequence[Key], rank: int, n_ranks: int, micro_batch: int, n_micro: int) -> list[tuple[list[Key], bool]]:
    """The micro-batches of one rank, the same number on every rank, each with whether it counts: a rank without samples
    computes one of another rank with weight zero, so that no collective waits."""
    n = len(keys)
    own = list(keys[rank * n // n_ranks : (rank + 1) * n // n_ranks])
    longest = max((r + 1) * n // n_ranks - r * n // n_ranks for r in range(n_ranks))
    n_now = min(max(-(-longest // micro_batch), 1), n_micro)
    parts = [own[i * micro_batch : (i + 1) * micro_batch] for i in range(n_now)]
    return [(part, True) if part else ([keys[0]], False) for part in parts]


class Items(Dataset[Any]):
    """A dataset indexed by :data:`Key`, with separate random numbers for each sample."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset, self._seed = dataset, seed

    def __getitems__(self, keys: list[Key]) -> list[Any]:
        with random_numbers_kept():
            return [self._item(key) for key in keys]

    def _item(self, key: Key) -> Any:
        seed_generators(derived(self._seed, *key))
        return self._dataset[key[1]]


def loader(
    dataset: Any,
    batches: Callable[[], Iterator[list[Key]]],
    *,
    seed: int,
    workers: int,
    collate: Callable[[list[Any]], Any] | None,
    pin: bool,
) -> DataLoader[Any]:
    """Loader of one rank; ``batches`` defines the order. Signals that request an end or a save are handled by the rank."""
    return DataLoader(
        Items(dataset, seed),
        batch_sampler=_Batches(batches),  # type: ignore[arg-type]
        num_workers=workers,
        collate_fn=collate,
        pin_memory=pin,
        worker_init_fn=_deaf if workers else None,
    )


class _Batches:
    def __init__(self, batches: Callable[[], Iterator[list[Key]]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[list[Key]]:
        return self._batches()


def _deaf(_: int) -> None:
    for name in ("SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)


def length_of(dataset: Any) -> int:
    """Samples of a dataset. Raises InputError for one that cannot be indexed."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise InputError(
            f"{type(dataset).__name__} gives its samples in its own order",  # pyright: ignore[reportUnknownArgumentType]
            hint="ranks divide samples by number: give a dataset with __len__ and __getitem__",
        )
    try:
        n = len(dataset)
    except TypeError:
        raise InputError(f"{type(dataset).__name__} has no length", hint="give it a __len__") from None
    if n < 1:
        raise InputError(f"{type(dataset).__name__} is empty", hint="give data to train on")
    return n
