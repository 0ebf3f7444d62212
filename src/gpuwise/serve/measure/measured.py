"""Latencies of a measured load: percentiles of the answers, with what failed beside them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpuwise.interval import BAND
from gpuwise.serve.measure.run import NOT_SENT, Answer, Measurement

F64 = NDArray[np.float64]
RESAMPLES = 400
LATE_S = 0.05
"""A request sent later than this after its due time was delayed by the client."""


@dataclass(frozen=True)
class LoadResult:
    """Results of ``measurement``. Times to first token include every request that had one, also those that failed later; other
    figures are of complete answers only."""

    measurement: Measurement

    @cached_property
    def whole(self) -> list[Answer]:
        """Requests that were answered to the end."""
        return [a for a in self.measurement.answers if a.failure is None and a.token_s and a.sent_s is not None]

    @cached_property
    def failures(self) -> dict[str, int]:
        """How many failed, by kind; those never sent with them."""
        return dict(Counter(a.failure for a in self.measurement.answers if a.failure is not None))

    @property
    def retries(self) -> int:
        """Requests sent again, each as often as it was."""
        return sum(a.retries for a in self.measurement.answers)

    @property
    def sent(self) -> int:
        """Requests that left this machine, answered or not."""
        return sum(a.failure != NOT_SENT for a in self.measurement.answers)

    @cached_property
    def ttft_s(self) -> F64:
        """From the time a request was due to its first token."""
        return np.array([a.token_s[0] - a.due_s for a in self.measurement.answers if a.token_s])

    @cached_property
    def e2e_s(self) -> F64:
        """[N] seconds from the due time of a request to its last token, for complete answers."""
        return np.array([a.token_s[-1] - a.due_s for a in self.whole])

    @cached_property
    def tpot_s(self) -> F64:
        """Time per output token of answers with at least two tokens: an event may contain several, so tokens are counted as
        the server counts them."""
        rows = [(a.token_s[-1] - a.token_s[0], (a.output_tokens or len(a.token_s)) - 1) for a in self.whole]
        return np.array([span / gaps for span, gaps in rows if gaps > 0 and span > 0])

    @cached_property
    def itl_s(self) -> F64:
        """Between two events of an answer, as a person sees them."""
        gaps = [np.diff(a.token_s) for a in self.whole if len(a.token_s) > 1]
        return np.concatenate(gaps) if gaps else np.zeros(0)

    @property
    def late_share(self) -> float:
        """Share of requests that the client sent more than :data:`LATE_S` after their time."""
        sent = [a for a in self.measurement.answers if a.sent_s is not None]
        return sum((a.sent_s or 0.0) - a.due_s > LATE_S for a in sent) / len(sent) if sent else 0.0

    @property
    def requests_per_s(self) -> float | None:
        """Whole answers a second, from the first request to the last token; None with fewer than two."""
        if len(self.whole) < 2:
            return None
        begin = min(a.sent_s for a in self.whole if a.sent_s is not None)
        return len(self.whole) / (max(a.token_s[-1] for a in self.whole) - begin)

    @property
    def output_tokens_per_s(self) -> float | None:
        """Mean answer length times the rate of complete answers; None without a rate."""
        rate = self.requests_per_s
        return None if rate is None else rate * float(np.mean([a.output_tokens or len(a.token_s) for a in self.whole]))

    @property
    def written_share(self) -> float | None:
        """Output tokens over requested tokens, for complete answers whose tokens the server counted: below 1 if it ended them
        earlier. None without counts."""
        rows = zip(self.measurement.answers, self.measurement.requests.output_tokens.tolist(), strict=True)
        counted = [(a.output_tokens, tokens) for a, tokens in rows if a.failure is None and a.output_tokens is not None]
        return sum(written for written, _ in counted) / sum(asked for _, asked in counted) if counted else None

    def of(self, metric: str) -> F64:
        """All values of ``ttft``, ``itl``, ``tpot`` or ``e2e``."""
        return {"ttft": self.ttft_s, "itl": self.itl_s, "tpot": self.tpot_s, "e2e": self.e2e_s}[metric]

    def value(self, metric: str, percentile: float | None) -> float | None:
        """A percentile of a metric (None: the mean); None where nothing was measured."""
        values = self.of(metric)
        if not len(values):
            return None
        return float(values.mean() if percentile is None else np.percentile(values, percentile))

    def interval(self, metric: str, percentile: float | None) -> tuple[float, float] | None:
        """80 % interval of :meth:`value` by resampling the answers; None for fewer than two."""
        values = self.of(metric)
        if len(values) < 2:
            return None
        rng = np.random.default_rng(0)
        rows = values[rng.integers(0, len(values), (RESAMPLES, min(len(values), 2000)))]
        found = rows.mean(1) if percentile is None else np.percentile(rows, percentile, axis=1)
        low, _, high = np.quantile(found, BAND)
        return float(low), float(high)
