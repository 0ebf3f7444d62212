"""A training step of a network by name, made from its shipped table: takes the place of a captured step's source."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpuwise.errors import InputError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.models.trained import Trained
from gpuwise.plan.step.estimates import StepEstimate, measure
from gpuwise.predict.memory.capture import Replayed, captured_memory
from gpuwise.predict.step.capture_time import step_rows
from gpuwise.workload.capture.captured import Capture
from gpuwise.workload.changes.change import Change, Sites
from gpuwise.workload.changes.registry import kind_of
from gpuwise.workload.changes.strategy import LORA_RANK
from gpuwise.workload.step import OpTable
from gpuwise.workload.tables.table import OPTIMIZERS, Made, made, table

ENOUGH = 0.9
"""Probability to fit above which no more memory is saved than is asked for."""


@dataclass(frozen=True, slots=True)
class NamedStep:
    """What :class:`gpuwise.plan.step.source.Source` is for own code. ``recompute`` None: only where it would not fit
    otherwise (:class:`OnCards`)."""

    network: Trained
    method: str
    size: int
    frames: int = 0
    rank: int = LORA_RANK
    optimizer: str = "adamw"
    recompute: bool | None = None
    half: bool = False
    """All weights in 16 bits, also those that are trained."""
    quantized: bool = False
    """The frozen weights in 4 bits (QLoRA)."""
    cached: bool = True
    """Latents and the text's features were computed before."""
    batch: int = 1
    notes: tuple[str, ...] = ()
    """Assumptions, as the answer prints them."""
    changes: tuple[Change, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    ranks: int = 1
    is_script: bool = False

    @property
    def name(self) -> str:
        """What is trained, and how, in a few words."""
        n = self.network
        how = f"{'Q' * self.quantized}LoRA of rank {self.rank}" if self.method == "lora" else "every weight"
        size = f"{self.size} x {self.size}" if n.unit == "pixels" else f"{self.size:,} {n.unit}"
        films = f" x {self.frames} frames" if n.frames else ""
        return f"{n.name}, {how}, {size}{films}"

    @property
    def variants(self) -> Mapping[str, Any]:
        """The variants of the table."""
        return table(self.network.id)["variants"]

    @property
    def variant(self) -> str:
        """The one that is asked for."""
        return self.method + "+half" * (self.half and self.method == "full") + "+recompute" * bool(self.recompute)

    def captured(
        self, accelerator: Accelerator, batch: int | None, seq: int | None = None, changes: Sequence[Change] = (), parts: int = 1
    ) -> tuple[Capture, Sites]:
        """The step at ``batch`` for ``accelerator``, with those of ``changes`` that a table can make."""
        step, touched = self, 0
        for change in changes:
            other = step._changed(change)
            touched += other is not step
            step = other
        n = self.network
        frozen = () if self.cached else (*n.text_encoders, *((n.autoencoder,) if n.autoencoder else ()))
        wish = Made(
            step.variant,
            batch or self.batch,
            float(step.size * n.per_size),
            step.rank,
            1 + (self.frames - 1) // n.frames_a_latent if n.frames else 1,
            step.optimizer,
            "bf16" if accelerator.peak_flop_per_s.get("bf16") else "fp16",
            frozen,
            step.quantized,
        )
        capture = made(n.id, wish)
        sites = Sites([], touched=touched, optimizers=(step.optimizer,), n_linear=0)
        if f"{step.variant}+recompute" in self.variants:
            sites.block_types = ("blocks",)
        return replace(capture, name=self.name), sites

    def effect_of(self, change: Change) -> object:
        """How a step shows ``change``: 4-bit weights are a table's too."""
        return "captured" if change.name == "qlora" else kind_of(change).step

    def lines(self, changes: Sequence[Change], sites: Sites) -> tuple[str, ...]:
        """None: there is no code."""
        return ()

    def lighter(self, accelerator: Accelerator) -> tuple[tuple[Change, ...], ...] | None:
        """Changes that a table can make of this step and that may take less memory."""
        tried = [Change("checkpointing"), Change("optimizer", "adamw8bit"), Change("optimizer", "adafactor")]
        tried += [Change("low_precision", "bf16"), Change("lora", self.rank), Change("qlora", self.rank)]
        if not accelerator.unified_memory and self.optimizer == "adamw":
            tried.append(Change("offload_optimizer"))
        return tuple((one,) for one in tried if one.name == "offload_optimizer" or self._changed(one) is not self)

    def _changed(self, change: Change) -> NamedStep:
        """The step under ``change``; itself where a table cannot make it, or it is so already."""
        if change.name == "checkpointing" and change.argument is None and f"{self.variant}+recompute" in self.variants:
            return replace(self, recompute=True)
        if change.name == "optimizer" and change.argument in OPTIMIZERS and change.argument != self.optimizer:
            return replace(self, optimizer=str(change.argument))
        if change.name == "lora" and self.method == "full" and "lora" in self.network.methods:
            rank = change.argument if isinstance(change.argument, int) else LORA_RANK
            return replace(self, method="lora", rank=rank)
        if change.name == "qlora" and not self.quantized and "lora" in self.network.methods:
            return replace(self, method="lora", quantized=True)
        if change.name == "low_precision" and self.method == "full" and not self.half:
            other = replace(self, half=True)
            return other if other.variant in self.variants else self
        return self


def check_size(network: Trained, size: int) -> int:
    """``size`` where the network takes it. Raises InputError."""
    n = network
    if n.smallest <= size <= n.largest and size % n.multiple == 0:
        return size
    near = min(max(round(size / n.multiple), math.ceil(n.smallest / n.multiple)), n.largest // n.multiple) * n.multiple
    of = f"{size} x {size}" if n.unit == "pixels" else f"{size:,} {n.unit}"
    steps = f", in steps of {n.multiple}" if n.multiple > 1 else ""
    raise InputError(
        f"{n.name} does not take {of}",
        hint=f"from {n.smallest:,} to {n.largest:,} {n.unit}{steps}: {n.option} {near}",
    )


def check_frames(network: Trained, frames: int | None) -> int:
    """The frames of a video, or 0. Raises InputError."""
    n = network
    if not n.frames:
        if frames is not None:
            raise InputError(f"--frames with {n.name}", hint="it has no frames: leave --frames out; Wan makes videos")
        return 0
    frames = n.frames if frames is None else frames
    if (frames - 1) % n.frames_a_latent:
        near = 1 + round((frames - 1) / n.frames_a_latent) * n.frames_a_latent
        raise InputError(f"{n.name} does not take {frames} frames", hint=f"one and a multiple of 4: --frames {near}")
    return frames


class OnCards:
    """One step on card after card: its captures and the replays of the allocator are made once for all of them."""

    def __init__(self, step: NamedStep, *, allocator_conf: str | None = None, compiled: bool | None = None) -> None:
        self.step = step
        self._conf, self._compiled = allocator_conf, compiled
        self._made: dict[tuple[str, bool, bool], tuple[Capture, dict[object, Replayed], OpTable]] = {}

    def measured(self, step: NamedStep, card: Accelerator) -> StepEstimate:
        """``step``, a variant of :attr:`step`, on ``card``. Raises what :func:`gpuwise.plan.step.estimates.measure` raises."""
        capture, replays, rows = self._shared(step, card)
        conf, compiled = self._conf, self._compiled
        return measure(capture, card, allocator_conf=conf, compiled=compiled, replays=replays, rows=rows)

    def _shared(self, step: NamedStep, card: Accelerator) -> tuple[Capture, dict[object, Replayed], OpTable]:
        key = step.variant, step.quantized, bool(card.peak_flop_per_s.get("bf16"))
        if key not in self._made:
            capture = step.captured(card, step.batch)[0]
            self._made[key] = capture, {}, step_rows(capture)
        return self._made[key]

    def settled(self, card: Accelerator) -> NamedStep:
        """The step with recomputation where it is asked for, or where it fits ``card`` only with it."""
        step = self.step
        plain, other = replace(step, recompute=False), replace(step, recompute=True)
        if step.recompute is not None or other.variant not in step.variants:
            return step
        if plain.variant not in step.variants:
            return other
        capture, replays, _ = self._shared(plain, card)
        alone = captured_memory(capture, card, allocator_conf=self._conf, compiled=self._compiled, replays=replays)
        if alone.fit_probability >= ENOUGH:
            return plain
        taken = alone.process.expected / 2**30
        why = f"gradient checkpointing, without which it would take {taken:.1f} GiB"
        return replace(other, notes=(*step.notes, why))


__all__ = ["NamedStep", "OnCards", "check_frames", "check_size"]
