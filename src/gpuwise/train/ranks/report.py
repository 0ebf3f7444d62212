"""A run on ranks from its journals, finished or in progress: predicted beside measured, each rank's time, the straggler."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from gpuwise.errors import DataError, GpuwiseError, InputError
from gpuwise.train.ranks.launch import RankJournal, RanksResult
from gpuwise.train.ranks.settings import RankSettings, read_settings
from gpuwise.train.tune.peak import Device
from gpuwise.train.tune.record import RAN, RateMeasurement, expected_from, keep, script_of
from gpuwise.units import format_bytes

SETTINGS = "settings.json"
MOST_POINTS = 120
"""Maximum points of a curve; the newest steps are kept, thinned evenly."""
PARTS = ("data_s", "wait_s", "queue_s")
"""Parts of a step that a rank measures beside its own work."""
MODEL = ("parameters", "trained", "zeros", "weight_bytes")
"""Facts that a rank reports of its model."""
LONG = 300.0
"""Seconds without a new line after which an unfinished run counts as dead; ``gpuwise run`` uses the same limit for a hang."""


def is_run(folder: Path) -> bool:
    """Whether ``folder`` holds the journals of a run on ranks."""
    return (folder / SETTINGS).is_file() and (folder / "rank-0.jsonl").is_file()


def ranks_document(folder: Path, now_s: float) -> dict[str, Any]:
    """The run in ``folder`` as JSON, with times in seconds and sizes in bytes.

    Raises InputError where the folder holds none, DataError where a journal is not one.
    """
    if not is_run(folder):
        raise InputError(
            f"{folder} contains no journals of ranks", hint="give the folder of `gpuwise run ... --ranks N --out FOLDER`"
        )
    settings = read_settings(folder / SETTINGS)
    journals = tuple(_journal(folder, r) for r in range(settings.layout.n_ranks))
    result = RanksResult(_state(journals, now_s), 0, journals, 0.0)
    ranks = [_rank(r, j) for r, j in enumerate(journals)]
    straggler = result.straggler
    return {
        "folder": str(folder),
        "target": settings.target,
        "layout": _layout(settings),
        "state": result.ended,
        "steps": result.step,
        "steps_asked": settings.steps,
        "loss": result.loss,
        "restarts": max(j.attempt for j in journals),
        "step_s": statistics.fmean(r["step_s"] for r in ranks) if all(r["step_s"] is not None for r in ranks) else None,
        "samples_per_s": _rate(journals),
        "straggler": None if straggler is None else asdict(straggler),
        "model": _model(journals[0]),
        "collectives": [
            {"kind": kind, **_counts("predicted", c["predicted"]), **_counts("measured", c["measured"])}
            for kind, c in result.collectives.items()
        ],
        "ranks": ranks,
        "curve": _curve(journals),
        "errors": [e["error"] for j in journals for e in j.events if e["event"] == "end" and e.get("error")],
    }


def _journal(folder: Path, rank: int) -> RankJournal:
    journal = RankJournal(folder / f"rank-{rank}.jsonl")
    try:
        journal.read()
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError, AttributeError, OSError, RecursionError) as error:
        raise DataError(
            f"{journal.path} is not the journal of a rank: {error}", hint="was it written by another program, or cut short?"
        ) from None
    return journal


def _layout(settings: RankSettings) -> dict[str, Any]:
    return {**msgspec.structs.asdict(settings.layout), "ranks": settings.layout.n_ranks, "words": settings.layout.words}


def _state(journals: Sequence[RankJournal], now_s: float) -> str:
    """``done``, ``asked``, ``failed``, ``running``, or ``silent`` where nothing was written for :data:`LONG`."""
    ends = [j.end for j in journals]
    if None not in ends:
        reasons = {str(e) for e in ends}
        return reasons.pop() if reasons in ({"done"}, {"asked"}) else "failed"
    newest = max((j.path.stat().st_mtime for j in journals if j.path.is_file()), default=0.0)
    return "running" if now_s - newest < LONG else "silent"


def _model(journal: RankJournal) -> dict[str, int] | None:
    """Parameters, those trained, zeros that stay and bytes of weights, as the rank counted them; None where it has not yet."""
    model = journal.newest("model")
    return None if model is None else {name: int(model[name]) for name in MODEL}


def model_words(model: Mapping[str, int]) -> str:
    """A line of :func:`ranks_document`'s ``model``."""
    zeros = f", {model['zeros']:,} of them zeros that stay" if model["zeros"] else ""
    weights = f"weights of {format_bytes(model['weight_bytes'])}{zeros}"
    return f"{model['trained']:,} of {model['parameters']:,} parameters trained, {weights}"


def _rank(rank: int, journal: RankJournal) -> dict[str, Any]:
    """Means of a rank's newest steps; unmeasured parts (waiting, on a GPU) are None, and included in ``compute_s``."""
    steps = journal.steady
    made: dict[str, Any] = {
        "rank": rank,
        "pid": journal.pid,
        "steps": journal.last.get("step", 0),
        "loss": journal.last.get("loss"),
    }
    step_s = statistics.fmean(float(s["step_s"]) for s in steps) if steps else None
    made["step_s"] = step_s
    for name in PARTS:
        values = [s[name] for s in steps if s[name] is not None]
        made[name] = statistics.fmean(values) if values else None
    made["compute_s"] = None if step_s is None else step_s - sum(made[n] or 0.0 for n in PARTS)
    made["memory_bytes"] = journal.last.get("memory_bytes")
    return made


def _rate(journals: Sequence[RankJournal]) -> float | None:
    """Samples a second of all ranks."""
    each = [j.steady for j in journals]
    if not all(each):
        return None
    seconds = statistics.fmean(statistics.fmean(s["step_s"] for s in steps) for steps in each)
    samples = sum(statistics.fmean(s["samples"] for s in steps) for steps in each)
    return samples / seconds if seconds > 0 and samples else None


def _counts(name: str, counts: Sequence[int] | None) -> dict[str, int | None]:
    number, size = (None, None) if counts is None else counts
    return {f"{name}_count": number, f"{name}_bytes": size}


def _curve(journals: Sequence[RankJournal]) -> list[dict[str, Any]]:
    """Loss and the slowest and fastest rank's seconds, at the newest steps of the first rank."""
    by_step: list[dict[int, Mapping[str, Any]]] = [{int(s["step"]): s for s in j.steps} for j in journals]
    common = sorted(n for n in by_step[0] if all(n in steps for steps in by_step[1:]))
    every = -(-len(common) // MOST_POINTS) if common else 1
    return [
        {
            "step": n,
            "loss": by_step[0][n]["loss"],
            "slowest_s": max(steps[n]["step_s"] for steps in by_step),
            "fastest_s": min(steps[n]["step_s"] for steps in by_step),
        }
        for n in common[::every]
    ]


class RunRecords:
    """Records of a run: the step time predicted from earlier ones of the same task and layout on such a device, and its own
    measurements for later ones. ``failed``: reason without any."""

    def __init__(self, settings: RankSettings, planned_s: float | None) -> None:
        self.failed: str | None = None
        place = settings.target.rpartition(":")[0] if not settings.whole else settings.target
        layout = msgspec.json.encode(settings.layout).decode()
        words = [settings.target.rpartition(":")[2], layout, *settings.settings, *settings.arguments]
        self._script = script_of(place, [*words, str(settings.prune), str(settings.teacher)])
        self._device = _device(settings.layout.n_ranks)
        step_s = planned_s
        if step_s is None:
            try:
                expected = expected_from(self._script, self._device, {}, None)
                step_s = None if expected is None else expected.step_s
            except GpuwiseError as error:
                self.failed = error.message
        self.settings = msgspec.structs.replace(settings, predicted_step_s=step_s)

    def keep(self, result: RanksResult) -> None:
        """Into the user's records: the step, and each payload of a collective that was timed."""
        from gpuwise.train.ranks.exchange import records_of

        steps = [j.steady for j in result.journals]
        if not all(steps) or result.step_s is None:
            return
        samples = sum(statistics.fmean(s["samples"] for s in each) for each in steps)
        if not samples:
            return
        exchanges = (result.journals[0].newest("exchanges") or {}).get("measured", ())
        memory = max((j.last.get("memory_bytes") or 0) for j in result.journals) or None
        before = self.settings.predicted_step_s
        one = RateMeasurement(
            RAN,
            samples / result.step_s,
            "samples",
            result.step_s,
            {},
            None if not before else samples / before,
            None if not before else "the plan or earlier runs",
            memory,
            n_steps=len(steps[0]),
        )
        try:
            keep(self._script, self._device, None, [one], records_of(exchanges, self._device))
        except GpuwiseError as error:
            self.failed = error.message


def _device(n_ranks: int) -> Device:
    """Device of ranks on this machine."""
    from gpuwise.machine.bench.subjects import find_subjects, this_processor
    from gpuwise.train.ranks.launch import gpus_here

    if gpus_here():
        card = find_subjects()[0]
        accelerator = None if card.accelerator is None else card.accelerator.id
        return Device("cuda", card.name, card.device, n_ranks, accelerator, card.memory_bytes)
    cpu = this_processor()
    return Device("cpu", cpu.name, "cpu", 1, None if cpu.processor is None else cpu.processor.id, cpu.memory_bytes)
