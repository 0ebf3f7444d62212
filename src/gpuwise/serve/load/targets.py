"""Latency targets: ``ttft_p95=1s,itl_p99=50ms,e2e_p90=10s``.

Time to first token (ttft), gap between two tokens of an answer (itl), mean gap over an answer (tpot), whole answer (e2e).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpuwise.errors import InputError, UnknownNameError
from gpuwise.units import MILLI, format_duration, parse_duration

READING_S = 1 / 5.3
"""Between two tokens of an answer that comes as fast as one reads: the target of answers where none is given."""
METRICS = {
    "ttft": "time to first token",
    "itl": "gap between tokens",
    "tpot": "time per output token",
    "e2e": "whole answer",
}
USUAL_PERCENTILE = 95.0
"""Percentile of a metric without one."""
MEAN = "mean"
_STATISTIC = re.compile(r"p(\d{1,2}(?:\.\d+)?)")
_EXAMPLE = "for example --slo ttft_p95=1s,itl_p99=50ms,e2e_p90=10s"


@dataclass(frozen=True, slots=True)
class Target:
    """``percentile`` (None: the mean) of ``metric`` stays within ``limit_s``."""

    metric: str
    percentile: float | None
    limit_s: float

    @property
    def key(self) -> str:
        """``ttft_p95``, ``tpot_mean``."""
        return f"{self.metric}_{MEAN}" if self.percentile is None else f"{self.metric}_p{self.percentile:g}"

    @property
    def milliseconds(self) -> str:
        """The limit as a plain number of milliseconds: ``188.7``."""
        ms = self.limit_s / MILLI
        return f"{ms:.{1 if ms >= 10 else 2}f}".rstrip("0").rstrip(".")

    @property
    def words(self) -> str:
        """``p95 time to first token within 1 s``."""
        return f"{statistic_words(self.key)} within {format_duration(self.limit_s)}"


def statistic_words(key: str) -> str:
    """``p95 time to first token`` of a target's key, ``ttft_p95``."""
    metric, _, statistic = key.rpartition("_")
    return f"{statistic} {METRICS.get(metric, metric)}"


@dataclass(frozen=True, slots=True)
class Attainment:
    """A target with its reached value; ``value_s`` is None without one (saturated, or no request answered)."""

    target: Target
    value_s: float | None

    @property
    def met(self) -> bool:
        """Whether there is a value and it is within the limit."""
        return self.value_s is not None and self.value_s <= self.target.limit_s

    @property
    def ratio(self) -> float | None:
        """Reached over allowed: above 1 the target is missed."""
        return None if self.value_s is None else self.value_s / self.target.limit_s


def as_option(targets: Sequence[Target]) -> str:
    """``targets`` as --slo takes them."""
    return ",".join(f"{t.key}={t.milliseconds}ms" for t in targets)


def parse_targets(text: str) -> tuple[Target, ...]:
    """The targets of ``--slo``. Raises InputError and UnknownNameError."""
    found: dict[str, Target] = {}
    for part in text.split(","):
        name, equals, value = (p.strip() for p in part.partition("="))
        if not equals or not value:
            raise InputError(f"--slo: {part.strip()!r} is not a target", hint=_EXAMPLE)
        target = _target(name.lower(), value)
        if target.key in found:
            raise InputError(f"--slo gives {target.key} twice", hint=_EXAMPLE)
        found[target.key] = target
    return tuple(found.values())


def _target(name: str, value: str) -> Target:
    metric, _, statistic = name.partition("_")
    if metric not in METRICS:
        raise UnknownNameError("latency", name, METRICS, hint="it is one of " + ", ".join(METRICS) + "; " + _EXAMPLE)
    percentile: float | None = USUAL_PERCENTILE
    if statistic == MEAN:
        percentile = None
    elif statistic:
        matched = _STATISTIC.fullmatch(statistic)
        percentile = float(matched[1]) if matched else 0.0
        if not 0 < percentile < 100:
            raise InputError(f"--slo: {statistic!r} is neither mean nor a percentile such as p95", hint=_EXAMPLE)
    try:
        limit = parse_duration(value)
    except InputError as error:
        raise InputError(f"--slo {name}: {error.message}", hint=_EXAMPLE) from None
    if not limit > 0:
        raise InputError(f"--slo {name}: {value!r} is not above zero", hint=_EXAMPLE)
    return Target(metric, percentile, limit)
