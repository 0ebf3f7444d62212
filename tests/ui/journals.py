"""Journals of two ranks as they write them, the second slowed by its loader."""

from __future__ import annotations

import json
from pathlib import Path

from gpuwise.train.ranks.layout import Layout
from gpuwise.train.ranks.settings import RankSettings, write_settings

SIZES = [2, 795_172]


def write_run(out: Path, *, target: str = "train.py:make_step", steps: int = 9, ended: str | None = "done") -> Path:
    """Rank 1 waits 0.2 s of each step for data; rank 0 waits those for it."""
    out.mkdir(parents=True)
    write_settings(
        RankSettings(target, Layout(dp=2, micro_batch=4, global_batch=8), str(out), steps=steps), out / "settings.json"
    )
    for rank, (data_s, wait_s) in enumerate(((0.01, 0.21), (0.21, 0.01))):
        lines = [
            {"event": "begin", "rank": rank, "pid": 100 + rank, "attempt": 0, "device": "cpu"},
            {"event": "model", "parameters": 22_688, "trained": 2_048, "zeros": 0, "weight_bytes": 90_752},
            {"event": "predicted", "collectives": {"all-reduce": SIZES}},
        ]
        lines += [
            {
                "event": "step",
                "step": n,
                "at_s": 1e9 + n,
                "step_s": 0.5,
                "data_s": data_s,
                "wait_s": wait_s,
                "queue_s": 0.0,
                "loss": 5.0 - 0.1 * n,
                "samples": 4,
                "epoch": 0,
                "position": 8 * n,
                "collectives": {"all-reduce": SIZES},
                "memory_bytes": 2**28,
            }
            for n in range(1, steps + 1)
        ]
        lines += [{"event": "end", "reason": ended, "step": steps, "code": 0}] if ended else []
        (out / f"rank-{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return out
