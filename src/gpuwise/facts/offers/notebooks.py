"""Hosted notebooks: accelerators one can use free or for a monthly fee, with the limits that come with them.

The catalogue ``data/notebooks.csv`` has one line for every plan and accelerator, dated. Limits of free plans move without
notice and the accelerator is rarely promised (:attr:`Notebook.guaranteed`). None means unpublished, never zero.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from functools import cache

from gpuwise.facts.hardware.accelerators import check_accelerator
from gpuwise.facts.loading import Field, Record, ShippedData, parse_csv, shipped_text
from gpuwise.facts.sources import check_source, sources


@dataclass(frozen=True, slots=True)
class Notebook:
    """One plan of one provider with one accelerator. Prices in US dollars, without tax."""

    provider: str
    plan: str
    accelerator_id: str
    count: int
    """Accelerators in one session."""
    hours_per_week: float | None
    """Accelerator hours the plan allows in a week; None when there is no published cap or a purse limits it."""
    session_hours: float | None
    """The longest one session may run."""
    usd_per_month: float
    """Fee; 0 is free."""
    usd_per_hour: float | None
    """Credits or compute units used per hour of this session, in dollars at the plan's own rate; None if nothing is counted."""
    included_usd: float | None
    """Monthly credits included in the fee (or the free plan); None if the plan does not count credits."""
    guaranteed: bool
    """The accelerator is promised, not given out as available."""
    host_memory_gb: float | None
    disk_gb: float | None
    until: datetime.date | None
    """The day the provider withdrew it; None while it is on offer."""
    as_of: datetime.date
    source_key: str
    weak: bool
    """The source is a third party or an estimate."""
    notes: str = ""

    @property
    def free(self) -> bool:
        return self.usd_per_month == 0

    @property
    def hours_per_month(self) -> float | None:
        """Hours the fee pays for: the weekly cap x 52/12, or the included credits at their rate, whichever is less.

        None when neither is published. Credits that also pay for processors and storage last less.
        """
        weekly = None if self.hours_per_week is None else self.hours_per_week * 52 / 12
        bought = None
        if self.included_usd is not None and self.usd_per_hour is not None:
            bought = self.included_usd / self.usd_per_hour
        limits = [hours for hours in (weekly, bought) if hours is not None]
        return min(limits) if limits else None

    def offered_on(self, today: datetime.date) -> bool:
        """Whether it was not withdrawn by then, as far as known."""
        return self.until is None or today < self.until

    def age_days(self, today: datetime.date) -> int:
        """Days since the plan was read; negative for a date to come."""
        return (today - self.as_of).days


NOTEBOOK_SCHEMA: dict[str, Field] = {
    "provider": Field("text"),
    "plan": Field("text"),
    "accelerator": Field("text"),
    "count": Field("integer", maximum=64),
    "hours_per_week": Field("number", required=False, maximum=168),
    "session_hours": Field("number", required=False, maximum=24 * 31),
    "usd_per_month": Field("number", minimum=0, maximum=10_000),
    "usd_per_hour": Field("number", required=False, maximum=1000),
    "included_usd": Field("number", required=False, maximum=10_000),
    "guaranteed": Field("flag"),
    "host_memory_gb": Field("number", required=False, maximum=100_000),
    "disk_gb": Field("number", required=False, maximum=100_000),
    "until": Field("date", required=False),
    "as_of": Field("date"),
    "source": Field("text"),
    "notes": Field("text", required=False),
}


@cache
def notebooks() -> tuple[Notebook, ...]:
    """The shipped plans in the order of the file. Raises DataError when it is corrupt."""
    with ShippedData():
        return parse_notebooks(shipped_text("notebooks.csv"), "notebooks.csv")


def parse_notebooks(text: str, file: str) -> tuple[Notebook, ...]:
    """Plans from CSV text. Raises FieldError."""
    plans: dict[tuple[str, str, str, int], Notebook] = {}
    for record in parse_csv(text, NOTEBOOK_SCHEMA, file):
        plan = _notebook(record)
        key = (plan.provider, plan.plan, plan.accelerator_id, plan.count)
        if key in plans:
            raise record.error(f"{plan.provider} {plan.plan} appears twice with {plan.accelerator_id}", field="plan")
        plans[key] = plan
    return tuple(plans.values())


def _notebook(record: Record) -> Notebook:
    accelerator_id, key = record.text("accelerator"), record.text("source")
    check_accelerator(record)
    check_source(record)
    return Notebook(
        provider=record.text("provider"),
        plan=record.text("plan"),
        accelerator_id=accelerator_id,
        count=record.integer("count"),
        hours_per_week=record.maybe("hours_per_week"),
        session_hours=record.maybe("session_hours"),
        usd_per_month=record.number("usd_per_month"),
        usd_per_hour=record.maybe("usd_per_hour"),
        included_usd=record.maybe("included_usd"),
        guaranteed=record.maybe_flag("guaranteed") or False,
        host_memory_gb=record.maybe("host_memory_gb"),
        disk_gb=record.maybe("disk_gb"),
        until=record.date("until") if "until" in record.values else None,
        as_of=record.date("as_of"),
        source_key=key,
        weak=sources()[key].doubtful,
        notes=record.text("notes"),
    )
