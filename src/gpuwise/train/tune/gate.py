"""The runs of the parity gate: batches recorded once, the untouched script twice on them, then every changed run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from gpuwise.errors import GpuwiseError
from gpuwise.train.hook.launch import Outcome
from gpuwise.train.hook.settings import Parity, Stop
from gpuwise.train.hook.zygote import Zygote
from gpuwise.train.levers.table import BY_NAME
from gpuwise.train.tune import parity
from gpuwise.train.tune.candidates import ASKED_FOR
from gpuwise.train.tune.parity import (
    Distance,
    Verdict,
    batches_differ,
    changes_of,
    curve_of,
    distance,
    notes_differ,
    precision_of,
)
from gpuwise.train.tune.trial import NO_DROPOUT, ROUNDING, TrialJob, run

LOADER_GROUP = "loader"
EPOCHS = 3
"""Epochs of batches to compare under levers that act from the second on."""


class Gate:
    """Compares changed runs of one job with the untouched one. ``own``: the format of the script's own autocast. ``base``:
    levers of both sides, if the script does not run without them. ``epoch_steps``: steps of an epoch, if known."""

    def __init__(
        self,
        job: TrialJob,
        folder: Path,
        zygote: Zygote | None,
        *,
        steps: int = parity.STEPS,
        own: str | None = None,
        base: Mapping[str, object] | None = None,
        epoch_steps: int | None = None,
    ) -> None:
        self._base_levers, self._epoch_steps = dict(base or {}), epoch_steps
        self._always: dict[str, object] = {NO_DROPOUT: True, **(base or {})}
        self._job, self._folder, self._zygote, self._steps, self._own = job, folder, zygote, steps, own
        self._batches = folder / "record" / "batches"
        self._untouched: parity.Curve | None = None
        self._spread: Distance | None = None
        self._rounding: dict[str, Distance] = {}
        self._recorded = False

    def check(self, levers: Mapping[str, object]) -> Verdict:
        """The verdict on these levers together. Raises GpuwiseError where the untouched script itself cannot be compared."""
        self._record()
        changes, precision = changes_of(levers), precision_of(levers, self._own)
        in_loader = {k: v for k, v in levers.items() if BY_NAME[k].group == LOADER_GROUP}
        if in_loader:
            why = self._content(in_loader) or (self._epochs(in_loader) if {*ASKED_FOR} & {*in_loader} else None)
            if why is not None:
                return Verdict(False, changes, precision, "", 0.0, 0.0, why=why)
        rest = {k: v for k, v in levers.items() if k not in in_loader}
        if not rest:
            return Verdict(True, changes, precision, "", 0.0, 0.0, why=_same_batches(in_loader))
        base, spread = self._base()
        outcome = self._replay(rest, "changed")
        if not outcome.ok:
            return Verdict(False, changes, precision, "", 0.0, 0.0, why=outcome.how)
        verdict = parity.judge(
            distance(base, curve_of(outcome.journal, self._steps)),
            self._noise(precision, base),
            spread,
            changes=changes,
            precision=precision,
        )
        if verdict.passed and changes == "exact" and self._drawn(rest, "drawn") != self._own_drawn:
            return replace(verdict, changes="order")
        return verdict

    @cached_property
    def _own_drawn(self) -> list[str]:
        return self._drawn({}, "own drawn")

    def _drawn(self, levers: Mapping[str, object], name: str) -> list[str]:
        """States of the random generators at the end of each step, where dropout drops."""
        journal = self._replay(levers, name, always=self._base_levers).journal
        return [str(event["random"]) for event in journal.of("norm")][: self._steps - 1]

    def _record(self) -> None:
        if self._recorded:
            return
        outcome = run(
            self._job,
            self._always,
            self._folder / "record",
            stop=self._stop,
            zygote=self._zygote,
            parity=Parity(self._steps, record_batches=str(self._batches)),
        )
        if not outcome.journal.ticks:
            raise GpuwiseError(f"the script could not be run for the comparison: {outcome.how}")
        self._recorded = True

    @property
    def _stop(self) -> Stop:
        return Stop(most_steps=self._steps - 1)

    def _replay(self, levers: Mapping[str, object], name: str, always: Mapping[str, object] | None = None) -> Outcome:
        return run(
            self._job,
            {**(self._always if always is None else always), **levers},
            self._folder / name,
            stop=self._stop,
            zygote=self._zygote,
            parity=Parity(self._steps, replay_batches=str(self._batches)),
        )

    def _base(self) -> tuple[parity.Curve, Distance]:
        if self._untouched is None or self._spread is None:
            first, second = (self._replay({}, name) for name in ("untouched", "repeated"))
            for outcome in (first, second):
                if not outcome.ok:
                    raise GpuwiseError(
                        f"the untouched script does not run again on its own batches: {outcome.how}",
                        hint="`--no-parity` measures without comparing",
                    )
            self._untouched = curve_of(first.journal, self._steps)
            self._spread = distance(self._untouched, curve_of(second.journal, self._steps))
        return self._untouched, self._spread

    def _noise(self, precision: str, base: parity.Curve) -> Distance:
        if precision not in self._rounding:
            outcome = self._replay({ROUNDING: parity.UNITS[precision]}, "rounding")
            self._rounding[precision] = distance(base, curve_of(outcome.journal, self._steps))
        return self._rounding[precision]

    def _content(self, levers: Mapping[str, object]) -> str | None:
        """Reason why the loader returns other batches under these levers; None if it does not."""
        folder = self._folder / "loaded"
        outcome = run(
            self._job,
            {**self._always, **levers},
            folder,
            stop=self._stop,
            zygote=self._zygote,
            parity=Parity(self._steps, record_batches=str(folder / "batches")),
        )
        if not outcome.journal.ticks:
            return f"the run ended before its first step: {outcome.how}"
        augmented = any(BY_NAME[name].training == "order" for name in levers)
        return batches_differ(self._batches, folder / "batches", augmented=augmented)

    def _epochs(self, levers: Mapping[str, object]) -> str | None:
        """Reason why the batches of ``EPOCHS`` epochs, or their random numbers, differ under these levers; None if they are
        the same. Everything else is as in the training: no reseeding, and dropout is on."""
        if self._epoch_steps is None:
            return "the length of an epoch is unknown, and it acts from the second epoch on"
        notes = {name: self._folder / name / "notes.jsonl" for name in ("epochs", "changed epochs")}
        for name, file in notes.items():
            if name == "epochs" and file.exists():
                continue
            run(
                self._job,
                {**self._base_levers, **(levers if name != "epochs" else {})},
                self._folder / name,
                stop=Stop(most_steps=EPOCHS * self._epoch_steps),
                zygote=self._zygote,
                parity=Parity(self._steps, note_batches=str(file), reseed=False),
            )
            if not file.exists() or file.read_text().count('"end"') < EPOCHS - 1:
                return "no second epoch was seen, and it acts from there on"
        return notes_differ(*notes.values(), augmented=any(BY_NAME[name].training == "order" for name in levers))


def _same_batches(levers: Mapping[str, object]) -> str:
    exact = all(BY_NAME[name].training == "exact" for name in levers)
    return (
        "the batches are the same to the last bit"
        if exact
        else "the same rows in the same order; augmentation draws new random numbers"
    )
