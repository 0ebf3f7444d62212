"""One lever at a time: what each change to a strategy would do. It is how a plan explains itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuwise.errors import LayoutError, UnpredictableError
from gpuwise.plan.goal import Goal
from gpuwise.plan.space.rules import check_strategy
from gpuwise.plan.space.search import estimate_all, setting_of
from gpuwise.predict.step.training import TrainingEstimate
from gpuwise.workload.strategy import RECOMPUTES, SHARDINGS, Strategy


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A strategy one lever away: ``slower`` is its step time over the plan's, minus one; negative: faster."""

    lever: str
    change: str
    estimate: TrainingEstimate
    slower: float

    @property
    def fits(self) -> bool:
        return self.estimate.fits


def neighbours(goal: Goal, best: TrainingEstimate) -> tuple[Neighbour, ...]:
    """Every allowed strategy one lever away from ``best``, whether it fits or not."""
    legal: list[tuple[str, str, Strategy]] = []
    for lever, change, strategy in _changes(best.strategy):
        try:
            check_strategy(setting_of(goal, strategy), strategy)
        except LayoutError:
            continue
        legal.append((lever, change, strategy))
    try:
        done = estimate_all(goal, [s for _, _, s in legal])
    except UnpredictableError:
        return ()
    base = best.step_time_s.expected
    return tuple(
        Neighbour(lever, change, e, e.step_time_s.expected / base - 1) for (lever, change, _), e in zip(legal, done, strict=True)
    )


def _changes(s: Strategy) -> Iterator[tuple[str, str, Strategy]]:
    """(lever, change in words, strategy); degrees trade against data parallelism so that the count stays."""
    for field, name in (("tp", "tensor parallel"), ("pp", "pipeline parallel"), ("cp", "context parallel")):
        degree = getattr(s, field)
        for other in (degree * 2, degree // 2):
            yield from _degree(s, field, name, other)
    for other in (s.micro_batch * 2, s.micro_batch // 2):
        if other >= 1 and (s.micro_batch * s.accumulation) % other == 0:
            accumulation = s.micro_batch * s.accumulation // other
            yield "micro-batch", f"micro-batch {other}", s.with_(micro_batch=other, accumulation=accumulation)
    for recompute in RECOMPUTES:
        if recompute != s.recompute:
            yield "recompute", f"{recompute} recompute", s.with_(recompute=recompute, recompute_every=1)
    for sharding in SHARDINGS:
        if sharding != s.sharding:
            yield (
                "sharding",
                f"{sharding} sharding" if sharding != "none" else "no sharding",
                s.with_(sharding=sharding),
            )
    if s.pp > 1:
        yield from _schedules(s)
    yield "optimizer offload", "optimizer on the host", s.with_(offload_optimizer=True)


def _degree(s: Strategy, field: str, name: str, other: int) -> Iterator[tuple[str, str, Strategy]]:
    degree = getattr(s, field)
    ranks, left = s.dp * degree, s.dp * degree // max(other, 1)
    batch = s.micro_batch * s.accumulation * s.dp
    if other < 1 or ranks % other or batch % (left * s.micro_batch):
        return
    accumulation = batch // (left * s.micro_batch)
    changed = s.with_(**{field: other}, dp=left, accumulation=accumulation)
    if field == "pp" and other == 1:
        changed = changed.with_(schedule="1f1b", virtual_stages=1)
    if s.sharding != "none" and changed.dp * changed.cp == 1:
        changed = changed.with_(sharding="none")
    yield name, f"{name} {other}", changed


def _schedules(s: Strategy) -> Iterator[tuple[str, str, Strategy]]:
    if s.schedule != "1f1b":
        yield "schedule", "1F1B without virtual stages", s.with_(schedule="1f1b", virtual_stages=1)
    for v in (s.virtual_stages * 2, s.virtual_stages // 2):
        if v > 1:
            yield "schedule", f"{v} virtual stages", s.with_(schedule="interleaved", virtual_stages=v)
