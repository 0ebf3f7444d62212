"""What plans say of published runs: time, rate and memory by class, every row, and the runs that are missed.

    PYTHONPATH=. python benchmarks/practice.py --data DIR [--fit] [--record FILE]
    PYTHONPATH=. python benchmarks/practice.py --runs benchmarks/records/practice/blind_runs_2026-11-26.csv

DIR has practice/published_runs.csv: a published figure and the command that asks gpuwise the same question. ``--fit`` refits the
level of published runs (predict/coefficients/step/practice.json) on them first. The cross-validated figures, each family left
out of the fit in turn, are those of new runs; the figures as shipped contain the fit. ``--runs`` asks another table of the same
columns, of runs that nothing was fitted on.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from gpuwise.cli.app import run as gpuwise
from gpuwise.predict.coefficients import load_json
from studies.practice.rows import PracticeRow, PublishedRun, practice_rows, published_runs, read_runs

RECORDS = Path(__file__).with_name("records") / "practice"
EARLIER = tuple(RECORDS / f"blind_runs_2026-11-{day}.csv" for day in ("26", "27"))
"""Runs that join the levels and the spread of memory in ``--fit``; the tables after them are for checking."""
TOOLS = (RECORDS / "blind_runs_2026-11-27b.csv",)
"""Runs of which ``--fit`` takes the spread of memory alone."""
MISSED = 1.5
"""A run predicted so many times too long or too short is listed."""


def ask(command: str) -> dict[str, Any]:
    """The JSON answer to a command line, or what went wrong."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        gpuwise([*shlex.split(command)[1:], "--json"])
    lines = out.getvalue().strip().splitlines()
    return json.loads(lines[-1]) if lines else {"error": err.getvalue().strip().partition("\n")[0]}


def rows_of(table: Sequence[PublishedRun]) -> tuple[list[PracticeRow], list[PracticeRow], dict[str, str]]:
    """Rows that were answered, as they are asked and with the software that the runs had, and why the others were not."""
    runs = [r for r in table if r.how in ("best", "layout")]
    answers = {r.id: ask(r.command) for r in runs}
    refused = {i: str(a.get("error") or "nothing fits") for i, a in answers.items() if not a.get("best")}
    dated = {r.id: ask(r.dated(runs)) for r in runs if r.dated(runs) != r.command}
    return list(practice_rows(runs, answers)), list(practice_rows(runs, answers | dated)), refused


def class_line(name: tuple[str, str], rows: Sequence[PracticeRow]) -> str:
    """One class: rows, median error, median ratio, share inside 80 %, and the rule's error."""
    ratio = [math.exp(r.total) for r in rows]
    rule = [abs(math.exp(r.rule) - 1) for r in rows]
    beside = "-" if name[0].endswith("memory") else f"{100 * median(rule):.1f} %"
    return (
        f"| {name[0]}, {name[1]} | {len(rows)} | {100 * median(abs(x - 1) for x in ratio):.1f} % | {median(ratio):.2f} "
        f"| {100 * sum(r.inside for r in rows) / len(rows):.0f} % | {beside} |"
    )


def authors_lines(rows: Sequence[PracticeRow]) -> list[str]:
    """Tables of a stack's own authors beside the tuned level, and the other runs with experts beside the headline."""
    lines: list[str] = []
    for how in ("best", "layout"):
        timed = [r for r in rows if r.run.kind == "moe" and r.run.how == how and r.run.metric != "mem"]
        for title, of_authors in (("authors' tables, tuned level", True), ("teams' runs, headline", False)):
            ratio = [math.exp(-r.slower if of_authors else r.total) for r in timed if r.run.of_authors is of_authors]
            if ratio:
                error = 100 * median(abs(x - 1) for x in ratio)
                lines.append(f"| {title}, {how} | {len(ratio)} | {error:.1f} % | {median(ratio):.2f} |")
    head = ["| experts by who publishes | rows | median error | predicted / real |", "|---|---|---|---|"]
    return [*head, *lines, ""] if lines else []


def report(asked: Sequence[PracticeRow], rows: Sequence[PracticeRow], refused: dict[str, str], fitted: bool = True) -> list[str]:
    """Markdown: classes as shipped, as asked and with the runs' software; classes cross-validated where the level was fitted on
    these runs, every row, what is missed."""
    lines: list[str] = []
    for title, of in (("as asked", asked), ("with its own software", rows)):
        groups: dict[tuple[str, str], list[PracticeRow]] = {}
        for r in of:
            groups.setdefault((r.run.scored, r.run.how), []).append(r)
        lines += [
            f"| as shipped, {title} | rows | median error | predicted / real | inside 80 % | 40 % MFU |",
            "|---|---|---|---|---|---|",
        ]
        lines += [*(class_line(name, group) for name, group in sorted(groups.items())), ""]
    lines += authors_lines(rows)
    if fitted:
        checked = load_json("practice")["provenance"]["left_family_out"]
        lines += [
            "| each family left out of the fit | rows | median error | predicted / real | inside 80 % |",
            "|---|---|---|---|---|",
        ]
        lines += [
            f"| {name} | {c['rows']} | {100 * c['median_error']:.1f} % | {c['median_ratio']:.2f} | {100 * c['inside_80']:.0f} % |"
            for name, c in checked.items()
        ]
    today = {r.run.id: math.exp(r.total) for r in asked}
    lines += ["", "| run | predicted / real | as asked | inside | tuned / real | 40 % MFU / real |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {r.run.id} | {math.exp(r.total):.2f} | {today[r.run.id]:.2f} | {'yes' if r.inside else 'no'} "
        f"| {'-' if r.run.metric == 'mem' else f'{math.exp(-r.slower):.2f}'} | {math.exp(r.rule):.2f} |"
        for r in rows
    ]
    missed = sorted((r for r in rows if abs(r.total) > math.log(MISSED)), key=lambda r: -abs(r.total))
    lines += ["", f"Missed by {MISSED} times or more: " + ", ".join(f"{r.run.id} {math.exp(r.total):.2f}" for r in missed) + "."]
    other = {r.run.id: r.run.other_work for r in rows if r.run.other_work}
    lines += [f"Of other work, judged and not fitted: {i} ({why})." for i, why in other.items()]
    lines += [f"No answer: {i} ({why})." for i, why in refused.items()]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--data", type=Path)
    where.add_argument("--runs", type=Path)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--record", type=Path)
    given = parser.parse_args()
    if given.fit and given.runs is not None:
        parser.error("--fit takes the published runs of --data, not a table of --runs")
    runs = published_runs(given.data) if given.runs is None else read_runs(given.runs)
    asked, rows, refused = rows_of(runs)
    if given.fit:
        from gpuwise.predict import coefficients
        from studies.practice.fit import fit

        of_memory = [r for path in TOOLS for r in read_runs(path) if r.metric == "mem"]
        fit(rows, asked, [r for table in (*map(read_runs, EARLIER), of_memory) for r in rows_of(table)[1]])
        load_json.cache_clear()
        coefficients._manifest.cache_clear()
        asked, rows, refused = rows_of(runs)
    lines = report(asked, rows, refused, fitted=given.runs is None)
    print("\n".join(lines))
    if given.record is not None:
        given.record.write_text("# Published runs\n\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
