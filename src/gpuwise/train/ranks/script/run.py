# pyright: basic
"""Runs a script on one of several ranks, and writes the journal of its steps."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gpuwise.errors import GpuwiseError, InputError
from gpuwise.train.hook.journal import Writer
from gpuwise.train.hook.run_queue import RunQueue
from gpuwise.train.hook.script import ScriptEnd, run_script
from gpuwise.train.hook.script_run import seed_all
from gpuwise.train.levers.apply import apply_levers
from gpuwise.train.levers.saving import saves_plain
from gpuwise.train.ranks.beat import Beat
from gpuwise.train.ranks.exchange import RankDevice
from gpuwise.train.ranks.launch import DIVIDE_THEMSELVES, LOST, DividesItselfError
from gpuwise.train.ranks.loop import check_agreement, memory_bytes
from gpuwise.train.ranks.meter import Meter
from gpuwise.train.ranks.script.batches import Batches, refuse_iterable
from gpuwise.train.ranks.script.files import OwnFiles, print_aside, save_once
from gpuwise.train.ranks.script.losses import Losses
from gpuwise.train.ranks.script.optimizers import Optimizers
from gpuwise.train.ranks.script.own import OwnRank
from gpuwise.train.ranks.settings import RankSettings
from gpuwise.train.ranks.wrap import control_group, device_of, equalise_statistics, mesh_of
from gpuwise.workload.capture.device.patching import Patches

LOSS_EVERY_S = 1.0
"""Seconds between readings of a loss from a GPU, which wait for it."""
FIRST = "gpuwise/first"
PASSES_KNOWN_AT = 2
"""The step from whose backward passes the exchanges of all are predicted: those of the script's own accumulation."""


def own_device_only() -> None:
    """Make only its rank's GPU visible to this process, for any name the script uses."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    visible = [v for v in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if v]
    os.environ["CUDA_VISIBLE_DEVICES"] = visible[local] if local < len(visible) else str(local)
    os.environ["LOCAL_RANK"] = "0"


class ScriptRank:
    """One rank of a script. :meth:`close` undoes every replacement."""

    def __init__(self, settings: RankSettings, journal: Writer, beat: Beat, device_type: str) -> None:
        self._settings, self._journal, self._beat = settings, journal, beat
        self.rank, layout = dist.get_rank(), settings.layout
        control_group()
        self._store: Any = dist.distributed_c10d._get_default_store()
        self._has_begun = False
        self._patches, self._handles, self._meter, self._queue = Patches(), [], Meter(), RunQueue()
        self._own_device = RankDevice(device_of(mesh_of(layout, device_type)))
        self._n, self._began, self._queued = 0, time.perf_counter(), 0.0
        self._loss: Any = None
        self._told, self._told_s = 0.0, float("-inf")
        self._samples, self._passes, self._passes_before = 0, 1, 0
        self._line: dict[str, Any] = {}
        """Line of the last step, while another optimizer may step on the same batch."""
        self._batch = 0
        self._predicted: dict[str, list[int]] = {}
        patches = self._patches
        self._levers = apply_levers(settings.levers, tell=journal.event) if settings.levers else None
        self.optimizers = Optimizers(
            patches,
            layout,
            mesh_of(layout, device_type),
            self._meter,
            first=self.first,
            predicted=self._predict,
        )
        self._batches = Batches(patches, is_training=self._is_training, begins=self._begins, agree=self._agree, moved=self._moved)
        refuse_iterable(patches, lambda: self.optimizers.is_training)
        Losses(patches, self._batches, lambda: self.optimizers.multiple, self._lost)
        save_once(patches, self._equalise)
        patches.set(dist, "init_process_group", _divides_itself)
        self._handles += [
            register_optimizer_step_pre_hook(self._steps),
            register_optimizer_step_post_hook(self._stepped),
        ]
        if self.rank:
            OwnFiles(patches, Path(settings.out) / f"rank-{self.rank}")

    def wait_for_first(self) -> None:
        """Later ranks begin once the first waits for them: its downloads and files exist then."""
        while self.rank and not self._store.check([FIRST]):
            time.sleep(0.02)

    def first(self) -> None:
        """The first rank is about to exchange something, or at its end."""
        if not self._has_begun:
            self._has_begun = True
            if self.rank == 0:
                self._store.set(FIRST, "1")

    def close(self) -> None:
        """Take hooks and wrappers off the script's model and torch again."""
        for handle in self._handles:
            handle.remove()
        self._patches.undo()
        if self._levers is not None:
            self._levers.close()
        self._meter.close()
        self._queue.close()

    # -- from the script's loop

    def _moved(self, phase: str) -> None:
        self._beat.at(self._n, 0, phase)

    def _steps(self, optimizer: Any, *_: Any) -> None:
        self._moved("update")
        if self._levers is not None:
            self._levers.before_optimizer(optimizer)

    def _is_training(self) -> bool:
        if not self.optimizers.is_training:
            return False
        frame = sys._getframe(1)
        while frame is not None:
            library = frame.f_globals.get("__name__", "").partition(".")[0]
            if library in DIVIDE_THEMSELVES or frame.f_globals.get("__name__", "") == "transformers.trainer":
                raise _itself(DIVIDE_THEMSELVES.get(library, "Trainer of Transformers"))
            frame = frame.f_back
        return True

    def _begins(self, divided: bool) -> None:
        """A loop over a loader."""
        if not self.optimizers.instances:
            return
        self._equalise()
        if divided and self._batches.epoch < 0 and self.optimizers.reducer is not None:
            for parameter in self.optimizers.reducer.parameters:
                dist.broadcast(parameter.data, 0)
        if divided and torch.cuda.is_available():
            # dropout draws other numbers on every rank
            torch.cuda.manual_seed(torch.initial_seed() % 2**32 + self.rank)

    def _agree(self, facts: dict[str, Any]) -> None:
        self._moved("exchange")
        check_agreement({**facts, "step": self._n, "learning rates": self.optimizers.rates})

    def _equalise(self) -> None:
        self.first()
        self._moved("exchange")
        for model in self.optimizers.models:
            equalise_statistics(model, dist.group.WORLD, 0)
        self._moved("save")

    def _predict(self, of_a_pass: dict[str, list[int]]) -> None:
        # which passes reach which of several models is the script's
        self._predicted = of_a_pass if len(self.optimizers.instances) == 0 else {}
        self._tell_predicted()

    def _tell_predicted(self) -> None:
        found = {kind: [n * self._passes, size * self._passes] for kind, (n, size) in self._predicted.items()}
        self._journal.event("predicted", collectives=found)

    def _lost(self, loss: Any) -> None:
        self._loss = loss

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        if self._batches.n_given == 0:
            return
        if self._levers is not None:
            self._levers.stepped()
        several = len(self.optimizers.instances) > 1
        if not (several and self._line and self._batches.n_given == self._batch):
            self.write()
            self._n, self._batch = self._n + 1, self._batches.n_given
        self._measure()
        if not several:
            self.write()

    def _measure(self) -> None:
        """The line of the step after this optimizer; for later optimizers on the same batch, times and communication are
        added."""
        now, queued = time.perf_counter(), self._queue.waited_s()
        counts, waits = self._meter.take()
        before = self._line
        for kind, (n, size) in before.get("collectives", {}).items():
            here = counts.get(kind, [0, 0])
            counts[kind] = [n + here[0], size + here[1]]
        for kind, seconds in before.get("all_waits_s", {}).items():
            waits[kind] = waits.get(kind, 0.0) + seconds
        device = torch.device("cpu") if self._loss is None else self._loss.device
        on_cpu = device.type == "cpu"
        if self._loss is not None and (on_cpu or now - self._told_s >= LOSS_EVERY_S):
            self._told, self._told_s = float(self._loss), now
        own, energy_before = self._own_device.take(), before.get("energy_j")
        energy_j = own["energy_j"]
        self._line = {
            "step": self._n,
            "at_s": time.time(),
            "step_s": now - self._began + before.get("step_s", 0.0),
            "data_s": self._batches.data_s + before.get("data_s", 0.0),
            "wait_s": sum(waits.values()) if on_cpu else None,
            "waits_s": waits if on_cpu else None,
            "predicted_s": self._settings.predicted_step_s,
            **own,
            "energy_j": energy_j if energy_before is None or energy_j is None else energy_j + energy_before,
            "queue_s": queued - self._queued + before.get("queue_s", 0.0),
            "loss": self._told,
            "samples": self._batches.samples - self._samples + before.get("samples", 0),
            "epoch": max(self._batches.epoch, 0),
            "position": self._batches.position,
            "collectives": counts,
            "memory_bytes": memory_bytes(device),
            "all_waits_s": waits,
            "passes": self._batches.n_backward(),
        }
        self._samples = self._batches.samples
        self._batches.data_s, self._began, self._queued = 0.0, now, queued

    def write(self) -> None:
        """The line of the last step, after which no other optimizer may follow, into the journal."""
        if not self._line:
            return
        line, self._line = self._line, {}
        del line["all_waits_s"]
        passes = line.pop("passes") - self._passes_before
        self._passes_before += passes
        if passes != self._passes and self._n == PASSES_KNOWN_AT:
            self._passes = passes
            self._tell_predicted()
        self._journal.event("step", **line)


def _itself(who: str) -> InputError:
    return DividesItselfError(
        f"{who} divides the script's work over ranks itself",
        hint="leave out the layout and --config, which are for scripts that know nothing of ranks",
    )


def _divides_itself(*_: Any, **__: Any) -> None:
    raise _itself("the script (init_process_group)")


def train_script(settings: RankSettings, rank: int, journal: Writer, beat: Beat, device_type: str) -> int:
    """Run the script of the settings to its end. Returns its exit code. Raises GpuwiseError for what cannot be divided."""
    if rank:
        print_aside(Path(settings.out) / f"rank-{rank}.txt")
    if settings.own:
        watched = OwnRank(journal, beat)
        try:
            ended = run_script(settings.target, settings.arguments, passes=(GpuwiseError,))
        finally:
            watched.close()
        return _ended(settings, rank, journal, ended, watched.n_steps)
    running = ScriptRank(settings, journal, beat, device_type)
    try:
        with saves_plain():
            running.wait_for_first()
            seed_all(settings.seed)
            ended = run_script(settings.target, settings.arguments, passes=(GpuwiseError,))
    finally:
        running.write()
        running.first()
        running.close()
    return _ended(settings, rank, journal, ended, running._n)


def _ended(settings: RankSettings, rank: int, journal: Writer, ended: ScriptEnd, step: int) -> int:
    """Write how the script ended; its exit code."""
    if ended.error is not None and any(words in ended.error for words in LOST):
        sys.stderr.write(f"gpuwise: rank {rank} lost another rank: {ended.error[:200]}\n")
        journal.event("end", reason="error", code=1, error=ended.error[:500])
        return 1
    if ended.reason == "error":
        where = f" ({ended.where})" if ended.where else ""
        seen = "its traceback is above" if rank == 0 else f"its traceback is in {Path(settings.out) / f'rank-{rank}.txt'}"
        raise GpuwiseError(f"{ended.error}{where}", hint=seen)
    journal.event("end", reason="done", step=step, code=ended.code)
    return ended.code
