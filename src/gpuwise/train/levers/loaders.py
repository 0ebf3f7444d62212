# pyright: basic
"""Levers on loaders: their arguments and what they give; and what a script does of itself."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import dataloader as torch_dataloader

from gpuwise.train.levers.items import reachable
from gpuwise.workload.capture.device.patching import Patches

Tell = Callable[..., None]
DEFAULT_AHEAD = 2
"""Batches that each worker makes ahead (PyTorch's default)."""
ARGUMENTS = {"workers": "num_workers", "prefetch": "prefetch_factor", "pin_memory": "pin_memory"}


def change_arguments(patches: Patches, levers: Mapping[str, object], tell: Tell, *, keep_workers: bool) -> None:
    """Every ``DataLoader`` is made with these; one over an iterable dataset keeps its number of workers, for each of them
    would read all of it. ``keep_workers``: what they hold must outlive the epoch."""
    original = DataLoader.__init__
    signature = inspect.signature(original)
    own: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()

    @functools.wraps(original)
    def init(loader: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(loader, *args, **kwargs)
        arguments = bound.arguments
        own[loader] = own_attributes(arguments)
        for name, value in levers.items():
            why = None
            if name == "workers":
                why = _set_workers(arguments, int(str(value)))
            elif name == "prefetch" and not arguments.get("num_workers"):
                why = "the loader has no workers"
            else:
                arguments[ARGUMENTS[name]] = value
            tell("lever", name=name, applied=why is None, why=why)
        if keep_workers and arguments.get("num_workers"):
            arguments["persistent_workers"] = True
        original(*bound.args, **bound.kwargs)

    def __reduce_ex__(loader: Any, protocol: Any) -> Any:
        reduced = object.__reduce_ex__(loader, protocol)
        if loader not in own or len(reduced) < 3 or not isinstance(reduced[2], dict):
            return reduced
        # workers that the script did not ask for do not go with it either
        iterator = reduced[2]["_iterator"] if own[loader]["persistent_workers"] else None
        return (*reduced[:2], {**reduced[2], **own[loader], "_iterator": iterator}, *reduced[3:])

    iterate, settings = DataLoader.__iter__, WeakKeyDictionary[Any, Any]()

    def __iter__(loader: Any) -> Any:
        if loader in own and loader.persistent_workers and not own[loader]["persistent_workers"]:
            before, settings[loader] = settings.get(loader), reachable(loader.dataset)[1]
            if loader._iterator is not None and before != settings[loader]:
                loader._iterator._shutdown_workers()  # they have the dataset as it was
                loader._iterator = None
            if loader._iterator is not None:  # new workers would draw a seed for themselves
                torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        return iterate(loader)

    patches.set(DataLoader, "__init__", init)
    patches.set(DataLoader, "__iter__", __iter__)
    patches.set(DataLoader, "__reduce_ex__", __reduce_ex__)


def own_attributes(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes changed by levers of a loader created with these arguments: its pickle has the script's own values."""
    n_workers = arguments.get("num_workers", 0)
    ahead = arguments.get("prefetch_factor")
    return {
        "num_workers": n_workers,
        "prefetch_factor": DEFAULT_AHEAD if ahead is None and n_workers else ahead,
        "pin_memory": arguments.get("pin_memory", False),
        "persistent_workers": arguments.get("persistent_workers", False),
    }


def _set_workers(arguments: dict[str, Any], value: int) -> str | None:
    if isinstance(arguments.get("dataset"), IterableDataset):
        return "each worker would read all of an iterable dataset"
    arguments["num_workers"] = value
    if value == 0:
        arguments.pop("prefetch_factor", None)
        arguments.pop("persistent_workers", None)
        arguments.pop("multiprocessing_context", None)
    else:
        arguments["persistent_workers"] = True
    return None


def change_batches(patches: Patches, changes: list[Callable[[Any], Any]]) -> None:
    """Batches of loaders pass through ``changes`` in turn."""
    following = torch_dataloader._BaseDataLoaderIter.__next__

    def next_batch(iterator: Any) -> Any:
        batch = following(iterator)
        for change in changes:
            batch = change(batch)
        return batch

    patches.set(torch_dataloader._BaseDataLoaderIter, "__next__", next_batch)


def probe_loaders(patches: Patches, tell: Tell) -> None:
    """Report the time per item of the first loader's dataset in this process, before its first batch. The script's random
    numbers are restored afterwards."""
    from gpuwise.train.levers.items import random_numbers_kept
    from gpuwise.train.levers.workers import probe_items

    original = DataLoader.__iter__
    told: list[bool] = []

    def iterates(loader: Any) -> Any:
        if not told:
            told.append(True)
            with suppress(Exception), random_numbers_kept():
                # a dataset that cannot be read like this is no error of the script's
                probe = probe_items(loader.dataset)
                tell("items", item_s=probe.item_s, cpu_s=probe.cpu_s, n=probe.n_items)
        return original(loader)

    patches.set(DataLoader, "__iter__", iterates)


class ScriptTraits:
    """Properties of the script that levers depend on: whether it casts, scales, compiles."""

    def __init__(self, patches: Patches, tell: Tell) -> None:
        self._tell, self._told = tell, set[str]()
        enter, scale, compiling = torch.autocast.__enter__, torch.amp.GradScaler.scale, torch.compile

        def entering(context: Any) -> Any:
            self._say("autocast", str(context.fast_dtype).removeprefix("torch."))
            return enter(context)

        def scaling(scaler: Any, outputs: Any) -> Any:
            self._say("scaler", True)
            return scale(scaler, outputs)

        def compile(*args: Any, **kwargs: Any) -> Any:
            self._say("compile", True)
            return compiling(*args, **kwargs)

        patches.set(torch.autocast, "__enter__", entering)
        patches.set(torch.amp.GradScaler, "scale", scaling)
        patches.set(torch, "compile", compile)

    def _say(self, what: str, value: object) -> None:
        if what not in self._told:
            self._told.add(what)
            self._tell("script", **{what: value})
