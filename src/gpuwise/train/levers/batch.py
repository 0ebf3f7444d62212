# pyright: basic
"""How many samples the training's loader puts into a batch, and, for trials of memory, its longest samples first."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from gpuwise.train.levers.items import random_numbers_kept
from gpuwise.workload.capture.device.patching import Patches

Tell = Callable[..., None]
SCAN_S, SCAN_ITEMS = 3.0, 20_000
"""A dataset is looked through for its longest samples for so long, evenly spaced over all of it. Rule of this project."""


class Batches:
    """Patches the first loader, and every other over the same data.

    ``size``: samples per batch, None for the script's own. ``longest``: that many batches of the longest samples come first,
    in the first pass.
    """

    def __init__(self, patches: Patches, size: int | None, longest: int, tell: Tell) -> None:
        self._size, self._longest, self._tell = size, longest, tell
        self._dataset: Any = None
        original = DataLoader.__init__
        signature = inspect.signature(original)

        @functools.wraps(original)
        def init(loader: Any, *args: Any, **kwargs: Any) -> None:
            bound = signature.bind(loader, *args, **kwargs)
            dataset = bound.arguments.get("dataset")
            if self._dataset is None:
                self._dataset = dataset
            if size is not None and is_same_data(dataset, self._dataset):
                why = set_size(bound.arguments, size)
                tell("lever", name="batch", applied=why is None, why=why)
            original(*bound.args, **bound.kwargs)

        patches.set(DataLoader, "__init__", init)
        if longest:
            sampler: Any = vars(DataLoader)["_index_sampler"].fget
            patches.set(DataLoader, "_index_sampler", property(lambda loader: self._sampler(loader, sampler(loader))))

    def _sampler(self, loader: Any, sampler: Any) -> Any:
        plain = isinstance(loader.dataset, IterableDataset) or not loader._auto_collation
        if self._longest and not plain and is_same_data(loader.dataset, self._dataset):
            return LongestFirst(sampler, loader, self._take)
        return sampler

    def _take(self, loader: Any) -> list[list[int]]:
        """Return the batches that come first; empty the second time."""
        n, self._longest = self._longest, 0
        size = self._size or getattr(loader, "batch_size", None) or getattr(loader.batch_sampler, "batch_size", None)
        if not n or not size:
            return []
        longest = longest_items(loader.dataset, int(size), self._tell)
        return [longest] * n if longest else []


def is_same_data(a: Any, b: Any) -> bool:
    """One dataset, or two of the same kind and length: a script may recreate it in every epoch."""
    if a is b:
        return True
    with suppress(Exception):
        # lengths of streams are unknown
        return type(a) is type(b) and len(a) == len(b)
    return False


class LongestFirst:
    """Replacement for a batch sampler."""

    def __init__(self, sampler: Any, loader: Any, take: Callable[[Any], list[list[int]]]) -> None:
        self._inner, self._loader, self._take_first = sampler, loader, take

    def __iter__(self) -> Iterator[Any]:
        yield from self._take_first(self._loader)
        yield from self._inner

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_inner"], name)


def set_size(arguments: dict[str, Any], size: int) -> str | None:
    """In a loader's arguments; why not, where it cannot be."""
    sampler = arguments.get("batch_sampler")
    if sampler is not None:
        if type(sampler) is not BatchSampler:
            return f"{type(sampler).__name__} makes its own batches"
        arguments["batch_sampler"] = BatchSampler(sampler.sampler, size, sampler.drop_last)
        return None
    if "batch_size" in arguments and arguments["batch_size"] is None:
        return "the dataset makes its own batches"
    arguments["batch_size"] = size
    return None


def longest_items(dataset: Any, n: int, tell: Tell) -> list[int]:
    """Indices of the ``n`` longest items (repeated from the longest if fewer were examined); empty if unknown. The script's
    random numbers are restored afterwards."""
    lengths: dict[int, int] = {}
    total = 0
    with suppress(Exception), random_numbers_kept():
        # a dataset that cannot be read like this is no error of the script's
        total = len(dataset)
        began = time.perf_counter()
        for index in range(0, total, -(-total // SCAN_ITEMS)):
            lengths[index] = item_length(dataset[index])
            if time.perf_counter() - began > SCAN_S:
                break
    if not lengths:
        tell("longest", n_items=total, looked_at=0, varies=False)
        return []
    order = sorted(lengths, key=lambda k: -lengths[k])
    tell(
        "longest", n_items=total, looked_at=len(lengths), varies=lengths[order[0]] != lengths[order[-1]], length=lengths[order[0]]
    )
    return [order[k % len(order)] for k in range(n)]


def item_length(item: Any, depth: int = 4) -> int:
    """Numbers in an item, however it is nested: elements of its tensors and arrays, length of its lists and texts."""
    if isinstance(item, torch.Tensor):
        return item.numel()
    if isinstance(getattr(item, "size", None), int):
        return int(item.size)
    if isinstance(item, (str, bytes)):
        return len(item)
    if isinstance(item, Mapping) and depth:
        return sum(item_length(v, depth - 1) for v in item.values())
    if isinstance(item, (list, tuple)) and depth:
        if item and isinstance(item[0], (int, float)):
            return len(item)
        return sum(item_length(v, depth - 1) for v in item)
    return 1


def tell_device_memory(tell: Tell) -> None:
    """Report the device's free memory, and the memory held by this process's allocator."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        with suppress(RuntimeError):
            free, total = torch.cuda.mem_get_info()
            tell("device_memory", free_bytes=free, total_bytes=total, reserved_bytes=torch.cuda.memory_reserved())
