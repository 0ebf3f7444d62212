"""Contract prices in US dollars per hour and accelerator: currencies at a stated rate, units by arithmetic. There are no
built-in rates, so none can be outdated."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from gpuwise.errors import InputError

USD = "USD"
HOURS_PER_MONTH = 8760 / 12
"""A month of a 365-day year, as cloud price lists count it."""
UNITS = ("per_accelerator_hour", "per_instance_hour", "per_accelerator_month", "per_instance_month")
_CODE = re.compile(r"[A-Z]{3}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Quote:
    """How the amounts of a row are meant."""

    currency: str = USD
    usd_per_unit: float = 1.0
    """US dollars per unit of the currency: 1.08."""
    unit: str = UNITS[0]

    def usd_per_hour(self, amount: float, count: int) -> float:
        """US dollars per hour and accelerator of ``amount`` for an instance of ``count`` accelerators:
        amount * rate / (accelerators paid for) / (hours paid for)."""
        accelerators = count if "instance" in self.unit else 1
        hours = HOURS_PER_MONTH if self.unit.endswith("month") else 1.0
        return amount * self.usd_per_unit / accelerators / hours


def parse_quote(currency: str, usd_per_unit: float | None, unit: str) -> Quote:
    """How amounts are meant. Raises InputError for a currency without a rate, a rate that contradicts, and
    an unknown unit."""
    code = currency.strip().upper() or USD
    if not _CODE.fullmatch(code):
        raise InputError(f"currency {currency[:20]!r} is not a code of three letters", hint="for example EUR")
    if unit and unit not in UNITS:
        from gpuwise.errors import nearest_names

        near = nearest_names(unit, UNITS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise InputError(f"unknown unit {unit[:40]!r}", hint=f"{hint}units are {', '.join(UNITS)}")
    if usd_per_unit is not None and not (math.isfinite(usd_per_unit) and usd_per_unit > 0):
        raise InputError(f"a rate of {usd_per_unit:g} US dollars is impossible", hint="for example 1.08")
    if code != USD and usd_per_unit is None:
        raise InputError(
            f"prices in {code} need a stated rate",
            hint="add a column usd_per_unit, or give --usd-rate with the US dollars one unit buys, like 1.08",
        )
    if code == USD and usd_per_unit not in (None, 1.0):
        raise InputError(
            f"prices are in USD but a rate of {usd_per_unit:g} is given",
            hint="name the currency in a column currency, or leave out the rate",
        )
    return Quote(code, 1.0 if usd_per_unit is None else usd_per_unit, unit or UNITS[0])
