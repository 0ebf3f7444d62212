# pyright: basic
"""What a program does outside its step while it is only looked at: data is read in this process, and what it writes is aside."""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
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
        with written_aside() as aside, warnings.catch_warnings():
            # what a checkpoint without values gives back to a model without values
            warnings.filterwarnings("ignore", "for .*: copying from a non-meta parameter", UserWarning)
            patches.set(torch, "save", _saved(torch.save, aside))
            patches.set(torch, "load", _loaded(torch.load))
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
    """``torch.save``, which opens a path in C: to a file aside. Of a tensor without values its shape is written.

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
        path = isinstance(f, (str, os.PathLike))
        there = aside.to_write(f, keeps=False) if path else f
        try:
            with _shapes():
                return save(obj, there, *args, **kwargs)
        except Exception:
            if not path:
                raise
            with suppress(OSError):  # what a tensor without values cannot do, whatever it is
                os.remove(there)  # noqa: PTH107

    return saved


@contextmanager
def _shapes() -> Generator[None]:
    """Tensors without values are pickled as their shapes, and real ones as torch does, unseen by a capture."""
    patches, reduce = Patches(), torch.Tensor.__reduce_ex__

    def reduced(self: torch.Tensor, protocol: Any) -> Any:
        if not self.is_meta or type(self) is not torch.Tensor:
            return reduce(self, protocol)
        return _of_shape, (tuple(self.shape), self.stride(), self.dtype, self.requires_grad)

    patches.set(torch.Tensor, "__reduce_ex__", reduced)
    try:
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            yield
    finally:
        patches.undo()


def _of_shape(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, grad: bool) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device="meta").requires_grad_(grad)


def _loaded(load: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.load``: values are read on the host, unseen by a capture, and go where they are asked for; tensors that were
    written as shapes are made again on the pretended device."""

    def loaded(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        known = getattr(torch.serialization, "safe_globals", lambda _names: nullcontext())
        with _disable_current_modes(), torch._C.DisableTorchFunction(), known([_of_shape]):
            found = load(f, "cpu", *args, **kwargs)
        where = map_location if isinstance(map_location, (str, torch.device, int)) else None

        def placed(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.is_meta:
                made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=where or "cuda")
                return made.requires_grad_(tensor.requires_grad)
            return tensor.to(where or "cpu")  # which is the pretended device where the host is captured

        return _each(found, placed)

    return loaded


def _each(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """``value`` with every tensor of it changed: those of a container, or of a module."""
    if isinstance(value, torch.nn.Module):
        return value._apply(change)
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(change(value.detach()), requires_grad=value.requires_grad)
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        for key, part in value.items():
            value[key] = _each(part, change)
        return value
    if type(value) in (list, tuple):
        return type(value)(_each(part, change) for part in value)
    return value
