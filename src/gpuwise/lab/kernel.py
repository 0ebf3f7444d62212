"""A kernel in Python, read and run for its values: every lane of every block at once, statement by statement.

The form is numba-CUDA's: ``cuda.threadIdx.x``, ``cuda.grid(1)``, ``cuda.shared.array(256, float32)``, ``cuda.syncthreads()``,
``cuda.shfl_down_sync(mask, value, n)``, ``cuda.atomic.add(array, index, value)``, ``math.exp``, ``range``, ``while``, ``if``,
device functions and constants of the module. The source is read as a syntax tree and never executed as Python, so nothing but
arithmetic on the given arrays can happen.

Numbers have numba's types: a float is a float64 and an integer an int64, so a sum that begins with ``0.0`` is in float64. A
literal that float32 represents exactly does not widen the other operand, as the compiler narrows it again.

Branches run under a mask of lanes; a warp that has lanes on both sides runs both. Each operation becomes one :class:`Event` of
the instruction stream, with the events it waits for. Compiler optimisations are applied: a product and a sum are one
instruction; sums and products shared by all lanes, and an index offset by a shared number, are free; an earlier result is
reused; loops with constant bounds are unrolled, others by four.
"""

# pyright: basic
from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import InputError
from gpuwise.lab import arrays
from gpuwise.lab.access import WARP
from gpuwise.lab.arrays import Array, Order, make_array
from gpuwise.lab.compiler import NUMBA, Compiler
from gpuwise.lab.intrinsics import ATOMICS, compare_and_swap, run_atomic
from gpuwise.lab.numbers import (
    Lanes,
    LiteralFloat,
    LiteralWhole,
    UnrolledIndex,
    cast_to,
    common,
    data_of,
    literal,
    source_of,
)
from gpuwise.lab.operations import BINARY, COMPARE, Operations, if_false, if_true, member_of, merged, three
from gpuwise.lab.random_states import random_functions
from gpuwise.lab.source import DTYPES, Kernel, as_load, predicable, work_of
from gpuwise.lab.stream import Local, Mask, Part, Run, Slice, noun

UNROLLED, UNROLLED_WORK, UNROLL = 64, 300, 4
"""Maximum turns and work up to which a loop with literal bounds is fully unrolled; unroll factor of other loops."""
GLOBAL_ALIGNMENT = 256
"""cudaMalloc aligns to this."""
RETURNED, VALUE, SPLIT = "\0returned", "\0value", "\0split"
"""Beside the names of a function: the lanes that have left it, what it gives, and of a name the lanes whose array it is."""
MOST_LOCAL = 1 << 14
MOST_CALLS = 16
"""Device functions inside each other: none calls itself on a GPU without a stack."""


def run_kernel(
    kernel: Kernel,
    arguments: Mapping[str, Any],
    *,
    grid: Sequence[int],
    block: Sequence[int],
    blocks: Sequence[int] | NDArray[np.int64] | None = None,
    timed_blocks: int | None = None,
    dynamic_smem: int = 0,
    compiler: Compiler = NUMBA,
) -> Run:
    """Run ``blocks`` (all) of a launch of ``grid`` blocks of ``block`` threads (each up to three sizes, x first).

    Of the first ``timed_blocks`` (all) the accesses are looked at one by one, which takes longer than the values.
    ``dynamic_smem`` is the bytes of ``cuda.shared.array(0, dtype)``, the last number of numba's launch.

    Arrays of ``arguments`` are read and written in place. Raises FieldError for what the form has not (with the line),
    InputError for a kernel that does not end or arguments that do not fit.
    """
    names = kernel.parameters
    if sorted(names) != sorted(arguments):
        missing = [n for n in names if n not in arguments]
        how = f"; missing: {', '.join(missing)} (gpuwise lab simulate: --arg {missing[0]}=4096)" if missing else ""
        raise InputError(f"{kernel.name} takes {', '.join(names)}", hint=f"given: {', '.join(arguments) or 'nothing'}{how}")
    machine = _Machine(kernel, arguments, grid, block, blocks, timed_blocks)
    machine.dynamic_smem, machine.compiler = dynamic_smem, compiler
    return machine.run()


class _Machine(Operations):
    """The state of one run."""

    def __init__(
        self, kernel: Kernel, arguments: Mapping[str, Any], grid: Any, block: Any, blocks: Any, timed_blocks: int | None
    ) -> None:
        super().__init__()
        self.kernel, self.name = kernel, kernel.name
        self.grid, self.block = three(grid), three(block)
        threads = math.prod(self.block)
        if threads > 1024:
            raise InputError(f"a block of {threads:,} threads: a launch takes 1,024 at most", hint="use smaller blocks, and more")
        total = math.prod(self.grid)
        ids = np.arange(total) if blocks is None else np.asarray(blocks, np.int64)
        self.padded = -(-threads // WARP) * WARP
        self.warps = len(ids) * self.padded // WARP
        lane = np.tile(np.arange(self.padded), len(ids))
        self.block_of = np.repeat(np.arange(len(ids)), self.padded)
        self.lane, self.every_lane = lane, np.arange(len(lane))
        self.whole = lane < threads
        bx, by, _ = self.block
        gx, gy, _ = self.grid
        number = np.repeat(ids, self.padded)
        self.special = {
            "threadIdx.x": Lanes(lane % bx),
            "threadIdx.y": Lanes(lane // bx % by),
            "threadIdx.z": Lanes(lane // (bx * by)),
            "blockIdx.x": Lanes(number % gx),
            "blockIdx.y": Lanes(number // gx % gy),
            "blockIdx.z": Lanes(number // (gx * gy)),
            **{f"blockDim.{axis}": size for axis, size in zip("xyz", self.block, strict=True)},
            **{f"gridDim.{axis}": size for axis, size in zip("xyz", self.grid, strict=True)},
            "laneid": Lanes(lane % WARP),
            "warpsize": WARP,
        }
        self.thread = number * threads + np.minimum(lane, threads - 1)
        self.order = Order(threads, np.zeros(self.warps, np.int32))
        self.out = Run([], [], ids, self.padded // WARP, 0)
        self.line, self.next_base, self.locals, self.calls = kernel.function.lineno, 0, 0, 0
        self.base = self.whole
        """Lanes that entered the function at hand."""
        self.timed = self.warps if timed_blocks is None else min(timed_blocks, len(ids)) * self.padded // WARP
        self.names: dict[str, Any] = {}
        self.reassigned, only_read = kernel.reassigned(), kernel.only_read()
        for name, value in arguments.items():
            array = isinstance(value, np.ndarray)
            self.names[name] = self._global(name, value, watched=name not in only_read) if array else value
        self.main = self.names
        self.constants: dict[str, Any] = {n: literal(v) for n, v in kernel.constants.items() if not isinstance(v, np.ndarray)}
        tables = kernel.constants.keys() - self.constants
        self.constants |= {n: self._global(n, kernel.constants[n], watched=False) for n in sorted(tables)}
        self.broken: list[Mask] = []
        self.continued: list[Mask] = []
        self.random = False
        """Whether a function of :mod:`gpuwise.lab.random_states` is run: its lines are the caller's."""
        self.words: dict[ast.expr, str] = {}
        self.literals: dict[ast.expr, Any] = {}
        self.slices: dict[ast.expr, bool] = {}

    def run(self) -> Run:
        with np.errstate(all="ignore"):
            self.emit("int", self.whole, (), times=self.compiler.entry)
            self._block(self.kernel.function.body, self.whole)
            self.look_at_accesses()
        self.out.arrays = {n: a.data.reshape(a.shape) for n, a in self.names.items() if isinstance(a, Array) and not a.shared}
        return self.out

    def dotted(self, e: ast.expr) -> str:
        words = self.words.get(e)
        if words is None:
            words = self.words[e] = self.kernel.dotted(e)
        return words

    # --- statements ---

    def _block(self, body: list[ast.stmt], mask: Mask) -> Mask:
        """The lanes that go on behind ``body``."""
        for statement in body:
            if not self.lanes_of(mask)[1]:
                break
            if not self.random:
                self.line = statement.lineno
            mask = self._statement(statement, mask)
        return mask

    def _statement(self, s: ast.stmt, mask: Mask) -> Mask:
        match s:
            case ast.Assign(targets=targets, value=value):
                value_lanes = self._value(value, mask)
                for target in targets:
                    self._assign(target, value_lanes, mask)
            case ast.AugAssign(target=target, op=op, value=value):
                load = ast.copy_location(as_load(target), s)
                self._assign(target, self._binary(op, load, value, mask), mask)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, self._value(value, mask), mask)
            case ast.If(test=test, body=body, orelse=orelse):
                return self._if(test, body, orelse, mask)
            case ast.For(target=target, iter=ast.Tuple() | ast.List() | ast.Name() as parts, body=body, orelse=[]):
                self._for_each(target, parts, body, mask)
                return self._inside_function(mask)
            case ast.For(target=ast.Name(id=name), iter=ast.Call(args=bounds) as call, body=body, orelse=[]) if self.dotted(
                call.func
            ).removesuffix("prange") in ("range", ""):
                self._for(name, bounds, body, mask)
                return self._inside_function(mask)
            case ast.While(test=test, body=body, orelse=[]):
                self._while(test, body, mask)
                return self._inside_function(mask)
            case ast.Return(value=value):
                if self.calls and value is not None:
                    self._keep(VALUE, self._value(value, mask), mask)
                elif value is not None and not isinstance(value, ast.Constant):
                    self.refuse("a kernel returns nothing: it writes to its arrays")
                self.returned = self.returned | mask
                return np.zeros_like(mask)
            case ast.Break():
                self.broken[-1] |= mask
                return np.zeros_like(mask)
            case ast.Continue():
                self.continued[-1] |= mask
                return np.zeros_like(mask)
            case ast.Expr(value=ast.Constant()) | ast.Pass() | ast.Assert():
                pass
            case ast.Expr(value=ast.Call(func=ast.Name(id="print"))):
                pass
            case ast.Expr(value=ast.Attribute() as named):
                self.refuse(f"{ast.unparse(named)} without () does nothing: call it")
            case ast.Expr(value=ast.Call() as call):
                self._call(call, mask, used=False)
            case ast.For(orelse=[_, *_]) | ast.While(orelse=[_, *_]):
                self.refuse("a loop with an else is not of this form")
            case ast.For(iter=values):
                self.refuse(f"a loop must be over range(...) or literal values, not {ast.unparse(values)[:80]}")
            case _:
                self.refuse(f"a {type(s).__name__.lower()} statement is not of this form")
        return mask

    @property
    def returned(self) -> Mask:
        return cast(Mask, self.names.get(RETURNED, np.zeros(len(self.whole), bool)))

    @returned.setter
    def returned(self, mask: Mask) -> None:
        self.names[RETURNED] = mask

    @property
    def exited(self) -> Mask:
        """Lanes whose kernel has ended."""
        return cast(Mask, self.main.get(RETURNED, np.zeros(len(self.whole), bool)))

    def _if(self, test: ast.expr, body: list[ast.stmt], orelse: list[ast.stmt], mask: Mask) -> Mask:
        chosen = self._value(test, mask)
        if not isinstance(chosen, Lanes):
            return self._block(body if chosen else orelse, mask)
        yes = self._chosen(mask, chosen)
        no = mask & ~yes
        if not orelse and predicable(body):
            before, self.predicate = self.predicate, (*self.predicate, *chosen.source)
            self._block(body, yes)
            self.predicate = before
            return mask
        self.emit("branch", mask, chosen.source)
        after_yes = self._block(body, yes) if self.lanes_of(yes)[1] else yes
        if yes is mask:
            return after_yes
        after_no = self._block(orelse, no) if no.any() else no
        return after_yes | after_no

    def _chosen(self, mask: Mask, chosen: Lanes) -> Mask:
        """The lanes of ``mask`` for which a condition holds: ``mask`` itself where it does for all."""
        yes = mask & chosen.data.astype(bool)
        return mask if np.count_nonzero(yes) == self.lanes_of(mask)[1] else yes

    def _for(self, name: str, bounds: list[ast.expr], body: list[ast.stmt], mask: Mask) -> None:
        values = [self._value(b, mask) for b in bounds]
        start, stop, step = (0, values[0], 1) if len(values) == 1 else (*values, 1)[:3]
        self.broken.append(np.zeros_like(mask))
        if any(isinstance(v, Lanes) for v in (start, stop, step)):
            self._for_lanes(name, start, stop, step, body, mask)
        else:
            turns = range(int(start), int(stop), int(step))
            unrolled = len(turns) <= UNROLLED and all(isinstance(v, LiteralWhole) for v in values)
            unrolled = unrolled and len(turns) * work_of(body) <= UNROLLED_WORK
            self.loops += not unrolled
            last: NDArray[np.int64] | None = None
            for turn in turns:
                live = self._going(mask)
                if not live.any():
                    break
                if live is not mask:
                    last = np.full(mask.shape, turn - turns.step) if last is None else last
                    last[live] = turn
                if not unrolled and (turn - turns.start) // turns.step % UNROLL == 0:
                    self.emit("int", live, ())
                    self.emit("branch", live, (len(self.out.events) - 1,))
                self.names[name] = UnrolledIndex(turn) if unrolled else turn
                self._turn(body, live)
            if last is not None and isinstance(self.names.get(name), int):  # each lane has that of its last turn
                self.names[name] = Lanes(last)
        self.broken.pop()

    def _for_lanes(self, name: str, start: Any, stop: Any, step: Any, body: list[ast.stmt], mask: Mask) -> None:
        """A loop with a different number of turns per lane: unrolled by four if it has no early exit, the remainder turn by
        turn, all lanes together."""
        first, by = (np.broadcast_to(data_of(v), mask.shape).astype(np.int64) for v in (start, step))
        if (by[mask] == 0).any():
            self.refuse("a loop does not end whose step is 0")
        turns = np.where(mask, np.maximum(-((first - data_of(stop)) // np.where(by == 0, 1, by)), 0), 0)
        leaves = any(isinstance(n, ast.Break | ast.Return) for s in body for n in ast.walk(s))
        together = turns if leaves else turns // UNROLL * UNROLL
        counter, line, shown = Lanes(first, source_of(start)), self.line, first
        for begin, end, every in ((np.zeros_like(turns), together, 1 if leaves else UNROLL), (together, turns, 1)):
            for turn in range(int((end - begin).max(initial=0))):
                live = mask & (begin + turn < end) & ~self.broken[-1] & ~self.returned
                if not live.any():
                    break
                self.line = line
                if turn % every == 0:
                    self.emit("branch", live, (*counter.source, *source_of(stop)))
                shown = np.where(live, first + (begin + turn) * by, shown)
                self.names[name] = Lanes(shown, counter.source)
                self._turn(body, live)
                self.line = line
                if turn % UNROLL == 0:
                    counter = Lanes(first, self.emit("int", live, (*counter.source, *source_of(step))))

    def _for_each(self, target: ast.expr, values: ast.expr, body: list[ast.stmt], mask: Mask) -> None:
        parts = values.elts if isinstance(values, ast.Tuple | ast.List) else self._value(values, mask)
        if not isinstance(parts, list | tuple):
            self.refuse(f"a loop must be over range(...) or literal values, not {noun(parts)}")
        self.broken.append(np.zeros_like(mask))
        for part in parts:
            live = self._going(mask)
            if not live.any():
                break
            value = self._value(part, live) if isinstance(part, ast.expr) else part
            if isinstance(target, ast.Name):
                self.names[target.id] = value
            else:
                self._assign(target, value, live)
            self._turn(body, live)
        self.broken.pop()

    def _while(self, test: ast.expr, body: list[ast.stmt], mask: Mask) -> None:
        ways_out = any(isinstance(n, ast.Break | ast.Return) for s in body for n in ast.walk(s))
        if isinstance(test, ast.Constant) and test.value and not ways_out:
            self.refuse(f"`while {ast.unparse(test)}` has neither break nor return: it never ends")
        self.broken.append(np.zeros_like(mask))
        self.lock = self.lock or any(
            isinstance(n, ast.Call) and self.dotted(n.func).startswith("atomic.") for n in ast.walk(test)
        )
        while True:
            live = self._going(mask)
            if not live.any():
                break
            going = self._value(test, live)
            if not isinstance(going, Lanes) and not going:
                break
            live = self._chosen(live, going) if isinstance(going, Lanes) else live
            self.count_turn(test, body, live, going)
            if not live.any():
                break
            mask = live
            self._turn(body, live)
        self.broken.pop()

    def _going(self, mask: Mask) -> Mask:
        """The lanes that neither left the loop nor the function: ``mask`` itself where all of them go on."""
        broken = self.broken[-1]
        if RETURNED in self.names:
            return mask & ~broken & ~self.returned
        return mask & ~broken if broken.any() else mask

    def _inside_function(self, mask: Mask) -> Mask:
        """The lanes that have not left the function."""
        return mask & ~self.returned if RETURNED in self.names else mask

    def _turn(self, body: list[ast.stmt], live: Mask) -> None:
        self.continued.append(np.zeros_like(live))
        self._block(body, live)
        self.continued.pop()

    def _assign(self, target: ast.expr, value: Any, mask: Mask) -> None:
        if isinstance(target, ast.Name):
            if isinstance(value, Array) and value.shared and value.name.startswith("shared, line"):
                value.name = target.id
            self._keep(target.id, value, mask)
        elif isinstance(target, ast.Subscript) and isinstance(local := self._value(target.value, mask), Local):
            self._keep_local(local, target.slice, value, mask)
        elif isinstance(found := self._member(target, mask), tuple):
            self.store(*found, value, mask)
        elif isinstance(target, ast.Subscript):
            lanes = self._place(target, mask)
            if isinstance(lanes, Part) and lanes.array.data.dtype.names:
                self.refuse(f"a record of {lanes.array.name} is set field by field")
            if not isinstance(lanes, tuple):
                self.refuse(f"{lanes.array.name} has {len(lanes.array.shape)} dimensions: one element of it is set at a time")
            array, index = lanes
            self.store(array, index, value, mask)
        elif isinstance(target, ast.Tuple | ast.List) and isinstance(value, tuple):
            if len(target.elts) != len(cast("tuple[Any, ...]", value)):
                self.refuse(f"{len(target.elts)} names for {len(cast('tuple[Any, ...]', value))} values")
            for part, piece in zip(target.elts, cast("tuple[Any, ...]", value), strict=True):
                self._assign(part, piece, mask)
        elif isinstance(target, ast.Tuple | ast.List):
            self.refuse(f"{len(target.elts)} names for one value")
        else:
            self.refuse("only names and elements of arrays can be assigned")

    def _element(self, local: Local, index: ast.expr, mask: Mask) -> tuple[Lanes | tuple[int, ...], NDArray[np.int64]]:
        """An element of an array of each thread: its indices, or those of every lane; and the flat index of every lane."""
        parts = self._indices(index, mask)
        if len(parts) != len(local.shape):
            self.refuse(f"{local.name} has {len(local.shape)} dimensions, not {len(parts)}")
        if not local.in_memory:
            at = 0
            for part, size in zip(parts, local.shape, strict=True):
                if not isinstance(part, int) or isinstance(part, bool) or not 0 <= part < size:
                    break
                at = at * size + part
            else:
                return parts, np.array((at,))
        flat = np.zeros(len(mask), np.int64)
        for part, size in zip(parts, local.shape, strict=True):
            data = np.broadcast_to(data_of(part), mask.shape)
            if data.dtype.kind not in "iu":
                self.refuse("an index is a whole number")
            bad = mask & ((data < 0) | (data >= size))
            if bad.any():
                first = int(np.flatnonzero(bad)[0])
                which = f"element {int(data[first])} of {local.name}, the last is {size - 1}"
                self.find("out of bounds", f"{self.who(first)} touches {which}")
            flat = flat * size + np.clip(data, 0, size - 1)
        local.in_memory |= any(isinstance(p, Lanes) for p in parts)
        if local.in_memory:
            return Lanes(flat, tuple(n for p in parts for n in source_of(p))), flat
        return tuple(int(p) for p in parts), flat

    def _local_value(self, local: Local, index: ast.expr, mask: Mask) -> Any:
        at, flat = self._element(local, index, mask)
        nothing = local.dtype.type(0)
        if not isinstance(at, Lanes):
            return local.elements.get(int(flat[0]), nothing)
        source = self.touch_local("load", local, flat, mask, at.source)
        data = np.zeros(len(mask), local.dtype)
        for element in np.unique(flat[mask]).tolist():
            values = np.broadcast_to(data_of(local.elements.get(element, nothing)), data.shape)
            data = np.where(flat == element, values, data)
        return Lanes(data, source)

    def _keep_local(self, local: Local, index: ast.expr, value: Any, mask: Mask) -> None:
        at, flat = self._element(local, index, mask)
        value = cast_to(local.dtype, value) if isinstance(value, Lanes | int | float | np.generic) else self.refuse("no number")
        if not isinstance(at, Lanes):
            self._keep(int(flat[0]), value, mask, local.elements)
            return
        self.touch_local("store", local, flat, mask, (*at.source, *source_of(value)))
        for element in np.unique(flat[mask]).tolist():
            local.elements.setdefault(element, local.dtype.type(0))
            self._keep(element, value, mask & (flat == element), local.elements)

    def _keep(self, name: Any, value: Any, mask: Mask, names: dict[Any, Any] | None = None) -> None:
        """Give ``name`` a value in the lanes of ``mask``."""
        names = self.names if names is None else names
        old = names.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and name in self.reassigned:
            value = float(value) if isinstance(value, float) else int(value)
        everywhere = mask is self.base
        if not everywhere:
            gone = np.zeros_like(mask) if name == VALUE else self.returned
            everywhere = bool((mask | ~self.base | gone).all())
        no_number = Array | Local | Part | Slice | tuple | np.dtype | None
        names.pop(f"{SPLIT}{name}", None)
        if isinstance(value, Array | Local | Part | Slice) and old is not None and old is not value and not everywhere:
            names[f"{SPLIT}{name}"] = mask
        if isinstance(value, tuple) and isinstance(old, tuple) and len(value) == len(old) and not everywhere:
            pairs = zip(value, old, strict=True)
            names[name] = tuple(v if isinstance(v, no_number) else merged(v, o, mask) for v, o in pairs)
            return
        if everywhere or isinstance(value, no_number) or isinstance(old, no_number):
            names[name] = self._like(old, value, mask) if isinstance(old, Lanes) and everywhere else value
            return
        names[name] = merged(value, old, mask)

    def _like(self, old: Lanes, value: Any, mask: Mask) -> Any:
        """A variable of float64 stays one."""
        wide = old.data.dtype == np.float64 and isinstance(value, Lanes) and value.data.dtype == np.float32
        return self.wide(value, mask) if wide else value

    # --- values ---

    def _value(self, e: ast.expr, mask: Mask) -> Any:
        if (known := self.literals.get(e)) is not None:
            return known
        match e:
            case ast.Constant(value=bool() | int() | float() | complex() as value):
                return self.literals.setdefault(e, literal(value))
            case ast.Name(id=name):
                if name in self.names:
                    value = self.names[name]
                    if type(value) is Lanes:
                        return value
                    if (lanes := self.names.get(SPLIT + name)) is not None and (mask & ~lanes).any():
                        self.refuse(f"{name} is one array in some lanes and another one in others: index each where it is chosen")
                    return value
                if name in self.constants:
                    return self.constants[name]
                if (words := self.dotted(e)) in DTYPES:
                    return DTYPES[words]
                if words in self.special:
                    return self.special[words]
                self.refuse(f"{name} is not defined")
            case ast.Attribute():
                return self._attribute(e, mask)
            case ast.Subscript():
                if (found := self._member(e, mask)) is not None:
                    return self.load_once(*found, mask) if isinstance(found, tuple) else found
                owner = self._value(e.value, mask)
                if isinstance(owner, Local):
                    return self._local_value(owner, e.slice, mask)
                if isinstance(owner, tuple):
                    return self.of_tuple(cast("tuple[Any, ...]", owner), self._value(e.slice, mask))
                place = self._place(e, mask)
                return self.load_once(*place, mask) if isinstance(place, tuple) else place
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(op, left, right, mask)
            case ast.UnaryOp(op=op, operand=operand):
                value = self._value(operand, mask)
                if not isinstance(value, Lanes):
                    if isinstance(op, ast.Invert):
                        return ~value
                    place = -value if isinstance(op, ast.USub) else (not value) if isinstance(op, ast.Not) else value
                    return literal(place) if isinstance(value, LiteralFloat | LiteralWhole) else place
                negated = {ast.USub: np.negative, ast.Invert: np.invert, ast.UAdd: np.positive}.get(type(op))
                data = ~value.data.astype(bool) if negated is None else negated(value.data)
                return Lanes(data, value.source)  # a sign or a negation is part of the next instruction
            case ast.Compare(left=left, ops=ops, comparators=others):
                value, result = self._value(left, mask), None
                for op, right in zip(ops, others, strict=True):
                    other = self._value(right, mask)
                    place = self.compute(COMPARE.get(type(op)), value, other, mask)
                    result = place if result is None else self.compute(np.logical_and, result, place, mask)
                    value = other
                return result
            case ast.BoolOp(op=op, values=values):
                both = if_true if isinstance(op, ast.And) else if_false
                result = self._value(values[0], mask)
                for part in values[1:]:  # lanes for which it is settled do not look at the rest
                    settled = data_of(result).astype(bool) ^ isinstance(op, ast.And)
                    if (mask & settled).sum() == mask.sum():
                        break
                    result = self.compute(both, result, self._value(part, mask & ~settled), mask)
                return result
            case ast.IfExp(test=test, body=body, orelse=orelse):
                chosen = self._value(test, mask)
                if not isinstance(chosen, Lanes):
                    return self._value(body if chosen else orelse, mask)
                yes = self._value(body, mask & chosen.data.astype(bool))
                no = self._value(orelse, mask & ~chosen.data.astype(bool))
                source = self.emit("int", mask, (*chosen.source, *source_of(yes), *source_of(no)))
                a, b = self.pair(yes, no, mask)
                return Lanes(np.where(chosen.data.astype(bool), a, b), source)
            case ast.Call():
                return self._call(e, mask)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return tuple(self._value(p, mask) for p in parts)
            case _:
                self.refuse(f"{ast.unparse(e)[:60]} is not of this form")

    def _attribute(self, e: ast.Attribute, mask: Mask) -> Any:
        words = self.dotted(e)
        if words in self.special:
            return self.special[words]
        if not isinstance(e.value, ast.Attribute) and (not isinstance(e.value, ast.Name) or e.value.id in self.names):
            if (found := self._member(e, mask)) is not None:
                return self.load_once(*found, mask) if isinstance(found, tuple) else found
            owner = self._value(e.value, mask)
            if isinstance(owner, Slice) and e.attr in ("shape", "size"):
                return (owner.size,) if e.attr == "shape" else owner.size
            if isinstance(owner, Local) and e.attr == "shape":
                return owner.shape
            if isinstance(owner, Part) and e.attr == "shape":
                return owner.array.shape[len(owner.index) :]
            if isinstance(owner, Array) and e.attr in ("shape", "size", "ndim", "dtype"):
                whole = {"size": math.prod(owner.shape), "ndim": len(owner.shape), "dtype": owner.data.dtype}
                return owner.shape if e.attr == "shape" else whole[e.attr]
            if e.attr in ("real", "imag") and isinstance(owner, Lanes):
                return Lanes(getattr(owner.data, e.attr), owner.source)
            self.refuse(f"{words} is not of this form")
        constant = {"pi": math.pi, "inf": math.inf, "e": math.e, "nan": math.nan}.get(words)
        if constant is not None:
            return literal(constant)
        if words in DTYPES:
            return DTYPES[words]
        if f"{words}.x" in self.special:
            self.refuse(f"cuda.{words} is three numbers: cuda.{words}.x, .y and .z")
        self.refuse(f"{words} is not of this form")

    def _binary(self, op: ast.operator, left: ast.expr, right: ast.expr, mask: Mask) -> Any:
        function = BINARY.get(type(op))
        if isinstance(op, ast.Pow):
            return self.power(self._value(left, mask), self._value(right, mask), mask)
        if function is None:
            self.refuse(f"{ast.unparse(ast.BinOp(left, op, right))[:60]} is not of this form")
        if isinstance(op, ast.Add | ast.Sub):
            for product, other, swapped in ((right, left, False), (left, right, True)):
                if isinstance(product, ast.BinOp) and isinstance(product.op, ast.Mult):
                    return self._fused(function, product, other, swapped, mask)
        return self.compute(function, self._value(left, mask), self._value(right, mask), mask)

    def _fused(self, function: Any, product: ast.BinOp, other: ast.expr, swapped: bool, mask: Mask) -> Any:
        """a x b + c as one instruction."""
        c = self._value(other, mask)
        a, b = self._value(product.left, mask), self._value(product.right, mask)
        fused = isinstance(c, Lanes) and (isinstance(a, Lanes) or isinstance(b, Lanes))
        if not fused or common(a, b) != c.data.dtype:
            ab = self.compute(np.multiply, a, b, mask)
            return self.compute(function, ab, c, mask) if swapped else self.compute(function, c, ab, mask)
        left, right = self.pair(a, b, mask)
        times = np.multiply(left, right)
        data = function(times, c.data) if swapped else function(c.data, times)
        return Lanes(data, self.emit_arithmetic(data, mask, (*source_of(a), *source_of(b), *c.source), 4))

    def _call(self, e: ast.Call, mask: Mask, *, used: bool = True) -> Any:
        name = self.dotted(e.func)
        if name in self.kernel.functions:
            return self._inline(self.kernel.functions[name], e, mask)
        if (random := random_functions().get(name.removeprefix("random."))) is not None:
            return self._inline(random, e, mask)
        if name == "syncthreads":
            return self.pass_barrier(mask)
        if name == "syncwarp":
            self.order.pass_warps(np.asarray(mask.reshape(-1, WARP).any(1)))
        if name == "syncwarp" or name.startswith("threadfence"):
            return self.emit("branch", mask, ()) and None
        if name == "const.array_like" and len(e.args) == 1:
            return self._array(e.args[0], mask)
        if name in ("shared.array", "local.array"):
            return self._shared(e, mask) if name == "shared.array" else self._local(e, mask)
        if name.startswith("atomic."):
            return self._atomic(name.removeprefix("atomic."), e.args, mask, used=used)
        if e.keywords:
            self.refuse(f"{name} takes no {e.keywords[0].arg}= here")
        arguments = [self._value(a, mask) for a in e.args]
        if name in ("grid", "gridsize") and len(arguments) == 1 and arguments[0] in (1, 2, 3):
            axes = "xyz"[: int(arguments[0])]
            sizes = [self._grid_index(axis, mask) if name == "grid" else self.grid_size(axis) for axis in axes]
            return sizes[0] if len(sizes) == 1 else tuple(sizes)
        if name.startswith("shfl"):
            return self.shuffle(name, arguments, mask)
        if name in ("ballot_sync", "any_sync", "all_sync", "match_any_sync", "activemask", "lanemask_lt"):
            return self.vote(name, arguments, mask)
        if name.startswith("syncthreads_") and len(arguments) == 1:
            return self.counted_barrier(name, arguments[0], mask)
        return self.call_number(name, arguments, mask)

    def _inline(self, function: ast.FunctionDef, e: ast.Call, mask: Mask) -> Any:
        """A device function's value: its statements stand where it is called."""
        names = [a.arg for a in function.args.args]
        arguments = dict(zip(names, (self._value(a, mask) for a in e.args), strict=False))
        arguments |= {k.arg: self._value(k.value, mask) for k in e.keywords if k.arg}
        usual = function.args.defaults
        for name, value in zip(names[len(names) - len(usual) :], usual, strict=True):
            arguments.setdefault(name, self._value(value, mask))
        if sorted(arguments) != sorted(names) or self.calls >= MOST_CALLS:
            what = f"{function.name} takes {', '.join(names)}" if self.calls < MOST_CALLS else f"{function.name} calls itself"
            self.refuse(what)
        outer = self.names, self.base, self.line, self.broken, self.continued, self.random
        self.names, self.base, self.broken, self.continued = arguments, mask, [], []
        self.random |= function is random_functions().get(function.name)
        self.calls += 1
        self._block(function.body, mask)
        value = self.names.get(VALUE)
        self.names, self.base, self.line, self.broken, self.continued, self.random = outer
        self.calls -= 1
        return value

    def _grid_index(self, axis: str, mask: Mask) -> Any:
        first = self.compute(np.multiply, self.special[f"blockIdx.{axis}"], self.special[f"blockDim.{axis}"], mask)
        return self.compute(np.add, first, self.special[f"threadIdx.{axis}"], mask)

    # --- memory ---

    def _global(self, name: str, data: NDArray[Any], *, watched: bool) -> Array:
        if data.dtype.names == ("s0", "s1"):  # numba's random states: an index more
            data = data.view(data.dtype["s0"]).reshape(*data.shape, -1)
        flat = data.reshape(-1)
        if (flat.base is None and data.ndim > 1) or not data.flags.c_contiguous:
            raise InputError(f"{name} is not contiguous", hint="give np.ascontiguousarray(...)")
        base = self.next_base
        self.next_base += -(-data.nbytes // GLOBAL_ALIGNMENT) * GLOBAL_ALIGNMENT
        return make_array(name, flat, data.shape, base, shared=False, watched=watched)

    def _shared(self, e: ast.Call, mask: Mask) -> Array:
        shape, dtype = self._shape_and_type(e, mask)
        sizes = tuple(int(s) for s in (shape if isinstance(shape, tuple) else (shape,)))
        size = math.prod(sizes)
        if sizes == (0,):
            return self.shared_by_launch(dtype)
        if size < 1:
            self.refuse("a shared array has at least one element; one of size 0 has the size given at launch")
        base, self.out.shared_bytes = self.out.shared_bytes, self.out.shared_bytes + size * dtype.itemsize
        if self.out.shared_bytes > 2**20:
            raise InputError(f"{self.out.shared_bytes:,} bytes of shared memory a block", hint="no GPU has a MiB of it a block")
        data = np.zeros(len(self.out.blocks) * size, dtype)
        return make_array(f"shared, line {self.line}", data, sizes, base, shared=True, watched=True)

    def _shape_and_type(self, e: ast.Call, mask: Mask) -> tuple[Any, np.dtype[Any]]:
        arguments = dict(zip(("shape", "dtype"), e.args, strict=False)) | {k.arg: k.value for k in e.keywords}
        what = ast.unparse(e.func)
        if set(arguments) != {"shape", "dtype"}:
            self.refuse(f"{what} takes a shape and a type, like {what}(32, float32)")
        shape, dtype = (self._value(arguments[k], mask) for k in ("shape", "dtype"))
        if not isinstance(dtype, np.dtype):
            self.refuse(f"{what} takes a shape and a type, like float32, not {noun(dtype)}")
        if not all(isinstance(s, LiteralWhole | np.integer) for s in (shape if isinstance(shape, tuple) else (shape,))):
            self.refuse(f"numba compiles the shape of {what} in: it is a number of the text or of the module (TILE = 16)")
        return shape, dtype

    def _local(self, e: ast.Call, mask: Mask) -> Local:
        shape, dtype = self._shape_and_type(e, mask)
        sizes = tuple(int(s) for s in (shape if isinstance(shape, tuple) else (shape,)))
        if not 1 <= math.prod(sizes) <= MOST_LOCAL or min(sizes) < 1:
            self.refuse(f"a local array has 1 to {MOST_LOCAL:,} elements")
        self.locals += 1
        base, self.next_base = self.next_base, self.next_base + math.prod(sizes) * dtype.itemsize * len(self.whole)
        self.next_base = -(-self.next_base // GLOBAL_ALIGNMENT) * GLOBAL_ALIGNMENT
        return Local(f"local array {self.locals}", sizes, dtype, base)

    def _member(self, e: ast.expr, mask: Mask) -> Array | tuple[Array, Lanes] | None:
        """The place of a record's field that ``e`` names, or the array of a field; None where it names none."""
        name = member_of(e)
        return None if name is None else self.member(self._value(cast("ast.Attribute", e).value, mask), name, mask)

    def _array(self, e: ast.expr, mask: Mask) -> Array:
        array = self._value(e, mask)
        if not isinstance(array, Array):
            self.refuse(f"{ast.unparse(e)} is not an array")
        return array

    def _place(self, e: ast.Subscript, mask: Mask) -> tuple[Array, Lanes] | Part | Slice:
        """``a[i, j]``, ``a[i][j]``, or the part ``a[i]`` of an array of more dimensions or of records, or ``a[i:j]``."""
        owner = self._value(e.value, mask)
        before: tuple[Any, ...] = ()
        if isinstance(owner, Part):
            owner, before = owner.array, owner.index
        part = owner if isinstance(owner, Slice) else None
        owner = part.array if part else owner
        if not isinstance(owner, Array):
            self.refuse(f"{ast.unparse(e.value)} is not an array")
        if isinstance(e.slice, ast.Slice) and e.slice.step is None and len(owner.shape) == 1:
            start = literal(0) if e.slice.lower is None else self._value(e.slice.lower, mask)
            whole = part.size if part else owner.shape[0]
            stop = whole if e.slice.upper is None else self._value(e.slice.upper, mask)
            start, stop = (v + whole if isinstance(v, LiteralWhole) and v < 0 else v for v in (start, stop))
            first = self.compute(np.add, part.start, start, mask) if part else start
            return Slice(owner, first, self.compute(np.subtract, stop, start, mask))
        indices = self._indices(e.slice, mask)
        if part:
            indices = tuple(self.compute(np.add, part.start, i, mask) for i in indices)
        parts = self.parts = (*before, *indices)
        is_part = len(parts) < len(owner.shape) or (owner.data.dtype.names and len(parts) == len(owner.shape))
        return Part(owner, parts) if is_part else (owner, self.flat_index(owner, parts, mask))

    def _indices(self, index: ast.expr, mask: Mask) -> tuple[Any, ...]:
        if index not in self.slices:
            self.slices[index] = any(isinstance(n, ast.Slice) for n in ast.walk(index))
        if self.slices[index]:
            self.refuse("a slice is a[i:j] of an array of one dimension, without steps")
        value = self._value(index, mask)
        return cast("tuple[Any, ...]", value) if isinstance(value, tuple) else (value,)

    def _atomic(self, name: str, arguments: list[ast.expr], mask: Mask, *, used: bool) -> Lanes:
        if name not in (*ATOMICS, "cas", "compare_and_swap") or not 3 <= len(arguments) <= 4:
            self.refuse(f"atomic.{name} is not of this form")
        if name == "compare_and_swap":  # of element 0, or of the first of array[i:]
            sliced = isinstance(arguments[0], ast.Subscript) and isinstance(arguments[0].slice, ast.Slice)
            first = arguments[0].slice.lower if sliced else None  # type: ignore[union-attr]
            array = self._array(arguments[0].value if sliced else arguments[0], mask)  # type: ignore[union-attr]
            index = self.flat_index(array, (self._value(first or ast.Constant(0), mask),), mask)
            values = [self._value(v, mask) for v in arguments[1:]]
        else:
            array = self._array(arguments[0], mask)
            index = self.flat_index(array, self._indices(arguments[1], mask), mask)
            values = [self._value(v, mask) for v in arguments[2:]]
        waits = tuple(n for v in values for n in source_of(v))
        real, source = self.touch("shared_atomic" if array.shared else "atomic", array, index, mask, waits)
        places = self.places(array, index)
        if array.watched and (asked := self.asked_of(array, places, real)) is not None:
            self.report(asked, arrays.add(asked, self.order), "adds to" if name == "add" else "changes")
        at, lanes = places[real], [np.broadcast_to(data_of(v), real.shape)[real] for v in values]
        if name in ATOMICS:
            old = run_atomic(name, array.data, at, lanes[0], used=used)
        else:
            old = compare_and_swap(array.data, at, *lanes)
        results = np.zeros(len(mask), array.data.dtype)
        results[real] = old
        return Lanes(results, source)
