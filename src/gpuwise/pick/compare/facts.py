"""Rows of a comparison that need no workload: specifications with their sources, what large kernels reach of
them, prices, and what follows from these.

Memory, bandwidth, rates, power and prices are of all accelerators of a column together; caches and links of one.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from functools import cache

from gpuwise.errors import UnpredictableError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.offers.purchases import Condition, month_or_year, typical_purchase_usd
from gpuwise.facts.sources import sources
from gpuwise.money.cost import STALE_DAYS, Price, price_of
from gpuwise.pick.compare.rows import Better, Cell, FigureRow, Subject, find_row, say
from gpuwise.predict.estimate import Estimate
from gpuwise.predict.kernels import single
from gpuwise.predict.kernels.single import SIDE, reached
from gpuwise.units import GIB, GIGA, PETA, TERA

STREAM_BYTES = 4.0 * GIB
"""A stream no cache holds."""
RATES = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8")
WORK_DTYPE = "bf16"
"""The format prices, ridge points and work per watt are given for, where all have it."""


def dtype_of(accelerator: Accelerator, rate: str) -> str | None:
    """The catalogue's name of a rate of :data:`RATES` on ``accelerator``: 4-bit floats are NVFP4 or MXFP4."""
    names = ("nvfp4", "mxfp4") if rate == "fp4" else (rate,)
    return next((n for n in names if n in accelerator.peak_flop_per_s), None)


def work_dtype(accelerators: Sequence[Accelerator]) -> str:
    """The format that accelerators are compared in: bf16, or fp16 where one has no bf16 and all have fp16 (V100, T4)."""
    have = [set(a.peak_flop_per_s) for a in accelerators]
    return next((d for d in (WORK_DTYPE, "fp16") if all(d in rates for rates in have)), WORK_DTYPE)


def streamed(accelerator: Accelerator) -> Estimate:
    """Bytes/s a long stream reaches, at most the specified bandwidth."""
    transfer = single.stream(accelerator, STREAM_BYTES, STREAM_BYTES)
    rate = Estimate.from_log_sigma(2.0 * STREAM_BYTES / float(transfer.time_s[0]), float(transfer.log_sigma[0]), transfer.basis)
    peak = accelerator.memory_bandwidth_bytes_per_s
    return Estimate(rate.low, min(rate.expected, peak), min(rate.high, peak), rate.basis)


def fact_rows(subjects: Sequence[Subject], today: datetime.date) -> tuple[FigureRow, ...]:
    """Every row that needs no workload, in order."""
    rows = [*_identity(subjects), *_memory(subjects), *_rates(subjects), *_reached(subjects), *_board(subjects)]
    prices = [price_of(s.cluster, today) for s in subjects]
    rows += _prices(subjects, prices, today)
    rows += _derived(subjects, rows)
    return tuple(rows)


def _row(
    key: str,
    title: str,
    section: str,
    unit: str,
    better: Better,
    subjects: Sequence[Subject],
    cell: Callable[[Subject], Cell],
) -> FigureRow:
    return FigureRow(key, title, section, unit, better, tuple(cell(s) for s in subjects))


@cache
def _key_of_row() -> dict[str, str]:
    """A source as :class:`Accelerator` words it, to its key."""
    return {(f"{s.title} <{s.url}>" if s.url else s.title): key for key, s in sources().items()}


def _fact(a: Accelerator, columns: tuple[str, ...], field: str, value: float | None, words: str = "") -> Cell:
    """A cell of the catalogue; its source is that of the first of ``columns`` that has one."""
    if value is None and not words:
        return Cell()
    key = next((a.cell_sources[c] for c in columns if c in a.cell_sources), _key_of_row().get(a.source, ""))
    kind = sources()[key].kind if key in sources() else "third-party"
    return Cell(value, words, kind, key, field in a.weak)


def _identity(subjects: Sequence[Subject]) -> list[FigureRow]:
    return [
        _row(
            "family",
            "family",
            "Specification",
            "",
            "",
            subjects,
            lambda s: _fact(s.accelerator, ("family",), "family", None, f"{s.accelerator.vendor} {s.accelerator.family}"),
        ),
        _row(
            "year",
            "year",
            "Specification",
            "year",
            "",
            subjects,
            lambda s: _fact(s.accelerator, ("year",), "year", s.accelerator.year),
        ),
        _row(
            "form",
            "form",
            "Specification",
            "",
            "",
            subjects,
            lambda s: _fact(s.accelerator, ("form",), "form", None, s.accelerator.form),
        ),
    ]


def _memory(subjects: Sequence[Subject]) -> list[FigureRow]:
    def label(s: Subject) -> Cell:
        a = s.accelerator
        size = "" if a.memory_nominal_gb is None else f"{a.memory_nominal_gb:g} GB "
        times = f"{s.count}x " if s.count > 1 else ""
        return _fact(a, ("memory_gb",), "memory_nominal_gb", None, f"{times}{size}{a.memory_type}")

    def visible(s: Subject) -> Cell:
        a = s.accelerator
        visible_bytes = a.memory_visible_bytes or a.memory_bytes
        return _fact(a, ("visible_mib", "memory_mib", "memory_gb"), "memory_bytes", visible_bytes * s.count)

    return [
        _row("memory_label", "memory on the label", "Specification", "", "", subjects, label),
        _row("memory", "memory a process sees", "Specification", "B", "higher", subjects, visible),
        _row(
            "bandwidth",
            "memory bandwidth",
            "Specification",
            "B/s",
            "higher",
            subjects,
            lambda s: _fact(
                s.accelerator,
                ("bandwidth_gb_s",),
                "memory_bandwidth_bytes_per_s",
                s.accelerator.memory_bandwidth_bytes_per_s * s.count,
            ),
        ),
    ]


def _rates(subjects: Sequence[Subject]) -> list[FigureRow]:
    def peak(s: Subject, rate: str) -> Cell:
        name = dtype_of(s.accelerator, rate)
        if name is None:
            return Cell()
        column = f"{name}_{'tops' if name.startswith('int') else 'tflops'}"
        words = name if name != rate else ""
        return _fact(s.accelerator, (column,), f"peak_flop_per_s.{name}", s.accelerator.peak(name) * s.count, words)

    return [
        _row(
            f"peak_{rate}",
            rate,
            "Dense peak",
            "OP/s" if rate == "int8" else "FLOP/s",
            "higher",
            subjects,
            lambda s, rate=rate: peak(s, rate),
        )
        for rate in RATES
    ]


def _reached(subjects: Sequence[Subject]) -> list[FigureRow]:
    def rate_cell(s: Subject, rate: str) -> Cell:
        name = dtype_of(s.accelerator, rate)
        found = None if name is None else reached(s.accelerator, name)
        if name is None or found is None:
            return Cell()
        share = f"{say('%', found.expected / s.accelerator.peak(name))} of peak"
        return Cell.of(found.scaled(s.count), f"a product of {SIDE} cubed in a long run", share)

    def stream(s: Subject) -> Cell:
        transfer = streamed(s.accelerator)
        share = f"{say('%', transfer.expected / s.accelerator.memory_bandwidth_bytes_per_s)} of peak"
        return Cell.of(transfer.scaled(s.count), "a stream no cache holds", share)

    rows = [
        _row(
            f"reached_{rate}",
            f"{rate} matrix product",
            "Really reached",
            "OP/s" if rate == "int8" else "FLOP/s",
            "higher",
            subjects,
            lambda s, rate=rate: rate_cell(s, rate),
        )
        for rate in RATES
    ]
    return [*rows, _row("reached_stream", "memory stream", "Really reached", "B/s", "higher", subjects, stream)]


def _board(subjects: Sequence[Subject]) -> list[FigureRow]:
    def link(s: Subject) -> Cell:
        a = s.accelerator
        if a.link_bytes_per_s is None:
            return Cell(None, "none: over the host")
        return _fact(a, ("link_gb_s",), "link_bytes_per_s", a.link_bytes_per_s, a.link_kind or "")

    def power(s: Subject) -> Cell:
        tdp = s.accelerator.tdp_w
        return Cell() if tdp is None else _fact(s.accelerator, ("tdp_w",), "tdp_w", tdp * s.count)

    rows = [
        _row(
            "l2",
            "L2 cache",
            "Board and links",
            "B",
            "higher",
            subjects,
            lambda s: _fact(s.accelerator, ("l2_mib",), "l2_bytes", s.accelerator.l2_bytes),
        ),
        _row("link", "device link, one way", "Board and links", "B/s", "higher", subjects, link),
        _row(
            "host_link",
            "host link, one way",
            "Board and links",
            "B/s",
            "higher",
            subjects,
            lambda s: _fact(s.accelerator, ("pcie",), "pcie_bytes_per_s", s.accelerator.pcie_bytes_per_s),
        ),
        _row("tdp", "design power", "Board and links", "W", "lower", subjects, power),
    ]
    if any(s.cluster.n_systems > 1 for s in subjects):
        rows.append(
            _row(
                "network",
                "network, a device",
                "Board and links",
                "B/s",
                "higher",
                subjects,
                lambda s: Cell(
                    s.cluster.system.network_bytes_per_s,
                    s.cluster.system.network_kind,
                    "vendor",
                    s.cluster.system.source,
                    "network" in s.cluster.system.assumed,
                ),
            )
        )
    return rows


def _prices(subjects: Sequence[Subject], prices: Sequence[Price | None], today: datetime.date) -> list[FigureRow]:
    def rented(s: Subject, price: Price | None) -> Cell:
        if price is None:
            return Cell(None, "it has no rental offer")
        age = "" if price.age_days is None else f"{price.age_days} days old"
        n = s.count
        return Cell(price.expected * n, age, "offer", f"offers: {price.provider}", price.stale, price.low * n, price.high * n)

    return [
        FigureRow(
            "rent", "rent, on demand", "Price", "$/h", "lower", tuple(rented(s, p) for s, p in zip(subjects, prices, strict=True))
        ),
        _row("buy_new", "buy new", "Price", "$", "lower", subjects, lambda s: _bought(s, "new", today)),
        _row("buy_used", "buy second-hand", "Price", "$", "lower", subjects, lambda s: _bought(s, "used", today)),
    ]


def _bought(s: Subject, condition: Condition, today: datetime.date) -> Cell:
    """The accelerators alone, at the typical price."""
    try:
        price_usd = typical_purchase_usd(s.accelerator.id, condition)
    except UnpredictableError:
        return Cell()
    n = s.count
    if price_usd.as_of is None:
        return Cell(price_usd.median * n, f"{price_usd.kind} price", "offer", f"catalogue: {price_usd.kind} price", True)
    stale = (today - price_usd.as_of).days > STALE_DAYS
    words = f"since {month_or_year(price_usd.as_of)}"
    return Cell(
        price_usd.median * n,
        words,
        "offer",
        f"purchases: {price_usd.observations} seen",
        stale,
        price_usd.low * n,
        price_usd.high * n,
    )


def _derived(subjects: Sequence[Subject], rows: Sequence[FigureRow]) -> list[FigureRow]:
    """Ratios of the rows before; a ratio is as weak as its weaker part."""

    def over(key: str, title: str, section: str, unit: str, better: Better, top: str, bottom: str, per: float) -> FigureRow:
        upper, lower = find_row(rows, top), find_row(rows, bottom)
        assert upper is not None and lower is not None
        pairs = zip(upper.cells, lower.cells, strict=True)
        return FigureRow(
            key, title, section, unit, better, tuple(_quotient(a, b, per, f"{upper.title} / {lower.title}") for a, b in pairs)
        )

    dtype = work_dtype([s.accelerator for s in subjects])
    peak, got = f"peak_{dtype}", f"reached_{dtype}"
    return [
        over("usd_per_pflop_hour", f"rent, dense {dtype} PFLOP/s", "Price", "$/h", "lower", "rent", peak, PETA),
        over("usd_per_reached_pflop_hour", f"rent, {dtype} PFLOP/s really reached", "Price", "$/h", "lower", "rent", got, PETA),
        over("usd_per_tb_s_hour", "rent, TB/s of memory", "Price", "$/h", "lower", "rent", "bandwidth", TERA),
        over("usd_per_gib_hour", "rent, GiB of memory", "Price", "$/h", "lower", "rent", "memory", GIB),
        over("usd_per_tflop", f"buy new, dense {dtype} TFLOP/s", "Price", "$", "lower", "buy_new", peak, TERA),
        over("usd_per_gb_s", "buy new, GB/s of memory", "Price", "$", "lower", "buy_new", "bandwidth", GIGA),
        over("usd_per_gib", "buy new, GiB of memory", "Price", "$", "lower", "buy_new", "memory", GIB),
        over("ridge", f"{dtype} ridge point, peak", "Balance", "FLOP/B", "", peak, "bandwidth", 1.0),
        over("ridge_reached", f"{dtype} ridge point, reached", "Balance", "FLOP/B", "", got, "reached_stream", 1.0),
        over("work_per_watt", f"{dtype} reached a watt", "Balance", "FLOP/J", "higher", got, "tdp", 1.0),
        over("stream_per_watt", "memory stream a watt", "Balance", "B/J", "higher", "reached_stream", "tdp", 1.0),
    ]


def _quotient(top: Cell, bottom: Cell, per: float, source: str) -> Cell:
    if top.value is None or not bottom.value:
        return Cell()
    kind = next((c.kind for c in (top, bottom) if c.kind in ("fitted", "derived", "specified", "extrapolated")), "rule")
    return Cell(top.value / bottom.value * per, "", kind, source, top.weak or bottom.weak)
