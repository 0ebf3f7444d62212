"""Workloads: how long prompts and answers are, how they arrive and what they share.

The catalogue is ``workloads.toml`` beside this file: figures of published traces. Lengths are drawn in strata (one from each
N-th part of the distribution, in random order), so that a thousand requests have the distribution's mean, and prompts go
with answers by a normal copula of the published correlation.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError, UnknownNameError
from gpuwise.serve.load.arrivals import unit_arrivals
from gpuwise.serve.load.lengths import Lengths
from gpuwise.serve.load.requests import NO_PARENT, Requests, Texts
from gpuwise.units import LONGEST_SEQUENCE

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
THINK_S = 45.0
"""A person between an answer and the next question: mean of the interactive-chat workload of kubernetes-sigs/inference-perf
(5 to 300 s)."""
CUSTOM = ("in", "out", "cv", "in_cv", "out_cv", "prefix", "peak")


@dataclass(frozen=True, slots=True)
class Documents:
    """Documents, each used by ``requests`` requests on average at random times, as the share ``shared`` of their prompts."""

    requests: float
    shared: float


@dataclass(frozen=True, slots=True)
class Sessions:
    """``calls`` on average in a session, each with all that the call before it had read; ``wait_s`` between two."""

    calls: float
    wait_s: float


@dataclass(frozen=True, slots=True)
class Workload:
    """Distributions a load is drawn from."""

    name: str
    title: str
    source: str
    prompt: Lengths
    output: Lengths
    correlation: float = 0.0
    """Correlation of the logarithms of both lengths."""
    gap_cv: float = 1.0
    """Coefficient of variation of the gaps between arrivals within a minute: 1 is Poisson."""
    peak_over_mean: float = 1.0
    ttft_s: float = 1.0
    """Default target of the time to first token."""
    shared_prefix: int = 0
    """Tokens that every prompt begins with."""
    documents: Documents | None = None
    sessions: Sessions | None = None
    note: str = ""

    @property
    def shares_nothing(self) -> bool:
        """Whether no prompt begins like another."""
        return not self.shared_prefix and self.documents is None and self.sessions is None


def find_workload(text: str) -> Workload:
    """The workload called ``chat``, or ``in=2000,out=300,cv=1``: mean tokens, variation of the gaps (``cv``), of the lengths
    (``in_cv``, ``out_cv``), tokens all prompts begin with (``prefix``), peak over mean. Raises InputError, UnknownNameError."""
    name = text.strip()
    if "=" in name:
        return _custom(name)
    workloads = catalogue()
    if name not in workloads:
        raise UnknownNameError(
            "workload",
            name,
            workloads,
            hint="it is one of " + ", ".join(workloads) + ", or in=2000,out=300; a trace is --trace FILE",
        )
    return workloads[name]


@cache
def catalogue() -> dict[str, Workload]:
    """All workloads of the table by name."""
    rows = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {name: _workload(name, row) for name, row in rows.items()}


def _workload(name: str, row: dict[str, Any]) -> Workload:
    lengths = {k: Lengths(v["mean"], tuple(v.get("quantiles", ())), v.get("cv", 0.0)) for k, v in row.items() if k in _LENGTHS}
    documents = Documents(**row["documents"]) if "documents" in row else None
    sessions = Sessions(**row["sessions"]) if "sessions" in row else None
    rest = {k: v for k, v in row.items() if k not in (*_LENGTHS, "documents", "sessions")}
    return Workload(name, **lengths, **rest, documents=documents, sessions=sessions)


_LENGTHS = ("prompt", "output")


def _custom(text: str) -> Workload:
    values: dict[str, float] = {}
    for part in text.split(","):
        key, _, value = (p.strip() for p in part.partition("="))
        if key not in CUSTOM:
            raise UnknownNameError("part of a workload", key, CUSTOM, hint="write it like in=2000,out=300,cv=1")
        if key in values:
            raise InputError(f"workload {text!r} gives {key} twice", hint="write it like in=2000,out=300,cv=1")
        values[key] = _number(key, value)
    missing = [k for k in ("in", "out") if k not in values]
    if missing:
        raise InputError(f"workload {text!r} lacks {' and '.join(missing)}", hint="write it like in=2000,out=300,cv=1")
    prefix = int(values.get("prefix", 0))
    if prefix >= values["in"]:
        raise InputError(
            f"a shared prefix of {prefix:,} tokens is not shorter than the prompts of {values['in']:,.0f}",
            hint="in counts the prefix too",
        )
    return Workload(
        text.replace(" ", ""),
        f"{values['in']:,.0f} tokens in, {values['out']:,.0f} out",
        "given",
        Lengths(values["in"], cv=values.get("in_cv", 0.0)),
        Lengths(values["out"], cv=values.get("out_cv", 0.0)),
        gap_cv=values.get("cv", 1.0),
        peak_over_mean=values.get("peak", 1.0),
        shared_prefix=prefix,
    )


def _number(key: str, value: str) -> float:
    text = value.lower().replace("_", "")
    factor = 1024.0 if text.endswith("k") and key in ("in", "out", "prefix") else 1.0
    try:
        number = float(text.removesuffix("k") if factor > 1 else text) * factor
    except ValueError:
        raise InputError(f"{key}={value!r} is not a number", hint="write it like in=2000,out=300,cv=1") from None
    least, most = _BOUNDS[key]
    if not least <= number <= most:
        raise InputError(f"{key}={value} does not lie between {least:g} and {most:g}", hint="write it like in=2000,out=300,cv=1")
    return number


_BOUNDS = {
    "in": (1, LONGEST_SEQUENCE),
    "out": (1, LONGEST_SEQUENCE),
    "prefix": (0, LONGEST_SEQUENCE),
    "cv": (0, 20),
    "in_cv": (0, 10),
    "out_cv": (0, 10),
    "peak": (1, 20),
}


def draw(workload: Workload, n: int, rate_per_s: float, *, seed: int = 0) -> Requests:
    """``n`` requests of ``workload`` that arrive at a mean of ``rate_per_s``. The same seed gives the same requests at every
    rate, only closer together or farther apart; calls of a session keep their pauses."""
    rng = np.random.default_rng(seed)
    first, second = _levels(n, workload.correlation, rng)
    prompt, output = workload.prompt.tokens(first), workload.output.tokens(second)
    if workload.sessions is not None:
        return _sessions(workload, workload.sessions, output, rate_per_s, rng)
    arrival = unit_arrivals(n, workload.gap_cv, rng) / rate_per_s
    text = np.arange(n, dtype=np.int64)
    if workload.documents is not None:
        return Requests(arrival, prompt, output, *_of_documents(workload.documents, prompt, rng))
    if workload.shared_prefix:
        parent = np.full(n, 0, np.int64)
        parent[0] = NO_PARENT
        shared = np.minimum(prompt, workload.shared_prefix)
        shared[0] = 0
        return Requests(arrival, prompt, output, text, Texts(parent, shared))
    return Requests(arrival, prompt, output)


def _levels(n: int, correlation: float, rng: np.random.Generator) -> tuple[F64, F64]:
    """Two columns of strata in (0, 1), each a permutation, correlated by their normal scores."""
    one, other = rng.standard_normal((2, n))
    mixed = correlation * one + (1 - correlation**2) ** 0.5 * other
    return (np.argsort(np.argsort(one)) + 0.5) / n, (np.argsort(np.argsort(mixed)) + 0.5) / n


def _of_documents(documents: Documents, prompt: I64, rng: np.random.Generator) -> tuple[I64, Texts]:
    """A text for each request; requests on one document begin like its first one. Which are on one is drawn among those of
    similar length: the document is most of the prompt."""
    n = len(prompt)
    by_length = np.argsort(prompt, kind="stable")
    parent, shared = np.full(n, NO_PARENT, np.int64), np.zeros(n, np.int64)
    at = 0
    while at < n:
        group = np.sort(by_length[at : at + int(rng.geometric(1 / documents.requests))])
        parent[group[1:]] = group[0]
        least = int(prompt[group].min() * documents.shared)
        shared[group[1:]] = least
        at += len(group)
    return np.arange(n, dtype=np.int64), Texts(parent, shared)


def _sessions(workload: Workload, sessions: Sessions, output: I64, rate_per_s: float, rng: np.random.Generator) -> Requests:
    """Sessions whose calls read all that was read before: call ``k`` of a session has ``k + 1`` parts of its prompt.

    Prompts grow from call to call by an equal part, so that their mean over calls is the workload's; a session's size is drawn
    from the distribution of prompts.
    """
    n, counts = len(output), list[int]()
    while sum(counts) < n:
        counts.append(int(rng.geometric(1 / sessions.calls)))
    starts = unit_arrivals(len(counts), workload.gap_cv, rng) * sessions.calls / rate_per_s
    owner = np.repeat(np.arange(len(counts)), counts)
    order = np.concatenate([np.arange(c) for c in counts])
    waits = rng.exponential(sessions.wait_s, len(owner)) * (order > 0)
    elapsed = np.cumsum(waits)
    elapsed -= np.repeat(elapsed[np.concatenate([[0], np.cumsum(counts)[:-1]])], counts)
    arrival = starts[owner] + elapsed
    size = workload.prompt.tokens((rng.permutation(len(counts)) + 0.5) / len(counts))
    # the mean of (order + 1) over geometric calls is their mean count
    tokens = np.maximum(np.rint(size[owner] * (order + 1) / sessions.calls), 1).astype(np.int64)
    answer = output[rng.integers(0, n, len(owner))]
    kept = np.argsort(arrival, kind="stable")[:n]
    _, text = np.unique(owner[kept], return_inverse=True)
    return Requests(arrival[kept] - arrival[kept[0]], tokens[kept], answer[kept], text.astype(np.int64))


def within(workload: Workload, context: int) -> Workload:
    """``workload``. Raises InputError where lengths that were given are longer than the context."""
    tokens = workload.prompt.mean + workload.output.mean
    if workload.source == "given" and tokens > context:
        raise InputError(
            f"{tokens:,.0f} tokens a request are more than the context of {context:,}",
            hint="shorter lengths, or a model with a longer context",
        )
    return workload
