"""What makes a step fit on a card: changes made to the user's own step, captured again and predicted again.

Nothing is a rule of thumb: a change that saves nothing in the capture is not shown, and one that cannot be made (no
repeated blocks, no head over a vocabulary, a step that breaks under it) is left out with its reason. Where no single
change suffices, changes are stacked in the order of what a freed byte costs in time, each stack captured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from gpuwise.errors import GpuwiseError, UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.plan.changes.snippets import snippet
from gpuwise.plan.checkpointing.selection import select_checkpoints
from gpuwise.plan.step.estimates import Measured, measure
from gpuwise.plan.step.source import Source, capability_of
from gpuwise.plan.step.time_parts import op_seconds
from gpuwise.workload.capture.record.capture import Capture, Category, OpFlag
from gpuwise.workload.changes.registry import Change, Sites

SAME, NUMBERS, STATES, ADAPTERS = "same training", "other precision", "lighter states", "trains adapters only"
"""Kinds of changes: the same numbers; the same training in a lower precision; another optimizer or its states in a lower
precision; frozen weights with trained adapters."""
KINDS = (SAME, NUMBERS, STATES, ADAPTERS)
LORA_RANK, LOSS_CHUNKS = 16, 8
MOST_MICRO_BATCHES = 64
WORTH = 0.002
"""Share of the card's memory below which a saving is not shown."""
EXPANDABLE = "expandable_segments:True"
LOW = frozenset({"bf16", "fp16"})
KEPT = 2**20
"""Bytes kept from the step before from which letting go of them is tried."""
CHECKPOINT_TARGETS = (0.98, 0.9, 0.8)
"""Shares of what tensors may take that checkpoints are chosen for, in turn: gaps between blocks take the rest."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A change that might help, before it is tried."""

    name: str
    kind: str
    changes: tuple[Change, ...]
    conf: str | None = None
    micro_batches: int = 1


@dataclass(frozen=True, slots=True)
class CapturedRemedy:
    """A change (or a stack of them) with the step captured under it. ``slower`` is the time of an update against that
    of the step as it is (as if it had fitted), less one; None without a time."""

    name: str
    kind: str
    changes: tuple[Change, ...]
    conf: str | None
    measured: Measured
    saved_bytes: float
    slower: float | None
    lines: tuple[str, ...]
    """What to write: see :mod:`gpuwise.plan.changes.snippets`."""

    @property
    def fits(self) -> bool:
        return self.measured.fits


@dataclass(frozen=True, slots=True)
class Remedies:
    """``singles`` are those that suffice first, then by slowdown; ``combinations`` at most one of each kind, each
    fitting; ``failed`` says which changes broke the step, and how."""

    singles: tuple[CapturedRemedy, ...]
    combinations: tuple[CapturedRemedy, ...]
    captures: int
    failed: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class Trial:
    """A step as it is, and what it is to be captured again with."""

    source: Source
    accelerator: Accelerator
    batch: int | None
    seq: int | None
    base: Measured
    sites: Sites
    conf: str | None
    compiled: bool | None
    tell: Callable[[str], None]
    captures: int = 0

    def measured(self, offer: Offer) -> Measured | None:
        """The step under ``offer``; None if it acts on nothing. Raises what the user's step raises under it."""
        conf = offer.conf or self.conf
        if not offer.changes:
            if self.base_capture is None:
                return None
            return replace(self._measure(self.base_capture, conf, 1), time=self.base.time)
        batch = self.batch
        if batch is not None and offer.micro_batches > 1:
            batch //= offer.micro_batches
        self.tell(offer.name)
        self.captures += 1
        capture, sites = self.source.captured(self.accelerator, batch, self.seq, offer.changes)
        return self._measure(capture, conf, offer.micro_batches) if sites.touched else None

    base_capture: Capture | None = None

    def _measure(self, capture: Capture, conf: str | None, micro_batches: int) -> Measured:
        return measure(capture, self.accelerator, allocator_conf=conf, compiled=self.compiled, micro_batches=micro_batches)

    def remedy(self, offer: Offer, measured: Measured) -> CapturedRemedy:
        before, after = self.base.step_time_s, measured.step_time_s
        slower = None if before is None or after is None else after.expected / before.expected - 1.0
        saved = self.base.process_bytes.expected - measured.process_bytes.expected
        lines = snippet(offer.changes, self.sites, offer.conf)
        return CapturedRemedy(offer.name, offer.kind, offer.changes, offer.conf, measured, saved, slower, lines)


def find_remedies(
    source: Source,
    accelerator: Accelerator,
    capture: Capture,
    sites: Sites,
    base: Measured,
    *,
    batch: int | None,
    seq: int | None = None,
    conf: str | None = None,
    compiled: bool | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Remedies:
    """Every change that may save memory tried on the step; ``tell`` hears the name of each before it is captured."""
    trial = Trial(source, accelerator, batch, seq, base, sites, conf, compiled, tell, base_capture=capture)
    found: list[tuple[Offer, CapturedRemedy]] = []
    failed: list[tuple[str, str]] = []
    for offer in offers(capture, sites, accelerator, conf):
        _keep(found, offer, tried(trial, offer, failed), accelerator)
    for offer in _micro_batches(batch, base):
        remedy = tried(trial, offer, failed)
        _keep(found, offer, remedy, accelerator)
        if remedy is not None and remedy.fits:
            break
    for offer in _fewest_checkpoints(trial, capture):
        remedy = tried(trial, offer, failed)
        _keep(found, offer, remedy, accelerator)
        if remedy is None or remedy.measured.fits_easily:
            break
    found = _last_of_each(found)
    singles = sorted((r for _, r in found), key=_rank)
    combinations = () if base.fits or any(r.fits and r.kind == SAME for r in singles) else _stacked(trial, found, failed)
    return Remedies(tuple(singles), combinations, trial.captures, tuple(failed))


def _keep(
    found: list[tuple[Offer, CapturedRemedy]], offer: Offer, remedy: CapturedRemedy | None, accelerator: Accelerator
) -> None:
    if remedy is not None and remedy.saved_bytes > WORTH * accelerator.memory_bytes:
        found.append((offer, remedy))


def _last_of_each(found: Sequence[tuple[Offer, CapturedRemedy]]) -> list[tuple[Offer, CapturedRemedy]]:
    """Of several tries at choosing modules only the one that fits, as every block saves more than one that does not."""
    return [(o, r) for o, r in found if r.fits or not (o.changes and o.changes[0].kind == "checkpoint" and o.changes[0].argument)]


def _fewest_checkpoints(trial: Trial, capture: Capture) -> Iterator[Offer]:
    """The cheapest modules whose recomputation makes the step fit, by exact selection; asked again for more memory freed
    while the capture of it does not fit easily.

    What tensors may take is what the card has beside context and communicators, less what the blocks and hidden
    workspaces take beyond the tensors at the peak.
    """
    base, memory = trial.base, trial.base.memory
    if base.fits or base.time is None or bool((capture.op_flags & OpFlag.CHECKPOINTED).any()) or len(trial.sites.forward) != 1:
        return
    times = op_seconds(capture, base.time)
    if times is None:
        return
    beyond = max(memory.steady.allocated_bytes - capture.peak_bytes(), 0)
    room = memory.capacity_bytes - memory.context.expected - memory.communicators.expected - beyond
    before: tuple[str, ...] = ()
    for share in CHECKPOINT_TARGETS:
        try:
            paths = select_checkpoints(capture, int(share * room), times[0]).paths if room > 0 else ()
        except UnpredictableError:
            return
        if paths and paths != before:
            yield Offer(f"checkpoint {len(paths)} module{'s' * (len(paths) > 1)}", SAME, (Change("checkpoint", paths),))
        before = paths


def _rank(remedy: CapturedRemedy) -> tuple[bool, float]:
    return (not remedy.fits, remedy.slower if remedy.slower is not None else -remedy.saved_bytes)


def tried(trial: Trial, offer: Offer, failed: list[tuple[str, str]]) -> CapturedRemedy | None:
    """The step under ``offer``; None if it acts on nothing, or breaks the step, which is added to ``failed``."""
    try:
        measured = trial.measured(offer)
    except GpuwiseError as error:
        failed.append((offer.name, error.message))
        return None
    except Exception as error:  # noqa: BLE001 (a user's step may raise anything under a change it was not written for)
        failed.append((offer.name, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"))
        return None
    return None if measured is None else trial.remedy(offer, measured)


def offers(capture: Capture, sites: Sites, accelerator: Accelerator, conf: str | None) -> Iterator[Offer]:
    """The changes that the step, as seen, has something for; whether they help is for the capture to say."""
    s = capture.settings
    major, _ = capability_of(accelerator)
    adam = any(o.split("/")[0] in ("Adam", "AdamW") for o in s.optimizers)
    weights = {p.dtype for p in capture.parameters if p.trainable} or set(capture.storage_dtype) & LOW
    if "expandable_segments" not in (conf or s.allocator_conf):
        yield Offer("expandable segments", SAME, (), EXPANDABLE)
    if any(o.endswith("/foreach") for o in s.optimizers):
        yield Offer("fused optimizer", SAME, (Change("fused"),))
    if sites.zero_grad_keeps:
        yield Offer("zero_grad sets to None", SAME, (Change("set-to-none"),))
    elif _alive_between(capture, Category.GRADIENT) and sites.step is not None:
        yield Offer("zero_grad after the step", SAME, (Change("zero-after-step"),))
    if _alive_between(capture, Category.ACTIVATION, Category.TEMPORARY):
        yield Offer("last outputs let go", SAME, (Change("free-outputs"),))
    if s.cudnn_benchmark:
        yield Offer("no cuDNN benchmark", SAME, (Change("no-benchmark"),))
    if sites.blocks and not bool((capture.op_flags & OpFlag.CHECKPOINTED).any()):
        yield Offer("checkpoint every block", SAME, (Change("checkpoint"),))
    if sites.large_linear and sites.loss is not None:
        yield Offer("chunked cross entropy", SAME, (Change("chunked-loss", LOSS_CHUNKS),))
    if len(sites.optimizers) == 1:
        yield Offer("step in backward", SAME, (Change("step-in-backward"),))
    if adam and not accelerator.unified_memory:
        yield Offer("optimizer states on the host", SAME, (Change("offload-states"),))
    yield Offer("fused attention", SAME, (Change("sdpa"),))
    yield from autocast_offer(capture, weights, major)
    if major >= 8 and "fp32" in weights:
        yield Offer("bf16 weights", STATES, (Change("low-precision", "bf16"),))
    if adam:
        yield Offer("8-bit AdamW", STATES, (Change("adam8bit"),))
        yield Offer("SGD with momentum", STATES, (Change("sgd"),))
    if sites.n_linear >= 4 and sites.n_conv == 0 and sites.blocks and len(sites.optimizers) == 1:
        yield Offer(f"LoRA, rank {LORA_RANK}", ADAPTERS, (Change("lora", LORA_RANK),))


def autocast_offer(capture: Capture, weights: Set[str], major: int) -> Iterator[Offer]:
    """Autocast in the format for compute capability ``major``, for a step that computes in none of half precision."""
    if not LOW & (set(capture.settings.autocast_dtypes) | weights) and major >= 7:
        form = "bf16" if major >= 8 else "fp16"
        yield Offer(f"autocast {form}", NUMBERS, (Change("autocast", form),))


def _alive_between(capture: Capture, *categories: Category) -> bool:
    """Whether something of ``categories`` that a step made is alive when the next one begins."""
    if len(capture.steps) < 2:
        return False
    before, span = capture.steps[-2], capture.steady
    seen = slice(0, span.first_event)
    alive = np.bincount(capture.event_storage[seen], weights=capture.event_sign[seen], minlength=capture.storage_bytes.size) > 0
    made = (capture.storage_op >= before.first_op) & (capture.storage_op < before.end_op)
    kept = alive & made & np.isin(capture.storage_category, [int(c) for c in categories])
    return bool(capture.storage_bytes[kept].sum() >= KEPT)


def _micro_batches(batch: int | None, base: Measured) -> Iterator[Offer]:
    """The batch in as many micro-batches as the activations suggest, then in more, for the capture to confirm."""
    if batch is None:
        return
    divisors = [n for n in range(2, min(batch, MOST_MICRO_BATCHES) + 1) if batch % n == 0]
    fixed = base.memory.context.expected + sum(
        b for c, b in base.memory.by_category.items() if c.name in ("PARAMETER", "GRADIENT", "OPTIMIZER", "BUFFER")
    )
    room = base.memory.capacity_bytes - fixed
    wanted = (base.process_bytes.expected - fixed) / room if room > 0 else float(MOST_MICRO_BATCHES)
    enough = [n for n in divisors if n >= wanted][:3] or divisors[-1:]
    for n in enough:
        yield Offer(f"{n} micro-batches of {batch // n}", SAME, (Change("accumulate", n),), micro_batches=n)


def _stacked(
    trial: Trial, found: Sequence[tuple[Offer, CapturedRemedy]], failed: list[tuple[str, str]]
) -> tuple[CapturedRemedy, ...]:
    """For each kind, allowed what the kinds before it are: changes added by what a freed byte costs until it fits."""
    made: list[CapturedRemedy] = []
    for rank, kind in enumerate(KINDS):
        allowed = [(o, r) for o, r in found if KINDS.index(r.kind) <= rank]
        if not any(r.kind == kind for _, r in allowed) or any(r.fits for _, r in allowed):
            continue
        stack: list[Offer] = []
        for offer, _ in sorted(allowed, key=lambda pair: (pair[1].slower or 0.0) / max(pair[1].saved_bytes, 1.0)):
            if _clash(offer, stack):
                continue
            stack.append(offer)
            remedy = tried(trial, _joined(stack, kind), failed) if len(stack) > 1 else None
            if remedy is not None and remedy.fits:
                made.append(remedy)
                break
        if made:
            break
    return tuple(made)


def _joined(stack: Sequence[Offer], kind: str) -> Offer:
    return Offer(
        " + ".join(o.name for o in stack),
        kind,
        tuple(c for o in stack for c in o.changes),
        next((o.conf for o in stack if o.conf), None),
        max(o.micro_batches for o in stack),
    )


_EXCLUSIVE = (
    {"adam8bit", "sgd", "optimizer", "fused", "for-loop"},
    {"accumulate", "step-in-backward", "set-to-none", "zero-after-step"},
    {"accumulate"},
    {"step-in-backward", "offload-states"},
    {"autocast", "low-precision"},
    {"checkpoint"},
)
"""Changes of one thing: a stack holds one of each."""


def _clash(offer: Offer, stack: Sequence[Offer]) -> bool:
    mine, held = {c.kind for c in offer.changes}, {c.kind for o in stack for c in o.changes}
    return any(mine & group and held & group for group in _EXCLUSIVE)
