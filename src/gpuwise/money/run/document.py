"""A run's bill as a plain document: SI units, US dollars, every estimate as ``{low, expected, high, basis}``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from gpuwise.facts.operations import operations
from gpuwise.money.run.changes import Change
from gpuwise.money.run.cost import RunCost
from gpuwise.money.run.interruptions import Interruptions
from gpuwise.predict.estimate import to_document


def run_document(cost: RunCost, changes: Sequence[Change] = ()) -> dict[str, object]:
    """The whole bill."""
    run, grid = cost.run, cost.run.grid
    document = {
        "total_usd": cost.total_usd,
        "wall_s": cost.wall_s,
        "training_s": run.time_s,
        "effective": cost.effective,
        "accelerator_hours": cost.accelerator_hours,
        "usd_per_gpu_hour": cost.usd_per_hour,
        "price": run.price,
        "spot_usd_per_gpu_hour": run.spot_usd_per_hour,
        "bill": [{"item": x.name, "usd": x.usd, "hours": x.hours, "why": x.why} for x in cost.lines],
        "interruptions": stops_document(cost.stops),
        "shares_of_training": {"evaluation": cost.evaluation, "idle": cost.idle},
        "checkpoint_bytes": {"state": run.state_bytes, "weights": run.weight_bytes},
        "stored_gb": dict(cost.stored_gb),
        "storage": {
            "provider": run.storage.provider,
            "usd_per_gb_month": run.storage.usd_per_gb_month,
            "egress_usd_per_gb": run.storage.egress_usd_per_gb,
            "as_of": run.storage.as_of.isoformat(),
        },
        "power": cost.power,
        "kwh": cost.kwh,
        "kwh_parts": dict(cost.kwh_parts),
        "electricity": None
        if cost.electricity is None
        else {
            "usd_per_kwh": cost.electricity.usd_per_kwh,
            "as_of": cost.electricity.as_of.isoformat(),
            "source": cost.electricity.source_key,
        },
        "electricity_usd": cost.electricity_usd,
        "carbon": cost.carbon,
        "grid": None
        if grid is None
        else {
            "key": grid.key,
            "name": grid.name,
            "kg_co2e_per_kwh": grid.kg_co2e_per_kwh,
            "year": grid.year,
            "source": grid.source_key,
        },
        "changes": [{"change": c.name, "usd": c.usd, "wall_s": c.wall_s, "kg_co2e": c.kg_co2e} for c in changes],
        "sources": {name: q.source_key for name, q in operations().items()},
    }
    return cast("dict[str, object]", to_document(document))


def stops_document(stops: Interruptions) -> dict[str, object]:
    """Losses to stops and checkpoints, as shares of the work."""
    return {
        "mtbf_s": stops.mtbf_s,
        "stops": stops.stops,
        "interval_s": stops.interval_s,
        "checkpoints": stops.checkpoints,
        "save_s": stops.save_s,
        "restart_s": stops.restart_s,
        "saving": stops.saving,
        "rework": stops.rework,
        "restarting": stops.restarting,
        "overhead": stops.overhead,
        "effective": stops.effective,
    }
