"""What a program does outside its step while it is only looked at: data is read in this process, and no file is overwritten
by weights or pictures that have no values."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import dataloader

from gpuwise.workload.capture.device.patching import Patches


@contextmanager
def harmless() -> Generator[None]:
    """Loaders without worker processes, weights and pictures written to no path, Weights & Biases switched off, for the length
    of the context."""
    patches, mode = Patches(), os.environ.get("WANDB_MODE")
    patches.set(dataloader.DataLoader, "__iter__", _in_this_process)
    patches.set(torch, "save", _without_a_path(torch.save))
    if importlib.util.find_spec("safetensors") is not None:
        library = importlib.import_module("safetensors.torch")
        patches.set(library, "save_file", _without_a_path(library.save_file))
    if importlib.util.find_spec("PIL") is not None:  # samples of a generator, and Matplotlib's figures
        pictures = importlib.import_module("PIL.Image").Image
        patches.set(pictures, "save", _without_a_path(pictures.save))
    os.environ["WANDB_MODE"] = "disabled"
    try:
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


def _without_a_path(save: Callable[..., Any]) -> Callable[..., Any]:
    """``save`` where it writes to an open file, its second argument; nothing where that is a path.

    The old format, in which a storage pickles itself, would read memory that a storage without values does not have
    (Lightning pickles a module's hyperparameters): of such a storage nothing is written, all else in the new one.
    """

    def guarded(*args: Any, **kwargs: Any) -> Any:
        to = args[1] if len(args) > 1 else kwargs.get("f", kwargs.get("filename"))
        if isinstance(to, (str, os.PathLike)):
            return None
        if not kwargs.get("_use_new_zipfile_serialization", True):
            if isinstance(what := args[0] if args else kwargs.get("obj"), (torch.TypedStorage, torch.UntypedStorage)):
                # the untyped one by its private name: to ask the other is deprecated
                storage = getattr(what, "_untyped_storage", what)
                return None if storage.device.type == "meta" else save(*args, **kwargs)
            del kwargs["_use_new_zipfile_serialization"]
        return save(*args, **kwargs)

    return guarded
