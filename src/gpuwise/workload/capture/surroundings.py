"""What a program does outside its step while it is only looked at: data is read in this process, and what it writes is aside."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch.utils.data import dataloader

from gpuwise.workload.capture.device.patching import Patches
from gpuwise.workload.capture.written import Aside, written_aside


@contextmanager
def harmless() -> Generator[None]:
    """Loaders without worker processes, files written aside, Weights & Biases switched off, for the length of the context."""
    patches, mode = Patches(), os.environ.get("WANDB_MODE")
    patches.set(dataloader.DataLoader, "__iter__", _in_this_process)
    os.environ["WANDB_MODE"] = "disabled"
    try:
        with written_aside() as aside:
            patches.set(torch, "save", _saved(torch.save, aside))
            if importlib.util.find_spec("safetensors") is not None:  # it reads the memory of tensors, which has no values
                library = importlib.import_module("safetensors.torch")
                patches.set(library, "save_file", _nothing)
            yield
    finally:
        patches.undo()
        if mode is None:
            del os.environ["WANDB_MODE"]
        else:
            os.environ["WANDB_MODE"] = mode


def _in_this_process(loader: Any) -> Any:
    """An iterator of ``loader`` without workers; the loader itself is as it was, and keeps none of it."""
    told = loader.num_workers, loader.timeout
    loader.num_workers, loader.timeout = 0, 0
    try:
        return dataloader._SingleProcessDataLoaderIter(loader)  # pyright: ignore[reportPrivateUsage]
    finally:
        loader.num_workers, loader.timeout = told


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


def _saved(save: Callable[..., Any], aside: Aside) -> Callable[..., Any]:
    """``torch.save``, which opens a path in C: to a file aside. What cannot be written is not there.

    The old format, in which a storage pickles itself, would read memory that a storage without values does not have
    (Lightning pickles a module's hyperparameters): of such a storage nothing is written, all else in the new one.
    """

    def saved(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("_use_new_zipfile_serialization", True):
            if isinstance(obj, (torch.TypedStorage, torch.UntypedStorage)):
                # the untyped one by its private name: to ask the other is deprecated
                if getattr(obj, "_untyped_storage", obj).device.type == "meta":
                    return None
                return save(obj, f, *args, **kwargs)
            del kwargs["_use_new_zipfile_serialization"]
        if not isinstance(f, (str, os.PathLike)):
            return save(obj, f, *args, **kwargs)
        there = aside.to_write(f, keeps=False)
        try:
            save(obj, there, *args, **kwargs)
        except Exception:  # noqa: BLE001 - what a tensor without values cannot do, whatever it is
            with suppress(OSError):
                os.remove(there)  # noqa: PTH107

    return saved
