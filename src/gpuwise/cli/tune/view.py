"""A tuning as a person reads it: how much faster, what each lever gave, what was refused and why, what to change."""

from __future__ import annotations

import math
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwise.cli.words import METERS
from gpuwise.units import format_bytes, format_duration, format_usd

if TYPE_CHECKING:
    from rich.console import Console

    from gpuwise.cli.fitted_table import FittedTable
    from gpuwise.train.tune.flop import Flop
    from gpuwise.train.tune.search import CandidateResult, Result
    from gpuwise.train.tune.worth import Worth
    from gpuwise.workload.changes.diff import Patch

WIDE = 100
"""Columns from which a lever's most possible gain is shown beside the measured one."""
MOST_SHOWN = 100.0


def show(result: Result, patch: Patch, script: str, config: Path | None, worth: Worth | None = None) -> None:
    """Print the result on stdout."""
    from rich.padding import Padding

    from gpuwise.cli.out import console, section
    from gpuwise.cli.tune.batch_view import show_batches

    out = console()
    if result.could_not_tell and result.gain is None:
        out.print(_could_not_tell(result), style="bold")
    elif result.gain is None:
        out.print("Nothing that was tried is faster and trains the same.", style="bold")
    elif result.too_short is not None:
        out.print(f"{result.gain.words} as fast, and nothing is kept: {result.too_short}.", style="bold")
        out.print("--run-length says how long the real training takes.")
    elif not result.levers:
        words = result.parity.words if result.parity is not None and not result.parity.passed else result.gain.words
        out.print(f"What was kept one by one does not hold together ({words}): nothing is kept.", style="bold")
    else:
        for line, style in zip(_gained(result), ("bold", ""), strict=False):
            out.print(line, style=style)
        if result.parity is not None:
            out.print(("Trains the same: " if result.parity.passed else "Trains OTHERWISE: ") + result.parity.words)
        else:
            out.print("Not compared with the untouched script.")
    section(out, "The script as it is" if result.after is result.before else "Before and after", _before_after(result, worth))
    for line in _unknown(worth) + _saved(result, worth):
        out.print(Padding(line, (0, 0, 0, 2)), style="dim")
    _levers(out, result)
    show_batches(out, result)
    if patch.text:
        out.print()
        out.print(f"In the script ({', '.join(patch.covers)})", style="bold")
        # as it is: a wrapped diff is invalid
        sys.stdout.write(patch.text)
    _by_hand(out, result, patch)
    if config is not None:
        out.print()
        out.print(f"Without editing it: gpuwise run {shlex.quote(script)}   (levers in {config})")
    if result.out_of_time:
        out.print("The time was over before everything was tried; --resume --minutes N goes on.")


def _gained(result: Result) -> list[str]:
    """What a person gains first: the whole training, and then its steps."""
    gain, whole = result.gain, result.whole
    assert gain is not None
    steps = f"{gain.words} as fast, 95 % interval from {gain.n_pairs} pairs of runs."
    if whole is None:
        return [f"Steps are {steps}"]
    took = f"{format_duration(whole.after_s)} instead of {format_duration(whole.before_s)}"
    basis = {"script": "", "option": ", --run-length", "assumed": ", a length that is assumed"}[result.length_from]
    how = f"measured in {whole.gain.n_pairs} pairs" if whole.is_measured else "with imports, `gpuwise run` and compilation"
    return [f"The training takes {took}, {how}: {whole.gain.ratio:.2f}x{basis}.", f"Its steps are {steps}"]


def _could_not_tell(result: Result) -> str:
    """That it is not known, why, and what would tell."""
    n = len(result.open_ones)
    noise = "" if result.spread is None else f": runs of the same levers lie {result.spread:.0%} apart here"
    said = f"It is unclear whether {n} lever{'s are' if n > 1 else ' is'} faster{noise}."
    pairs = result.pairs_missing
    if pairs is None:
        return f"{said} Longer runs would show it: more --steps in a new tuning, or a quieter machine."
    minutes = math.ceil(pairs * result.pair_s / 60.0) + 1
    return f"{said} {pairs} more pair{'s' if pairs > 1 else ''} of runs would show it: --resume --minutes {minutes}."


def _by_hand(out: Console, result: Result, patch: Patch) -> None:
    """What the levers that no diff covers are in a person's own code."""
    from gpuwise.train.levers.table import BY_NAME
    from gpuwise.workload.changes.diff import by_hand

    other_levers = {k: v for k, v in result.levers.items() if k not in patch.covers}
    if not other_levers:
        return
    out.print()
    out.print("Not in a diff: gpuwise run does it, or by hand", style="bold")
    for name, value in other_levers.items():
        out.print(f"  {name}: {BY_NAME[name].what}")
        for line in by_hand(name, value, device=result.facts.device, optimizers=result.facts.optimizers):
            # as it is, to be copied
            sys.stdout.write(f"    {line}\n")


def _before_after(result: Result, worth: Worth | None) -> FittedTable:
    """One column where nothing is kept."""
    from gpuwise.cli.out import table_of
    from gpuwise.train.tune.document import useful_rates

    before, after = result.before, result.after
    differs = after is not before
    without = " without other programs" if result.is_undisturbed else ""
    table = table_of(("", "before", "after") if differs else ("", "as it is"), left=("",), wrap=("",))

    def row(name: str, first: str, second: str) -> None:
        table.add_row(name, first, *([second] if differs else []))

    for name, first, second in (
        (f"{before.per} a second{without}", before.rate, after.rate),
        ("seconds a step", before.step_s, after.step_s),
    ):
        row(name, *("unknown" if v is None else f"{v:.4g}" for v in (first, second)))
    rates = useful_rates(result)
    if rates is not None:
        row("tokens that are not padding a second", f"{rates['before']:.4g}", f"{rates['after']:.4g}")
    row("memory", *("unknown" if m is None else format_bytes(m) for m in (before.memory_bytes, after.memory_bytes)))
    if worth is not None:
        if any(share is not None for share in worth.utilisation):
            row("use of the peak (MFU)", *(_share(s, f) for s, f in zip(worth.utilisation, worth.flop, strict=True)))
        if any(e.energy_j is not None for e in worth.energy):
            one = before.per.removesuffix("s")
            row(f"energy a {one}", *("unknown" if e.energy_j is None else _joules(e.energy_j) for e in worth.energy))
    row("waiting for data", *(f"{t.shares.get('data', 0.0):.0%}" for t in (before, after)))
    return table


def _share(share: float | None, flop: Flop) -> str:
    """``41.2% of bf16``: of the peak of the format in which most is multiplied."""
    if share is None:
        return "unknown"
    most = max(flop.per_sample, key=lambda name: flop.per_sample[name])
    return f"{share:.1%} of {most}"


def _joules(value: float) -> str:
    return f"{value:.3g} J" if value >= 0.1 else f"{value * 1000:.3g} mJ"


def _unknown(worth: Worth | None) -> list[str]:
    """Why a row is missing, one line each."""
    if worth is None:
        return []
    lines: list[str] = []
    if worth.utilisation_why is not None:
        lines.append(f"use of the peak unknown: {worth.utilisation_why}")
    why = next((e.why for e in worth.energy if e.why is not None), None)
    if why is not None:
        lines.append(f"energy unknown: {why}")
    elif any(e.energy_j is not None for e in worth.energy):
        lines.append(f"energy by {METERS.get(worth.energy[1].basis or '', 'the meter')}, idle power with it")
    return lines


OF_LENGTH = {"script": "the script's own", "option": "--run-length", "assumed": "assumed: --run-length gives it"}


def _saved(result: Result, worth: Worth | None) -> list[str]:
    """Of a training as long as was tuned for."""
    if worth is None or not worth.saved_s:
        return []
    parts = [format_duration(worth.saved_s)]
    if worth.saved_kwh is not None:
        parts.append(f"{worth.saved_kwh:.3g} kWh")
    if worth.saved_usd is not None:
        parts.append(format_usd(worth.saved_usd))
    length = format_duration(worth.run_length_s)
    return [f"saves {', '.join(parts)} of a training of {length} ({OF_LENGTH[result.length_from]})"]


def _levers(out: Console, result: Result) -> None:
    from gpuwise.cli.out import section, table_of

    with_most = out.width >= WIDE

    for title, results in (
        ("Kept", ("kept",)),
        ("Refused: faster, but it trains otherwise", ("refused",)),
        ("Measured, not kept", ("not faster", "undecided", "failed")),
        ("Not tried", ("not tried", "no time")),
    ):
        rows = [t for t in result.tried if t.result in results]
        if not rows:
            continue
        if title == "Not tried":
            table = table_of(("why", "levers"), left=("why",), wrap=("why",), under="levers")
            for why, names in _by_reason(rows).items():
                table.add_row(why, ", ".join(names))
            section(out, title, table)
            continue
        most = with_most and any(t.ceiling is not None and t.gain is not None for t in rows)
        names = ("lever", "gain", "at most", "why") if most else ("lever", "gain", "why")
        table = table_of(names, left=("lever", "gain"), wrap=("lever", "gain"), gives_way=("at most",), under="why")
        for name, gain, ceiling, why in _merged(rows):
            table.add_row(name, gain, *((ceiling,) if most else ()), why)
        section(out, title, table)


def _by_reason(rows: list[CandidateResult]) -> dict[str, list[str]]:
    """Labels of levers that were left out for the same reason."""
    labels: dict[str, list[str]] = {}
    for t in rows:
        labels.setdefault(t.why, []).append(t.label)
    return labels


def _merged(rows: list[CandidateResult]) -> list[tuple[str, str, str, str]]:
    """Lever, gain, the most it could give by the step's shares, why. Values of one lever with the same reason are one row."""
    merged: dict[tuple[str, str, str, str], list[str]] = {}
    for t in rows:
        gain = t.gain.words if t.gain is not None else ""
        why = t.why
        if t.result == "kept" and t.parity is not None:
            why = f"{t.parity.changes}: {t.parity.words}"
        elif t.result == "kept":
            why = "not compared"
        elif t.result in ("not faster", "undecided") and t.gain is not None and why.startswith(f"{t.gain.ratio:.2f}x"):
            why = "slower" if t.gain.high < 1.0 or t.gain.n_pairs < 2 else t.result
        most = "" if t.ceiling is None else f"{t.ceiling:.2f}x" if t.ceiling < MOST_SHOWN else f"over {MOST_SHOWN:.0f}x"
        merged.setdefault((t.name, gain, most, why), []).append(t.label)
    return [(labels[0] if len(labels) == 1 else name, gain, most, why) for (name, gain, most, why), labels in merged.items()]
