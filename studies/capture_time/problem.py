"""Measured steps of captured networks as a fit sees them: seconds by family, and the rows whose form is fitted on them.

Convolutions and batch norm have no table of single kernels: their constants (``predict.kernels.measured_networks``) and the
cards' factors on every other family (``predict.kernels.accelerator_factors``) come from the same whole steps, so they are fitted
together. A step is timed as ``(device^8 + host^8)^(1/8)``: by its device, unless the host issues it more slowly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.accelerators import Accelerator, architecture_key
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.kernels.accelerator_factors import UNMEASURED, factor_key
from gpuwise.predict.kernels.conditions import Conditions
from gpuwise.predict.kernels.measured_networks import batch_norm_seconds, convolution_seconds
from gpuwise.predict.kernels.run_formats import HALF, MATRIX, run_format
from gpuwise.predict.step.capture_time import signature_times
from gpuwise.predict.step.compiled import compile_step
from gpuwise.predict.step.host_time import host_seconds
from gpuwise.workload.capture.captured import Capture
from gpuwise.workload.capture.record.rows import rows_of
from gpuwise.workload.step import FAMILIES, FAMILY_CODE, KERNEL_CODE, OpTable, concatenate
from studies.capture_time.rows import Key, Rows

F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]
OWN_KEY = ("rtx-pro-6000-blackwell-max-q",)
"""Measured cards that are no GeForce: their factors are their own, not their architecture's."""
POWER = 8.0


class Network(NamedTuple):
    """A steady step as one card runs it."""

    seconds: Mapping[str, float]
    """By family, factors of the card taken out, convolutions and batch norm left out; ``""`` is what has no factor."""
    host_s: float
    table: OpTable
    """Its distinct convolutions and batch norms on matrix units, which run ``repeats`` times."""
    repeats: F64
    before_torch_2: bool


@dataclass(frozen=True, slots=True)
class Part:
    """Convolutions and batch norms of all networks on one card under the same conditions."""

    accelerator: Accelerator
    conditions: Conditions
    table: OpTable
    convolution: Bool
    at: NDArray[np.intp]
    """[T] which network a row is of."""
    repeats: F64

    def seconds(self, constants: Mapping[str, Any], n: int) -> F64:
        """[n] seconds of each network."""
        out = np.zeros(n)
        for mask, norms in ((self.convolution, False), (~self.convolution, True)):
            rows, at = self.table.select(mask), self.at[mask]
            if norms:
                one = batch_norm_seconds(self.accelerator, rows, self.conditions, constants)
            else:
                one = convolution_seconds(self.accelerator, rows, "fp16", self.conditions, constants)
            out += np.bincount(at, weights=one * self.repeats[mask], minlength=n)
        return out


@dataclass(frozen=True, slots=True)
class Problem:
    """Measured steps [R], each of one of N networks (a capture on a card)."""

    families: tuple[str, ...]
    seconds: F64
    """[N, F] of each family that has a factor, without it."""
    fixed: F64
    """[N] of the families that have none."""
    host_s: F64
    parts: tuple[Part, ...]
    card: NDArray[Any]
    """[N] key of its factors."""
    at: NDArray[np.intp]
    """[R] which network."""
    gpu: NDArray[Any]
    compiled: Bool
    measured: F64
    network: NDArray[Any]


def card_key(accelerator: Accelerator) -> str:
    """Whose factors a measured card's are."""
    if accelerator.id in OWN_KEY:
        return accelerator.id
    return architecture_key(accelerator.compute_capability, accelerator.family)


def network_of(capture: Capture, accelerator: Accelerator, *, compiled: bool) -> Network:
    """The steady step of ``capture`` on ``accelerator``."""
    span = capture.steady
    signature = capture.op_signature[span.first_op : span.end_op]
    rows = rows_of(capture.signatures, capture.settings)
    times = signature_times(capture, accelerator, channels_last=True if compiled else None, compiled=compiled)
    device_s = times.time_s[signature]
    formats = [run_format(accelerator, d) for d in rows.dtype]
    half = np.array([f in HALF for f in formats])
    vector = np.array([f not in MATRIX for f in formats]) & (rows.flop > 0)
    norms = rows.kernel == KERNEL_CODE["batch_norm"]
    row_timed = (rows.family == FAMILY_CODE["convolution"]) & half | norms
    fixed = vector | np.isin(rows.family, [FAMILY_CODE[f] for f in UNMEASURED])
    named = np.where(row_timed, "own", np.where(fixed, "", np.array(FAMILIES, dtype=object)[rows.family]))[signature]
    if compiled:
        fused = compile_step(
            capture, accelerator, -1, device_s, np.zeros_like(device_s), times.family[signature], everything=True
        )
        device_s, named = fused.device_s, np.where(fused.fused, "fused", named)
    key = factor_key(accelerator)
    shipped: Mapping[str, float] = load_json("card_factors")["factor"][key] if key else {}
    count = np.bincount(signature, minlength=len(rows)).astype(np.float64)
    timed_rows = np.flatnonzero(row_timed & (count > 0) & ~(norms & compiled))
    return Network(
        {f: float(device_s[named == f].sum()) / shipped.get(f, 1.0) for f in sorted(set(named.tolist())) if f != "own"},
        0.0 if compiled else float(host_seconds(capture).sum()),
        rows.take(timed_rows),
        count[timed_rows],
        capture.settings.torch_version.startswith("1."),
    )


def problem_of(rows: Rows, networks: Mapping[tuple[str, Key, bool], Network], families: Sequence[str]) -> tuple[Problem, Bool]:
    """The rows whose network is there (by GPU, capture and compiler), and which of them are kept for checking."""
    names = list(networks)
    index = {name: i for i, name in enumerate(names)}
    row_names = [(g, k, bool(c)) for g, k, c in zip(rows.gpu, rows.key, rows.compiled, strict=True)]
    at = [i for i, name in enumerate(row_names) if name in index]
    each = list(networks.values())
    problem = Problem(
        families=tuple(families),
        seconds=np.array([[n.seconds.get(f, 0.0) for f in families] for n in each]),
        fixed=np.array([sum(v for f, v in n.seconds.items() if f not in families) for n in each]),
        host_s=np.array([n.host_s for n in each]),
        parts=_parts(rows, names, each),
        card=np.array([card_key(rows.accelerators[name[0]]) for name in names], dtype=object),
        at=np.array([index[row_names[i]] for i in at], dtype=np.intp),
        gpu=np.array([rows.gpu[i] for i in at], dtype=object),
        compiled=rows.compiled[at],
        measured=rows.per_capture_s[at],
        network=np.array([rows.key[i].network for i in at], dtype=object),
    )
    return problem, rows.check[at]


def _parts(rows: Rows, names: Sequence[tuple[str, Key, bool]], networks: Sequence[Network]) -> tuple[Part, ...]:
    groups: dict[tuple[str, bool, bool], list[int]] = {}
    for i, (gpu, _, compiled) in enumerate(names):
        if len(networks[i].table):
            groups.setdefault((gpu, compiled, networks[i].before_torch_2), []).append(i)
    out: list[Part] = []
    for (gpu, compiled, old), members in groups.items():
        table = concatenate([networks[i].table for i in members])
        conditions = Conditions(emulated=True, compiled=compiled, before_torch_2=old, channels_last=True if compiled else None)
        out.append(
            Part(
                accelerator=rows.accelerators[gpu],
                conditions=conditions,
                table=table,
                convolution=table.family == FAMILY_CODE["convolution"],
                at=np.repeat(np.array(members, dtype=np.intp), [len(networks[i].table) for i in members]),
                repeats=np.concatenate([networks[i].repeats for i in members]),
            )
        )
    return tuple(out)
