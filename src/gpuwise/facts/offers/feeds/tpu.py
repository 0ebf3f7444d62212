"""TPU slices: how many chips a type holds (``data/tpu_slices.csv``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from gpuwise.facts.loading import Field
from gpuwise.facts.offers.feeds.names import UnclearName, catalogue_id
from gpuwise.facts.sources import cited_rows

SLICE_SCHEMA: dict[str, Field] = {
    "version": Field("text"),
    "accelerator": Field("text"),
    "units_per_chip": Field("integer"),
    "source": Field("text"),
}
_SLICE = re.compile(r"(?:tpu-)?([a-z0-9]+)-([0-9]{1,6})", re.ASCII)


def chips_of(name: str) -> tuple[str, int]:
    """Accelerator id and chips of a slice: ``tpu-v4-8`` is 4 chips of ``tpu-v4``. Raises UnclearName."""
    match = _SLICE.fullmatch(name.lower())
    if match is None or match[1] not in _versions():
        raise UnclearName("TPU version that is not in the catalogue")
    accelerator_id, units = _versions()[match[1]]
    chips, rest = divmod(int(match[2]), units)
    if rest or chips < 1:
        raise UnclearName("no count of accelerators")
    return accelerator_id, chips


@cache
def _versions() -> Mapping[str, tuple[str, int]]:
    return {
        r.text("version"): (catalogue_id(r, r.text("accelerator")), r.integer("units_per_chip"))
        for r in cited_rows("tpu_slices.csv", SLICE_SCHEMA)
    }
