"""A kernel in Python, read and run for its values: every lane of every block at once, statement by statement.

The form is numba-CUDA's: ``cuda.threadIdx.x``, ``cuda.grid(1)``, ``cuda.shared.array(256, float32)``, ``cuda.syncthreads()``,
``cuda.shfl_down_sync(mask, value, n)``, ``cuda.atomic.add(array, index, value)``, ``math.exp``, ``range``, ``while``, ``if``.
The source is read as a syntax tree and never executed as Python, so nothing but arithmetic on the given arrays can happen.

Branches run under a mask of lanes; a warp that has lanes on both sides runs both. Each operation becomes one :class:`Event` of
the instruction stream, with the events it waits for. What a compiler does anyway is not counted: a product and a sum are one
instruction; sums and products that all lanes share, and an index moved by a shared number, are free; a result that was computed
before is used again; loops known beforehand are unrolled, others by four.
"""

# pyright: basic
from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import FieldError, InputError
from gpuwise.lab.access import WARP, WarpAccess, warp_access

MOST_EVENTS = 100_000
"""Instructions of one warp: a kernel that goes on is stopped."""
MOST_LANE_EVENTS = 2_000_000_000
"""Lanes times instructions, some ten seconds of numpy."""
UNROLLED, UNROLL = 64, 4
"""Turns up to which a loop is taken for unrolled whole; by how much others are (what nvcc does unasked)."""
MOST_WATCHED = 1 << 21
"""Elements of an array up to which races on it are looked for."""
ACCESS_LANES = 1 << 18
"""Lanes whose accesses are looked at together, some tens of MB of numpy."""
GLOBAL_ALIGNMENT = 256
"""cudaMalloc aligns to this."""
Mask = NDArray[np.bool_]
_DTYPES = {name: np.dtype(name) for name in ("float32", "float64", "int32", "int64")}
_SLOW: dict[str, Any] = {name: getattr(np, name) for name in ("exp", "log", "sqrt", "sin", "cos", "tanh")}
_SLOW["rsqrt"] = None
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.true_divide,
    ast.FloorDiv: np.floor_divide,
    ast.Mod: np.mod,
    ast.BitAnd: np.bitwise_and,
    ast.BitOr: np.bitwise_or,
    ast.BitXor: np.bitwise_xor,
    ast.LShift: np.left_shift,
    ast.RShift: np.right_shift,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}


@dataclass(slots=True)
class Event:
    """One instruction of the stream that all warps share; ``warps`` says which of them run it."""

    op: str
    """``int``, ``fp32``, ``fp64``, ``sfu``, ``load``, ``store``, ``atomic``, ``shared_load``, ``shared_store``, ``barrier``,
    ``shuffle`` or ``branch``."""
    line: int
    waits_for: tuple[int, ...]
    warps: Mask
    access: WarpAccess | None = None
    lanes: int = 0
    """Lanes that take part, over all warps."""
    array: str = ""
    """Of a memory access: the name of its array."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong that the run met."""

    kind: str
    """``out of bounds``, ``race`` or ``divergent barrier``."""
    line: int
    text: str


@dataclass(slots=True)
class Lanes:
    """A value of every lane, and the events it waits for."""

    data: NDArray[Any]
    source: tuple[int, ...] = ()


@dataclass(slots=True)
class Array:
    """An array in global or shared memory, flat, with who last touched each element since when."""

    name: str
    data: NDArray[Any]
    shape: tuple[int, ...]
    base: int
    shared: bool
    writer: NDArray[np.int64]
    reader: NDArray[np.int64]
    write_epoch: NDArray[np.int32]
    read_epoch: NDArray[np.int32]


@dataclass(slots=True)
class Local:
    """An array of each thread, in registers: it is indexed by numbers that all lanes share."""

    name: str
    size: int


@dataclass(slots=True)
class Run:
    """What came of a run: the stream, what went wrong, and the shared memory of a block."""

    events: list[Event]
    findings: list[Finding]
    blocks: NDArray[np.int64]
    warps_per_block: int
    shared_bytes: int
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]])

    @property
    def warp_instructions(self) -> int:
        return sum(int(event.warps.sum()) for event in self.events)


def read_kernel(source: str | Callable[..., Any], name: str | None = None) -> ast.FunctionDef:
    """The function ``name`` (or the only one) of a text, or of a Python function. Raises FieldError, InputError."""
    try:
        tree = ast.parse(kernel_text(source))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise FieldError(f"is not Python: {error}", file="kernel", line=getattr(error, "lineno", None)) from error
    found = [n for n in tree.body if isinstance(n, ast.FunctionDef) and name in (None, n.name)]
    if len(found) != 1:
        names = [n.name for n in tree.body if isinstance(n, ast.FunctionDef)]
        raise InputError(
            f"the text has {len(names)} functions", hint="say which: " + ", ".join(names[:8]) if names else "def kernel(...)"
        )
    return found[0]


def kernel_text(source: str | Callable[..., Any]) -> str:
    """The text whose lines a kernel's instructions name: ``source``, or a Python function's. Raises InputError."""
    if isinstance(source, str):
        return source
    function = getattr(source, "py_func", source)  # numba keeps the Python function there
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError) as error:
        raise InputError("the kernel's source is not there", hint="give its text, or a function of a file") from error


def kernel_source(text: str, name: str | None = None) -> str:
    """The source of the function ``name`` (or the only one) of a text, with its lines where they stand."""
    found = read_kernel(text, name)
    end = found.end_lineno or found.lineno
    return "\n" * (found.lineno - 1) + "\n".join(text.splitlines()[found.lineno - 1 : end]) + "\n"


def run_kernel(
    kernel: ast.FunctionDef,
    arguments: Mapping[str, Any],
    *,
    grid: Sequence[int],
    block: Sequence[int],
    blocks: Sequence[int] | NDArray[np.int64] | None = None,
    timed_blocks: int | None = None,
) -> Run:
    """Run ``blocks`` (all) of a launch of ``grid`` blocks of ``block`` threads (each up to three sizes, x first).

    Of the first ``timed_blocks`` (all) the accesses are looked at one by one, which takes longer than the values.

    Arrays of ``arguments`` are read and written in place. Raises FieldError for what the form has not (with the line),
    InputError for a kernel that does not end or arguments that do not fit.
    """
    names = [a.arg for a in kernel.args.args]
    if sorted(names) != sorted(arguments):
        raise InputError(f"{kernel.name} takes {', '.join(names)}", hint=f"given: {', '.join(arguments) or 'nothing'}")
    return _Machine(kernel, arguments, grid, block, blocks, timed_blocks).run()


class _Machine:
    """The state of one run."""

    def __init__(
        self, kernel: ast.FunctionDef, arguments: Mapping[str, Any], grid: Any, block: Any, blocks: Any, timed_blocks: int | None
    ) -> None:
        self.kernel = kernel
        self.grid, self.block = _three(grid), _three(block)
        threads = math.prod(self.block)
        if threads > 1024:
            raise InputError(f"a block of {threads:,} threads: a launch takes 1,024 at most", hint="use smaller blocks, and more")
        total = math.prod(self.grid)
        ids = np.arange(total) if blocks is None else np.asarray(blocks, np.int64)
        self.padded = -(-threads // WARP) * WARP
        self.warps = len(ids) * self.padded // WARP
        lane = np.tile(np.arange(self.padded), len(ids))
        self.block_of = np.repeat(np.arange(len(ids)), self.padded)
        self.lane = lane
        self.whole = lane < threads
        bx, by, _ = self.block
        gx, gy, _ = self.grid
        number = np.repeat(ids, self.padded)
        self.special: dict[str, Lanes | int] = {
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
        self.out = Run([], [], ids, self.padded // WARP, 0)
        self.epoch, self.line, self.next_base, self.locals = 1, kernel.lineno, 0, 0
        self.timed = self.warps if timed_blocks is None else min(timed_blocks, len(ids)) * self.padded // WARP
        self.memo: dict[tuple[Any, ...], tuple[Any, Any, Lanes]] = {}
        self.names: dict[str, Any] = {}
        for name, value in arguments.items():
            self.names[name] = self._global(name, value) if isinstance(value, np.ndarray) else value
        self.accesses: dict[int, list[tuple[Event, NDArray[np.int64], Mask]]] = {}
        self.access_lanes = 0
        self.broken: list[Mask] = []
        self.continued: list[Mask] = []

    def run(self) -> Run:
        with np.errstate(all="ignore"):
            self._block(self.kernel.body, self.whole)
            self._look_at_accesses()
        self.out.arrays = {n: a.data.reshape(a.shape) for n, a in self.names.items() if isinstance(a, Array) and not a.shared}
        return self.out

    # --- statements ---

    def _block(self, body: list[ast.stmt], mask: Mask) -> Mask:
        """The lanes that go on behind ``body``."""
        for statement in body:
            if not mask.any():
                break
            self.line = statement.lineno
            mask = self._statement(statement, mask)
        return mask

    def _statement(self, s: ast.stmt, mask: Mask) -> Mask:
        match s:
            case ast.Assign(targets=[target], value=value):
                self._assign(target, self._value(value, mask), mask)
            case ast.AugAssign(target=target, op=op, value=value):
                load = ast.copy_location(_as_load(target), s)
                self._assign(target, self._binary(op, load, value, mask), mask)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, self._value(value, mask), mask)
            case ast.If(test=test, body=body, orelse=orelse):
                return self._if(test, body, orelse, mask)
            case ast.For(target=ast.Name(id=name), iter=ast.Tuple(elts=parts), body=body, orelse=[]):
                for part in parts:
                    self.names[name] = self._value(part, mask)
                    self._block(body, mask)
            case ast.For(target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="range"), args=bounds), body=body, orelse=[]):
                self._for(name, bounds, body, mask)
                return mask & ~self.returned
            case ast.While(test=test, body=body, orelse=[]):
                self._while(test, body, mask)
                return mask & ~self.returned
            case ast.Return(value=None):
                self.returned = self.returned | mask
                return np.zeros_like(mask)
            case ast.Break():
                self.broken[-1] |= mask
                return np.zeros_like(mask)
            case ast.Continue():
                self.continued[-1] |= mask
                return np.zeros_like(mask)
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                pass
            case ast.Expr(value=ast.Call() as call):
                self._call(call, mask)
            case _:
                self._refuse(f"a {type(s).__name__.lower()} statement is not of this form")
        return mask

    @property
    def returned(self) -> Mask:
        return cast(Mask, self.names.get("\0returned", np.zeros(len(self.whole), bool)))

    @returned.setter
    def returned(self, mask: Mask) -> None:
        self.names["\0returned"] = mask

    def _if(self, test: ast.expr, body: list[ast.stmt], orelse: list[ast.stmt], mask: Mask) -> Mask:
        chosen = self._value(test, mask)
        if not isinstance(chosen, Lanes):
            return self._block(body if chosen else orelse, mask)
        yes = mask & chosen.data.astype(bool)
        no = mask & ~yes
        self._emit("branch", mask, chosen.source)
        after_yes = self._block(body, yes) if yes.any() else yes
        after_no = self._block(orelse, no) if no.any() else no
        return after_yes | after_no

    def _for(self, name: str, bounds: list[ast.expr], body: list[ast.stmt], mask: Mask) -> None:
        values = [self._value(b, mask) for b in bounds]
        start, stop, step = (0, values[0], 1) if len(values) == 1 else (*values, 1)[:3]
        self.broken.append(np.zeros_like(mask))
        if any(isinstance(v, Lanes) for v in (start, stop, step)):
            counter = Lanes(np.broadcast_to(_data(start), mask.shape).astype(np.int64), _source(start))
            turns = 0
            while (live := mask & (counter.data < _data(stop)) & ~self.broken[-1] & ~self.returned).any():
                self._emit("branch", live, (*counter.source, *_source(stop)))
                self.names[name] = counter
                self._turn(body, live)
                counter = self._arithmetic("int", np.add, counter, _data(step), live, free=turns % UNROLL > 0)
                turns += 1
        else:
            turns = range(int(start), int(stop), int(step))
            for turn in turns:
                live = mask & ~self.broken[-1] & ~self.returned
                if not live.any():
                    break
                if len(turns) > UNROLLED and (turn - turns.start) // turns.step % UNROLL == 0:
                    self._emit("int", live, ())
                    self._emit("branch", live, (len(self.out.events) - 1,))
                self.names[name] = turn
                self._turn(body, live)
        self.broken.pop()

    def _while(self, test: ast.expr, body: list[ast.stmt], mask: Mask) -> None:
        self.broken.append(np.zeros_like(mask))
        while True:
            live = mask & ~self.broken[-1] & ~self.returned
            if not live.any():
                break
            going = self._value(test, live)
            if isinstance(going, Lanes):
                live = live & going.data.astype(bool)
                self._emit("branch", live, going.source)
            elif not going:
                break
            else:
                self._emit("branch", live, ())
            if not live.any():
                break
            mask = live
            self._turn(body, live)
        self.broken.pop()

    def _turn(self, body: list[ast.stmt], live: Mask) -> None:
        self.continued.append(np.zeros_like(live))
        self._block(body, live)
        self.continued.pop()

    def _assign(self, target: ast.expr, value: Any, mask: Mask) -> None:
        if isinstance(target, ast.Name):
            self._keep(target.id, value, mask)
        elif isinstance(target, ast.Subscript) and isinstance(local := self._value(target.value, mask), Local):
            self._keep(self._register(local, target.slice, mask), value, mask)
        elif isinstance(target, ast.Subscript):
            array, index = self._place(target, mask)
            self._store(array, index, value, mask)
        elif isinstance(target, ast.Tuple) and isinstance(value, tuple):
            for part, piece in zip(target.elts, cast("tuple[Any, ...]", value), strict=True):
                self._assign(part, piece, mask)
        else:
            self._refuse("only names and elements of arrays can be assigned")

    def _register(self, local: Local, index: ast.expr, mask: Mask) -> str:
        at = self._value(index, mask)
        if not isinstance(at, int) or not 0 <= at < local.size:
            self._refuse(f"an element of {local.name} is a number from 0 to {local.size - 1} that all lanes share")
        return f"{local.name}[{at}]"

    def _keep(self, name: str, value: Any, mask: Mask) -> None:
        """Give ``name`` a value in the lanes of ``mask``."""
        old = self.names.get(name)
        if (
            isinstance(value, Array | Local)
            or bool((mask | ~self.whole | self.returned).all())
            or (old is None and isinstance(value, Lanes))
        ):
            self.names[name] = value
        else:
            new = np.where(mask, _data(value), _data(0 if old is None else old))
            self.names[name] = Lanes(new, (*_source(value), *_source(old))[:4])

    # --- values ---

    def _value(self, e: ast.expr, mask: Mask) -> Any:
        match e:
            case ast.Constant(value=bool() | int() | float() as value):
                return value
            case ast.Name(id=name):
                if name in self.names:
                    return self.names[name]
                if name in _DTYPES:
                    return _DTYPES[name]
                self._refuse(f"{name} is not defined")
            case ast.Attribute():
                return self._attribute(e)
            case ast.Subscript():
                if isinstance(e.value, ast.Attribute) and e.value.attr == "shape":
                    return self._array(e.value.value, mask).shape[int(self._value(e.slice, mask))]
                held = self._value(e.value, mask)
                if isinstance(held, Local):
                    return self.names.get(self._register(held, e.slice, mask), 0.0)
                array, index = self._place(e, mask)
                return self._load(array, index, mask)
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(op, left, right, mask)
            case ast.UnaryOp(op=op, operand=operand):
                value = self._value(operand, mask)
                if not isinstance(value, Lanes):
                    return -value if isinstance(op, ast.USub) else (not value) if isinstance(op, ast.Not) else value
                data = -value.data if isinstance(op, ast.USub) else ~value.data.astype(bool)
                return Lanes(data, value.source)  # a sign or a negation is part of the next instruction
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._compute(_COMPARE.get(type(op)), self._value(left, mask), self._value(right, mask), mask)
            case ast.BoolOp(op=op, values=values):
                parts = [self._value(v, mask) for v in values]
                both = np.logical_and if isinstance(op, ast.And) else np.logical_or
                result = parts[0]
                for part in parts[1:]:
                    result = self._compute(both, result, part, mask)
                return result
            case ast.IfExp(test=test, body=body, orelse=orelse):
                chosen = self._value(test, mask)
                if not isinstance(chosen, Lanes):
                    return self._value(body if chosen else orelse, mask)
                yes = self._value(body, mask & chosen.data.astype(bool))
                no = self._value(orelse, mask & ~chosen.data.astype(bool))
                source = self._emit("int", mask, (*chosen.source, *_source(yes), *_source(no)))
                return Lanes(np.where(chosen.data.astype(bool), _data(yes), _data(no)), source)
            case ast.Call():
                return self._call(e, mask)
            case ast.Tuple(elts=parts):
                return tuple(self._value(p, mask) for p in parts)
            case _:
                self._refuse(f"{type(e).__name__} is not of this form")

    def _attribute(self, e: ast.Attribute) -> Any:
        words = ast.unparse(e).removeprefix("cuda.")
        if words in self.special:
            return self.special[words]
        if words.startswith(("math.", "np.", "numpy.")):
            constant = {"pi": math.pi, "inf": math.inf, "e": math.e}.get(e.attr)
            return constant if constant is not None else _DTYPES.get(e.attr) or self._refuse(f"{words} is not of this form")
        if e.attr in _DTYPES:
            return _DTYPES[e.attr]
        self._refuse(f"{words} is not of this form")

    def _binary(self, op: ast.operator, left: ast.expr, right: ast.expr, mask: Mask) -> Any:
        function = _BINARY.get(type(op))
        if isinstance(op, ast.Pow):
            a, b = self._value(left, mask), self._value(right, mask)
            return self._compute(np.power, a, b, mask, op="sfu") if isinstance(a, Lanes) else a**b
        if function is None:
            self._refuse(f"{type(op).__name__} is not of this form")
        if isinstance(op, ast.Add | ast.Sub):
            for product, other, swapped in ((right, left, False), (left, right, True)):
                if isinstance(product, ast.BinOp) and isinstance(product.op, ast.Mult):
                    return self._fused(function, product, other, swapped, mask)
        return self._compute(function, self._value(left, mask), self._value(right, mask), mask)

    def _fused(self, function: Any, product: ast.BinOp, other: ast.expr, swapped: bool, mask: Mask) -> Any:
        """a x b + c as one instruction."""
        c = self._value(other, mask)
        a, b = self._value(product.left, mask), self._value(product.right, mask)
        if not isinstance(c, Lanes) or not (isinstance(a, Lanes) or isinstance(b, Lanes)):
            ab = self._compute(np.multiply, a, b, mask)
            return self._compute(function, ab, c, mask) if swapped else self._compute(function, c, ab, mask)
        times = np.multiply(_data(a), _data(b))
        data = function(times, c.data) if swapped else function(c.data, times)
        return Lanes(data, self._emit(_unit(data), mask, (*_source(a), *_source(b), *c.source)))

    def _compute(self, function: Any, a: Any, b: Any, mask: Mask, op: str | None = None) -> Any:
        if function is None:
            self._refuse("this comparison is not of this form")
        if not isinstance(a, Lanes) and not isinstance(b, Lanes):
            value = function(a, b)
            return value.item() if isinstance(value, np.generic) else value
        key = (function, *(id(v) if isinstance(v, Lanes) else v for v in (a, b)))
        if key in self.memo:
            return self.memo[key][2]
        moved = function in (np.add, np.subtract) and not (isinstance(a, Lanes) and isinstance(b, Lanes))
        free = moved and np.issubdtype(_data(a).dtype, np.integer) and np.issubdtype(_data(b).dtype, np.integer)
        lanes = self._arithmetic(op, function, a, b, mask, free=bool(free))
        self.memo[key] = (a, b, lanes)  # the operands are held, so that their ids stay theirs
        return lanes

    def _arithmetic(self, op: str | None, function: Any, a: Any, b: Any, mask: Mask, *, free: bool = False) -> Lanes:
        data = function(_narrow(a, b), _narrow(b, a))
        waits = (*_source(a), *_source(b))
        if free:
            return Lanes(data, waits)
        slow = function in (np.true_divide, np.floor_divide, np.mod) and _unit(data) != "int"
        return Lanes(data, self._emit(op or ("sfu" if slow else _unit(data)), mask, waits))

    def _call(self, e: ast.Call, mask: Mask) -> Any:
        words = ast.unparse(e.func)
        name = words.removeprefix("cuda.").removeprefix("math.").removeprefix("np.").removeprefix("numpy.")
        if name == "syncthreads":
            return self._barrier(mask)
        if name in ("syncwarp", "threadfence"):
            return self._emit("branch", mask, ()) and None
        if name in ("shared.array", "local.array"):
            return self._shared(e, mask) if name == "shared.array" else self._local(e, mask)
        if name == "atomic.add":
            array = self._array(e.args[0], mask)
            index = self._flat(array, e.args[1], mask)
            return self._atomic(array, index, self._value(e.args[2], mask), mask)
        given = [self._value(a, mask) for a in e.args]
        if name == "grid":
            axes = "xyz"[: int(given[0])]
            made = [self._grid_index(axis, mask) for axis in axes]
            return made[0] if len(made) == 1 else tuple(made)
        if name.startswith("shfl"):
            return self._shuffle(name, given, mask)
        if name in ("min", "max"):
            both = np.minimum if name == "min" else np.maximum
            result = given[0]
            for other in given[1:]:
                result = self._compute(both, result, other, mask)
            return result
        if name == "fma":
            times = self._compute(np.multiply, given[0], given[1], mask)
            return self._compute(np.add, times, given[2], mask)
        if name in ("abs", "fabs"):
            return Lanes(np.abs(given[0].data), given[0].source) if isinstance(given[0], Lanes) else abs(given[0])
        if name in _DTYPES or name in ("int", "float"):
            dtype = _DTYPES.get(name, np.dtype("int64" if name == "int" else "float64"))
            value = given[0]
            return Lanes(value.data.astype(dtype), value.source) if isinstance(value, Lanes) else dtype.type(value).item()
        if name == "len":
            return cast(Array, given[0]).shape[0]
        if name in _SLOW:
            value = given[0]
            function = _SLOW[name] or (lambda x: 1 / np.sqrt(x))
            if not isinstance(value, Lanes):
                return float(function(value))
            kept = value.data if value.data.dtype.kind == "f" else value.data.astype(np.float64)
            return Lanes(function(kept), self._emit("sfu", mask, value.source))
        self._refuse(f"{words} is not of this form")

    def _grid_index(self, axis: str, mask: Mask) -> Any:
        first = self._compute(np.multiply, self.special[f"blockIdx.{axis}"], self.special[f"blockDim.{axis}"], mask)
        return self._compute(np.add, first, self.special[f"threadIdx.{axis}"], mask)

    def _shuffle(self, name: str, given: list[Any], mask: Mask) -> Lanes:
        """Values of other lanes of the warp; a lane beyond it keeps its own."""
        value, by = given[1], _data(given[2]).astype(np.int64)
        lane = self.lane % WARP
        other = {
            "shfl_down_sync": lane + by,
            "shfl_up_sync": lane - by,
            "shfl_xor_sync": lane ^ by,
            "shfl_sync": np.broadcast_to(by, lane.shape),
        }.get(name)
        if other is None:
            self._refuse(f"{name} is not of this form")
        inside = (other >= 0) & (other < WARP)
        at = np.arange(len(lane)) - lane + np.where(inside, other, lane)
        data = np.broadcast_to(_data(value), lane.shape)[at]
        return Lanes(data, self._emit("shuffle", mask, _source(value)))

    # --- memory ---

    def _global(self, name: str, data: NDArray[Any]) -> Array:
        flat = data.reshape(-1)
        if (flat.base is None and data.ndim > 1) or not data.flags.c_contiguous:
            raise InputError(f"{name} is not contiguous", hint="give np.ascontiguousarray(...)")
        base = self.next_base
        self.next_base += -(-data.nbytes // GLOBAL_ALIGNMENT) * GLOBAL_ALIGNMENT
        return _array(name, flat, data.shape, base, shared=False)

    def _shared(self, e: ast.Call, mask: Mask) -> Array:
        shape, dtype = self._value(e.args[0], mask), self._value(e.args[1], mask)
        sizes = tuple(int(s) for s in (shape if isinstance(shape, tuple) else (shape,)))
        if not isinstance(dtype, np.dtype):
            self._refuse("shared.array takes a shape and float32, float64, int32 or int64")
        size = math.prod(sizes)
        base, self.out.shared_bytes = self.out.shared_bytes, self.out.shared_bytes + size * dtype.itemsize
        if self.out.shared_bytes > 2**20:
            raise InputError(f"{self.out.shared_bytes:,} bytes of shared memory a block", hint="no GPU has a MiB of it a block")
        return _array(f"shared, line {self.line}", np.zeros(len(self.out.blocks) * size, dtype), sizes, base, shared=True)

    def _local(self, e: ast.Call, mask: Mask) -> Local:
        size = self._value(e.args[0], mask)
        if not isinstance(size, int) or not 1 <= size <= 255:
            self._refuse("a local array is kept in registers: 1 to 255 elements")
        self.locals += 1
        return Local(f"local {self.locals}", size)

    def _array(self, e: ast.expr, mask: Mask) -> Array:
        array = self._value(e, mask)
        if not isinstance(array, Array):
            self._refuse(f"{ast.unparse(e)} is no array")
        return array

    def _place(self, e: ast.Subscript, mask: Mask) -> tuple[Array, Lanes]:
        array = self._array(e.value, mask)
        return array, self._flat(array, e.slice, mask)

    def _flat(self, array: Array, index: ast.expr, mask: Mask) -> Lanes:
        """The flat index of every lane, -1 where it is outside (each dimension by itself)."""
        value = self._value(index, mask)
        parts = cast("tuple[Any, ...]", value) if isinstance(value, tuple) else (value,)
        if len(parts) != len(array.shape):
            self._refuse(f"{array.name} has {len(array.shape)} dimensions, not {len(parts)}")
        flat, inside = np.zeros(len(mask), np.int64), np.ones(len(mask), bool)
        source: tuple[int, ...] = ()
        for part, size in zip(parts, array.shape, strict=True):
            data = np.broadcast_to(_data(part), mask.shape)
            if data.dtype.kind not in "iu":
                self._refuse("an index is a whole number")
            inside &= (data >= 0) & (data < size)
            flat, source = flat * size + data, (*source, *_source(part))
        bad = mask & ~inside
        if bad.any():
            first = int(np.flatnonzero(bad)[0])
            where = ", ".join(str(int(np.broadcast_to(_data(p), mask.shape)[first])) for p in parts)
            self._find("out of bounds", f"{self._who(first)} touches {array.name}[{where}] of {array.shape}")
        varying = [p for p in parts if isinstance(p, Lanes)]
        if len(varying) > 1:
            key = ("flat", *(id(p) if isinstance(p, Lanes) else "x" for p in parts))
            if key not in self.memo:
                made = Lanes(flat, self._emit("int", mask, source))
                self.memo[key] = (varying, None, made)
            source = self.memo[key][2].source
        return Lanes(np.where(inside, flat, -1), source)

    def _places(self, array: Array, index: Lanes) -> NDArray[np.int64]:
        """Into the stored elements: shared memory has its own for every block."""
        if not array.shared:
            return index.data
        return index.data + self.block_of * math.prod(array.shape)

    def _touch(self, op: str, array: Array, index: Lanes, mask: Mask, source: tuple[int, ...]) -> tuple[Mask, tuple[int, ...]]:
        real = mask & (index.data >= 0)
        size = array.data.dtype.itemsize
        lanes = self.timed * WARP
        addresses = (array.base + index.data[:lanes] * size).reshape(-1, WARP)
        made = self._emit(op, real, (*index.source, *source), array.name)
        self.accesses.setdefault(size, []).append((self.out.events[-1], addresses, real[:lanes].reshape(-1, WARP)))
        self.access_lanes += lanes
        if self.access_lanes > ACCESS_LANES:
            self._look_at_accesses()
        return real, made

    def _look_at_accesses(self) -> None:
        """What the accesses since the last look cost: all warps of all of them at once."""
        for size, asked in self.accesses.items():
            found = warp_access(np.concatenate([a for _, a, _ in asked]), np.concatenate([m for _, _, m in asked]), size)
            first = 0
            for event, addresses, _ in asked:
                event.access = found.part(first, first + len(addresses))
                first += len(addresses)
        self.accesses.clear()
        self.access_lanes = 0

    def _load(self, array: Array, index: Lanes, mask: Mask) -> Lanes:
        real, source = self._touch("shared_load" if array.shared else "load", array, index, mask, ())
        places = np.where(real, self._places(array, index), 0)
        self._watch(array, places, real, writes=False)
        return Lanes(np.where(real, array.data[places], array.data.dtype.type(0)), source)

    def _store(self, array: Array, index: Lanes, value: Any, mask: Mask) -> None:
        real, _ = self._touch("shared_store" if array.shared else "store", array, index, mask, _source(value))
        places = self._places(array, index)
        self._watch(array, places, real, writes=True)
        array.data[places[real]] = np.broadcast_to(_data(value), real.shape)[real]

    def _atomic(self, array: Array, index: Lanes, value: Any, mask: Mask) -> Lanes:
        real, source = self._touch("atomic", array, index, mask, _source(value))
        places = self._places(array, index)
        old = array.data[np.where(real, places, 0)]
        np.add.at(array.data, places[real], np.broadcast_to(_data(value), real.shape)[real].astype(array.data.dtype))
        return Lanes(old, source)

    def _watch(self, array: Array, places: NDArray[np.int64], real: Mask, *, writes: bool) -> None:
        """Find two threads at one element, one of them writing, with no barrier between them (or none possible)."""
        at, who = places[real], self.thread[real]
        if not at.size or not array.writer.size:
            return
        threads = math.prod(self.block)

        def meets(other: NDArray[np.int64], epoch: NDArray[np.int32]) -> NDArray[np.bool_]:
            there = other[at]
            apart = (there // threads != who // threads) | (epoch[at] == self.epoch)
            return (there >= 0) & (there != who) & apart

        bad = meets(array.writer, array.write_epoch)
        if writes:
            bad |= meets(array.reader, array.read_epoch)
            array.writer[at], array.write_epoch[at] = who, self.epoch
            bad |= array.writer[at] != who  # two lanes of this very store
        else:
            array.reader[at], array.read_epoch[at] = who, self.epoch
        if bad.any():
            first = int(np.flatnonzero(real)[np.flatnonzero(bad)[0]])
            element = int(places[first]) % math.prod(array.shape)
            self._find("race", f"{self._who(first)} and another touch {array.name}[{element}] with no barrier between")

    def _barrier(self, mask: Mask) -> None:
        alive = self.whole & ~self.returned
        waiting = np.bincount(self.block_of[mask], minlength=len(self.out.blocks))
        there = np.bincount(self.block_of[alive], minlength=len(self.out.blocks))
        if ((waiting > 0) & (waiting < there)).any():
            self._find("divergent barrier", "some threads of a block wait at a barrier that others do not reach")
        self._emit("barrier", mask, ())
        self.epoch += 1

    # --- book-keeping ---

    def _emit(self, op: str, mask: Mask, waits: Sequence[int], array: str = "") -> tuple[int, ...]:
        events = self.out.events
        if len(events) >= MOST_EVENTS or len(events) * len(mask) > MOST_LANE_EVENTS:
            raise InputError(
                f"{self.kernel.name} has not ended after {len(events):,} instructions of a warp (line {self.line})",
                hint="check its loops, or give it a smaller problem",
            )
        by_warp = mask.reshape(-1, WARP)
        events.append(Event(op, self.line, tuple(dict.fromkeys(waits)), np.asarray(by_warp.any(1)), None, int(mask.sum()), array))
        return (len(events) - 1,)

    def _find(self, kind: str, text: str) -> None:
        if not any(f.kind == kind and f.line == self.line for f in self.out.findings):
            self.out.findings.append(Finding(kind, self.line, text))

    def _who(self, lane: int) -> str:
        return f"thread {int(self.lane[lane])} of block {int(self.out.blocks[self.block_of[lane]])}"

    def _refuse(self, text: str) -> NoReturn:
        raise FieldError(
            text, file=self.kernel.name, line=self.line, hint="see docs/learn/simulation.md for what a kernel may hold"
        )


def _array(name: str, data: NDArray[Any], shape: tuple[int, ...], base: int, *, shared: bool) -> Array:
    watched = data.size if data.size <= MOST_WATCHED else 0
    nobody, never = np.full(watched, -1, np.int64), np.zeros(watched, np.int32)
    return Array(name, data, shape, base, shared, nobody, nobody.copy(), never, never.copy())


def _three(sizes: int | Sequence[int]) -> tuple[int, int, int]:
    given = [sizes] if isinstance(sizes, int) else [int(s) for s in sizes]
    if not 1 <= len(given) <= 3 or not all(1 <= s < 2**31 for s in given):
        raise InputError(f"{given} is no launch shape", hint="one to three sizes of at least 1, x first")
    return (*given, 1, 1)[:3]  # type: ignore[return-value]


def _as_load(target: ast.expr) -> ast.expr:
    for node in ast.walk(target):
        if hasattr(node, "ctx"):
            node.ctx = ast.Load()  # type: ignore[attr-defined]
    return target


def _data(value: Any) -> NDArray[Any]:
    return value.data if isinstance(value, Lanes) else np.asarray(value)


def _narrow(value: Any, beside: Any) -> Any:
    """A number beside an array keeps the array's precision (as numba's float32 arithmetic with a literal does)."""
    return value.data if isinstance(value, Lanes) else value


def _source(value: Any) -> tuple[int, ...]:
    return value.source if isinstance(value, Lanes) else ()


def _unit(data: NDArray[Any]) -> str:
    if data.dtype.kind != "f":
        return "int"
    return "fp64" if data.dtype.itemsize == 8 else "fp32"
