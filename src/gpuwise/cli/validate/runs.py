"""``gpuwise validate --runs``: what `gpuwise tune` and `gpuwise run` predicted on this user's machines, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

NAMES = {"tune": "tune: all levers together, from one by one", "run": "run: a whole run, from the tuning or earlier runs"}


def validate_runs(*, json: bool) -> int:
    """Exit code 0 when at least one prediction is in the records."""
    from gpuwise.cli.out import console, print_json

    errors = own_document()
    if json:
        print_json({"runs": errors, "each": each_document()})
    else:
        to = console()
        if not show_runs(to):
            to.print("no prediction of a training was recorded yet; `gpuwise tune` and `gpuwise run` record theirs")
    return 0 if errors else 1


def own_document() -> list[dict[str, Any]]:
    """By kind, as JSON. Raises DataError where the records cannot be read."""
    from dataclasses import asdict

    from gpuwise.train.tune.record import prediction_errors

    return [asdict(e) for e in prediction_errors()]


def each_document() -> list[dict[str, Any]]:
    """Every prediction beside its measurement, oldest first, as JSON."""
    from dataclasses import asdict

    from gpuwise.train.tune.record import comparisons
    from gpuwise.units import format_day

    made = list[dict[str, Any]]()
    for c in comparisons():
        row = {**asdict(c), "on": format_day(c.at_s), "error": c.error}
        del row["at_s"]
        made.append(row)
    return made


def show_runs(to: Console) -> bool:
    """The table, where there is something in it."""
    from gpuwise.cli.out import section, table_of
    from gpuwise.train.tune.record import prediction_errors

    rows = prediction_errors()
    if not rows:
        return False
    table = table_of(
        ("predicted", "times", "scripts", "median", "bias", "worst"),
        left=("predicted",),
        wrap=("predicted",),
        gives_way=("scripts",),
    )
    for e in rows:
        table.add_row(NAMES[e.kind], str(e.n), str(e.scripts), f"{e.median_error:.1%}", f"{e.bias:+.1%}", f"{e.worst:.1%}")
    section(to, "Samples a second of own trainings, predicted against measured", table)
    return True
