"""A tuning's result as one JSON document, and the file that ``gpuwise run`` reads."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuwise.errors import GpuwiseError
from gpuwise.train.config import NO_PLAN, TunedConfig, TunedSpeed, read, write
from gpuwise.train.tune.batch.document import batch_document
from gpuwise.train.tune.parity import Verdict
from gpuwise.train.tune.search import CandidateResult, Result
from gpuwise.train.tune.stats import Gain
from gpuwise.train.tune.trial import Trial
from gpuwise.train.tune.whole import Whole
from gpuwise.train.tune.worth import Worth
from gpuwise.workload.changes.diff import Patch


def document(result: Result, patch: Patch, config: Path | None, worth: Worth | None = None) -> dict[str, Any]:
    """The result of a tuning in SI units; all numbers are finite."""
    return {
        "before": _trial(result.before),
        "after": _trial(result.after),
        "gain": _gain(result.gain),
        "levers": dict(result.levers),
        "parity": _verdict(result.parity),
        "padding_share": result.facts.padding,
        "tried": [_candidate(t) for t in result.tried],
        "diff": patch.text,
        "diff_covers": list(patch.covers),
        "config": None if config is None else str(config),
        "spent_s": result.spent_s,
        "out_of_time": result.out_of_time,
        "could_not_tell": result.could_not_tell,
        "pairs_missing": result.pairs_missing if result.could_not_tell else None,
        "spread": result.spread,
        "rates_are": "without other programs" if result.is_undisturbed else "by the clock",
        "run_length_s": result.run_length_s,
        "run_length_from": result.length_from,
        "too_short": result.too_short,
        "whole": None if result.whole is None else _whole(result.whole),
        "useful_tokens_per_s": useful_rates(result),
        "worth": None if worth is None else worth_document(worth),
        **batch_document(result.fitting, result.sizes),
    }


def worth_document(worth: Worth) -> dict[str, Any]:
    """Share of the peak, energy and cost, before and after; unknown values are null, with the reason."""
    flop_before, flop_after = worth.flop
    energy_before, energy_after = worth.energy
    return {
        "device": None if worth.device is None else worth.device.name,
        "flop_per_sample": {"before": dict(flop_before.per_sample) or None, "after": dict(flop_after.per_sample) or None},
        "recomputed_flop_per_sample": {"before": flop_before.recomputed, "after": flop_after.recomputed},
        "mfu": {"before": worth.utilisation[0], "after": worth.utilisation[1]},
        "mfu_unknown": worth.utilisation_why,
        "peak_from": worth.peak_basis,
        "energy_j_per_sample": {"before": energy_before.energy_j, "after": energy_after.energy_j},
        "energy_from": energy_after.basis,
        "energy_unknown": energy_before.why or energy_after.why,
        "saved_s": worth.saved_s,
        "saved_kwh": worth.saved_kwh,
        "saved_usd": worth.saved_usd,
    }


def useful_rates(result: Result) -> dict[str, float] | None:
    """Ids that are not padding, a second, before and after; None where batches hold no ids.

    The batches hold the same rows before and after, so both have the untouched script's useful columns in a sample.
    """
    per_sample, padding = result.before.columns_per_sample, result.facts.padding
    if per_sample is None or padding is None or result.before.rate is None or result.after.rate is None:
        return None
    useful = per_sample * (1.0 - padding)
    return {"before": useful * result.before.rate, "after": useful * result.after.rate}


def _trial(trial: Trial) -> dict[str, Any]:
    return {
        "rate": trial.rate,
        "per": trial.per,
        "step_s": trial.step_s,
        "memory_bytes": trial.memory_bytes,
        "shares": dict(trial.shares),
        "warm_up_s": trial.warm_up_s,
        "n_steps": trial.n_steps,
    }


def _gain(gain: Gain | None) -> dict[str, Any] | None:
    if gain is None:
        return None
    return {"ratio": gain.ratio, "low": gain.low, "high": _finite(gain.high), "pairs": gain.n_pairs}


def _verdict(verdict: Verdict | None) -> dict[str, Any] | None:
    if verdict is None:
        return None
    return {
        "passed": verdict.passed,
        "changes": verdict.changes,
        "precision": verdict.precision,
        "where": verdict.what,
        "difference": _finite(verdict.difference),
        "tolerance": verdict.tolerance,
        "places": verdict.places,
        "places_over": verdict.over,
        "words": verdict.words,
    }


def _candidate(tried: CandidateResult) -> dict[str, Any]:
    return {
        "lever": tried.name,
        "value": tried.value,
        "result": tried.result,
        "why": tried.why,
        "gain": _gain(tried.gain),
        "most_possible": tried.ceiling,
        "parity": _verdict(tried.parity),
        "extra_s": tried.extra_s,
    }


def _whole(whole: Whole) -> dict[str, Any]:
    return {"before_s": whole.before_s, "after_s": whole.after_s, "gain": _gain(whole.gain), "measured": whole.is_measured}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def write_config(result: Result, script: str, path: Path) -> None:
    """``gpuwise.toml`` with the levers that were kept."""
    notes = {
        t.name: f"{t.gain.ratio:.2f}x, {t.parity.changes if t.parity else 'not compared'}"
        for t in result.tried
        if t.result == "kept" and t.gain is not None
    }
    before, after = result.before, result.after
    expected = None
    if before.rate is not None and after.rate is not None and after.step_s is not None:
        expected = TunedSpeed(
            after.rate,
            after.per,
            after.step_s,
            before.rate,
            after.memory_bytes,
            result.facts.device,
            None if after.device is None else after.device.name,
            after.energy.energy_j,
        )
    plan = NO_PLAN
    with suppress(GpuwiseError):
        # what a person wrote into the file stays
        plan = read(path).plan if path.exists() else plan
    write(TunedConfig(script, result.levers, expected, plan), path, notes)
