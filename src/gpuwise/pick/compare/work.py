"""Rows of a comparison for one model: what each subject trains and serves, by the predictors behind ``plan``.

Training is compared way by way: all weights first, and while some subject cannot hold that, lighter ways (8-bit
optimizer states, adapters, adapters on 4-bit weights) for all of them, so that every row compares the same work.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from gpuwise.errors import InputError, LayoutError, UnpredictableError
from gpuwise.facts.models.architecture import Architecture
from gpuwise.money.cost import price_of
from gpuwise.money.energy import energy
from gpuwise.pick.compare.rows import Cell, FigureRow, Subject
from gpuwise.pick.compare.serving import SubjectServing, serve_alike
from gpuwise.pick.training import LIGHTER, QLORA, promised_with
from gpuwise.plan.explain import layout, shortage
from gpuwise.plan.goal import Wishes
from gpuwise.plan.whole_run import whole_time
from gpuwise.predict.estimate import Estimate
from gpuwise.predict.step.training import TrainingEstimate
from gpuwise.units import HOUR_S, J_PER_KWH, MEGA, format_count
from gpuwise.workload.changes.change import Change
from gpuwise.workload.changes.registry import label
from gpuwise.workload.changes.strategy import LORA_RANK
from gpuwise.workload.optimizer import on_host, weights_on_host
from gpuwise.workload.strategy import Strategy

PURPOSES = ("train", "finetune", "infer")


@dataclass(frozen=True, slots=True)
class ComparedWork:
    """Work to do with ``arch``. ``purposes`` of :data:`PURPOSES`; ``tokens`` to train on or to generate; ``context`` tokens of
    a served sequence."""

    arch: Architecture
    purposes: tuple[str, ...]
    tokens: float | None
    seq_len: int | None
    precision: str | None
    context: int
    task: str | None = None
    """Task of the training of all weights; None: judged as ``plan`` does."""


@dataclass(frozen=True, slots=True)
class TrainingMethod:
    """One way to train: the changes to what ``wishes`` ask for."""

    key: str
    title: str
    wishes: Wishes = field(default_factory=Wishes)
    changes: tuple[Change, ...] = ()


_ADAPTERS = Wishes(lora_rank=LORA_RANK)
WAYS = (
    TrainingMethod("train_full", "train all weights"),
    TrainingMethod("train_light", ", ".join(label(c) for c in LIGHTER[0]), changes=LIGHTER[0]),
    TrainingMethod("train_lora", f"LoRA rank {LORA_RANK}", _ADAPTERS),
    TrainingMethod("train_qlora", f"QLoRA rank {LORA_RANK}", _ADAPTERS, QLORA),
)
"""From the whole training to what fits anywhere."""


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """The fastest fitting strategy of one method on one subject, or the reason that there is none (``smallest``: the closest)."""

    estimate: TrainingEstimate | None
    why_not: str = ""


def work_rows(subjects: Sequence[Subject], work: ComparedWork, today: datetime.date) -> tuple[FigureRow, ...]:
    """The rows of ``work``. Raises InputError when the model cannot be used so on any accelerator."""
    rows: list[FigureRow] = []
    if "train" in work.purposes or "finetune" in work.purposes:
        rows += _training(subjects, work, today)
    if "infer" in work.purposes:
        rows += _serving(subjects, work, today)
    return tuple(rows)


def train(subject: Subject, work: ComparedWork, way: TrainingMethod) -> TrainingResult:
    """Search the strategies of ``way`` on ``subject``. Raises InputError on what no subject could do."""
    precision = () if work.precision is None else (work.precision,)
    task = None if way.wishes.fine_tuning or way.changes == QLORA else work.task
    wishes = replace(way.wishes, task=task, tokens=work.tokens, seq_len=work.seq_len, precision=precision)
    try:
        fastest = promised_with(way.changes, work.arch, subject.cluster, wishes)
    except (UnpredictableError, LayoutError) as error:
        return TrainingResult(None, error.message)
    e = fastest.estimate
    if e is not None and weights_on_host(e.strategy) and work.purposes != ("train",):
        return TrainingResult(None, "only with its weights in host memory")
    return TrainingResult(e, "" if fastest.least is None else shortage(fastest.least()))


def _training(subjects: Sequence[Subject], work: ComparedWork, today: datetime.date) -> list[FigureRow]:
    section = "Training, predicted"
    ways = WAYS if "train" in work.purposes else WAYS[2:]
    fits = ["no"] * len(subjects)
    rows: list[FigureRow] = []
    shown: list[TrainingResult] = []
    for way in ways:
        results = [train(s, work, way) for s in subjects]
        for i, d in enumerate(results):
            if d.estimate is not None and fits[i] == "no":
                fits[i] = _holding(way, ways[0], d.estimate.strategy)
        if any(d.estimate is not None for d in results):
            rows.append(FigureRow(way.key, way.title, section, "tokens/s", "higher", tuple(_speed(d) for d in results)))
            shown = results
        if all(word != "no" for word in fits):
            break
    question = "holds all weights' states" if ways is WAYS else "holds adapters' training"
    head = [FigureRow("train_fits", question, section, "", "", tuple(Cell(None, w, "derived") for w in fits))]
    if shown:
        head_rows = _training_money(subjects, work, shown, today, rows[-1].title)
        return [*head, *rows, *head_rows]
    return head


def _holding(way: TrainingMethod, whole: TrainingMethod, s: Strategy) -> str:
    """Placement of training states: all on the device, some in host memory, or a lighter method."""
    if way is not whole:
        return f"with {way.title}"
    return f"with the {on_host(s)[0]} in host memory" if s.offload_optimizer else "yes"


def _speed(d: TrainingResult) -> Cell:
    if d.estimate is None:
        return Cell(None, d.why_not)
    s = d.estimate.strategy
    return Cell.of(d.estimate.tokens_per_s, "training step", f"{s.precision}, {layout(s)}")


def _training_money(
    subjects: Sequence[Subject], work: ComparedWork, results: Sequence[TrainingResult], today: datetime.date, way: str
) -> list[FigureRow]:
    """Utilisation, time, dollars and joules of the last way, which is the one most subjects can do."""
    section = "Training, predicted"
    tokens = work.tokens or MEGA
    size = f"{format_count(tokens)} tokens"

    def row(key: str, title: str, unit: str, better: str, cell: Callable[[Subject, TrainingEstimate], Cell]) -> FigureRow:
        cells = tuple(Cell() if d.estimate is None else cell(s, d.estimate) for s, d in zip(subjects, results, strict=True))
        return FigureRow(key, title, section, unit, "higher" if better == "higher" else "lower", cells)

    rows = [row("train_mfu", f"MFU ({way})", "%", "higher", lambda _, e: Cell.of(e.mfu, "training step"))]
    if work.tokens is not None:
        rows.append(
            row(
                "train_time",
                f"time for {size}",
                "s",
                "lower",
                lambda s, e: Cell.of(whole_time(work.arch, s.cluster, e, tokens), "training step"),
            )
        )
    rows.append(
        row(
            "train_usd",
            f"rent for {size}",
            "$",
            "lower",
            lambda s, e: _rented(s, whole_time(work.arch, s.cluster, e, tokens), today),
        )
    )
    rows.append(row("train_joule", "energy a token, at the meter", "J", "lower", lambda s, e: _joules(s, e.seconds_for(1.0))))
    return rows


def _serving(subjects: Sequence[Subject], work: ComparedWork, today: datetime.date) -> list[FigureRow]:
    section = f"Serving at {work.context:,} tokens of context, predicted"
    results = serve_alike(work.arch, [s.cluster for s in subjects], work.context, work.precision)

    def row(key: str, title: str, unit: str, better: str, cell: Callable[[Subject, SubjectServing], Cell]) -> FigureRow:
        cells = tuple(Cell(None, d.why_not) if d.weights is None else cell(s, d) for s, d in zip(subjects, results, strict=True))
        return FigureRow(key, title, section, unit, "higher" if better == "higher" else "lower", cells)

    def speed(rate: Estimate | None, words: str) -> Cell:
        return Cell(None, words) if rate is None else Cell.of(rate, "serving iteration", words)

    def per_million(s: Subject, d: SubjectServing) -> Cell:
        if d.batched is None:
            return Cell()
        return _rented(s, d.batched.inverse(work.tokens or MEGA), today)

    size = f"{format_count(work.tokens or MEGA)} tokens"
    full = [d.sequences for d in results if d.sequences is not None]
    same_batch: list[FigureRow] = []
    if len(set(full)) > 1 and min(full) > 1:
        least = min(full)
        title = f"{least} sequences on each"
        same_batch = [
            row("decode_same_batch", title, "tokens/s", "higher", lambda _, d: speed(d.at_batch(least, work.context), ""))
        ]
    return [
        FigureRow(
            "serve_weights",
            "weight format",
            section,
            "",
            "",
            tuple(Cell(None, d.words if d.weights else d.why_not, "derived") for d in results),
        ),
        row(
            "serve_room",
            "tokens of cache that fit",
            "count",
            "higher",
            lambda _, d: Cell() if d.cache_tokens is None else Cell(d.cache_tokens, "", "derived", "memory beside the weights"),
        ),
        row("decode_one", "one sequence", "tokens/s", "higher", lambda _, d: speed(d.single, d.single_words)),
        row("first_token", "first token", "s", "lower", lambda _, d: speed(d.first_token, d.single_words)),
        row("decode_batch", "full batch", "tokens/s", "higher", lambda _, d: speed(d.batched, d.batch_words)),
        *same_batch,
        row("prefill", "reading a prompt", "tokens/s", "higher", lambda _, d: speed(d.prefill, d.prefill_words)),
        row(
            "serve_joule",
            "energy a token, at the meter",
            "J",
            "lower",
            lambda s, d: Cell() if d.batched is None else _joules(s, d.batched.inverse()),
        ),
        row("serve_usd", f"rent for {size} written", "$", "lower", per_million),
    ]


def _rented(s: Subject, time_s: Estimate, today: datetime.date) -> Cell:
    price = price_of(s.cluster, today)
    if price is None:
        return Cell(None, "it has no rental offer")
    # the price's own spread is shown in its row: here the interval and the basis are those of the time
    cost = time_s.scaled(s.count * price.expected / HOUR_S)
    cell = Cell.of(cost, f"time at the rent of {price.provider}")
    return replace(cell, weak=cell.weak or price.stale)


def _joules(s: Subject, time_s: Estimate) -> Cell:
    consumption = energy(time_s, s.cluster)
    return (
        Cell()
        if consumption is None
        else Cell.of(consumption.kwh.scaled(J_PER_KWH), "time at the mean power of host and cooling")
    )


def check_work(work: ComparedWork) -> None:
    """Raises InputError on a purpose the model has not."""
    if "infer" in work.purposes and work.arch.kind != "decoder" and len(work.purposes) == 1:
        raise InputError(
            f"{work.arch.name} is not a decoder: serving is predicted for models that generate text",
            hint="choose a model such as llama-3.1-8b, or --for train",
        )
    if work.context > work.arch.max_seq_len and "infer" in work.purposes:
        raise InputError(
            f"{work.arch.name} has a context of {work.arch.max_seq_len:,} tokens, not {work.context:,}",
            hint=f"use --seq {work.arch.max_seq_len} or less",
        )
