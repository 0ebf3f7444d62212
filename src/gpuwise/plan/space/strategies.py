"""The space of strategies, enumerated as products of columns: no Python loop walks strategies.

A *row* is a layout with its micro-batch and schedule (tp, pp, cp, ep, dp, micro-batch, accumulation,
schedule, virtual stages, sequence parallelism). Every row meets every *state* choice (sharding, optimizer
offload) and every *activation* choice (recompute, activation offload) its rules allow. Rows with the same
allowed choices form a :class:`Block`, whose columns are arrays [A, 1, 1], [1, S, 1] and [1, 1, R].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gpuwise.plan.space.conditions import Setting
from gpuwise.plan.space.rules import (
    ACTIVATION_RULES,
    LAYOUT_RULES,
    SHAPE_RULES,
    STATE_RULES,
    allowed,
)
from gpuwise.predict.columns import Columns, code_of
from gpuwise.workload.optimizer import BITSANDBYTES
from gpuwise.workload.strategy import ACTIVATIONS, COLUMNS, NEUTRAL, ROWS, SCHEDULES, SHARDINGS, STATES, Strategy

I64 = NDArray[np.int64]
MICRO_BATCH_TOKENS = 131072
"""Micro-batches usually tried go up to this many tokens: beyond it kernels are no more efficient."""
ODD_MICRO_BATCHES = (3, 5, 7)
"""Micro-batches of these multiples of a power of two are tried if they divide the global batch: 576 sequences over 192 ranks
are three per rank, run at once (SmolLM3)."""
HELD = tuple(name for name in STATES if name != "shard_group")
"""Fields that differ between states; the ranks of a shard are constant in the whole space."""
_NEUTRAL = {f: int(getattr(Columns.from_strategies([NEUTRAL]), f)[0]) for f in COLUMNS}
_NEUTRAL_COLUMNS = {f: np.full(1, v, np.int64) for f, v in _NEUTRAL.items()}
"""Codes of a plain strategy: what rows and choices have where a dimension is not theirs."""


@dataclass(frozen=True, slots=True)
class Space:
    """Candidate values of every dimension; the rules decide which combinations exist.

    Each field of :data:`ROWS` is one dimension; ``states`` are values of :data:`HELD` and ``activations`` of
    :data:`ACTIVATIONS` together.
    """

    micro_batch: tuple[int, ...]
    tp: tuple[int, ...]
    pp: tuple[int, ...]
    virtual_stages: tuple[int, ...]
    cp: tuple[int, ...]
    ep: tuple[int, ...]
    sequence_parallel: tuple[bool, ...]
    schedule: tuple[str, ...]
    states: tuple[tuple[str, bool], ...]
    activations: tuple[tuple[str, int, bool], ...]
    dp: tuple[int, ...] = ()
    """Data-parallel degrees to search; empty: any that the other degrees leave."""
    accumulation: tuple[int, ...] = ()
    """Micro-batches per step to search; empty: any that the batch leaves."""
    shard_group: int = 0
    """Ranks that states are sharded over; 0: what is usual."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """``rows`` [A] and the choices for each row, as one product of columns [A, S, R]. Compared by identity, so that results
    can be cached by block."""

    columns: Columns

    @property
    def n_rows(self) -> int:
        """Layouts in the block: A of [A, S, R]."""
        return len(self.columns.tp)

    @property
    def n_choices(self) -> int:
        """Combinations of states and activations that each row meets: S times R."""
        return len(self.columns) // self.n_rows

    def at(self, rows: slice | NDArray[np.intp]) -> Columns:
        """The product of ``rows`` with all choices."""
        c = self.columns
        return replace(c, **{f: getattr(c, f)[rows] for f in ROWS})

    def with_base(self, base: Strategy) -> Block:
        """The same product for another base."""
        return Block(replace(self.columns, base=base))

    def without_activations(self) -> Columns:
        """The product of rows and states with the first choice of what happens to activations."""
        c = self.columns
        return replace(c, **{f: getattr(c, f)[:, :, :1] for f in ACTIVATIONS})

    def least_recomputed(self) -> Block:
        """The product of rows and states with the choice that computes least again, and no copies of activations."""
        c = self.columns
        kind, every = (np.ravel(getattr(c, f)) for f in ("recompute", "recompute_every"))
        i = int(np.lexsort((-every, kind))[0])
        activations = {f: getattr(c, f)[:, :, i : i + 1] for f in ACTIVATIONS}
        return Block(replace(c, **activations | {"offload_activations": np.zeros((1, 1, 1), np.int64)}))

    def row_list(self) -> Columns:
        """The rows alone, as a list [A] of columns with neutral choices."""
        c = self.columns
        return _columns(c.base, **{f: getattr(c, f)[:, 0, 0] for f in ROWS})


def divisors(n: int) -> tuple[int, ...]:
    """All divisors of ``n``, ascending."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return tuple(sorted({*small, *(n // d for d in small)}))


def powers_of_two(limit: int) -> tuple[int, ...]:
    """1, 2, 4 ... up to ``limit``."""
    return tuple(1 << i for i in range(max(limit, 1).bit_length()))


def usual_micro_batches(global_batch: int, largest: int) -> tuple[int, ...]:
    """Powers of two, and those times 3, 5 and 7, up to ``largest`` that can be micro-batches of ``global_batch``, ascending."""
    most = min(largest, global_batch)
    odd = [o * p for o in ODD_MICRO_BATCHES if global_batch % o == 0 for p in powers_of_two(most // o) if o <= most]
    return tuple(sorted({*powers_of_two(most), *odd}))


def full_space(setting: Setting) -> Space:
    """Every combination the model knows: all degrees that can divide, every schedule, sharding, recompute
    and offload."""
    n = setting.topology.n_accelerators
    experts = 1 if setting.arch.moe is None else setting.arch.moe.n_experts
    degrees = divisors(n)
    layers = setting.arch.n_layers
    free = (2, 4, 8) if setting.stack.any_split else ()
    return Space(
        micro_batch=tuple(d for d in divisors(setting.global_batch) if d <= 128),
        tp=degrees,
        pp=degrees,
        virtual_stages=tuple(sorted({*divisors(layers), *divisors(layers + 2), *free})),
        cp=degrees,
        ep=divisors(experts),
        sequence_parallel=(True, False) if setting.stack.sequence_parallel else (False,),
        schedule=SCHEDULES,
        states=tuple((s, o) for s in SHARDINGS for o in (False, True)),
        activations=(
            ("none", 1, False),
            ("none", 1, True),
            ("selective", 1, False),
            ("selective", 1, True),
            *(("full", every, offload) for every in (1, 2, 3, 4, 6, 8) for offload in (False, True)),
        ),
    )


def default_space(setting: Setting) -> Space:
    """The default search space: powers of two (micro-batches also 3, 5 and 7 times those if they divide the batch), up to
    eight virtual stages, sequence parallelism wherever there is tensor parallelism."""
    n = setting.topology.n_accelerators
    whole = full_space(setting)
    largest = min(max(MICRO_BATCH_TOKENS // setting.seq_len, 8), 512)
    return replace(
        whole,
        micro_batch=usual_micro_batches(setting.global_batch, largest),
        virtual_stages=tuple(v for v in whole.virtual_stages if v <= 8),
        cp=powers_of_two(min(n, max(setting.seq_len // 2048, 1))),
        sequence_parallel=whole.sequence_parallel[:1],
        schedule=("1f1b", "interleaved"),
    )


def fixed_space(space: Space, fixed: Mapping[str, int | str | bool]) -> Space:
    """``space`` with the dimensions of ``fixed`` (fields of Strategy) at their one value."""
    values: dict[str, object] = {}
    for name in ROWS:
        if name in fixed:
            values[name] = (fixed[name],)
    if "schedule" not in fixed and fixed.get("virtual_stages", 1) != 1:
        values["schedule"] = ("interleaved",)
    states = [s for s in space.states if _agrees(HELD, s, fixed)]
    kind, every, offload = (fixed.get(f) for f in ("recompute", "recompute_every", "offload_activations"))
    if kind == "full" and every is None:
        every = 1
    if "shard_group" in fixed:
        values["shard_group"] = int(fixed["shard_group"])
        states = [s for s in states if "none" not in s]
    wanted = list(space.activations)
    if every is not None and not any(e == every for _, e, _ in wanted):
        wanted += [("full", int(every), False)]
    if offload and kind is not None:
        wanted += [(r, e, True) for r, e, o in wanted if not o and (r, e, True) not in wanted]
    asked = fixed if every is None else {**fixed, "recompute_every": every}
    activations = tuple(a for a in wanted if _agrees(ACTIVATIONS, a, asked))
    return replace(space, **values, states=tuple(states), activations=activations)


def _agrees(names: Sequence[str], choice: Sequence[int | str | bool], fixed: Mapping[str, int | str | bool]) -> bool:
    """Whether a choice of values of ``names`` has those that are fixed."""
    return all(fixed.get(name) in (None, value) for name, value in zip(names, choice, strict=True))


def offloads(choice: Sequence[int | str | bool]) -> bool:
    """Whether a choice keeps anything in host memory: its flags all say so."""
    return any(value is True for value in choice)


def advised(space: Space, setting: Setting, fixed: Mapping[str, int | str | bool]) -> Space:
    """``space`` without what the stack's own tool has no option for and ``fixed`` does not ask for."""
    replicas = "unsharded" not in setting.stack.asked_only and (setting.stack.widens_unsharded or not setting.widens_gradients)
    if setting.topology.n_accelerators > 1 and not replicas and "sharding" not in fixed:
        space = replace(space, states=tuple((kind, offload) for kind, offload in space.states if kind != "none"))
    left = setting.stack.asked_only - {name for name in fixed if fixed[name]} - {str(fixed.get("recompute"))}
    if not left:
        return space
    activations = tuple(
        (kind, every, offload)
        for kind, every, offload in space.activations
        if not (kind in left or (every > 1 and "recompute_every" in left) or (offload and "offload_activations" in left))
    )
    states = tuple((kind, offload) for kind, offload in space.states if not (offload and "offload_optimizer" in left))
    return replace(space, activations=activations, states=states)


def _columns(base: Strategy, **arrays: I64) -> Columns:
    """Columns from the given arrays; other fields are neutral."""
    return Columns(base, **{f: arrays.get(f, neutral) for f, neutral in _NEUTRAL_COLUMNS.items()})


def _codes(names: Sequence[str], choices: Sequence[Sequence[int | str | bool]]) -> dict[str, I64]:
    """The columns of choices of values of ``names``."""
    return {name: np.array([code_of(name, c[i]) for c in choices], np.int64) for i, name in enumerate(names)}


def _grid(*values: Sequence[int]) -> list[I64]:
    mesh = np.meshgrid(*(np.asarray(v, dtype=np.int64) for v in values), indexing="ij")
    return [m.ravel() for m in mesh]


def _layouts(setting: Setting, space: Space, base: Strategy) -> Columns:
    """All (tp, pp, cp, ep) with their dp that the layout rules allow."""
    tp, pp, cp, ep = _grid(space.tp, space.pp, space.cp, space.ep)
    n = setting.topology.n_accelerators
    fits = (n % (tp * pp * cp)) == 0
    tp, pp, cp, ep = tp[fits], pp[fits], cp[fits], ep[fits]
    c = _columns(base, tp=tp, pp=pp, cp=cp, ep=ep, dp=n // (tp * pp * cp))
    ok = np.broadcast_to(allowed(LAYOUT_RULES, setting, c), tp.shape)
    return _columns(base, **{f: getattr(c, f)[ok] for f in ("tp", "pp", "cp", "ep", "dp")})


def _schedules(space: Space) -> list[tuple[int, int]]:
    """(schedule, virtual stages): interleaving with each number of virtual stages, the others with one."""
    pairs: list[tuple[int, int]] = []
    for name in space.schedule:
        code = SCHEDULES.index(name)
        pairs += [(code, v) for v in space.virtual_stages if v > 1] if name == "interleaved" else [(code, 1)]
    return pairs


def _rows(setting: Setting, space: Space, base: Strategy) -> Columns:
    """All rows, each kind of equal behaviour once: without a pipeline one schedule, without tensor ranks
    one setting of sequence parallelism."""
    layouts = _layouts(setting, space, base)
    pairs = _schedules(space)
    at, mb, pair, sp = _grid(
        range(len(layouts.tp)),
        space.micro_batch,
        range(len(pairs)),
        [int(s) for s in space.sequence_parallel],
    )
    schedule, virtual = (np.array([p[i] for p in pairs], np.int64)[pair] for i in (0, 1))
    row = {f: getattr(layouts, f)[at] for f in ("tp", "pp", "cp", "ep", "dp")}
    first = int(space.sequence_parallel[0])
    keep = (setting.global_batch % (row["dp"] * mb) == 0) & ((row["tp"] > 1) | (sp == first))
    single = [i for i, p in enumerate(pairs) if p[1] == 1]
    plain = pair == next((i for i in single if pairs[i][0] == _NEUTRAL["schedule"]), single[0] if single else -1)
    keep &= (row["pp"] > 1) | plain
    row |= {"micro_batch": mb, "schedule": schedule, "virtual_stages": virtual, "sequence_parallel": sp}
    if space.dp:
        keep &= np.isin(row["dp"], space.dp)
    row = {f: a[keep] for f, a in row.items()}
    row["accumulation"] = setting.global_batch // (row["dp"] * row["micro_batch"])
    if space.accumulation:
        keep = np.isin(row["accumulation"], space.accumulation)
        row = {f: a[keep] for f, a in row.items()}
    c = _columns(base, **row)
    ok = np.broadcast_to(allowed(SHAPE_RULES, setting, c), row["tp"].shape)
    return _columns(base, **{f: getattr(c, f)[ok] for f in ROWS})


@lru_cache(maxsize=128)
def blocks(setting: Setting, space: Space, *bases: Strategy) -> tuple[Block, ...]:
    """The whole space of each base as products, rows with the same allowed choices together. The bases
    share what the setting took from one of them (stack and context exchange)."""
    made: dict[bool, list[Block]] = {}
    for base in bases:
        if (on_gpu := base.optimizer in BITSANDBYTES) not in made:  # required by a rule
            made[on_gpu] = _blocks(setting, space, base)
    return tuple(block.with_base(base) for base in bases for block in made[base.optimizer in BITSANDBYTES])


def _blocks(setting: Setting, space: Space, base: Strategy) -> list[Block]:
    rows = _rows(setting, space, base)
    n = len(rows.tp)
    if n == 0:
        return []
    state = _codes(HELD, space.states) | {"shard_group": np.full(len(space.states), space.shard_group, np.int64)}
    activation = _codes(ACTIVATIONS, space.activations)
    column = {f: getattr(rows, f)[:, None] for f in ROWS}
    masks = [
        np.broadcast_to(
            allowed(rules, setting, _columns(base, **column, **{f: a[None, :] for f, a in choice.items()})),
            (n, len(next(iter(choice.values())))),
        )
        for rules, choice in ((STATE_RULES, state), (ACTIVATION_RULES, activation))
    ]
    bits_of = np.concatenate(masks, axis=1)
    code = bits_of @ (1 << np.arange(bits_of.shape[1], dtype=np.int64)[::-1])
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    n_states = len(space.states)
    found: list[Block] = []
    for i, bits in enumerate(bits_of[first]):
        mine = inverse == i
        if not bits[:n_states].any() or not bits[n_states:].any():
            continue
        fields = {f: getattr(rows, f)[mine][:, None, None] for f in ROWS}
        fields |= {f: a[bits[:n_states]][None, :, None] for f, a in state.items()}
        fields |= {f: a[bits[n_states:]][None, None, :] for f, a in activation.items()}
        found.append(Block(_columns(base, **fields)))
    return found
