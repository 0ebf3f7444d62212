# pyright: basic
"""Items of a dataset made once, where making them draws no random number and follows nothing that changes."""

from __future__ import annotations

import os
import pickle
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import fetch

from gpuwise.train.levers.decode import ByteCache, memory_bound
from gpuwise.workload.capture.device.patching import Patches
from gpuwise.workload.capture.places import is_library

Tell = Callable[..., None]
CHECKED, EVERY = 4, 64
"""Number of first hits of each epoch that are recomputed for a check, and the interval of later checks."""
OBJECT_BYTES = 1024
"""Assumed bytes of an object other than a tensor, array or bytes."""
DEEPEST, MOST_OBJECTS, SMALL = 6, 2000, 16
"""How far a dataset is looked through for generators and settings, and the elements of an array that may be one."""
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


class Items:
    """Patches the batch creation of a map-style dataset. Only requested items are made, plus checks of hits: a dataset that
    draws random numbers, changes, or returns different items is no longer cached from the first sign of it."""

    def __init__(self, patches: Patches, value: object, tell: Tell) -> None:
        self._tell, self._pid = tell, os.getpid()
        self._most = memory_bound(None if value is True else int(str(value)))
        self._stores: dict[int, Store] = {}
        original = fetch._MapDatasetFetcher.fetch

        def fetching(fetcher: Any, indices: Any) -> Any:
            if not fetcher.auto_collation:
                return original(fetcher, indices)
            store = self._of(fetcher)
            if store.why is not None:
                self._report(store)
                return original(fetcher, indices)
            items = [store.item(index) for index in indices]
            self._report(store)
            return fetcher.collate_fn(items)

        patches.set(fetch._MapDatasetFetcher, "fetch", fetching)

    def _of(self, fetcher: Any) -> Store:
        store = self._stores.get(id(fetcher.dataset))
        if store is None:
            store = self._stores[id(fetcher.dataset)] = Store(fetcher.dataset, ByteCache(self._most))
        if not hasattr(fetcher, "_gpuwise_began"):  # an epoch has a separate fetcher
            fetcher._gpuwise_began = True
            store.begin_epoch()
        return store

    def _report(self, store: Store) -> None:
        """Report once that items are cached, and once why they no longer are."""
        if store.reported == (store.why,):
            return
        store.reported = (store.why,)
        if os.getpid() == self._pid:
            self._tell(
                "lever", name="cache_items", applied=store.why is None, why=store.why, dataset=type(store.dataset).__name__
            )
        if store.why is not None and store.n_hits:
            print(f"gpuwise: cache_items is switched off: {store.why}", file=sys.stderr)  # noqa: T201


class Store:
    """Cached items of one dataset. ``why``: reason that nothing is cached any more."""

    def __init__(self, dataset: Any, cache: ByteCache) -> None:
        self.dataset, self._cache = dataset, cache
        self.reported: tuple[str | None, ...] = ()
        self.n_hits = self._hits = 0
        self.why = "the dataset makes whole batches itself" if hasattr(dataset, "__getitems__") else None
        self._generators, self._settings = reachable(dataset)

    def begin_epoch(self) -> None:
        """Stop caching if anything that the items may depend on has changed."""
        self._hits = 0
        self._generators, settings = reachable(self.dataset)
        changed = sorted(k for k in settings.keys() | self._settings.keys() if settings.get(k) != self._settings.get(k))
        if changed and self.why is None:
            self._off(f"{changed[0]} of {type(self.dataset).__name__} changes from epoch to epoch, and its items may follow it")

    def item(self, index: Any) -> Any:
        """The item, cached or made."""
        kept = None if self.why is not None else self._cache.get(index)
        is_checked = False
        if kept is not None:
            self.n_hits, self._hits = self.n_hits + 1, self._hits + 1
            is_checked = self._hits <= CHECKED or self._hits % EVERY == 0
            if not is_checked:
                return copied(kept)
        before = self._states()
        item = self.dataset[index]
        if self.why is not None:
            return item
        if self._states() != before:
            self._off(f"item {index} draws random numbers")
        elif is_checked and not same(kept, item):
            self._off(f"item {index} comes out otherwise when it is made again")
        elif not is_checked:
            self._cache.put(index, copied(item), n_bytes(item))
        return item

    def _states(self) -> list[bytes]:
        """States of all generators that an item may draw from."""
        everybody = (random.getstate(), np.random.get_state())  # noqa: NPY002
        return [torch.get_rng_state().numpy().tobytes(), pickle.dumps(everybody), *map(_state, self._generators)]

    def _off(self, why: str) -> None:
        self.why, self._cache = why, ByteCache(0)


def _state(generator: Any) -> bytes:
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, np.random.Generator):
        return pickle.dumps(generator.bit_generator.state)
    return pickle.dumps(generator.get_state() if isinstance(generator, np.random.RandomState) else generator.getstate())


def reachable(dataset: Any) -> tuple[list[Any], dict[str, Any]]:
    """The generators that ``dataset`` and what it holds can draw from, with those of their modules; and the settings of both,
    plain values by their places: attributes, and what the methods read of their modules."""
    generators: dict[int, Any] = {}
    settings: dict[str, Any] = {}
    seen: set[int] = set()
    todo: list[tuple[str, Any, int]] = [("", dataset, 0)]
    while todo and len(seen) < MOST_OBJECTS:
        place, value, depth = todo.pop()
        if isinstance(value, (bool, int, float, str, bytes, type(None))):
            settings[place] = value
            continue
        if isinstance(value, (torch.Tensor, np.ndarray)):
            n = value.size if isinstance(value, np.ndarray) else value.numel()
            settings[place] = pickle.dumps(value.tolist()) if n <= SMALL else None
            continue
        if id(value) in seen or depth > DEEPEST or isinstance(value, (type, ModuleType)):
            continue
        seen.add(id(value))
        if isinstance(value, _GENERATORS):
            generators[id(value)] = value
        elif isinstance(value, Mapping):
            todo += [(f"{place}[{k!r}]", v, depth + 1) for k, v in islice(value.items(), MOST_OBJECTS)]
        elif isinstance(value, (list, tuple, set)):
            todo += [(f"{place}[{k}]", v, depth + 1) for k, v in enumerate(islice(value, MOST_OBJECTS))]
        else:
            todo += [(f"{place}.{k}".lstrip("."), v, depth + 1) for k, v in getattr(value, "__dict__", {}).items()]
            todo += [(k, v, depth + 1) for k, v in _named(value)]
    return list(generators.values()), settings


def _named(value: Any) -> Iterator[tuple[str, Any]]:
    """Attributes of an object's classes, and what a function, or their methods outside of libraries, read of their module or hold
    bound."""
    functions = [value]
    if not hasattr(value, "__code__"):
        functions = [m for kind in type(value).__mro__ for m in vars(kind).values()]
        yield from ((k, m) for kind in type(value).__mro__ for k, m in vars(kind).items() if k[:2] != "__" and not callable(m))
    for function in functions:
        code, known = getattr(function, "__code__", None), getattr(function, "__globals__", {})
        if code is None or is_library(code.co_filename):
            continue
        yield from ((name, known[name]) for name in code.co_names if name in known)
        cells = getattr(function, "__closure__", None) or ()
        for name, cell in zip(code.co_freevars, cells, strict=True):
            with suppress(ValueError):
                yield name, cell.cell_contents


def seed(number: int) -> None:
    """Seed all three generators that datasets draw from."""
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
    """Whether both are equal to the last bit, and of the same types."""
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
    """A copy, so that the loop's changes to an item do not reach the cached one."""
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
