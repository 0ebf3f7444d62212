# pyright: basic
"""Items of a dataset made once, where the same item twice is the same to the last bit."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import fetch

from gpuwise.train.levers.decode import ByteCache, memory_bound
from gpuwise.workload.capture.device.patching import Patches

Tell = Callable[..., None]
PROBES = 4
"""Items that are made twice, with other random numbers the second time, before any is kept."""
OBJECT_BYTES = 1024
"""What anything but a tensor, an array or bytes is taken to hold."""


class Items:
    """Patches what makes batches of a map-style dataset."""

    def __init__(self, patches: Patches, value: object, tell: Tell) -> None:
        self._tell, self._pid = tell, os.getpid()
        self._most = memory_bound(None if value is True else int(str(value)))
        self._stores: dict[int, ByteCache | None] = {}
        original = fetch._MapDatasetFetcher.fetch

        def fetching(fetcher: Any, indices: Any) -> Any:
            store = self._of(fetcher)
            if store is None:
                return original(fetcher, indices)
            return fetcher.collate_fn([self._item(fetcher.dataset, store, index) for index in indices])

        patches.set(fetch._MapDatasetFetcher, "fetch", fetching)

    def _of(self, fetcher: Any) -> ByteCache | None:
        dataset = fetcher.dataset
        if not fetcher.auto_collation:
            return None
        if id(dataset) not in self._stores:
            why = why_not_kept(dataset)
            self._stores[id(dataset)] = ByteCache(self._most) if why is None else None
            if os.getpid() == self._pid:
                self._tell("lever", name="cache_items", applied=why is None, why=why, dataset=type(dataset).__name__)
        return self._stores[id(dataset)]

    def _item(self, dataset: Any, store: ByteCache, index: Any) -> Any:
        item = store.get(index)
        if item is None:
            item = dataset[index]
            store.put(index, copied(item), n_bytes(item))
            return item
        return copied(item)


def why_not_kept(dataset: Any) -> str | None:
    """None where ``PROBES`` items come out the same twice. The random numbers of the script are as before afterwards."""
    if hasattr(dataset, "__getitems__"):
        return "the dataset makes whole batches itself"
    try:
        total = len(dataset)
    except TypeError:
        return "the dataset does not tell its length"
    with random_numbers_kept():
        for index in range(0, total, max(total // PROBES, 1)):
            seed(1)
            first = copied(dataset[index])
            seed(2)
            if not same(first, dataset[index]):
                return f"item {index} comes out otherwise the second time: it is drawn anew, or it changes"
    return None


def seed(number: int) -> None:
    """Of all three generators that datasets draw from."""
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002 - the generator that scripts use


@contextmanager
def random_numbers_kept() -> Iterator[None]:
    """The generators' states are put back at the end."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])  # noqa: NPY002


def same(a: Any, b: Any) -> bool:
    """To the last bit, and of the same types."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if hasattr(a, "tobytes"):
        return a.tobytes() == b.tobytes()
    return bool(a == b)


def copied(value: Any) -> Any:
    """Nothing that the loop does to an item reaches the kept one."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, np.ndarray) or hasattr(value, "tobytes"):
        return value.copy() if hasattr(value, "copy") else value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(copied, value))
    if isinstance(value, (tuple, list)):
        return type(value)(map(copied, value))
    if isinstance(value, dict):
        return {k: copied(v) for k, v in value.items()}
    return value


def n_bytes(value: Any) -> int:
    """Roughly what keeping it takes."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, (bytes, str)):
        return len(value)
    if isinstance(value, Mapping):
        return sum(n_bytes(v) for v in value.values())
    if isinstance(value, (tuple, list)):
        return sum(map(n_bytes, value))
    return OBJECT_BYTES
