# pyright: basic
"""Calls that stop a step, noted over a few steps with the line of the script: values read from the device, words and files
written; and how much of the batches is padding."""

from __future__ import annotations

import builtins
import logging
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import dataloader as torch_dataloader

from gpuwise.train.hook.run_queue import RunQueue
from gpuwise.workload.capture.device.patching import Patches

READING = ("item", "tolist", "__bool__", "__float__", "__int__", "__index__", "cpu", "numpy", "nonzero")
"""Methods of a tensor that wait for its device."""
MOST_TOLD = 24
_PATHS = (sysconfig.get_path(n) for n in ("stdlib", "platstdlib", "purelib", "platlib"))
_FOREIGN = ("<", *{*_PATHS, str(Path(torch.__file__).parent)})
_OURS = f"{os.sep}gpuwise{os.sep}train{os.sep}"


class SyncRecorder:
    """Replaces calls that synchronise or write by versions that record them, until :meth:`close`."""

    def __init__(self, *, tell: Callable[..., None]) -> None:
        self._tell = tell
        self._patches = Patches()
        self._calls: dict[tuple[str, str, str, str], list[float]] = {}
        self._inside = False
        self._pid, self._thread, self._queue = os.getpid(), threading.get_ident(), RunQueue()
        self._padding = PaddingCounter()
        self.is_open = False

    def open(self) -> None:
        """Install the replacements."""
        self.is_open = True
        for name in READING:
            self._replace(torch.Tensor, name, "read", f"Tensor.{name}", lambda args: args[0].device.type)
        if torch.cuda.is_available():
            self._replace(torch.cuda, "synchronize", "read", "torch.cuda.synchronize", lambda args: "cuda")
        self._replace(builtins, "print", "log", "print")
        self._replace(logging.Logger, "handle", "log", "logging")
        self._replace(os, "fsync", "log", "os.fsync")
        for module, owner, names in _LOGGERS:
            holder = getattr(sys.modules.get(module), owner, None) if owner else sys.modules.get(module)
            for name in names if holder is not None else ():
                if hasattr(holder, name):
                    self._replace(holder, name, "log", f"{owner or module}.{name}")
        following = torch_dataloader._BaseDataLoaderIter.__next__

        def looked(iterator: Any) -> Any:
            batch = following(iterator)
            if os.getpid() == self._pid:
                self._padding.add(batch)
            return batch

        self._patches.set(torch_dataloader._BaseDataLoaderIter, "__next__", looked)

    def close(self, **more: Any) -> None:
        """Restore everything and write the event ``notes``."""
        if not self.is_open:
            return
        self.is_open = False
        self._patches.undo()
        self._queue.close()
        rows = sorted(self._calls.items(), key=lambda c: -c[1][1])[:MOST_TOLD]
        calls = [
            {"kind": kind, "what": what, "where": where, "device": device, "n": int(n), "seconds": seconds}
            for (kind, what, where, device), (n, seconds) in rows
        ]
        self._tell("notes", calls=calls, padding=self._padding.summary(), anomaly=torch.is_anomaly_enabled(), **more)

    def _replace(self, owner: Any, name: str, kind: str, what: str, device: Callable[[Any], str] = lambda args: "") -> None:
        original = getattr(owner, name)

        def noted(*args: Any, **kwargs: Any) -> Any:
            if self._inside or os.getpid() != self._pid:
                return original(*args, **kwargs)
            self._inside = True
            began_s = self._own_s()
            try:
                return original(*args, **kwargs)
            finally:
                self._inside = False
                self._note(kind, what, device(args), self._own_s() - began_s)

        self._patches.set(owner, name, noted)

    def _own_s(self) -> float:
        """A clock that stops while other programs have the training thread's processor: the reader of a pipe takes it at once."""
        waited_s = self._queue.waited_s() if threading.get_ident() == self._thread else 0.0
        return time.perf_counter() - waited_s

    def _note(self, kind: str, what: str, device: str, seconds: float) -> None:
        where = script_line()
        if not where:
            # a library's own (an optimizer that reads its step count on the processor): no line of the person's to change
            return
        total = self._calls.setdefault((kind, what, where, device), [0, 0.0])
        total[0] += 1
        total[1] += seconds


_LOGGERS = (
    ("torch.utils.tensorboard.writer", "SummaryWriter", ("add_scalar", "add_scalars", "add_histogram", "add_image", "flush")),
    ("wandb", "", ("log",)),
    ("mlflow", "", ("log_metric", "log_metrics")),
)


def script_line() -> str:
    """``file:line`` of the innermost frame that is neither Python's, nor a package's, nor ours, if it was called from there
    and not from deep inside a library that happens to be below it."""
    frame = sys._getframe(2)
    for _ in range(64):
        if frame is None:
            return ""
        file = frame.f_code.co_filename
        if not file.startswith(_FOREIGN) and _OURS not in file:
            return f"{_short(file)}:{frame.f_lineno}"
        if f"{os.sep}optim{os.sep}" in file or f"{os.sep}data{os.sep}_utils" in file:
            return ""
        frame = frame.f_back
    return ""


def _short(file: str) -> str:
    """Path relative to the working folder if it is below it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file


class PaddingCounter:
    """How much of two-dimensional whole-number batches (ids) is padding.

    By the mask where a batch has one; else the value that ends rows most often, counted only where it fills the ends of rows of
    different lengths.
    """

    def __init__(self) -> None:
        self.n_elements = self.n_padding = self.n_batches = 0
        self.longest = 0
        self.by = ""

    def add(self, batch: Any) -> None:
        """Count the padding of one batch."""
        from gpuwise.workload.capture.ops.nested import tensors_in

        mask = None
        if hasattr(batch, "get"):
            mask = next((m for m in (batch.get("attention_mask"), batch.get("mask")) if isinstance(m, torch.Tensor)), None)
        if mask is not None and mask.dim() == 2:
            n_tokens = int((mask != 0).sum())
            self._count(mask.numel(), mask.numel() - n_tokens, mask.shape[1], "the attention mask")
            return
        for tensor in tensors_in(batch):
            if tensor.dim() == 2 and not tensor.is_floating_point() and tensor.dtype != torch.bool and tensor.shape[1] >= 8:
                self._count(tensor.numel(), trailing(tensor), tensor.shape[1], "the value that ends the rows")
                return

    def _count(self, elements: int, padding: int, length: int, by: str) -> None:
        self.n_batches += 1
        self.n_elements += elements
        self.n_padding += padding
        self.longest = max(self.longest, length)
        self.by = by

    def summary(self) -> dict[str, Any]:
        """The counts for the journal; empty where no batch had ids."""
        if not self.n_batches:
            return {}
        return {
            "share": self.n_padding / self.n_elements,
            "longest": self.longest,
            "n_batches": self.n_batches,
            "by": self.by,
        }


def trailing(ids: Any) -> int:
    """Elements of [rows, length] ids that fill the ends of rows with the value that most rows end in."""
    values, counts = torch.unique(ids[:, -1], return_counts=True)
    most = int(counts.argmax())
    if ids.shape[0] > 1 and int(counts[most]) < 2:
        return 0
    same = ids == values[most]
    run = same.flip(1).to(torch.int64).cumprod(1).sum(1)
    # one equal last value (an end mark) is no padding
    return int(run[run > 1].sum())
