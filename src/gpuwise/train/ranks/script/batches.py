# pyright: basic
"""The batches of a script's loaders, divided over the ranks while it trains.

A rank loads its own rows of every batch: the batch of the script is that of all ranks. Where gradients are off, or the model is
in evaluation, a loader gives every rank the whole batch, so that what is computed of it is what one process would say.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import dataloader as torch_dataloader
from torch.utils.data._utils import fetch

from gpuwise.errors import InputError
from gpuwise.train.levers.items import random_numbers_kept
from gpuwise.train.levers.items import seed as seed_generators
from gpuwise.train.ranks.samples import derived
from gpuwise.train.ranks.wrap import control_group
from gpuwise.workload.capture.device.patching import Patches

LOOK = 2
"""Batches of a divided loop without a backward pass until it is taken to train nothing."""


class Batches:
    """Splits the batches of loaders. ``is_training`` returns whether the model trains now, ``begins`` is called before the
    first batch of a loop with whether it is split, ``agree`` with values that must be the same on every rank."""

    def __init__(
        self,
        patches: Patches,
        *,
        is_training: Callable[[], bool],
        begins: Callable[[bool], None],
        agree: Callable[[dict[str, Any]], None],
        moved: Callable[[str], None],
    ) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.is_training, self.begins, self.agree = is_training, begins, agree
        self._moved = moved
        self.data_s, self.samples, self.position, self.epoch = 0.0, 0, 0, -1
        self.n_given = 0
        """Batches so far, also those of which this rank has no rows."""
        self._rows: int | None = None
        self._backward = 0
        loader, iterator = DataLoader, torch_dataloader._BaseDataLoaderIter
        index_sampler: Any = vars(loader)["_index_sampler"].fget

        def sampler(owner: Any) -> Any:
            found = index_sampler(owner)
            return Shares(found, owner, self) if self._divides(owner) else found

        patches.set(loader, "_index_sampler", property(sampler))
        nexts, init, fetched = iterator.__next__, iterator.__init__, fetch._MapDatasetFetcher.fetch

        def following(owner: Any) -> Any:
            self._moved("data")
            began = time.perf_counter()
            share = owner._sampler_iter
            try:
                batch = nexts(owner)
            except StopIteration:
                if isinstance(share, Share):
                    self._ended(share)
                raise
            self.data_s += time.perf_counter() - began
            if isinstance(share, Share):
                self._count(share)
            return batch

        def iterator_init(owner: Any, of: Any) -> None:
            init(owner, of)
            if isinstance(owner._sampler_iter, Share):
                # workers of another rank draw other numbers
                owner._base_seed = (owner._base_seed + derived(self.rank)) % 2**63 if self.rank else owner._base_seed

        def fetching(fetcher: Any, indices: Any) -> Any:
            if not isinstance(indices, SeededRows):
                return fetched(fetcher, indices)
            with random_numbers_kept():
                seed_generators(indices.seed)
                return fetched(fetcher, list(indices))

        patches.set(iterator, "__next__", following)
        patches.set(iterator, "__init__", iterator_init)
        patches.set(fetch._MapDatasetFetcher, "fetch", fetching)

    def backward_begins(self) -> int:
        """Rows of this rank's batch that count. Raises InputError without a batch."""
        self._moved("backward")
        if self._rows is None:
            raise InputError(
                "the script trains on data without a DataLoader, or before the first batch of one",
                hint="ranks divide the batches of a DataLoader: name a function that returns model and data, train.py:make_step",
            )
        self._backward += 1
        return self._rows

    @staticmethod
    def _divides(loader: Any) -> bool:
        return loader.batch_sampler is not None and not isinstance(loader.dataset, IterableDataset)

    def _count(self, share: Share) -> None:
        if share.n_given == LOOK and self._backward == share.backward_before:
            raise _trains_nothing(share)
        own, whole = share.sizes.popleft()
        self._rows = own
        self.samples += own
        self.position += whole
        self.n_given += 1
        share.n_given += 1

    def _ended(self, share: Share) -> None:
        if share.n_given and self._backward == share.backward_before:
            raise _trains_nothing(share)

    def n_backward(self) -> int:
        """Backward passes so far."""
        return self._backward


def _trains_nothing(share: Share) -> InputError:
    return InputError(
        f"a loop over {share.name} was divided over the ranks, for gradients were on, and makes no backward pass",
        hint="put it under torch.no_grad(), or the model into eval(): every rank then has the whole batch",
    )


class SeededRows(list[Any]):
    """Rows of a batch that the loading process makes with random numbers of their own."""

    seed = 0


class Shares:
    """Replacement for a loader's batch sampler."""

    def __init__(self, sampler: Any, loader: Any, batches: Batches) -> None:
        self._sampler, self._loader, self._batches = sampler, loader, batches

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        divides = self._batches.is_training()
        self._batches.begins(divides)
        return Share(self._sampler, self._loader, self._batches) if divides else iter(self._sampler)


class Share(Iterator[Any]):
    """One pass over a batch sampler: this rank's rows of each batch. A rank without rows loads one of another rank, which does
    not count."""

    def __init__(self, sampler: Any, loader: Any, batches: Batches) -> None:
        self._batches, self._loader = batches, loader
        self._inner = iter(sampler)
        self.name = type(loader.dataset).__name__
        self.sizes: deque[tuple[int, int]] = deque()
        self.n_given, self._n = 0, 0
        self.backward_before = batches.n_backward()
        share_random_numbers()
        batches.epoch, batches.position = batches.epoch + 1, 0

    def __next__(self) -> Any:
        batches = self._batches
        batch = list(next(self._inner))
        if not self._n:
            first = hashlib.blake2b(repr(batch).encode(), digest_size=8).hexdigest()
            batches.agree({"samples": _length(self._loader.dataset), "first batch": first})
        self._n += 1
        n, r, w = len(batch), batches.rank, batches.world
        own = batch[r * n // w : (r + 1) * n // w]
        self.sizes.append((len(own), n))
        rows = own or batch[:1]
        if self._loader.num_workers:
            return rows
        drawn = SeededRows(rows)
        drawn.seed = derived(batches.epoch, self._n, r)
        return drawn


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except TypeError:
        return None


def share_random_numbers() -> None:
    """Every rank continues with the random numbers of the first one (on the processor: a GPU's stay separate)."""
    state: list[Any] = [None]
    if dist.get_rank() == 0:
        state = [(torch.get_rng_state().numpy(), random.getstate(), np.random.get_state())]  # noqa: NPY002 - the generator that scripts use
    dist.broadcast_object_list(state, 0, group=control_group())
    torch.set_rng_state(torch.from_numpy(state[0][0]))
    random.setstate(state[0][1])
    np.random.set_state(state[0][2])  # noqa: NPY002 - the generator that scripts use


def refuse_iterable(patches: Patches, is_training: Callable[[], bool]) -> None:
    """A stream cannot be split by index: report that when a training loop requests one."""
    iterates = DataLoader.__iter__

    def iterating(loader: Any) -> Any:
        if not Batches._divides(loader) and is_training():
            what = "gives its samples in its own order" if isinstance(loader.dataset, IterableDataset) else "has no batches"
            raise InputError(
                f"the loader of {type(loader.dataset).__name__} {what}, and cannot be divided over ranks",
                hint="give it a dataset with __len__ and __getitem__, and a batch_size",
            )
        return iterates(loader)

    patches.set(DataLoader, "__iter__", iterating)
