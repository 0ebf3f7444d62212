# pyright: basic
"""The training loop of one rank. A step is the same computation at every number of ranks: sums of losses over all samples of the
global batch, divided by their number over all ranks, whoever has how many."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import default_collate

from gpuwise.errors import DataError, GpuwiseError, InputError
from gpuwise.train.hook.journal import Writer
from gpuwise.train.hook.run_queue import RunQueue
from gpuwise.train.levers.checkpointing import recomputed
from gpuwise.train.levers.forward import replace_forward
from gpuwise.train.levers.items import random_numbers_kept
from gpuwise.train.levers.items import seed as seed_generators
from gpuwise.train.levers.modules import each_tensor
from gpuwise.train.ranks.beat import Beat
from gpuwise.train.ranks.exchange import RankDevice, check, lines_of, measure, seconds_of
from gpuwise.train.ranks.meter import Meter
from gpuwise.train.ranks.methods import add_adapters, put_on
from gpuwise.train.ranks.parallel.adapters import divide_adapters
from gpuwise.train.ranks.parallel.context import Context
from gpuwise.train.ranks.parallel.experts import Experts, check_experts
from gpuwise.train.ranks.parallel.halves import unlike
from gpuwise.train.ranks.parallel.pieces import stored_orders
from gpuwise.train.ranks.parallel.pipeline import Pipeline, ends_inside
from gpuwise.train.ranks.parallel.stages import Chain, LayerCall, Stage, chain_of, first_call
from gpuwise.train.ranks.parallel.tensor import parallelize
from gpuwise.train.ranks.predicted import collectives
from gpuwise.train.ranks.samples import Cursor, Items, Key, Order, derived, loader, shares
from gpuwise.train.ranks.saving import Saver, load_state, newest, reason, state_of
from gpuwise.train.ranks.settings import RankSettings
from gpuwise.train.ranks.task import Task, loss_of
from gpuwise.train.ranks.wrap import (
    ParallelModel,
    control_group,
    device_of,
    equalise_statistics,
    find_module,
    make_whole,
    mesh_of,
    norm,
    running,
    scale,
    wrap,
)

Parts = list[tuple[list[Key], bool]]
"""Micro-batches of a rank in one step, each with whether it counts."""


class LossError(GpuwiseError):
    """A loss that is no number any more."""


class Requests:
    """Requests to this rank by signals."""

    def __init__(self) -> None:
        self.save = self.end = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if number == getattr(signal, "SIGUSR1", None):
            self.save = True
        else:
            self.end = True

    def listen(self) -> None:
        """From now on a signal is a request, which all ranks follow at the end of the same step."""
        for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), self)


class Training:
    """One rank's model, optimizer and position in the data. ``requests``: from signals; ``beat``: receives the rank's
    activity."""

    def __init__(
        self,
        settings: RankSettings,
        task: Task,
        journal: Writer,
        *,
        device_type: str = "cpu",
        requests: Requests | None = None,
        beat: Beat | None = None,
    ) -> None:
        layout = settings.layout
        self.rank = dist.get_rank()
        self.meter = Meter()
        self.mesh = mesh_of(layout, device_type)
        task, self.pruned, self.distilled = put_on(task, settings, device_of(self.mesh))
        self.settings, self.task, self.journal, self.layout = settings, task, journal, layout
        replica = self.mesh.get_local_rank("replicate") * self.mesh["shard"].size() + self.mesh.get_local_rank("shard")
        self.dp_rank, self.cp_rank = divmod(replica, layout.cp)
        self.context = Context(self._sharing(), task) if layout.cp > 1 else None
        for name in layout.modules:
            replace_forward(find_module(task.model, name), recomputed)
        self.pp_rank = self.mesh.get_local_rank("pp")
        late = layout.lora_rank > 0 and layout.tp > 1
        frozen = [p for p in task.model.parameters() if late or not p.requires_grad] if layout.lora_rank else []
        self._frozen_sum = f"{math.fsum(float(p.detach().double().sum()) for p in frozen):.6g}"
        check_experts(task.model, layout)
        tokens = 0 if self.context is None and layout.ep == 1 else tokens_of(self._first())
        chain = self._chain() if layout.pp > 1 else None
        call = self._first_call() if layout.tp > 1 else None
        row = chain.numel if chain is not None else call.numel if call is not None else 0
        divided = None
        if call is not None:
            divided = parallelize(task.model, self.mesh["tp"], call, on_host=layout.offload_optimizer)
            self.meter.within(self.mesh["tp"].get_group())
            if late:
                add_adapters(task.model, layout, device_of(self.mesh))
                divided = divide_adapters(task.model, self.mesh["tp"], divided, call, on_host=layout.offload_optimizer)
            # the trial of a layer may have exchanged rows
            self.meter.take()
        self.n_parameters = sum(p.numel() for p in task.model.parameters())
        self._tell_model()
        stage = None if chain is None else self._cut(chain)
        tensor = self.mesh["tp"].get_group() if layout.tp > 1 else None
        self.experts = Experts(task.model, layout, device_type, self.meter, tensor) if layout.ep > 1 else None
        apart = {} if self.experts is None else self.experts.parameters
        predicted = collectives(
            task.model,
            layout,
            clips=task.clip is not None,
            stage=stage,
            row=row,
            tokens=tokens,
            apart=apart,
            divided=divided,
        )
        journal.event("predicted", collectives=predicted)
        blocks = None if stage is None else stage.blocks
        self.wrapped: ParallelModel = wrap(task.model, layout, self.mesh, self.meter, blocks, apart)
        self.device = device_of(self.mesh)
        self.pipeline = None if stage is None else Pipeline(stage, task.model, self.mesh, self.meter, self.device)
        self.optimizer = task.optimizer(task.model)
        if layout.tp > 1 or layout.ep > 1:
            for group in self.optimizer.param_groups:
                # one call for all parameters requires one mesh
                group.update(foreach=False, **({"fused": False} if "fused" in group else {}))
        self.scheduler = None if task.scheduler is None else task.scheduler(self.optimizer)
        self.order = Order(task.n_samples, layout.global_batch, settings.seed)
        self.step, self.cursor = 0, Cursor()
        self.saver = Saver(Path(settings.out) / "checkpoints", keep=settings.keep, tell=journal.event)
        self._requests, self._beat = requests or Requests(), beat
        self._saved_s = time.monotonic()
        self._queue, self._own_device = RunQueue(), RankDevice(self.device)
        if settings.time_exchanges:
            self._time_exchanges(predicted)
        task.model.train()

    def _time_exchanges(self, predicted: dict[str, list[int]]) -> None:
        """Report the measured time of each kind of collective, and the expected time of those of a step."""
        groups: dict[str, Any] = dict.fromkeys(("all-reduce", "all-gather", "reduce-scatter"), self.mesh["shard"].get_group())
        if self.experts is not None:
            groups["all-to-all"] = self.experts.group
        kinds = [k for k in groups if k in predicted and groups[k].size() > 1]
        measured = measure(kinds, groups, self.device)
        self.meter.take()
        lines = lines_of(measured)
        record = {"measured": measured, "lines": lines, "off": check(measured, lines), "step_s": seconds_of(predicted, lines)}
        self.journal.event("exchanges", **record)

    # -- from one run to the next

    def resume(self) -> None:
        """Go on from the newest checkpoint that is whole, if any. Raises InputError where it is of another training."""
        self._phase("load")
        save = newest(self.saver.root, self.journal.event)
        if save is None:
            return
        folder, about = save
        for name, value in self._identity().items():
            if about.get(name, value) != value:
                raise InputError(
                    f"the checkpoints in {self.saver.root} are of other {name}: {about[name]}, here {value}",
                    hint="give another folder with --out: nothing was changed here",
                )
        load_state(folder, self.task.model, self.optimizer, self.scheduler)
        self.step, self.cursor = int(about["step"]), Cursor(int(about["epoch"]), int(about["position"]))
        self.saver.loaded(self.step)
        now = msgspec.json.decode(msgspec.json.encode(self.layout))
        changed = {k: [v, now[k]] for k, v in about["layout"].items() if now.get(k) != v}
        self.journal.event("resumed", folder=folder.name, step=self.step, changed=changed)

    def _identity(self) -> dict[str, Any]:
        task, layout = self.task, self.layout
        return {
            "task": task.name,
            "settings": list(self.settings.settings),
            "seed": self.settings.seed,
            "samples": task.n_samples,
            "parameters": self.n_parameters,
            "adapters": [layout.lora_rank, list(layout.lora_targets), layout.quantized_base],
            "frozen weights": self._frozen_sum,
            "pruning": self.settings.prune,
            "teacher": self.settings.teacher,
        }

    def _tell_model(self) -> None:
        trained = sum(p.numel() for p in self.task.model.parameters() if p.requires_grad)
        n_bytes = sum(p.numel() * p.element_size() for p in self.task.model.parameters())
        zeros = 0 if self.pruned is None else self.pruned.zeros
        self.journal.event("model", parameters=self.n_parameters, trained=trained, zeros=zeros, weight_bytes=n_bytes)

    def _sharing(self) -> Any:
        """The group of ranks that share this one's rows; every rank creates all of them."""
        groups = {}
        for column in self.mesh.mesh.flatten(0, 2).T.tolist():
            for at in range(0, len(column), self.layout.cp):
                members = column[at : at + self.layout.cp]
                groups[tuple(members)] = dist.new_group(members)
        return next(group for members, group in groups.items() if self.rank in members)

    def _first(self) -> Any:
        samples = Items(self.task.data, self.settings.seed).__getitems__([(0, 0)])
        return (self.task.collate or default_collate)(samples)

    def _first_call(self) -> LayerCall:
        """The first layer's input for one sample. Raises InputError for a step that runs no layer."""
        batch, model = self._first(), self.task.model
        with random_numbers_kept():
            call = first_call(model, lambda model: loss_of(self.task, model, batch, 1))
        if call is None:
            raise unlike(type(model).__name__, "repeated layers that its step runs")
        return call

    # -- pipeline stages

    def _chain(self) -> Chain:
        """The layers as one sample goes through them."""
        task = self.task
        batch = self._first()
        return chain_of(task.model, lambda model: loss_of(task, model, batch, 1)[0], self.layout.pp)

    def _cut(self, chain: Chain) -> Stage:
        stage = Stage(self.task.model, chain, self.pp_rank, self.layout.pp, device_of(self.mesh))
        ends_inside(self.task.model)
        return stage

    def save(self) -> None:
        """Begin a checkpoint of this moment."""
        self._phase("save")
        # for values that differ by rank, DCP writes any one: continue with the first rank's
        self._equalise()
        about = {
            **self._identity(),
            "step": self.step,
            "epoch": self.cursor.epoch,
            "position": self.cursor.position,
            "layout": msgspec.to_builtins(self.layout),
            "torch": torch.__version__,
        }
        state = state_of(
            self.task.model, self.optimizer, self.scheduler, stage=self.pp_rank, trained_only=self.layout.lora_rank > 0
        )
        self.saver.save(self.step, state, about, stored_orders(self.task.model, state))
        self._saved_s, self._requests.save = time.monotonic(), False

    # -- the loop

    def run(self) -> str:
        """Train to the end, and save. Returns ``done``, or ``asked`` if an end was requested."""
        settings, begun = self.settings, self.cursor
        n = self.order.n_steps(begun, settings.epochs) if settings.steps is None else max(settings.steps - self.step, 0)
        batches, ended = self._batches(begun, n), "done"
        for cursor, parts in self._plan(begun, n):
            save, end = self._step(cursor, parts, batches)
            if end:
                ended = "asked"
                break
            if save or (settings.save_every is not None and self.step % settings.save_every == 0):
                self.save()
        self.save()
        self.saver.wait()
        failed = self.saver.failure()
        if failed is not None:
            raise DataError(
                f"the last checkpoint could not be written: {reason(failed)}",
                hint=f"free space in {self.saver.root}: the same command resumes from the previous one",
            )
        self._phase("end")
        return ended

    def close(self) -> None:
        """Stop measuring, and give the turn on the device to whoever waits."""
        self.meter.close()
        if self.context is not None:
            self.context.close()
        self._queue.close()

    def _phase(self, name: str, part: int = 0) -> None:
        if self._beat is not None:
            self._beat.at(self.step, part, name)

    def _asks(self) -> tuple[bool, bool]:
        """Whether a save, and an end, were requested from this rank; the first rank's clock counts for all."""
        due = (
            self.rank == 0 and self.settings.save_every is None and time.monotonic() - self._saved_s >= self.settings.save_every_s
        )
        return self._requests.save or due, self._requests.end

    def _plan(self, cursor: Cursor, n_steps: int) -> Iterator[tuple[Cursor, Parts]]:
        layout = self.layout
        for after, keys in itertools.islice(self.order.steps(cursor), n_steps):
            yield after, shares(keys, self.dp_rank, layout.dp, layout.micro_batch, layout.n_micro)

    def _batches(self, cursor: Cursor, n_steps: int) -> Iterator[Any]:
        """Micro-batches in the order of the plan."""
        batches = loader(
            self.task.data,
            lambda: (keys for _, parts in self._plan(cursor, n_steps) for keys, _ in parts),
            seed=self.settings.seed,
            workers=self.settings.workers,
            collate=self.task.collate,
            pin=self.device.type == "cuda",
        )
        return iter(batches)

    def _step(self, cursor: Cursor, parts: Parts, batches: Iterator[Any]) -> tuple[bool, bool]:
        """One update. Returns whether any rank received a request for a save, and for an end."""
        began, queued = time.perf_counter(), self._queue.waited_s()
        data_s = 0.0
        seed_generators(derived(self.settings.seed, self.step, self._stream(), 1))
        self._equalise()
        totals = torch.zeros(4, dtype=torch.float64)
        tensors: list[Any] = []
        for at, (keys, counts) in enumerate(parts):
            self._phase("data", at)
            began_s = time.perf_counter()
            batch = self._moved(next(batches))
            data_s += time.perf_counter() - began_s
            if self.pipeline is not None:
                tensors.append(batch)
                continue
            with self.wrapped.local(last=at == len(parts) - 1):
                self._micro(batch, len(keys), counts, totals, at)
        if self.pipeline is not None:
            self._through_stages(self.pipeline, parts, tensors, totals)
        totals[2:] = torch.tensor([float(a) for a in self._asks()])
        self._phase("exchange", len(parts))
        loss = self._update(totals)
        self.step, self.cursor = self.step + 1, cursor
        n_ours = 0 if self.cp_rank else sum(len(k) for k, counts in parts if counts)
        self._write(began, data_s, queued, loss, n_ours)
        return bool(totals[2]), bool(totals[3])

    def _stream(self) -> int:
        """Random stream: tensor ranks share one, all others have their own."""
        return self.dp_rank + self.layout.dp * (self.pp_rank + self.layout.pp * self.cp_rank)

    def _micro(self, batch: Any, n: int, counts: bool, totals: torch.Tensor, at: int) -> None:
        self._phase("forward", at)
        if self.context is None:
            loss, number = loss_of(self.task, self.wrapped.call, batch, n)
        else:
            loss, number = self.context.loss(self.wrapped.call, batch)
        self._phase("backward", at)
        if not counts:
            loss, number = loss * 0.0, 0.0
        loss.backward()
        self.meter.after_backward()
        if self.distilled is not None:
            self.distilled.check(number)
        totals[0] += float(loss.detach())
        totals[1] += number

    def _through_stages(self, pipeline: Pipeline, parts: Parts, batches: list[Any], totals: torch.Tensor) -> None:
        """All micro-batches of the step; the last stage learns their losses."""

        def loss_at(model: nn.Module, at: int) -> torch.Tensor:
            self._phase("forward", at)
            keys, counts = parts[at]
            loss, number = loss_of(self.task, model, batches[at], len(keys))
            if not counts:
                loss, number = loss * 0.0, 0.0
            totals[0] += float(loss.detach())
            totals[1] += number
            return loss.float().reshape(())

        pipeline.run(batches, loss_at)
        self._phase("exchange", len(parts))
        if self.layout.dp > 1 and self.layout.sharding == "none":
            pipeline.add_replicas(self.mesh["shard"].get_group(), {} if self.experts is None else self.experts.parameters)
        pipeline.add_shared()

    def _update(self, totals: torch.Tensor) -> float:
        """The gradients of the mean over all ranks, and one update with them. Returns the mean loss."""
        if self.mesh.get_local_rank("tp"):
            totals[:2] = 0.0  # its samples are those of the first tensor rank
        if dist.get_world_size() > 1:
            dist.all_reduce(totals, group=control_group())
        loss = float(totals[0] / totals[1].clamp(min=1.0))
        if not math.isfinite(loss):
            raise LossError(f"the loss of step {self.step} is {loss}", hint="the last checkpoint is from before it")
        if self.experts is not None:
            self.experts.add_copies()
        model, clip = self.task.model, self.task.clip
        make_whole(model)
        scale(model, self.wrapped.multiple / max(float(totals[1]), 1.0))
        if clip is not None:
            length = norm(model, self.layout, {} if self.pipeline is None else self.pipeline.stage.holders)
            if length > clip:
                scale(model, clip / (length + 1e-6))
        self._phase("update", self.layout.n_micro)
        self.optimizer.step()
        if self.pruned is not None:
            self.pruned.keep()
        if self.scheduler is not None:
            self.scheduler.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss

    def _equalise(self) -> None:
        if self.layout.n_replicas > 1 and running(self.task.model):
            for name in ("replicate", "shard"):
                group = self.mesh[name].get_group()
                equalise_statistics(self.task.model, group, dist.get_global_rank(group, 0))

    def _moved(self, batch: Any) -> Any:
        return batch if self.device.type == "cpu" else each_tensor(batch, lambda t: t.to(self.device, non_blocking=True))

    def _write(self, began: float, data_s: float, queued: float, loss: float, n: int) -> None:
        counts, waits = self.meter.take()
        self.journal.event(
            "step",
            step=self.step,
            at_s=time.time(),
            step_s=time.perf_counter() - began,
            data_s=data_s,
            wait_s=sum(waits.values()) if self.device.type == "cpu" else None,
            waits_s=waits if self.device.type == "cpu" else None,
            predicted_s=self.settings.predicted_step_s,
            **self._own_device.take(),
            queue_s=self._queue.waited_s() - queued,
            loss=loss,
            samples=n,
            epoch=self.cursor.epoch,
            position=self.cursor.position,
            collectives=counts,
            memory_bytes=memory_bytes(self.device),
        )


def tokens_of(batch: Any) -> int:
    """Tokens of a batch, from its first integer tensor; 0 without one."""
    counts: list[int] = []
    each_tensor(batch, lambda t: counts.append(t.numel()) if not t.is_floating_point() else None)
    return counts[0] if counts else 0


def memory_bytes(device: torch.device) -> int | None:
    """Peak of the device's allocator, else resident memory of this process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None


def check_agreement(facts: dict[str, Any]) -> None:
    """Raises InputError if ranks have different inputs or values."""
    everybody: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, facts, group=control_group())
    for name, value in everybody[0].items():
        other = next((r for r, facts in enumerate(everybody) if facts.get(name) != value), None)
        if other is not None:
            raise InputError(
                f"ranks disagree about the {name}: {value} on rank 0, {everybody[other].get(name)} on rank {other}",
                hint="give every rank the same files and the same software, and draw no numbers that depend on the rank",
            )


def facts_of(task: Task, settings: RankSettings) -> dict[str, Any]:
    """Facts that must be the same on every rank before the first step."""
    sums = [float(p.detach().double().sum()) for p in task.model.parameters()]
    return {
        "release of PyTorch": torch.__version__,
        "settings": repr(settings.layout),
        "samples": task.n_samples,
        "parameters": len(sums),
        "initial weights": math.fsum(s * (n + 1) for n, s in enumerate(sums)),
    }
