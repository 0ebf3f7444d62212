"""Seconds of an engine's steps from the kernels of one iteration (:mod:`gpuwise.serve.iteration`), as tables.

    work(T)       everything but attention over T tokens: one iteration of one prompt of T tokens
    attention     a + b S for n sequences whose caches hold S tokens together: two lengths about the load's mean give the line
    chunk(q, c)   causal attention of q tokens that see c before them, between a grid's points: seconds, or from 512 tokens on
                  seconds for each pair of a token and one it sees

A step without a prompt runs the graph of the next captured size: its products take that many rows
(vllm config/compilation.py, cudagraph_capture_sizes).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from statistics import median

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.systems import System
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.estimate import Basis, weakest
from gpuwise.serve.engines.costs import EngineCosts
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.iteration import DeviceTimes, Iterations, device_times

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
_QUERIES = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
_MANY = 512
_CONTEXTS = (0, 256, 1024, 4096, 16384, 65536)
MOST_CHUNKS = 4096
"""Maximum number of prompt chunks whose seconds are cached."""


@dataclass(frozen=True, slots=True)
class KernelTables:
    """Columns of one layout, in seconds on the device, before the engine's costs. ``rows`` [G] tokens of the products of a step
    without a prompt, ``tokens`` [H] of one with a prompt."""

    rows: I64
    decode_s: F64
    decode_comm_s: F64
    tokens: I64
    work_s: F64
    work_comm_s: F64
    attention_s: F64
    """[G, 2] of decoding sequences, at ``lengths`` tokens each."""
    lengths: tuple[int, int]
    chunk_s: F64
    """[Q, C] of the attention of ``queries`` tokens of a prompt that see ``contexts`` earlier ones."""
    queries: tuple[int, ...]
    contexts: tuple[int, ...]
    log_sigma: float
    basis: Basis


@cache
def graph_sizes(most: int) -> I64:
    """Batch sizes whose graphs an engine captures: 1, 2, 4, then by 8 to 256, then by 16 (vllm config/vllm.py,
    _set_cudagraph_sizes)."""
    sizes = [1, 2, 4, *range(8, min(most, 255) + 1, 8), *range(256, most + 1, 16)]
    return np.array([s for s in sizes if s <= most] or [1], np.int64)


MOST_SEQUENCES, MOST_TOKENS = 1024, 16384
"""Engines of up to so many sequences and tokens of a step take parts of one table: their options change none of its times."""


@lru_cache(maxsize=512)
def kernel_tables(
    arch: Architecture, system: System, config: EngineConfig, most_sequences: int, most_tokens: int, context: int
) -> KernelTables:
    """Tables for steps of up to ``most_sequences`` on a data-parallel group and ``most_tokens``, powers of two, with about
    ``context`` cached tokens. Raises as :func:`~gpuwise.serve.iteration.device_times`."""
    sequences = max(most_sequences, MOST_SEQUENCES)
    work, chunks = _work(arch, system, config, sequences, max(most_tokens, MOST_TOKENS))
    lengths = (max(context // 2, 16), max(context * 2, 64))
    rows, tokens, whole_rows = _rows(most_sequences), _tokens(most_tokens), _rows(sequences)
    attention, basis = np.zeros(2 * len(whole_rows)), work.basis
    if work.attention_s.any():  # a state-space model has none
        cached = _cache_attention(arch, system, config, sequences, lengths)
        attention, basis = cached.attention_s, weakest(basis, cached.basis)
    at = np.searchsorted(whole_rows, rows)
    work_at = len(whole_rows) + np.searchsorted(_whole_tokens(max(most_tokens, MOST_TOKENS)), tokens)
    most_context = max(lengths[1], most_tokens)
    q = [x for x in _QUERIES if x <= max(2 * most_tokens, 16)]
    c = [x for x in _CONTEXTS if x <= max(2 * most_context, 1024)]
    rest = work.kernels_s - work.attention_s
    return KernelTables(
        rows,
        rest[at],
        work.communication_s[at],
        tokens,
        rest[work_at],
        work.communication_s[work_at],
        attention.reshape(2, -1).T[at],
        lengths,
        chunks[: len(q), : len(c)],
        tuple(q),
        tuple(c),
        median(work.log_sigma[work_at].tolist()),
        basis,
    )


@lru_cache(maxsize=128)
def _work(
    arch: Architecture, system: System, config: EngineConfig, most_sequences: int, most_tokens: int
) -> tuple[DeviceTimes, F64]:
    """Iterations without and with a prompt, one after the other, of :func:`_rows` and :func:`_whole_tokens`; seconds [Q, C] of
    the attention of prompts."""
    groups, one = config.attention_dp, np.ones(1, np.int64)
    rows, tokens = _rows(most_sequences), _whole_tokens(most_tokens)
    qs, cs = (x.reshape(-1) for x in np.meshgrid(np.array(_QUERIES), np.array(_CONTEXTS), indexing="ij"))
    qs = np.maximum(qs, 2)
    parts = [(rows * groups, one, one), (one * groups, tokens, tokens), (one * groups, qs, qs + cs)]
    columns = zip(*(np.broadcast_arrays(*part) for part in parts), strict=True)
    n = len(rows) + len(tokens)
    every = Iterations(*(np.concatenate(c) for c in columns))
    timed = device_times(arch, system, config, every, whole_from=len(rows), attention_from=n)
    return timed, timed.attention_s[n:].reshape(len(_QUERIES), len(_CONTEXTS))


@lru_cache(maxsize=256)
def _cache_attention(
    arch: Architecture, system: System, config: EngineConfig, most_sequences: int, lengths: tuple[int, int]
) -> DeviceTimes:
    """Attention of steps without a prompt, of :func:`_rows` at the first of ``lengths``, then at the other."""
    rows = _rows(most_sequences)
    sequences, kv_len = np.tile(rows * config.attention_dp, 2), np.repeat(lengths, len(rows))
    return device_times(arch, system, config, Iterations(sequences, np.ones_like(sequences), kv_len), attention_from=0)


@cache
def _rows(most: int) -> I64:
    """Sequences of the tables' steps without a prompt."""
    return _ascending([*_thin(graph_sizes(min(most, 512))).tolist(), *_steps(512, most), most])


@cache
def _tokens(most: int) -> I64:
    """Tokens of the tables' steps with a prompt."""
    return _ascending([1, 16, *_steps(32, min(most, 512), 32), *_steps(512, most), most])


@cache
def _whole_tokens(most: int) -> I64:
    """:func:`_tokens` of every power of two up to ``most``."""
    return _ascending([n for i in range(int(most).bit_length()) for n in _tokens(1 << i).tolist()])


def _ascending(sizes: Sequence[int]) -> I64:
    """Each of ``sizes`` once, in order."""
    return np.array(sorted(set(sizes)), np.int64)


def _thin(sizes: I64) -> I64:
    """Every size to 32, then every second, from 128 every fourth: the times between are on lines."""
    keep = (sizes <= 32) | ((sizes <= 128) & (sizes % 16 == 0)) | (sizes % 64 == 0)
    return sizes[keep]


def _steps(low: int, high: int, least: int = 128) -> list[int]:
    """``low`` to ``high`` in steps of an eighth, whole multiples of ``least``."""
    found: list[int] = []
    at = low
    while at <= high:
        found.append(at)
        at += max(least, at // 8 // least * least)
    return found


class KernelSteps:
    """:class:`~gpuwise.serve.simulate.step_time.StepTime` of a layout under an engine's costs, ``layers_s`` those of its
    layers together. ``host_s`` per step and ``host_sequence_s`` per sequence are the scheduler's: in parallel with the device
    if ``ahead``, else after it. A step with more tokens than the largest graph is launched by the host, in at least ``eager_s``;
    with a prompt that graph has ``prompt_graph_most`` tokens if set, else those of decode steps with ``prompt_graphs`` and none
    without; with ``graph_most`` 0 there is none. ``sampling_s`` [0..most] is the sampling time by number of sequences."""

    __slots__ = (
        "_after",
        "_alone",
        "_attention",
        "_c",
        "_chunk_floor",
        "_chunks",
        "_decode_graph",
        "_eager_s",
        "_graph_tokens",
        "_line_alone",
        "_lines",
        "_q",
        "_seen",
        "_seen_slope",
        "_tokens",
        "_work",
        "costs",
        "fixed",
        "host",
        "layers_s",
        "slope",
        "tables",
    )

    def __init__(
        self,
        tables: KernelTables,
        costs: EngineCosts,
        layers_s: float,
        most_sequences: int,
        *,
        graph_most: int = 512,
        sizes: Sequence[int] | None = None,
        host_s: float = 0.0,
        host_sequence_s: float = 0.0,
        ahead: bool = True,
        attention_slowdown: float = 1.0,
        prompt_graphs: bool = True,
        prompt_graph_most: int = 0,
        eager_s: float = 0.0,
        sampling_s: F64 | None = None,
    ) -> None:
        self.tables, self.costs, self.layers_s = tables, costs, layers_s
        n = np.arange(most_sequences + 1)
        captured = graph_sizes(graph_most) if sizes is None else np.array(sizes, np.int64)
        self._eager_s, self._decode_graph = eager_s, int(captured[-1]) if graph_most else 0
        self._graph_tokens = (prompt_graph_most if graph_most else 0) or (self._decode_graph if prompt_graphs else 0)
        padded = np.where(n <= self._decode_graph, captured[np.minimum(np.searchsorted(captured, n), len(captured) - 1)], n)
        low, high = tables.lengths
        each = (tables.attention_s[:, 1] - tables.attention_s[:, 0]) / (high - low)
        each = np.maximum(each, 0.0)
        rows = tables.rows
        slope = np.interp(n, rows, each / rows)
        at_low = np.interp(n, rows, tables.attention_s[:, 0])
        seen = costs.kernel_slowdown * attention_slowdown
        attention = seen * np.maximum(at_low - slope * low * n, 0.0)
        gaps = costs.iteration_s + costs.sequence_s * n + layers_s
        if sampling_s is not None:
            gaps = gaps + sampling_s
        host = host_s + host_sequence_s * n
        after = host * (0.0 if ahead else 1.0)
        self._after: list[float] = after.tolist()
        products = costs.kernel_slowdown * np.interp(padded, rows, tables.decode_s)
        comm = costs.communication_slowdown * np.interp(padded, rows, tables.decode_comm_s)
        fixed = products + comm + attention + gaps + after
        each_cached = seen * slope
        self._seen_slope: list[float] = each_cached.tolist()
        # at the length of the tables, a step is as long as its launches, or as its kernels
        launched = (n > self._decode_graph) & (fixed + each_cached * n * math.sqrt(low * high) < eager_s)
        self.fixed: Sequence[float] = np.where(launched, eager_s, fixed).tolist()
        self.slope: Sequence[float] = np.where(launched, 0.0, each_cached).tolist()
        self.host: Sequence[float] = (host if ahead else np.zeros(len(n))).tolist()
        self._attention: list[float] = (attention + gaps + after).tolist()
        least = np.maximum(n, 1)
        alone = costs.kernel_slowdown * np.interp(least, tables.tokens, tables.work_s)
        alone += costs.communication_slowdown * np.interp(least, tables.tokens, tables.work_comm_s)
        self._alone: list[float] = alone.tolist()
        self._tokens: list[int] = tables.tokens.tolist()
        work = costs.prefill_slowdown * tables.work_s + costs.communication_slowdown * tables.work_comm_s
        self._work: list[float] = work.tolist()
        self._line_alone: list[float] = np.interp(least, tables.tokens, work).tolist()
        chunks = costs.prefill_slowdown * tables.chunk_s
        self._q = [float(x) for x in tables.queries]
        self._c = [float(x) for x in tables.contexts]
        self._chunks: list[list[float]] = chunks.tolist()
        self._chunk_floor = float(chunks[0, 0])
        self._seen: dict[tuple[int, int], float] = {}
        self._lines: dict[int, float] = {}

    def products(self, width: int) -> F64:
        """[0..most] seconds of everything but attention and gaps over ``width`` tokens of each sequence."""
        at, work, comm = self.tables.tokens, self.tables.work_s, self.tables.work_comm_s
        rows = np.maximum(np.arange(len(self.fixed)) * width, 1)
        beyond = np.maximum(rows / float(at[-1]), 1.0)
        kernels = self.costs.kernel_slowdown * np.interp(rows, at, work)
        seconds: F64 = (kernels + self.costs.communication_slowdown * np.interp(rows, at, comm)) * beyond
        return seconds

    def mixed(self, decoding: int, cached_tokens: int, chunks: Sequence[tuple[int, int]]) -> float:
        """Seconds of a step with the prompt chunks ``(new tokens, tokens before them)``."""
        tokens = decoding
        attention = 0.0
        seen = self._seen
        for chunk in chunks:
            tokens += chunk[0]
            attention += seen.get(chunk) or self._chunk(chunk)
        floor = self._chunk_floor  # one launch per layer, whatever its content
        attention -= len(chunks) * floor
        line = self._lines.get(tokens)
        if line is None:
            line = self._lines[tokens] = _line(self._tokens, self._work, tokens)
        device = (
            self._alone[decoding]
            + line
            - self._line_alone[decoding]
            + self._attention[decoding]
            + self._seen_slope[decoding] * cached_tokens
            + (attention if attention > 0.0 else 0.0)
            + (0.0 if decoding else floor)
        )
        # a token of each, as in decode steps, is of those whose caches came from elsewhere
        captured = self._decode_graph if tokens == decoding + len(chunks) else self._graph_tokens
        return device if tokens <= captured or device > self._eager_s else self._eager_s

    def parts(self, decoding: I64, prompt_tokens: I64, cached_tokens: I64, n_steps: I64, total_s: F64) -> dict[str, float]:
        """Seconds of steps by what they went to: the weights' and caches' way from memory (``memory``), the arithmetic that comes
        on top of it (``compute``), collectives (``communication``), the scheduler and gaps between kernels (``host``)."""
        t, costs = self.tables, self.costs
        tokens = decoding + prompt_tokens
        prompts = prompt_tokens > 0
        work = np.where(prompts, np.interp(tokens, t.tokens, t.work_s), np.interp(decoding, t.rows, t.decode_s))
        least: F64 = np.where(prompts, float(t.work_s[0]), float(t.decode_s[0]))
        weights = np.minimum(work, least)
        comm = np.where(prompts, np.interp(tokens, t.tokens, t.work_comm_s), np.interp(decoding, t.rows, t.decode_comm_s))
        mean_cached: F64 = cached_tokens + decoding * (n_steps - 1) / 2.0
        slope: F64 = np.array(self._seen_slope, np.float64)
        fixed: F64 = np.array(self._attention, np.float64)
        caches: F64 = fixed[decoding] + slope[decoding] * mean_cached
        after: F64 = np.array(self._after, np.float64)
        host = np.maximum(costs.iteration_s + costs.sequence_s * decoding + self.layers_s, 0.0) + after[decoding]
        each: F64 = total_s / n_steps
        comm = costs.communication_slowdown * comm
        memory = weights + np.maximum(caches - host, 0.0)
        compute = np.maximum(each - memory - comm - host, 0.0)
        rest = np.maximum(each - compute - comm - memory, 0.0)
        columns = {"compute": compute, "memory": np.minimum(memory, each), "communication": comm, "host": rest}
        return {name: float((column * n_steps).sum()) for name, column in columns.items()}

    def know_prompts(self, prompts: Collection[int]) -> None:
        """Work out the attention of whole prompts of these lengths at once: the seconds of :meth:`_chunk`, in a tenth of the
        time."""
        seen = self._seen
        if len(seen) + len(prompts) > MOST_CHUNKS:
            return
        missing = [p for p in set(prompts) if (p, 0) not in seen]
        if not missing:
            return
        q, new = np.array(self._q), np.array(missing, np.float64)
        i = np.clip(np.searchsorted(q, new, side="right") - 1, 0, len(q) - 2)
        first: F64 = np.array(self._chunks)[:, 0]
        low, high, width = first[i], first[i + 1], q[i + 1] - q[i]
        u = (new - q[i]) / width
        lows, highs = low / (q[i] * ((q[i] + 1) / 2)), high / (q[i + 1] * ((q[i + 1] + 1) / 2))
        each = np.where(q[i] < _MANY, low + (high - low) * u, (lows + (highs - lows) * u) * new * ((new + 1) / 2))
        seen.update(zip(((p, 0) for p in missing), each.tolist(), strict=True))

    def _chunk(self, chunk: tuple[int, int]) -> float:
        """Seconds of one prompt chunk's attention over all layers; cached, as the same requests occur at every rate."""
        if len(self._seen) >= MOST_CHUNKS:
            self._seen.clear()
        seconds = self._seen[chunk] = self._chunk_s(*chunk)
        return seconds

    def _chunk_s(self, new: int, before: int) -> float:
        q, c = self._q, self._c
        i = min(max(bisect_right(q, new) - 1, 0), len(q) - 2)
        j = min(max(bisect_right(c, before) - 1, 0), len(c) - 2)
        u = (new - q[i]) / (q[i + 1] - q[i])
        v = max((before - c[j]) / (c[j + 1] - c[j]), 0.0)
        low, high = self._chunks[i], self._chunks[i + 1]
        low_s, high_s = low[j] + (low[j + 1] - low[j]) * v, high[j] + (high[j + 1] - high[j]) * v
        if q[i] < _MANY:  # a launch, or a tile that is not full: on a line
            return low_s + (high_s - low_s) * u
        low_s /= q[i] * (before + (q[i] + 1) / 2)
        high_s /= q[i + 1] * (before + (q[i + 1] + 1) / 2)
        return (low_s + (high_s - low_s) * u) * new * (before + (new + 1) / 2)


def _line(at: list[int], values: list[float], x: int) -> float:
    """Between the points of a table; beyond its end in proportion."""
    if x >= at[-1]:
        return values[-1] * x / at[-1]
    i = bisect_right(at, x) - 1
    if i < 0:
        return values[0]
    return values[i] + (values[i + 1] - values[i]) * (x - at[i]) / (at[i + 1] - at[i])
