"""A comparison as JSON values: what ``--json`` prints."""

from __future__ import annotations

from dataclasses import asdict

from gpuwise.money.rent_or_own.break_even import HOURS_PER_MONTH
from gpuwise.money.rent_or_own.comparison import BAND, LONGEST_MONTHS, Option, RentOrOwn
from gpuwise.money.rent_or_own.counting import CostSteps
from gpuwise.predict.estimate import Estimate


def comparison_document(result: RentOrOwn, counted: CostSteps | None = None) -> dict[str, object]:
    """Every figure of the comparison; arrays as lists."""
    even, prices = result.break_even, result.prices
    document: dict[str, object] = {
        "accelerator": result.accelerator,
        "horizon_months": result.horizon_months,
        "scenarios": result.n_scenarios,
        "seed": result.seed,
        "demand": result.demand.as_dict(),
        "best": result.best.name,
        "best_rent": result.best_rent,
        "beats": dict(result.beats),
        "own_wins": result.own_wins,
        "own_minus_rent_usd": result.own_minus_rent_usd.as_dict(),
        "regret_usd": result.regret_usd.as_dict(),
        "options": [_option(o) for o in result.options],
        "break_even": {
            "months": _maybe(even.months),
            "months_never": even.months_never,
            "months_looked_at": LONGEST_MONTHS,
            "hours_per_month_and_gpu": _maybe(even.hours_per_month),
            "hours_never": even.hours_never,
            "hours_in_a_month": HOURS_PER_MONTH,
        },
        "drivers": [asdict(bar) for bar in result.bars],
        "rental_prices": {
            "percentiles": list(prices.percentiles),
            "usd_per_hour": prices.usd_per_hour.tolist(),
            "fitted_on": prices.fitted_on,
            "history": [list(point) for point in prices.history],
        },
        "mixes": {"owned_gpus": result.mix_counts.tolist(), "usd": result.mix_usd.tolist(), "percentiles": list(BAND)},
        "assumptions": [asdict(a) for a in result.assumptions],
        "notes": list(result.notes),
    }
    if counted is not None:
        document["steps"] = {
            "bare": asdict(counted.bare),
            "alone": [asdict(s) for s in counted.alone],
            "together": [asdict(s) for s in counted.together],
        }
    return document


def _option(o: Option) -> dict[str, object]:
    return {
        "name": o.name,
        "label": o.label,
        "owned_gpus": o.owned_gpus,
        "reserved_gpus": o.reserved_gpus,
        "gpu_hours": dict(o.hours),
        "total_usd": o.total_usd.as_dict(),
        "usd_per_gpu_hour": o.usd_per_gpu_hour.as_dict(),
        "parts_usd": dict(o.parts_usd),
        "cheapest_share": o.cheapest_share,
        "utilisation": o.utilisation,
        "kwh": _maybe(o.kwh),
        "operational_kgco2e": _maybe(o.operational_kgco2e),
        "embodied_kgco2e": _maybe(o.embodied_kgco2e),
        "cumulative_usd": o.cumulative_usd.tolist(),
    }


def _maybe(value: Estimate | None) -> dict[str, float | str] | None:
    return None if value is None else value.as_dict()
