"""From serving rows to seconds: rows of one model, system and layout are evaluated together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.serving.rows import ServingRow
from gpuwise.errors import GpuwiseError
from gpuwise.serve.engines.costs import EngineCosts
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.iteration import DeviceTimes, Iterations, device_times, shared_prefill, with_engine

F64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ServingGroup:
    """Rows (positions in the table) of one model, system and layout; ``decode`` and ``prefill`` are one
    iteration of each row's batch, and the prefill of one prompt. What an engine adds is not in them, so that
    a fit reuses them."""

    at: tuple[int, ...]
    config: EngineConfig
    n_layers: int
    sequences: F64
    decode: DeviceTimes
    prefill: DeviceTimes
    per_decode: F64
    """Prefills of one prompt that fall on each decode iteration: in steady state every sequence brings one in
    ``output`` iterations; 0 where the measured figure leaves them out."""

    def seconds(self, costs: EngineCosts) -> F64:
        """[rows] time between tokens under an engine's ``costs``."""
        decode = with_engine(self.decode, costs, self.sequences / self.config.attention_dp, self.n_layers)
        return decode + self.per_decode * shared_prefill(self.prefill, costs) / self.config.attention_dp


def build_groups(rows: Sequence[ServingRow]) -> tuple[list[ServingGroup], dict[int, str]]:
    """Groups of the rows that have a layout, and why some of them cannot be predicted."""
    together: dict[tuple[object, ...], list[int]] = {}
    for i, row in enumerate(rows):
        if not row.reason and row.config is not None:
            together.setdefault((row.architecture, row.system, row.config), []).append(i)
    groups: list[ServingGroup] = []
    reasons: dict[int, str] = {}
    for at in together.values():
        try:
            groups.append(_group(rows, tuple(at)))
        except GpuwiseError as error:
            reasons.update(dict.fromkeys(at, error.message.split("\n")[0][:80]))
    return groups, reasons


def _group(rows: Sequence[ServingRow], at: tuple[int, ...]) -> ServingGroup:
    first = rows[at[0]]
    assert first.architecture is not None and first.system is not None and first.config is not None
    sequences = np.array([rows[i].sequences for i in at], np.int64)
    prompt, output = (np.array([getattr(rows[i], f) for i in at]) for f in ("prompt", "output"))
    one = np.ones_like(sequences)
    context = np.maximum(np.rint(prompt + output / 2), 1).astype(np.int64)
    decode = _distinct(first, Iterations(sequences, one, context))
    whole = np.maximum(np.rint(prompt), 1).astype(np.int64)
    prefill = _distinct(first, Iterations(one * first.config.attention_dp, whole, whole))
    shared = np.array([rows[i].prefills for i in at])
    per_decode = np.where(shared, sequences / np.maximum(output, 1.0), 0.0)
    return ServingGroup(
        at,
        first.config,
        first.architecture.n_layers,
        sequences.astype(np.float64),
        decode,
        prefill,
        per_decode,
    )


def _distinct(row: ServingRow, iterations: Iterations) -> DeviceTimes:
    """Each distinct iteration once: tables repeat runs."""
    assert row.architecture is not None and row.system is not None and row.config is not None
    keys = np.column_stack([iterations.sequences, iterations.q_len, iterations.kv_len])
    unique, inverse = np.unique(keys, axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    few = device_times(row.architecture, row.system, row.config, Iterations(*unique.T))
    return DeviceTimes(
        kernels_s=few.kernels_s[inverse],
        attention_s=few.attention_s[inverse],
        memory_s=few.memory_s[inverse],
        communication_s=few.communication_s[inverse],
        log_sigma=few.log_sigma[inverse],
        basis=few.basis,
    )
