"""Nothing got worse: the records of ``gpuwise validate`` in ``benchmarks/``, the newest against the one before, family by family.

The measurements lie outside the repository, so the figures are recorded (``benchmarks/validate_figures.py``) and compared
here. A figure that rises by more than half a point is explained in the later record, by family or family/source.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "records" / "validate"
RECORDS = [FOLDER / "validate_after_2026-11-28.json", FOLDER / "validate_after_2026-11-28b.json"]
"""The newest record and the one before it."""
SERVED_ELSEWHERE = {"timm": "captured_time"}
"""Families of older records whose rows another family has now."""
OF_OTHERS = {"shared"}
"""Families of files that people share: the measured tables of the records have none."""
POINTS = 0.5
"""Percentage points of mean absolute error that a figure may rise."""


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def figures(document: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """(``family`` or ``family/source``, figures of the rows kept from the fit, or of all where none were)."""
    for family, entry in document["families"].items():
        for name, one in [(family, entry), *((f"{family}/{s}", e) for s, e in entry.get("sources", {}).items())]:
            yield name, one.get("check") or one["fit"]


def worse(before: Any, after: Any) -> dict[str, str]:
    """What rose by more than :data:`POINTS` or lost rows, and is not explained."""
    later, found = dict(figures(after)), dict[str, str]()
    for name, old in figures(before):
        new = later.get(name)
        if name in after["explained"]:
            continue
        if new is None or (new["predicted"] or 0) < (old["predicted"] or 0):
            found[name] = "predicts fewer rows"
        elif old["mape"] is not None and (new["mape"] is None or new["mape"] - old["mape"] > POINTS):
            found[name] = f"{old['mape']} -> {new['mape']} %"
    return found


@pytest.mark.parametrize("record", RECORDS, ids=lambda p: p.stem)
def test_a_record_covers_every_family(record: Path) -> None:
    from gpuwise.calibrate.validation import FAMILIES
    from studies.validate import STUDIES

    recorded = set(read(record)["families"])
    assert recorded - set(SERVED_ELSEWHERE) - OF_OTHERS == (set(FAMILIES) | set(STUDIES)) - OF_OTHERS
    assert set(SERVED_ELSEWHERE.values()) <= recorded


def test_a_rise_and_a_loss_of_rows_are_found() -> None:
    def record(mape: float, rows: int, **explained: str) -> Any:
        return {"families": {"gemm": {"check": {"predicted": rows, "mape": mape}}}, "explained": explained}

    assert worse(record(7.0, 9), record(7.4, 9)) == {}
    assert worse(record(7.0, 9), record(7.6, 9)) == {"gemm": "7.0 -> 7.6 %"}
    assert worse(record(7.0, 9), record(7.0, 8)) == {"gemm": "predicts fewer rows"}
    assert worse(record(7.0, 9), record(7.6, 8, gemm="another split")) == {}


@pytest.mark.parametrize(("before", "after"), list(pairwise(RECORDS)), ids=lambda p: p.stem)
def test_no_figure_rose(before: Path, after: Path) -> None:
    assert worse(read(before), read(after)) == {}
