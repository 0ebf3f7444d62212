"""What one micro-batch costs on one rank: op tables evaluated once per distinct (micro-batch, tp, cp, ep, sp).

A search has millions of strategies but only hundreds of these points; everything else in a step is algebra on them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.systems import System
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.comm.collectives import collective_time
from gpuwise.predict.comm.groups import RankGroup, context_group, expert_group, tensor_group, travelling
from gpuwise.predict.estimate import Basis, weakest
from gpuwise.predict.kernels.conditions import Conditions
from gpuwise.predict.kernels.registry import DistinctCalls
from gpuwise.predict.memory.saved import SavedBytes, collect, point_saved
from gpuwise.workload.blocks.kinds import leading_layers
from gpuwise.workload.blocks.point import Point
from gpuwise.workload.row_codes import Kind, Phase
from gpuwise.workload.step import OpTable, concatenate
from gpuwise.workload.transformer.tables import recomputed_share, transformer_tables

if TYPE_CHECKING:
    from gpuwise.predict.step.per_op import PartSums

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
COMM_GROUPS = ("tp", "cp", "ep")
PARTS, PASSES = ("layer", "embedding", "head", "lead"), 2
_N_CELLS = len(PARTS) * PASSES
FEW = 32
"""Number of points up to which the rows of a list are small enough to cache more lists for another device."""


@dataclass(frozen=True, slots=True)
class PartCosts:
    """Arrays [P] over points. For ``layer`` and ``lead``: one (mean) layer; for the ends: the whole end.

    Seconds of device kernels by phase and family (``matmul``, ``attention``, ``memory``), launches, and collective seconds by
    group. ``selective`` is the part that selective recompute repeats, ``full`` that of full recompute. Host seconds exist for
    stacks timed operation by operation; otherwise they are 0 and follow from the launches.
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
    """Number of collectives, each weighted by log2(group): how often ranks synchronise."""
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
    saved: SavedBytes[F64]
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


@dataclass(frozen=True, slots=True)
class _PointTables:
    """Tables of a point in order, each with its part (an index into :data:`PARTS`), its weight in a mean layer, the share of
    its rows that selective recompute repeats, and the bytes saved for the backward."""

    tables: tuple[OpTable, ...]
    part: tuple[int, ...]
    weight: tuple[float, ...]
    repeated: tuple[F64, ...]
    saved: SavedBytes[float]


@lru_cache(maxsize=2048)
def _tables(arch: Architecture, point: Point) -> _PointTables:
    """Tables and saved bytes of a point: the same on every device, so that comparing devices builds them once."""
    t = transformer_tables(arch, point)
    n_lead = leading_layers(arch)
    layered = [(kind == "dense" and n_lead > 0, table, t.layer_counts[kind]) for kind, table in t.layers.items()]
    if t.encoder is not None:
        layered.append((False, t.encoder, t.encoder_layers))
    tables = (*(table for _, table, _ in layered), t.embedding, t.head)
    weights = [1.0 if lead else count / (_n_layers(arch) - n_lead) for lead, _, count in layered]
    return _PointTables(
        tables,
        (*(3 if lead else 0 for lead, _, _ in layered), 1, 2),
        (*weights, 1.0, 1.0),
        tuple(recomputed_share(table, point.stack.selective_recompute) for table in tables),
        point_saved(arch, point, t),
    )


def _n_layers(arch: Architecture) -> float:
    return float(arch.n_layers + (arch.encoder.n_layers if arch.encoder else 0))


def point_costs(
    arch: Architecture,
    points: Sequence[Point],
    system: System,
    kernels: dict[str, str] | None = None,
    timed: Collection[int] | None = None,
) -> PointCosts:
    """Evaluate every point's tables in one pass over the kernel model and the collectives; the latest are remembered. Where
    operations are timed one by one, which takes long, only the points ``timed`` (positions; None: all) have times, the others
    NaN.
    """
    if all(p.stack.per_op for p in points):
        from gpuwise.predict.step.per_op import described  # other stacks need no model of single operations

        if described(arch, points):
            return _per_op_costs(arch, points, system.accelerator, timed)
    return _point_costs(arch, tuple(points), system, None if kernels is None else tuple(kernels.items()))


@lru_cache(maxsize=128)
def _point_costs(
    arch: Architecture, points: tuple[Point, ...], system: System, kernels: tuple[tuple[str, str], ...] | None
) -> PointCosts:
    """:func:`point_costs` for stacks that are not timed operation by operation."""
    rows = (_rows if len(points) > FEW else _few_rows)(arch, points)
    chosen = {"attention": points[0].stack.attention_kernel} if kernels is None else dict(kernels)
    times = rows.calls.times(system.accelerator, Conditions(implementation=chosen))
    layer, embedding, head, lead = rows.parts(times.time_s * rows.times, rows.collectives.seconds(system) * rows.times)
    return PointCosts(
        points=points,
        n_layers=_n_layers(arch),
        n_lead=float(leading_layers(arch)),
        layer=layer,
        lead=lead,
        embedding=embedding,
        head=head,
        saved=rows.saved,
        log_sigma=_spread(times.time_s * rows.count * rows.run, times.log_sigma, rows.family, rows.point, len(points)),
        basis=times.basis,
    )


def _per_op_costs(
    arch: Architecture, points: Sequence[Point], accelerator: Accelerator, timed: Collection[int] | None
) -> PointCosts:
    """Costs of points whose operations are timed one by one: the same on one accelerator and on several."""
    from gpuwise.predict.step.per_op import UNTIMED, point_sums

    n_lead = leading_layers(arch)
    at = range(len(points)) if timed is None else sorted(timed)
    sums = dict(zip(at, point_sums(arch, [points[i] for i in at], accelerator, n_lead), strict=True))
    point_parts = [sums.get(i, UNTIMED) for i in range(len(points))]
    bases: list[Basis] = [m.basis for m in point_parts]
    return PointCosts(
        points=tuple(points),
        n_layers=float(arch.n_layers),
        n_lead=float(n_lead),
        layer=_columns([m.layer for m in point_parts]),
        lead=_columns([m.lead for m in point_parts]),
        embedding=_columns([m.embedding for m in point_parts]),
        head=_columns([m.head for m in point_parts]),
        saved=collect([_tables(arch, point).saved for point in points]),
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


@dataclass(frozen=True, slots=True)
class _Collectives:
    """Collectives of a table of R rows without duplicates: payload and group size of each."""

    n_rows: int
    at: I64
    """Rows that are collectives, and ``which`` of the distinct ones each is."""
    which: I64
    kind: NDArray[np.object_]
    """Group and operation: ``tp.all_gather``."""
    shape: I64
    degrees: dict[str, I64]
    expert_tensor_ranks: int

    @classmethod
    def of(cls, table: OpTable, point: I64, points: Sequence[Point]) -> _Collectives:
        at = np.flatnonzero(table.kind == Kind.COLLECTIVE)
        kinds = {name: ".".join(name.split(".")[:2]) for name in dict.fromkeys(table.name[r] for r in at)}
        order = {kind: i for i, kind in enumerate(dict.fromkeys(kinds.values()))}
        code = np.array([order[kinds[table.name[r]]] for r in at], np.int64)
        degrees = np.array([[getattr(p, g) for g in COMM_GROUPS] for p in points], np.int64)[point[at]]
        keys = np.column_stack([code, table.shape[at, :3], degrees])
        few, which = np.unique(keys, axis=0, return_inverse=True)
        return cls(
            len(table),
            at,
            which.reshape(-1),
            np.array(list(order), object)[few[:, 0]],
            few[:, 1:4],
            {g: few[:, 4 + i] for i, g in enumerate(COMM_GROUPS)},
            points[0].etp,
        )

    def seconds(self, system: System) -> F64:
        """Seconds of every collective row; 0 elsewhere."""
        out = np.zeros(self.n_rows)
        if not len(self.at):
            return out
        tp, cp, ep = (self.degrees[g] for g in COMM_GROUPS)
        groups = {
            "tp": tensor_group(system, tp),
            "cp": context_group(system, tp, cp),
            "ep": expert_group(system, ep, self.expert_tensor_ranks),
        }
        seconds = np.zeros(len(self.kind))
        for kind in sorted(set(self.kind)):
            where = self.kind == kind
            group, op = kind.split(".")
            seconds[where] = _one_collective(system, op, self.shape[where], groups[group], where)
        out[self.at] = seconds[self.which]
        return out


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows [R] of all tables of P points, and where each is summed: what is the same on every device."""

    calls: DistinctCalls
    collectives: _Collectives
    saved: SavedBytes[F64]
    n_points: int
    count: F64
    run: F64
    """Number of model layers that a row's table represents."""
    times: F64
    """Launches in a mean layer, or in an end."""
    point: I64
    family: I64
    """Index into FAMILIES."""
    kernel_cell: I64
    """Place of a kernel in [parts x passes, families, P]; of what is in no sum, beyond the last."""
    comm_cell: I64
    """Place of a collective in [parts x passes, groups, P]."""
    cell: I64
    """Place of a row in [parts x passes, P]."""
    repeated: F64
    """Share of a row that selective recompute runs again."""
    regathered: F64
    """1 for collectives that full recompute runs beside those of the backward."""
    wgrad: F64
    """1 for products that are weight gradients."""
    fixed: dict[str, F64]
    """[parts x passes, P] launches, FLOP and waits."""

    @classmethod
    def of(cls, arch: Architecture, points: tuple[Point, ...]) -> _Rows:
        """Collectives of the tables of ``points``, in one table."""
        each = [_tables(arch, point) for point in points]
        table, n = concatenate([t for one in each for t in one.tables]), len(points)
        lengths = [len(t) for one in each for t in one.tables]
        point = np.repeat(np.repeat(np.arange(n), [len(one.tables) for one in each]), lengths)
        part, weight = (np.repeat(np.concatenate([getattr(one, f) for one in each]), lengths) for f in ("part", "weight"))
        repeated = np.concatenate([share for one in each for share in one.repeated])
        n_lead = float(leading_layers(arch))
        stands_for = np.array([_n_layers(arch) - n_lead, 1.0, 1.0, n_lead])
        comm, family = table.kind == Kind.COLLECTIVE, _family(table.kind)
        names = {name: i for i, name in enumerate(dict.fromkeys(table.name))}
        name = np.array([names[n] for n in table.name], np.int64)
        group = np.array([COMM_GROUPS.index(n[:2]) if n[:2] in COMM_GROUPS else 0 for n in names], np.int64)[name]
        gathers = np.array([n.startswith("tp.all_gather.") for n in names], bool)[name]
        backward = table.phase == Phase.BACKWARD
        where = np.where(backward | (table.phase == Phase.FORWARD), PASSES * part + backward, _N_CELLS)
        times, cell = table.count * weight, where * n + point
        degrees = np.array([[getattr(p, g) for g in COMM_GROUPS] for p in points], np.float64)[point, group]
        regathered = (comm & (points[0].stack.recompute_regathers | ~gathers)).astype(np.float64)
        launches, flop, syncs = table.n_kernels * times, table.flop * times, np.where(comm, np.log2(degrees), 0.0) * times
        summed = {
            "kernels": launches,
            "flop": flop,
            "syncs": syncs,
            "selective_kernels": launches * repeated,
            "selective_flop": flop * repeated,
            "full_syncs": syncs * regathered,
        }
        return cls(
            calls=DistinctCalls.of(table),
            collectives=_Collectives.of(table, point, points),
            saved=collect([one.saved for one in each]),
            n_points=n,
            count=table.count,
            run=weight * stands_for[part],
            times=times,
            point=point,
            family=family,
            kernel_cell=(np.where(comm, _N_CELLS, where) * len(FAMILIES) + family) * n + point,
            comm_cell=(np.where(comm, where, _N_CELLS) * len(COMM_GROUPS) + group) * n + point,
            cell=cell,
            repeated=repeated,
            regathered=regathered,
            wgrad=(np.array([n.endswith(".wgrad") for n in names], bool)[name] & ~comm).astype(np.float64),
            fixed={name: _summed(cell, values, n) for name, values in summed.items()},
        )

    def parts(self, cost_s: F64, comm_s: F64) -> tuple[PartCosts, ...]:
        """Sums of the rows of each of :data:`PARTS`, in their order."""
        n, kernel, comm = self.n_points, self.kernel_cell, self.comm_cell
        seconds, again = (_summed(kernel, v, len(FAMILIES), n) for v in (cost_s, cost_s * self.repeated))
        exchange, full = (_summed(comm, v, len(COMM_GROUPS), n) for v in (comm_s, comm_s * self.regathered))
        wgrad, fixed, nothing = _summed(self.cell, cost_s * self.wgrad, n), self.fixed, np.zeros(n)

        def families(of: F64) -> dict[str, F64]:
            return dict(zip(FAMILIES, of, strict=True))

        def groups(of: F64) -> dict[str, F64]:
            return dict(zip(COMM_GROUPS, of, strict=True))

        return tuple(
            PartCosts(
                forward_s=families(seconds[f]),
                selective_s=families(again[f]),
                backward_s=families(seconds[b]),
                wgrad_s=wgrad[b],
                forward_kernels=fixed["kernels"][f],
                selective_kernels=fixed["selective_kernels"][f],
                backward_kernels=fixed["kernels"][b],
                forward_comm_s=groups(exchange[f]),
                full_comm_s=groups(full[f]),
                backward_comm_s=groups(exchange[b]),
                forward_syncs=fixed["syncs"][f],
                full_syncs=fixed["full_syncs"][f],
                backward_syncs=fixed["syncs"][b],
                forward_flop=fixed["flop"][f],
                selective_flop=fixed["selective_flop"][f],
                backward_flop=fixed["flop"][b],
                full_s=families(seconds[f]),
                full_kernels=fixed["kernels"][f],
                full_flop=fixed["flop"][f],
                forward_host_s=nothing,
                selective_host_s=nothing,
                full_host_s=nothing,
                backward_host_s=nothing,
            )
            for f, b in ((i, i + 1) for i in range(0, _N_CELLS, PASSES))
        )


def _spread(seconds: F64, log_sigma: F64, family: I64, point: I64, n_points: int) -> F64:
    """[P] spread of the sum of rows [R]: kernels of a family miss together, families apart, as in a captured step."""
    n = len(FAMILIES)
    each = np.bincount(point * n + family, weights=seconds * log_sigma, minlength=n_points * n).reshape(n_points, n)
    whole = np.bincount(point, weights=seconds, minlength=n_points)
    return np.sqrt((each**2).sum(axis=1)) / np.maximum(whole, 1e-300)


@lru_cache(maxsize=6)
def _rows(arch: Architecture, points: tuple[Point, ...]) -> _Rows:
    return _Rows.of(arch, points)


_few_rows = lru_cache(maxsize=32)(_rows.__wrapped__)


def _summed(cell: I64, values: F64, *shape: int) -> F64:
    """[parts x passes, *shape] sums of ``values`` by the cell of each, in the order of the rows."""
    size = math.prod(shape)
    sums = np.bincount(cell, weights=values, minlength=(_N_CELLS + 1) * size).astype(np.float64, copy=False)
    return sums[: _N_CELLS * size].reshape(_N_CELLS, *shape)


def _one_collective(system: System, op: str, shape: NDArray[np.int64], group: RankGroup, where: NDArray[np.bool_]) -> F64:
    size, local, concurrent = (g[where] for g in group)
    payload = np.floor(shape[:, 0] * travelling(shape[:, 1], shape[:, 2] / 1e6, size, local)).astype(np.int64)
    seconds = np.zeros(len(payload))
    for c in sorted(set(concurrent.tolist())):
        here = concurrent == c
        seconds[here] = collective_time(system, op, payload[here], size[here], local[here], concurrent=int(c)).time_s
    return seconds
