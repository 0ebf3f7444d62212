# pyright: basic
"""A rank of a script that divides its work itself (its own process group, Accelerate, Lightning): started as torchrun does, only
watched."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.utils.data.dataloader as torch_dataloader
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gpuwise.train.hook.describe import size_of
from gpuwise.train.hook.journal import Writer
from gpuwise.train.hook.run_queue import RunQueue
from gpuwise.train.ranks.beat import Beat
from gpuwise.train.ranks.exchange import RankDevice
from gpuwise.train.ranks.loop import memory_bytes
from gpuwise.workload.capture.device.patching import Patches

LOSS_EVERY_S = 1.0
"""Seconds between readings of a loss from a GPU, which wait for it."""


class OwnRank:
    """Beats and steps of one rank. Losses are this rank's own; what the script exchanges is not seen. :meth:`close` takes the
    hooks off again."""

    def __init__(self, journal: Writer, beat: Beat) -> None:
        self._journal, self._beat, self._patches, self._queue = journal, beat, Patches(), RunQueue()
        self._n, self._began, self._queued = 0, time.perf_counter(), 0.0
        self._data_s, self._samples, self._told_s = 0.0, 0, float("-inf")
        self._loss: torch.Tensor | None = None
        self._told: float | None = None
        self._optimizer: Any = None
        self._device: RankDevice | None = None
        backward, following = torch.Tensor.backward, torch_dataloader._BaseDataLoaderIter.__next__

        def backwards(loss: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self._moved("backward")
            self._loss = loss.detach() if loss.numel() == 1 else self._loss
            return backward(loss, *args, **kwargs)

        def next_batch(owner: Any) -> Any:
            self._moved("data")
            began = time.perf_counter()
            batch = following(owner)
            self._data_s += time.perf_counter() - began
            self._samples += size_of(batch)[0]
            return batch

        self._patches.set(torch.Tensor, "backward", backwards)
        self._patches.set(torch_dataloader._BaseDataLoaderIter, "__next__", next_batch)
        self._handles = [
            register_optimizer_step_pre_hook(lambda *_: self._moved("update")),
            register_optimizer_step_post_hook(self._stepped),
        ]

    def close(self) -> None:
        """Take hooks and wrappers off torch again."""
        for handle in self._handles:
            handle.remove()
        self._patches.undo()
        self._queue.close()

    @property
    def n_steps(self) -> int:
        """Steps so far."""
        return self._n

    def _moved(self, phase: str) -> None:
        self._beat.at(self._n, 0, phase)

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        # of several optimizers the first closes a step
        self._optimizer = self._optimizer or optimizer
        if optimizer is not self._optimizer:
            return
        device = next((p.device for g in optimizer.param_groups for p in g["params"]), torch.device("cpu"))
        self._device = self._device or RankDevice(device)
        self._n += 1
        now, queued = time.perf_counter(), self._queue.waited_s()
        if self._loss is not None and (device.type == "cpu" or now - self._told_s >= LOSS_EVERY_S):
            self._told, self._told_s = float(self._loss), now
        self._journal.event(
            "step",
            step=self._n,
            at_s=time.time(),
            step_s=now - self._began,
            data_s=self._data_s,
            wait_s=None,
            waits_s=None,
            predicted_s=None,
            **self._device.take(),
            queue_s=queued - self._queued,
            loss=self._told,
            samples=self._samples,
            epoch=0,
            position=self._n,
            collectives={},
            memory_bytes=memory_bytes(device),
        )
        self._began, self._queued, self._data_s, self._samples = now, queued, 0.0, 0
        self._moved("data")
