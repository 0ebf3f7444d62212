"""What one micro-batch costs on one rank: op tables evaluated once per distinct (micro-batch, tp, cp, ep, sp).

A search has millions of strategies but only hundreds of these points; everything else in a step is algebra on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.systems import System
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.comm.collectives import collective_time
from gpuwise.predict.comm.groups import RankGroup, context_group, expert_group, tensor_group, travelling
from gpuwise.predict.estimate import Basis, weakest
from gpuwise.predict.kernels.conditions import Conditions
from gpuwise.predict.kernels.registry import kernel_times
from gpuwise.predict.memory.saved import PointSaved, SavedBytes, collect, point_saved
from gpuwise.workload.step import Kind, OpTable, Phase, concatenate
from gpuwise.workload.transformer.point import Point
from gpuwise.workload.transformer.tables import TransformerTables, leading_layers, recomputed_share, transformer_tables

if TYPE_CHECKING:
    from gpuwise.predict.step.per_op import PartSums

F64 = NDArray[np.float64]
COMM_GROUPS = ("tp", "cp", "ep")


@dataclass(frozen=True, slots=True)
class PartCosts:
    """Arrays [P] over points. For ``layer`` and ``lead``: one (mean) layer; for the ends: the whole end.

    Seconds of device kernels by phase and family (``matmul``, ``attention``, ``memory``), launches, and collective
    seconds by group. ``selective`` is what selective recompute runs again, ``full`` what full recompute does. Host seconds
    are known for stacks that are timed operation by operation; elsewhere they are 0 and follow from the launches.
    """

    forward_s: dict[str, F64]
    selective_s: dict[str, F64]
    backward_s: dict[str, F64]
    wgrad_s: F64
    forward_kernels: F64
    selective_kernels: F64
    backward_kernels: F64
    forward_comm_s: dict[str, F64]
    full_comm_s: dict[str, F64]
    backward_comm_s: dict[str, F64]
    forward_syncs: F64
    """Collectives, each counted log2(group) times: how often ranks wait for one another."""
    full_syncs: F64
    backward_syncs: F64
    forward_flop: F64
    selective_flop: F64
    backward_flop: F64
    full_s: dict[str, F64]
    full_kernels: F64
    full_flop: F64
    forward_host_s: F64
    selective_host_s: F64
    full_host_s: F64
    backward_host_s: F64


@dataclass(frozen=True, slots=True)
class PointCosts:
    """Costs of P points of one model on one system, and the bytes a layer keeps under each recompute policy.

    ``layer`` is the mean over all layers but the ``n_lead`` leading ones that differ (the dense layers before a model's
    experts), which are ``lead``. ``saved`` are the activation bytes; ``log_sigma`` [P] of the kernels,
    weighted by time.
    """

    points: tuple[Point, ...]
    n_layers: float
    n_lead: float
    layer: PartCosts
    lead: PartCosts
    embedding: PartCosts
    head: PartCosts
    saved: SavedBytes
    log_sigma: F64
    basis: Basis
    own_host: bool = False
    """The parts' host seconds are their own: no launch, gap or overhead of the stack comes on top."""
    update_host_s: F64 | None = None
    """[P] with ``own_host``: the host's part of the optimizer."""


FAMILIES = ("matmul", "attention", "memory")


def _family(kind: NDArray[np.int64]) -> NDArray[np.int64]:
    """0 matmul, 1 attention, 2 memory."""
    matmul = (kind == Kind.MATMUL) | (kind == Kind.GROUPED)
    return np.where(matmul, 0, np.where(kind == Kind.ATTENTION, 1, 2))


@lru_cache(maxsize=2048)
def _tables(arch: Architecture, point: Point) -> tuple[TransformerTables, PointSaved]:
    """Tables and saved bytes of a point: the same on every device, so that comparing devices builds them once."""
    t = transformer_tables(arch, point)
    return t, point_saved(arch, point, t)


def point_costs(arch: Architecture, points: Sequence[Point], system: System, kernels: dict[str, str] | None = None) -> PointCosts:
    """Evaluate every point's tables in one pass over the kernel model and the collectives."""
    if all(p.stack.per_op for p in points):
        from gpuwise.predict.step.per_op import described  # other stacks need no model of single operations

        if described(arch, points):
            return _per_op_costs(arch, points, system)
    tables: list[OpTable] = []
    owner: list[tuple[int, int, float]] = []  # point, part, weight
    n_layers = float(arch.n_layers + (arch.encoder.n_layers if arch.encoder else 0))
    n_lead = leading_layers(arch)
    saved: list[PointSaved] = []
    for i, point in enumerate(points):
        t, point_activations = _tables(arch, point)
        layered = [(table, t.layer_counts[kind]) for kind, table in t.layers.items()]
        if t.encoder is not None:
            layered.append((t.encoder, t.encoder_layers))
        for table, count in layered:
            tables.append(table)
            lead = n_lead > 0 and t.layers.get("dense") is table
            owner.append((i, 3, 1.0) if lead else (i, 0, count / (n_layers - n_lead)))
        tables += [t.embedding, t.head]
        owner += [(i, 1, 1.0), (i, 2, 1.0)]
        saved.append(point_activations)
    everything = concatenate(tables)
    chosen = {"attention": points[0].stack.attention_kernel} if kernels is None else kernels
    times = kernel_times(everything, system.accelerator, Conditions(implementation=chosen))
    comm_s = _collective_seconds(everything, tables, owner, points, system)
    cells = _Cells.of(everything, tables, owner, points, times.time_s, comm_s)
    times_run = {0: n_layers - n_lead, 1: 1.0, 2: 1.0, 3: float(n_lead)}
    run = np.array([weight * times_run[part] for _, part, weight in owner])
    lengths = [len(t) for t in tables]
    row_s = times.time_s * everything.count * np.repeat(run, lengths)
    point_of_row = np.repeat([o[0] for o in owner], lengths)
    return PointCosts(
        points=tuple(points),
        n_layers=n_layers,
        n_lead=float(n_lead),
        layer=cells.part(0),
        lead=cells.part(3),
        embedding=cells.part(1),
        head=cells.part(2),
        saved=collect(saved),
        log_sigma=_spread(row_s, times.log_sigma, _family(everything.kind), point_of_row, len(points)),
        basis=times.basis,
    )


def _spread(seconds: F64, log_sigma: F64, family: NDArray[np.int64], point: NDArray[np.int64], n_points: int) -> F64:
    """[P] spread of the sum of rows [R]: kernels of a family miss together, families apart, as in a captured step."""
    each = np.zeros((n_points, len(FAMILIES)))
    np.add.at(each, (point, family), seconds * log_sigma)
    whole = np.bincount(point, weights=seconds, minlength=n_points)
    return np.sqrt((each**2).sum(axis=1)) / np.maximum(whole, 1e-300)


def _per_op_costs(arch: Architecture, points: Sequence[Point], system: System) -> PointCosts:
    """Costs of points whose operations are timed one by one."""
    from gpuwise.predict.step.per_op import point_sums

    n_lead = leading_layers(arch)
    point_parts = point_sums(arch, points, system.accelerator, n_lead)
    bases: list[Basis] = [m.basis for m in point_parts]
    return PointCosts(
        points=tuple(points),
        n_layers=float(arch.n_layers),
        n_lead=float(n_lead),
        layer=_columns([m.layer for m in point_parts]),
        lead=_columns([m.lead for m in point_parts]),
        embedding=_columns([m.embedding for m in point_parts]),
        head=_columns([m.head for m in point_parts]),
        saved=collect([_tables(arch, point)[1] for point in points]),
        log_sigma=np.array([m.log_sigma for m in point_parts]),
        basis=weakest(*bases),
        own_host=True,
        update_host_s=np.array([m.update_host_s for m in point_parts]),
    )


def _columns(parts: Sequence[PartSums]) -> PartCosts:
    """[P] one part of every point."""
    nothing = np.zeros(len(parts))
    none: dict[str, F64] = dict.fromkeys(COMM_GROUPS, nothing)

    def seconds(name: str) -> dict[str, F64]:
        return {f: np.array([getattr(p, name).device_s[i] for p in parts]) for i, f in enumerate(FAMILIES)}

    def column(name: str, what: str) -> F64:
        return np.array([getattr(getattr(p, name), what) for p in parts])

    return PartCosts(
        forward_s=seconds("forward"),
        selective_s=seconds("selective"),
        backward_s=seconds("backward"),
        wgrad_s=seconds("backward")["matmul"] / 2.0,
        forward_kernels=column("forward", "kernels"),
        selective_kernels=column("selective", "kernels"),
        backward_kernels=column("backward", "kernels"),
        forward_comm_s=none,
        full_comm_s=none,
        backward_comm_s=none,
        forward_syncs=nothing,
        full_syncs=nothing,
        backward_syncs=nothing,
        forward_flop=column("forward", "flop"),
        selective_flop=column("selective", "flop"),
        backward_flop=column("backward", "flop"),
        full_s=seconds("full"),
        full_kernels=column("full", "kernels"),
        full_flop=column("full", "flop"),
        forward_host_s=column("forward", "host_s"),
        selective_host_s=column("selective", "host_s"),
        full_host_s=column("full", "host_s"),
        backward_host_s=column("backward", "host_s"),
    )


def _flags(names: Sequence[str], ending: str) -> NDArray[np.bool_]:
    """[N] whether each name ends with ``ending`` (each distinct name is tested once)."""
    matches = {name: name.endswith(ending) for name in dict.fromkeys(names)}
    return np.array([matches[name] for name in names], bool)


def _starting(names: Sequence[str], beginning: str) -> NDArray[np.bool_]:
    """[N] whether each name starts with ``beginning``."""
    matches = {name: name.startswith(beginning) for name in dict.fromkeys(names)}
    return np.array([matches[name] for name in names], bool)


@dataclass(frozen=True, slots=True)
class _Cells:
    """Rows of the concatenated table with what is needed to sum them into arrays over points; arrays [R]."""

    n_points: int
    point: NDArray[np.int64]
    which: NDArray[np.int64]
    """Part: 0 layer, 1 embedding, 2 head, 3 leading layer."""
    phase: NDArray[np.int64]
    family: NDArray[np.int64]
    """Index into FAMILIES, -1 for collectives."""
    group: NDArray[np.int64]
    """Index into COMM_GROUPS, -1 for kernels."""
    selective: F64
    """Share of the row that selective recompute runs again."""
    again: NDArray[np.bool_]
    """Collectives that full recompute runs beside those of the backward."""
    wgrad: NDArray[np.bool_]
    cost_s: F64
    comm_s: F64
    launches: F64
    flop: F64
    syncs: F64

    @classmethod
    def of(
        cls,
        t: OpTable,
        tables: Sequence[OpTable],
        owner: list[tuple[int, int, float]],
        points: Sequence[Point],
        time_s: F64,
        comm_s: F64,
    ) -> _Cells:
        lengths = [len(table) for table in tables]
        point, which, weight = (np.repeat(np.array(c), lengths) for c in zip(*owner, strict=True))
        comm = t.kind == Kind.COLLECTIVE
        groups = {name: COMM_GROUPS.index(name[:2]) for name in dict.fromkeys(np.array(t.name, object)[comm])}
        times = t.count * weight
        group = np.array([groups.get(name, -1) for name in t.name])
        degrees = np.array([[getattr(p, g) for g in COMM_GROUPS] for p in points], dtype=np.float64)[point, group]
        selective = np.concatenate([recomputed_share(table, points[0].stack.selective_recompute) for table in tables])
        return cls(
            len(points),
            point,
            which,
            t.phase,
            np.where(comm, -1, _family(t.kind)),
            group,
            selective,
            comm & (points[0].stack.recompute_regathers | ~_starting(t.name, "tp.all_gather.")),
            _flags(t.name, ".wgrad") & ~comm,
            time_s * times,
            comm_s * times,
            t.n_kernels * times,
            t.flop * times,
            np.where(comm, np.log2(degrees), 0.0) * times,
        )

    def part(self, part: int) -> PartCosts:
        """Sums of one part's rows."""
        mine = np.flatnonzero(self.which == part)
        point, family, group = self.point[mine], self.family[mine], self.group[mine]
        cost, launches, flop, comm_s, syncs = (a[mine] for a in (self.cost_s, self.launches, self.flop, self.comm_s, self.syncs))
        phase = self.phase[mine]
        forward, backward = phase == Phase.FORWARD, phase == Phase.BACKWARD
        again = self.selective[mine]

        def total(values: F64, mask: NDArray[np.bool_]) -> F64:
            return np.bincount(point[mask], weights=values[mask], minlength=self.n_points).astype(np.float64)

        def by_family(mask: NDArray[np.bool_], share: F64 | float = 1.0) -> dict[str, F64]:
            return {f: total(cost * share, mask & (family == i)) for i, f in enumerate(FAMILIES)}

        def by_group(mask: NDArray[np.bool_]) -> dict[str, F64]:
            return {g: total(comm_s, mask & (group == i)) for i, g in enumerate(COMM_GROUPS)}

        nothing = np.zeros(self.n_points)
        return PartCosts(
            forward_s=by_family(forward),
            selective_s=by_family(forward, again),
            backward_s=by_family(backward),
            wgrad_s=total(cost, backward & self.wgrad[mine]),
            forward_kernels=total(launches, forward),
            selective_kernels=total(launches * again, forward),
            backward_kernels=total(launches, backward),
            forward_comm_s=by_group(forward),
            full_comm_s=by_group(forward & self.again[mine]),
            backward_comm_s=by_group(backward),
            forward_syncs=total(syncs, forward),
            full_syncs=total(syncs, forward & self.again[mine]),
            backward_syncs=total(syncs, backward),
            forward_flop=total(flop, forward),
            selective_flop=total(flop * again, forward),
            backward_flop=total(flop, backward),
            full_s=by_family(forward),
            full_kernels=total(launches, forward),
            full_flop=total(flop, forward),
            forward_host_s=nothing,
            selective_host_s=nothing,
            full_host_s=nothing,
            backward_host_s=nothing,
        )


def _collective_seconds(
    table: OpTable, tables: list[OpTable], owner: list[tuple[int, int, float]], points: Sequence[Point], system: System
) -> F64:
    """Seconds of every collective row; 0 elsewhere."""
    out = np.zeros(len(table))
    rows = np.flatnonzero(table.kind == Kind.COLLECTIVE)
    if not len(rows):
        return out
    point = np.repeat([o[0] for o in owner], [len(t) for t in tables])[rows]
    tp, cp, ep = (np.array([getattr(p, f) for p in points], np.int64)[point] for f in COMM_GROUPS)
    groups = {"tp": tensor_group(system, tp), "cp": context_group(system, tp, cp), "ep": expert_group(system, ep, points[0].etp)}
    short = {name: "|".join(name.split(".")[:2]) for name in dict.fromkeys(table.name[r] for r in rows)}
    kinds = np.array([short[table.name[r]] for r in rows], dtype=object)
    for name in sorted(set(kinds)):
        where = kinds == name
        group_name, op = name.split("|")
        out[rows[where]] = _one_collective(system, op, table.shape[rows[where], :3], groups[group_name], where)
    return out


def _one_collective(system: System, op: str, shape: NDArray[np.int64], group: RankGroup, where: NDArray[np.bool_]) -> F64:
    size, local, concurrent = (g[where] for g in group)
    payload = np.floor(shape[:, 0] * travelling(shape[:, 1], shape[:, 2] / 1e6, size, local)).astype(np.int64)
    seconds = np.zeros(len(payload))
    for c in sorted(set(concurrent.tolist())):
        here = concurrent == c
        seconds[here] = collective_time(system, op, payload[here], size[here], local[here], concurrent=int(c)).time_s
    return seconds
