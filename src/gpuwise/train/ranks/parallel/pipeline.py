# pyright: basic
"""Pipeline parallel: a stage's micro-batches through ``torch.distributed.pipelining`` (1F1B).

Every rank of a pipeline loads the same micro-batches and runs the person's own step on them. On all but the last stage the step
ends where the stage does; on later ones its layers go on from what the stage before has sent. What is sent is one row of fp32
numbers, as long as the longest micro-batch of the step needs, so that rows of unequal length may be in one step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from gpuwise.train.levers.checkpointing import statistics_kept
from gpuwise.train.levers.forward import replace_forward
from gpuwise.train.levers.items import random_numbers_kept
from gpuwise.train.levers.modules import each_tensor
from gpuwise.train.ranks.meter import Meter
from gpuwise.train.ranks.parallel.stages import Stage, StageEnd
from gpuwise.train.ranks.wrap import bucket_assignment, gradients, local_of

Micro = Callable[[nn.Module, int], torch.Tensor]
"""The loss of micro-batch ``at``, of the model that it is given."""


class Part(nn.Module):
    """Model passed to the user's step, which leaves the step where the stage ends."""

    def __init__(self, inner: nn.Module, stage: Stage) -> None:
        super().__init__()
        self.inner = inner
        self._stage = stage

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Forward of the model; raises StageEnd with the hidden state if this is not the last stage."""
        if self._stage.measuring:
            raise StageEnd(self.inner.forward(*args, **kwargs))
        output = self.inner(*args, **kwargs)
        if not self._stage.is_last:
            raise StageEnd(output)
        return output

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)


def ends_inside(model: nn.Module) -> None:
    """The model's forward gives the hidden state where its stage ends: hooks around it see an ordinary end."""

    def wrap(_: nn.Module, inner: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return inner(*args, **kwargs)
            except StageEnd as end:
                return end.hidden

        return run

    replace_forward(model, wrap)


class _Row(nn.Module):
    """A stage as the schedule runs it: a row of numbers in, the next one out, in the order of the micro-batches."""

    def __init__(self, part: Part, stage: Stage, loss: Micro, size: int) -> None:
        super().__init__()
        self.part = part
        self._stage, self._loss, self._size, self._at = stage, loss, size, 0

    def forward(self, row: torch.Tensor) -> torch.Tensor:
        """``row``: input from the previous stage; unused on the first."""
        self._stage.received = row if self._stage.index else None
        at, self._at = self._at, self._at + 1
        try:
            return self._loss(self.part, at)
        except StageEnd as end:
            flat = end.hidden.float().flatten()
            return nn.functional.pad(flat, (0, self._size - flat.numel()))


class _Sending(PipelineStage):
    """Counts what it sends."""

    meter: Meter

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        """Same as torch's."""
        return self._counted(super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        """Same as torch's."""
        return self._counted(super().get_bwd_send_ops(bwd_chunk_id))

    def _counted(self, ops: list[dist.P2POp]) -> list[dist.P2POp]:
        for op in ops:
            self.meter.count("send", op.tensor)
        return ops


class Pipeline:
    """This rank's stage, its neighbours, and the gradients that other ranks hold too."""

    def __init__(self, stage: Stage, model: nn.Module, mesh: DeviceMesh, meter: Meter, device: torch.device) -> None:
        self.stage, self._model, self._device, self._meter = stage, model, device, meter
        self.part = Part(model, stage)
        self._group = mesh["pp"].get_group()
        self._shared = self._holding_groups(mesh)
        stage.wrapped()
        self._sizes: dict[Any, int] = {}

    def run(self, batches: Sequence[Any], loss: Micro) -> None:
        """Forward and backward passes of a step: ``loss(model, at)`` for micro-batch ``at`` of ``batches``."""
        stage, n = self.stage, len(batches)
        size = max(self._size(batch, at, loss) for at, batch in enumerate(batches))
        row = torch.empty(size, device="meta", requires_grad=True)
        last = torch.empty((), device="meta", requires_grad=True)
        ours = _Sending(
            _Row(self.part, stage, loss, size),
            stage.index,
            stage.n_stages,
            self._device,
            input_args=row if stage.index else torch.empty(1, device="meta"),
            output_args=last if stage.is_last else row,
            group=self._group,
        )
        ours.meter = self._meter
        kind = Schedule1F1B if n >= stage.n_stages else ScheduleGPipe
        schedule = kind(ours, n_microbatches=n, loss_fn=lambda loss, _: loss, scale_grads=False)
        places = torch.zeros(n, device=self._device)
        inputs = {} if not stage.is_last else {"target": places, "losses": []}
        schedule.step(*(() if stage.index else (places,)), **inputs, return_outputs=False)
        stage.received = None

    def add_shared(self) -> None:
        """Gradients of parameters that several stages hold, as sums over these stages."""
        parameters = dict(self._model.named_parameters())
        for name, group in self._shared.items():
            parameter = parameters[name]
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(local_of(parameter.grad), group=group)

    def add_replicas(self, group: Any, apart: Mapping[str, nn.Parameter]) -> None:
        """Sum gradients over replicas, in buckets as in DDP, except those in ``apart``. A parameter without local rows has a
        zero gradient here, so buckets are the same on all."""
        divided = {id(p) for p in apart.values()}
        for parameter in self._model.parameters():
            if parameter.requires_grad and parameter.grad is None and id(parameter) not in divided:
                parameter.grad = torch.zeros_like(parameter)
        pairs = [(p, g) for p, g in gradients(self._model) if id(p) not in divided][::-1]
        for numbers in bucket_assignment([local_of(p) for p, _ in pairs]):
            parts = [pairs[i][1] for i in numbers]
            flat = torch.cat([p.reshape(-1) for p in parts])
            dist.all_reduce(flat, group=group)
            for part, summed in zip(parts, flat.split([p.numel() for p in parts]), strict=True):
                part.copy_(summed.view_as(part))

    def _size(self, batch: Any, at: int, loss: Micro) -> int:
        """Numbers in what the stages pass on of a micro-batch: of its shapes alone."""
        shapes: list[Any] = []
        each_tensor(batch, lambda t: shapes.append(tuple(t.shape)) or t)
        key = tuple(shapes)
        if key not in self._sizes:
            try:
                # what a run that was interrupted measures once more may draw no other numbers after it
                with torch.no_grad(), random_numbers_kept(), statistics_kept(self._model), self.stage.measured():
                    loss(self.part, at)
            except StageEnd as end:
                self._sizes[key] = end.hidden.numel()
        return self._sizes[key]

    def _holding_groups(self, mesh: DeviceMesh) -> dict[str, Any]:
        """A group of the stages that hold a parameter, by the parameter's name; every rank makes all of them."""
        groups: dict[tuple[int, ...], Any] = {}
        for holders in sorted(set(self.stage.holders.values())):
            for column in mesh.mesh.flatten(1).T.tolist():
                group = dist.new_group([column[stage] for stage in holders])
                if dist.get_rank() in column and self.stage.index in holders:
                    groups[holders] = group
        return {name: groups[holders] for name, holders in self.stage.holders.items() if holders in groups}
