"""A comparison as JSON values: what ``--json`` prints."""

from __future__ import annotations

from typing import cast

from gpuwise.interval import BAND
from gpuwise.money.rent_or_own.break_even import HOURS_PER_MONTH
from gpuwise.money.rent_or_own.comparison import LONGEST_MONTHS, Option, RentOrOwn
from gpuwise.money.rent_or_own.counting import CostSteps
from gpuwise.predict.estimate import to_document


def comparison_document(result: RentOrOwn, counted: CostSteps | None = None) -> dict[str, object]:
    """Every figure of the comparison; arrays as lists."""
    even, prices = result.break_even, result.prices
    document: dict[str, object] = {
        "accelerator": result.accelerator,
        "horizon_months": result.horizon_months,
        "scenarios": result.n_scenarios,
        "seed": result.seed,
        "demand": result.demand,
        "best": result.best.name,
        "best_rent": result.best_rent,
        "beats": dict(result.beats),
        "own_wins": result.own_wins,
        "own_minus_rent_usd": result.own_minus_rent_usd,
        "regret_usd": result.regret_usd,
        "options": [_option(o) for o in result.options],
        "break_even": {
            "months": even.months,
            "months_never": even.months_never,
            "months_looked_at": LONGEST_MONTHS,
            "hours_per_month_and_gpu": even.hours_per_month,
            "hours_never": even.hours_never,
            "hours_in_a_month": HOURS_PER_MONTH,
        },
        "drivers": result.bars,
        "rental_prices": {
            "percentiles": list(prices.percentiles),
            "usd_per_hour": prices.usd_per_hour,
            "fitted_on": prices.fitted_on,
            "history": [list(point) for point in prices.history],
        },
        "mixes": {"owned_gpus": result.mix_counts, "usd": result.mix_usd, "percentiles": list(BAND)},
        "assumptions": result.assumptions,
        "notes": list(result.notes),
    }
    if counted is not None:
        document["steps"] = {
            "bare": counted.bare,
            "alone": counted.alone,
            "together": counted.together,
        }
    return cast("dict[str, object]", to_document(document))


def _option(o: Option) -> dict[str, object]:
    return {
        "name": o.name,
        "label": o.label,
        "owned_gpus": o.owned_gpus,
        "reserved_gpus": o.reserved_gpus,
        "gpu_hours": dict(o.hours),
        "total_usd": o.total_usd,
        "usd_per_gpu_hour": o.usd_per_gpu_hour,
        "parts_usd": dict(o.parts_usd),
        "cheapest_share": o.cheapest_share,
        "utilisation": o.utilisation,
        "kwh": o.kwh,
        "operational_kgco2e": o.operational_kgco2e,
        "embodied_kgco2e": o.embodied_kgco2e,
        "cumulative_usd": o.cumulative_usd,
    }
