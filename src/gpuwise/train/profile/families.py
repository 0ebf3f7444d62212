"""Kernel families of operations, kernels, ranges and functions by name: the rows of ``families.csv``, first match wins."""

from __future__ import annotations

import csv
import re
from functools import cache
from importlib import resources

from gpuwise.errors import DataError

COMPUTE, COMMUNICATION, COMPILED = "compute", "communication", "compiled kernels"
PRODUCTS, CONVOLUTIONS, ATTENTION, ELEMENTWISE = "matrix products", "convolutions", "attention", "elementwise"
COPIES_ON_DEVICE, REDUCTIONS, OTHER_OPS = "copies on the device", "reductions and sorting", "other operations"


@cache
def _rows(where: str) -> tuple[tuple[re.Pattern[str], str], ...]:
    text = resources.files("gpuwise.train.profile").joinpath("families.csv").read_text("utf-8")
    found: list[tuple[re.Pattern[str], str]] = []
    for line, row in enumerate(csv.DictReader(text.splitlines()), 2):
        if not row["source"]:
            raise DataError(f"families.csv:{line}: no source")
        if row["where"] == where:
            found.append((re.compile(row["pattern"]), row["family"]))
    return tuple(found)


@cache
def family(where: str, name: str) -> str:
    """Family of a name that was seen as ``op``, ``kernel``, ``range``, ``python`` or ``runtime``; empty where none fits."""
    return next((f for pattern, f in _rows(where) if pattern.search(name)), "")
