"""Training runs with published times, shown beside a plan for the same model: ``known_runs.csv``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from gpuwise.facts.hardware.accelerators import check_accelerator
from gpuwise.facts.loading import Field, ShippedData
from gpuwise.facts.sources import cited_rows
from gpuwise.units import DAY_S, HOUR_S

KNOWN_RUN_SCHEMA: dict[str, Field] = {
    "model": Field("text"),
    "accelerator": Field("text"),
    "gpus": Field("integer", required=False),
    "tokens": Field("number"),
    "gpu_hours": Field("number", required=False),
    "days": Field("number", required=False),
    "year": Field("integer", required=False, minimum=2017),
    "precision": Field("text", required=False, choices=("fp16", "bf16")),
    "mwh": Field("number", required=False),
    "source": Field("text"),
    "notes": Field("text", required=False),
}


@dataclass(frozen=True, slots=True)
class KnownRun:
    """One run. Hours contain restarts and evaluation unless ``notes`` say otherwise; None means unpublished."""

    model_id: str
    accelerator_id: str
    gpus: int | None
    tokens: float
    gpu_hours: float | None
    wall_s: float | None
    """Published, or the GPU hours over the GPUs."""
    source_key: str
    notes: str
    year: int | None = None
    """Of its software, where that had no fused attention yet, or no hidden exchange of experts."""
    precision: str = ""
    """Of its matrix products, where its year's usual format was another."""
    mwh: float | None = None
    """As its authors count: accelerators at design power, hosts and idle nodes, no cooling (arXiv 2211.02001)."""

    @property
    def gpu_hours_per_token(self) -> float:
        """GPU hours, published or the GPUs' wall time."""
        if self.gpu_hours is not None:
            return self.gpu_hours / self.tokens
        assert self.gpus is not None and self.wall_s is not None, "a line has hours, or GPUs and days"
        return self.gpus * self.wall_s / HOUR_S / self.tokens


@cache
def known_runs() -> Mapping[str, tuple[KnownRun, ...]]:
    """Runs by the model's id in the catalogue. Raises DataError when the file is corrupt."""
    by_model: dict[str, tuple[KnownRun, ...]] = {}
    with ShippedData():
        for r in cited_rows("known_runs.csv", KNOWN_RUN_SCHEMA):
            gpus, hours, days = r.maybe("gpus"), r.maybe("gpu_hours"), r.maybe("days")
            if hours is None and (gpus is None or days is None):
                raise r.error("neither GPU hours nor GPUs with days", field="gpu_hours")
            check_accelerator(r)
            wall_s = days * DAY_S if days is not None else hours * HOUR_S / gpus if hours is not None and gpus else None
            run = KnownRun(
                r.text("model"),
                r.text("accelerator"),
                None if gpus is None else int(gpus),
                r.number("tokens"),
                hours,
                wall_s,
                r.text("source"),
                r.text("notes"),
                None if r.maybe("year") is None else int(r.number("year")),
                r.text("precision"),
                r.maybe("mwh"),
            )
            by_model[run.model_id] = (*by_model.get(run.model_id, ()), run)
    return MappingProxyType(by_model)
