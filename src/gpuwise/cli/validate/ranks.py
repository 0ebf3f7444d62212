"""``gpuwise validate --ranks``: a run on ranks, ended or under way, by its journals."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

WORDS = {
    "done": "trained",
    "asked": "stopped when asked",
    "failed": "a rank failed",
    "running": "under way",
    "silent": "no rank has written for five minutes",
}


def validate_ranks(folder: Path, *, json: bool) -> int:
    """Exit code 0 unless a rank failed. Raises InputError where ``folder`` holds no run."""
    from gpuwise.cli.out import print_json
    from gpuwise.train.ranks.report import ranks_document

    document = ranks_document(folder.absolute(), time.time())
    if json:
        print_json(document)
    else:
        _show(document)
    return 1 if document["state"] == "failed" else 0


def _show(d: dict[str, Any]) -> None:
    from rich.text import Text

    from gpuwise.cli.out import console, section, table_of
    from gpuwise.train.ranks.report import model_words
    from gpuwise.units import format_bytes, format_duration

    def seconds(value: float | None) -> str:
        return "-" if value is None else format_duration(value)

    def counted(number: int | None, size: int | None) -> str:
        return "-" if number is None or size is None else f"{number} of {format_bytes(size)} in all"

    to = console()
    of = "" if d["steps_asked"] is None else f" of {d['steps_asked']:,}"
    loss = "" if d["loss"] is None else f", loss {d['loss']:.4g}"
    rate = "" if d["samples_per_s"] is None else f", {d['samples_per_s']:.4g} samples/s"
    to.print(Text(f"{d['target']} on {d['layout']['words']}", style="bold"))
    to.print(f"{WORDS[d['state']]}, step {d['steps']:,}{of}{loss}{rate}, {d['restarts']} restarts")
    if d["straggler"] is not None:
        s = d["straggler"]
        to.print(f"rank {s['rank']} is waited for {format_duration(s['lost_s'])} a step ({s['share']:.0%}): {s['cause']}")
    if d["model"] is not None:
        to.print(model_words(d["model"]))
    table = table_of(("rank", "step", "computing", "data", "other ranks", "processor", "memory"), gives_way=("processor",))
    for r in d["ranks"]:
        times = (seconds(r[n]) for n in ("step_s", "compute_s", "data_s", "wait_s", "queue_s"))
        table.add_row(str(r["rank"]), *times, "-" if r["memory_bytes"] is None else format_bytes(r["memory_bytes"]))
    section(to, "Seconds of a step: its own work, and what it waits for", table)
    if d["collectives"]:
        table = table_of(("collective", "predicted", "measured"), left=("collective", "predicted", "measured"))
        for c in d["collectives"]:
            measured = counted(c["measured_count"], c["measured_bytes"])
            table.add_row(c["kind"], counted(c["predicted_count"], c["predicted_bytes"]), measured)
        section(to, "Collectives of a step", table)
    for error in d["errors"]:
        to.print(f"  {error}", style="yellow", markup=False)
