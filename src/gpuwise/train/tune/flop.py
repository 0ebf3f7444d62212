"""Model FLOPs utilisation (MFU): the share of the device's peak that the model's own arithmetic reaches.

Utilisation = seconds that the counted products would take at the peak of their formats / seconds that the step took. With
one format that is FLOP / (step time x peak), as usual; recomputation does not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuwise.train.hook.journal import Journal
from gpuwise.train.ticks import Step
from gpuwise.train.tune.peak import Peaks

LEAST_SHARE = 0.001
"""Share of the FLOP below which products in a format do not matter, even with an unknown peak. Rule of this project."""


@dataclass(frozen=True, slots=True)
class Flop:
    """FLOP of one sample (one step where the sample count is unknown) by format; empty with a reason where unknown."""

    per_sample: Mapping[str, float] = field(default_factory=dict[str, float])
    recomputed: float = 0.0
    """FLOP per sample recomputed by checkpointing; not in ``per_sample``."""
    why: str | None = None

    @property
    def total(self) -> float | None:
        """FLOP of a sample in all formats."""
        return sum(self.per_sample.values()) if self.per_sample else None


def flop_of(journal: Journal, steps: Sequence[Step]) -> Flop:
    """From the turn that was counted. Where batches hold ids it is scaled from its own number of columns a sample to that of
    ``steps``: in proportion, which leaves out that attention grows faster."""
    event = journal.last("flop")
    if not event:
        return Flop(why="the script ended before its operations were counted")
    if event.get("why"):
        return Flop(why=str(event["why"]))
    if event["uncounted"]:
        return Flop(why=f"{', '.join(event['uncounted'][:3])}: what it multiplies cannot be counted")
    if not event["flop"]:
        return Flop(why="the model multiplies nothing that is counted")
    samples, tokens = event["samples"] or 1, event["tokens"]
    usual_samples, usual_tokens = sum(s.samples for s in steps) or len(steps), sum(s.tokens for s in steps)
    scale = (usual_tokens / usual_samples) / (tokens / samples) if tokens and usual_tokens else 1.0
    per_sample = {name: value * scale / samples for name, value in event["flop"].items()}
    return Flop(per_sample, sum(event["recomputed"].values()) * scale / samples)


def utilisation(flop: Flop, rate: float | None, peaks: Peaks) -> tuple[float | None, str | None]:
    """Share of the peak at ``rate`` samples a second, or None and why."""
    total = flop.total
    if not total:
        return None, flop.why
    if rate is None:
        return None, "the rate is not known"
    if not peaks.flop_per_s:
        return None, peaks.why
    seconds = 0.0
    for name, value in flop.per_sample.items():
        peak = peaks.flop_per_s.get(name)
        if peak:
            seconds += value / peak
        elif value > LEAST_SHARE * total:
            return None, f"the peak in {name} is not known"
    return seconds * rate, None


def changes_flop(levers: Mapping[str, object]) -> dict[str, object]:
    """Levers that change the products or their format."""
    from gpuwise.train.levers.table import BY_NAME

    return {name: value for name, value in levers.items() if BY_NAME[name].group in ("padding", "precision")}
