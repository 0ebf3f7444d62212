"""Arithmetic of a kernel and communication of its lanes: values of every lane, and their instructions."""

# pyright: basic
from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import FieldError, InputError
from gpuwise.lab.access import WARP
from gpuwise.lab.arrays import Array, make_array
from gpuwise.lab.compiler import Compiler
from gpuwise.lab.intrinsics import FUNCTIONS, WHOLE, instructions
from gpuwise.lab.numbers import (
    NARROW,
    WIDE,
    Inside,
    Lanes,
    LiteralWhole,
    UnrolledIndex,
    cast_to,
    common,
    data_of,
    folded,
    kind_of,
    literal,
    source_of,
    unit_of,
)
from gpuwise.lab.source import DTYPES
from gpuwise.lab.stream import Local, Mask, Part, Slice, Stream, noun

SHIFTS = (np.left_shift, np.right_shift)
MOST_LOADED = 64
"""Results of loads that a thread's registers hold to be used again."""
ORDERS = (np.less, np.less_equal, np.greater, np.greater_equal)
BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
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
COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}
QUOTIENTS: dict[Any, str] = {np.true_divide: "divide", np.floor_divide: "floor_divide", np.mod: "remainder"}


class Operations(Stream):
    """Arithmetic, functions of numbers, votes and shuffles."""

    def __init__(self) -> None:
        super().__init__()
        self.memo: dict[tuple[Any, ...], tuple[Any, Any, Lanes]] = {}
        self.floors: dict[int, int] = {}
        """Ids of lanes known to be non-negative, mapped to that of the lanes at a literal offset."""
        self.loops = 0
        """Loops executed so far: no register stores the addresses of all their turns for the next one."""
        self.parts: tuple[Any, ...] = ()
        """Indices of the last accessed position."""
        self.loaded: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        self.special: dict[str, Lanes | int] = {}
        self.dynamic_smem = 0
        """Bytes of shared memory that the launch gives a block."""
        self.by_launch: dict[np.dtype[Any], Array] = {}
        """The arrays in them, by type."""
        self.fields: dict[tuple[int, str], Array] = {}
        """Fields of arrays of records, by position and field."""

    compiler: Compiler
    names: dict[str, Any]

    def flat_index(self, array: Array, parts: tuple[Any, ...], mask: Mask) -> Lanes:
        """The flat index of every lane, -1 if it is outside (each dimension separately)."""
        if len(parts) != len(array.shape):
            self.refuse(f"{array.name} has {len(array.shape)} dimensions, not {len(parts)}")
        flat: Any = 0
        inside: Mask | None = None
        source: tuple[int, ...] = ()
        for part, size in zip(parts, array.shape, strict=True):
            if isinstance(part, int) and type(part) is not bool and 0 <= part < size:
                flat = flat * size + int(part)
                continue
            if isinstance(part, LiteralWhole) and -size <= part < 0:  # from the end, as numba has it
                part = LiteralWhole(part + size)
            data = data_of(part)
            if data.dtype.kind not in "iu":
                self.refuse("an index is a whole number")
            within = self.within(part, data, size, mask)
            inside = within if inside is None else inside if within is None else inside & within
            flat, source = flat * size + data.astype(np.int64, copy=False), (*source, *source_of(part))
        if np.shape(flat) != mask.shape:
            flat = np.full(mask.shape, flat, np.int64)
        bad = None if inside is None else mask & ~inside
        if bad is not None and bad.any():
            first = int(np.flatnonzero(bad)[0])
            where = ", ".join(str(int(np.broadcast_to(data_of(p), mask.shape)[first])) for p in parts)
            last = ", ".join(str(s - 1) for s in array.shape)
            what = f"{self.who(first)} touches {array.name}[{where}], the last is {array.name}[{last}]"
            self.find("out of bounds", f"{what} ({int(bad.sum()):,} threads do so)" if bad.sum() > 1 else what)
        source = self.place_of(array, parts, source, mask)
        return Inside(flat, source) if inside is None else Lanes(np.where(inside, flat, -1), source)

    def member(self, owner: Any, name: str, mask: Mask) -> Array | tuple[Array, Lanes] | None:
        """``name`` of a record (its place) or of an array of records (the numbers of all of them); None where it has none."""
        array = owner.array if isinstance(owner, Part) else owner
        if not isinstance(array, Array) or not array.data.dtype.names:
            return None
        if name not in array.data.dtype.names:
            return None if name in ("shape", "size", "ndim", "dtype") else self.refuse(f"{array.name} has no field {name}")
        if (array.base, name) not in self.fields:
            values, at = array.data[name], array.base + array.data.dtype.fields[name][1]  # type: ignore[index]
            if values.ndim > 1 or values.dtype.names:
                self.refuse(f"the field {name} of {array.name} is several numbers: give each its own field")
            made = make_array(f"{array.name}.{name}", values, array.shape, at, shared=False, watched=True)
            self.fields[array.base, name] = made
        whole = self.fields[array.base, name]
        if isinstance(owner, Array):
            return whole
        self.parts = owner.index
        return whole, self.flat_index(whole, owner.index, mask)

    def of_tuple(self, parts: tuple[Any, ...], at: Any) -> Any:
        if not isinstance(at, int) or not -len(parts) <= at < len(parts):
            self.refuse(f"an index into {len(parts)} values is a number from 0 to {len(parts) - 1} that all lanes share")
        return parts[at]

    def power(self, a: Any, b: Any, mask: Mask) -> Any:
        if not isinstance(a, Lanes):
            return self.compute(np.power, a, b, mask, op="pow") if isinstance(b, Lanes) else a**b
        if not isinstance(b, LiteralWhole) or not 1 <= b <= 4:
            return self.compute(np.power, a, b, mask, op="pow")
        result: Any = a
        for _ in range(b - 1):
            result = self.compute(np.multiply, result, a, mask)
        return result

    def check_numbers(self, *values: Any) -> None:
        for value in values:
            if not isinstance(value, Lanes | bool | int | float | complex | np.generic):
                self.refuse(f"{noun(value)} is not a number")

    def pair(self, a: Any, b: Any, mask: Mask) -> tuple[NDArray[Any], NDArray[Any]]:
        """Both as arrays of the type that numba computes in."""
        self.check_numbers(a, b)
        kind = common(a, b)
        if kind in WIDE:
            a, b = (self.wide(v, mask) if isinstance(v, Lanes) and v.data.dtype in NARROW else v for v in (a, b))
        return data_of(a).astype(kind, copy=False), data_of(b).astype(kind, copy=False)

    def wide(self, value: Lanes, mask: Mask) -> Lanes:
        """In float64: a conversion, which takes the place of an instruction in float64."""
        key = ("wide", id(value))
        if key not in self.memo:
            data = value.data.astype(np.promote_types(value.data.dtype, np.float64))
            self.memo[key] = (value, None, Lanes(data, self.emit("fp64", mask, value.source)))
            self.note(
                "computed in float64, since float32 meets a float64: a float or a whole number, as numba has them"
                " (float32(...) around it keeps it in float32)"
            )
        return self.memo[key][2]

    def compute(self, function: Any, a: Any, b: Any, mask: Mask, op: str | None = None) -> Any:
        if function is None:
            self.refuse("this comparison is not of this form")
        self.check_numbers(a, b)
        if not isinstance(a, Lanes) and not isinstance(b, Lanes):
            return folded(function, a, b)
        key = (function, *(id(v) if isinstance(v, Lanes) else (type(v), v) for v in (a, b)))
        if key in self.memo:
            return self.memo[key][2]
        moved = function in (np.add, np.subtract) and not (isinstance(a, Lanes) and isinstance(b, Lanes))
        free = moved and common(a, b).kind in "iu"
        lanes = self.arithmetic(op, function, a, b, mask, free=free)
        self.memo[key] = (a, b, lanes)  # the operands are referenced, so that their ids stay unique
        self.learn_floor(function, a, b, lanes)
        return lanes

    def learn_floor(self, function: Any, a: Any, b: Any, result: Lanes) -> None:
        """Record the lanes that a condition has shown to be non-negative, and those at a literal offset."""
        if function in (np.greater, np.greater_equal):
            a, b = b, a
        if function in ORDERS and isinstance(a, LiteralWhole) and a >= 0 and isinstance(b, Lanes):
            self.floors[id(b)] = id(b)
        elif function in (np.add, np.subtract) and isinstance(b, int) and id(a) in self.floors:
            self.floors[id(result)] = self.floors[id(a)]

    def arithmetic(self, op: str | None, function: Any, a: Any, b: Any, mask: Mask, *, free: bool = False) -> Lanes:
        left, right = self.pair(a, b, mask)
        if function in SHIFTS and kind_of(a).kind in "iu":  # numba: 64 bits, signed as what is shifted is
            kind = np.dtype("uint64" if kind_of(a).kind == "u" else "int64")
            left, right = data_of(a).astype(kind), data_of(b).astype(kind)
        data = function(left, right)
        if data.dtype.kind in "iu" and data.dtype.itemsize < 8 and function in (np.add, np.subtract, np.multiply):
            wide = np.int64 if data.dtype.kind == "i" else np.uint64
            data = function(left.astype(wide), right.astype(wide))
        waits = (*source_of(a), *source_of(b))
        if free:
            return Lanes(data, waits)
        if function in QUOTIENTS:
            return Lanes(data, self.emit_parts(self.quotient(function, data, a, b), mask, waits))
        if op is not None:
            return Lanes(data, self.emit_parts(instructions(op, data.dtype), mask, waits))
        return Lanes(data, self.emit_arithmetic(data, mask, waits, 4 if function is np.multiply else 2))

    def quotient(self, function: Any, data: NDArray[Any], dividend: Any, divisor: Any) -> tuple[tuple[str, int], ...]:
        """Units of a division or what is left of one, and how many instructions of each it is."""
        if unit_of(data) != "int":
            one = function is np.true_divide and isinstance(dividend, int | float | np.generic) and dividend == 1
            return instructions("reciprocal" if one else QUOTIENTS[function], data.dtype)
        if not isinstance(divisor, LiteralWhole):
            return ("int", self.compiler.number), ("sfu", 3)
        return (("int", self.compiler.constant if divisor & (divisor - 1) else self.compiler.power_of_two),)

    def emit_parts(self, parts: Sequence[tuple[str, int]], mask: Mask, waits: Sequence[int]) -> tuple[int, ...]:
        """That many instructions of each unit, one after the other."""
        for unit, times in parts:
            waits = self.emit(unit, mask, waits, times=times)
        return tuple(waits)

    def emit_arithmetic(self, data: NDArray[Any], mask: Mask, waits: Sequence[int], of_complex: int) -> tuple[int, ...]:
        """One instruction, or ``of_complex`` one after the other for complex numbers."""
        lanes = self.emit(unit_of(data), mask, waits)
        if data.dtype.kind == "c":
            for _ in range(of_complex - 1):
                lanes = self.emit(unit_of(data), mask, lanes)
        return lanes

    def call_number(self, name: str, arguments: list[Any], mask: Mask) -> Any:
        """A function of numbers."""
        if name.startswith("libdevice."):  # fast_expf, fabsf: as those of math
            name = name.removeprefix("libdevice.").removeprefix("fast_")
            name = name if name in FUNCTIONS else name.removesuffix("f")
        if name in ("min", "max", "minimum", "maximum") and len(arguments) > 1:
            both = np.minimum if name.startswith("min") else np.maximum
            result = arguments[0]
            for other in arguments[1:]:
                result = self.compute(both, result, other, mask)
            return result
        if name == "divmod" and len(arguments) == 2:
            return tuple(self.compute(f, arguments[0], arguments[1], mask) for f in (np.floor_divide, np.mod))
        if name == "fma" and len(arguments) == 3:
            times = self.compute(np.multiply, arguments[0], arguments[1], mask)
            return self.compute(np.add, times, arguments[2], mask)
        if name == "complex" and len(arguments) == 2:
            real, imaginary = self.pair(arguments[0], arguments[1], mask)
            return Lanes(real + 1j * imaginary, (*source_of(arguments[0]), *source_of(arguments[1])))
        if name == "len" and len(arguments) == 1:
            number = arguments[0]
            if isinstance(number, Slice):
                return number.size
            sizes = number.array.shape[len(number.index) :] if isinstance(number, Part) else getattr(number, "shape", number)
            return sizes[0] if isinstance(number, Array | Part | Local) else len(sizes)
        if name == "bool":
            return self.compute(np.not_equal, arguments[0], literal(0), mask)
        if len(arguments) == 1 and (name in DTYPES or name in ("int", "float")):
            made = cast_to(DTYPES.get(name, np.dtype("int64" if name == "int" else "float64")), arguments[0])
            kinds = {kind_of(made).kind, kind_of(arguments[0]).kind}
            if isinstance(made, Lanes) and "f" in kinds and len(kinds) > 1:
                made = Lanes(made.data, self.emit("sfu", mask, made.source))  # conversions have its rate
            return made
        if len(arguments) == 1 and name in ("abs", "fabs", "absolute"):
            value = arguments[0]
            if not isinstance(value, Lanes):
                return abs(value)
            parts = instructions("abs", value.data.dtype) if value.data.dtype.kind == "c" else ()
            return Lanes(np.abs(value.data), self.emit_parts(parts, mask, value.source))
        function = FUNCTIONS.get(name)
        if function is None or not 1 <= len(arguments) <= 2:
            self.refuse(f"{name} is not of this form: neither a function of the module nor of kernels")
        if not any(isinstance(v, Lanes) for v in arguments):
            made = np.asarray(function.of(*arguments))[()]
            return int(made) if name in WHOLE else made if made.dtype == np.float32 else made.item()
        values = [
            v if common(v, v).kind in "fc" or name in ("popc", "brev") else cast_to(np.dtype("float64"), v) for v in arguments
        ]
        operands = self.pair(values[0], values[1], mask) if len(values) == 2 else (data_of(values[0]),)
        data = function.of(*operands)
        waits = tuple(n for v in values for n in source_of(v))
        parts = instructions(name, data.dtype) if function.unit else ((unit_of(data), 1),)
        made = Lanes(data, self.emit_parts(parts, mask, waits))
        return Lanes(made.data.astype(np.int64), made.source) if name in WHOLE else made

    def count_turn(self, test: ast.expr, body: list[ast.stmt], mask: Mask, going: Any) -> None:
        """The branches of a turn of ``while``, and what counts it where lanes leave it apart."""
        waits = source_of(going)
        if not isinstance(going, Lanes):
            self.emit("branch", mask, ())
            return
        counters = {s.target.id for s in body if isinstance(s, ast.AugAssign) and isinstance(s.target, ast.Name)}
        counters = {name for name in counters if isinstance(self.names.get(name), int)}
        compared = counters & {n.id for n in ast.walk(test) if isinstance(n, ast.Name)}
        if compared:
            waits = (*waits, *self.emit("int", mask, (), times=self.compiler.word * (len(counters) + len(compared))))
        for _ in test.values if isinstance(test, ast.BoolOp) else (test,):
            self.emit("branch", mask, waits)

    def load_once(self, array: Array, index: Lanes, mask: Mask) -> Lanes:
        """Value at the position ``parts``: reused if the same lanes loaded it before and nothing was written since."""
        key = (array.base, array.shared, id(mask), *(id(p) if isinstance(p, Lanes) else p for p in self.parts))
        written = self.written[array.shared]
        known = self.loaded.get(key)
        if known is None or known[0] != written:
            if len(self.loaded) >= MOST_LOADED:
                del self.loaded[next(iter(self.loaded))]
            parts = self.parts
            known = self.loaded[key] = (written, parts, mask, self.load(array, index, mask))
        return known[-1]

    def place_of(self, array: Array, parts: Sequence[Any], source: tuple[int, ...], mask: Mask) -> tuple[int, ...]:
        """Computation of an element's address: once per position."""
        c, varying = self.compiler, [p for p in parts if isinstance(p, Lanes)]
        moving = [p for p in parts if not isinstance(p, LiteralWhole | UnrolledIndex)]
        if moving and not c.part and not isinstance(parts[-1], Lanes) and moving[-1] is parts[-1]:
            moving.pop()  # a row's next element is a constant away
        if not moving:
            return source
        ids = [id(p) if isinstance(p, Lanes) else p for p in moving]
        if moving[-1] is parts[-1]:
            ids[-1] = self.floors.get(ids[-1], ids[-1])
        counted = 0 if len(varying) == len(moving) else self.loops
        key = ("place", array.base, array.shared, array.shape, counted, *ids)
        if key not in self.memo:
            times = (c.shared if array.shared else c.address) + (len(varying) > 1)
            times += 0 if array.shared else sum(self.part_of(array, at, part) for at, part in enumerate(parts))
            self.memo[key] = (varying, None, Lanes(self.every_lane, self.emit("int", mask, source, times=times)))
        return self.memo[key][2].source

    def part_of(self, array: Array, at: int, part: Any) -> int:
        """Instructions of one index of an array, where it was not used there before."""
        key = ("part", *((id(part), 0) if isinstance(part, Lanes) else (part, self.loops)), array.base, at)
        if isinstance(part, LiteralWhole | UnrolledIndex) or key in self.memo:
            return 0
        self.memo[key] = (part, None, Lanes(self.every_lane))
        times = self.compiler.part if isinstance(part, Lanes) else self.compiler.turn
        return (0 if id(part) in self.floors else times) + (self.compiler.stride if at < len(array.shape) - 1 else 0)

    def grid_size(self, axis: str) -> int:
        return cast(int, self.special[f"gridDim.{axis}"]) * cast(int, self.special[f"blockDim.{axis}"])

    def vote(self, name: str, arguments: list[Any], mask: Mask) -> Lanes:
        """A word of a bit a lane, or whether any or all of the lanes of a warp say yes."""
        if name == "match_any_sync":
            self.check_named(arguments, mask)
            values = np.broadcast_to(data_of(arguments[1]), mask.shape).reshape(-1, WARP)
            same = (values[:, :, None] == values[:, None, :]) & mask.reshape(-1, 1, WARP)
            words = (same.astype(np.int64) << np.arange(WARP)).sum(2)
            return Lanes(words.reshape(-1), self.emit("shuffle", mask, source_of(arguments[1])))
        yes = mask.copy()
        if name != "activemask" and name != "lanemask_lt":
            self.check_named(arguments, mask)
            yes = mask & np.broadcast_to(data_of(arguments[1]), mask.shape).astype(bool)
        rows = yes.reshape(-1, WARP)
        if name == "lanemask_lt":
            return Lanes((1 << (self.lane % WARP)) - 1)
        if name in ("any_sync", "all_sync"):
            votes = rows.any(1) if name == "any_sync" else (rows | ~mask.reshape(-1, WARP)).all(1)
        else:
            votes = (rows.astype(np.int64) << np.arange(WARP)).sum(1)
        return Lanes(np.repeat(votes, WARP), self.emit("shuffle", mask, source_of(arguments[1]) if len(arguments) > 1 else ()))

    def check_named(self, arguments: list[Any], mask: Mask) -> None:
        """Detect lanes that a ``_sync`` waits for and that do not arrive."""
        if not arguments or isinstance(arguments[0], Lanes):
            return
        named = (int(arguments[0]) >> (self.lane % WARP) & 1).astype(bool) & self.whole & ~self.exited
        missing = named & ~mask & np.repeat(mask.reshape(-1, WARP).any(1), WARP)
        if missing.any():
            first = int(np.flatnonzero(missing)[0])
            what = f"its mask names {self.who(first)}, which is not there: all lanes of the mask must come to it"
            self.find("shuffle", what)

    def shuffle(self, name: str, arguments: list[Any], mask: Mask) -> Lanes:
        """Values of other lanes of the warp, or of each ``width`` of it; a lane beyond it keeps its own."""
        if not 3 <= len(arguments) <= 4:
            self.refuse(f"{name} takes a mask, a value and a number of lanes")
        self.check_named(arguments, mask)
        width = int(arguments[3]) if len(arguments) == 4 else WARP
        value, by = arguments[1], data_of(arguments[2]).astype(np.int64)
        lane = self.lane % WARP
        other = {
            "shfl_down_sync": lane + by,
            "shfl_up_sync": lane - by,
            "shfl_xor_sync": lane ^ by,
            "shfl_sync": lane - lane % width + np.broadcast_to(by, lane.shape) % width,
        }.get(name)
        if other is None:
            self.refuse(f"{name} is not of this form")
        inside = (other >= 0) & (other < WARP) & (other // width == lane // width)
        at = np.arange(len(lane)) - lane + np.where(inside, other, lane)
        data = np.broadcast_to(data_of(value), lane.shape)[at]
        return Lanes(data, self.emit("shuffle", mask, source_of(value)))

    def counted_barrier(self, name: str, predicate: Any, mask: Mask) -> Lanes:
        """A barrier that returns for how many threads of the block, or whether for any or all, a condition is true."""
        yes = mask & np.broadcast_to(data_of(predicate), mask.shape).astype(bool)
        counts = np.bincount(self.block_of[yes], minlength=len(self.out.blocks))
        there = np.bincount(self.block_of[mask], minlength=len(self.out.blocks))
        result = {"syncthreads_count": counts, "syncthreads_or": counts > 0, "syncthreads_and": counts == there}.get(name)
        if result is None:
            self.refuse(f"{name} is not of this form")
        self.pass_barrier(mask)
        return Lanes(result.astype(np.int64)[self.block_of], (len(self.out.events) - 1,))

    def shared_by_launch(self, dtype: np.dtype[Any]) -> Array:
        """Shared memory whose bytes the launch gives: each such array begins at its first byte, as numba has it."""
        if dtype in self.by_launch:
            return self.by_launch[dtype]
        size, name = self.dynamic_smem // dtype.itemsize, f"shared by launch, line {self.line}"
        if not size:
            text = "a shared array of size 0 has the bytes that the launch gives, and it gives none"
            hint = "--dynamic-smem 4KiB, or simulate_kernel(..., dynamic_smem=4096)"
            raise FieldError(text, file=self.name, line=self.line, hint=hint)
        data = np.zeros(len(self.out.blocks) * size, dtype)
        for other in self.by_launch.values():
            if self.dynamic_smem % max(dtype.itemsize, other.data.itemsize):
                self.refuse(
                    f"{self.dynamic_smem} bytes of shared memory are not a whole number of {dtype} and {other.data.dtype}"
                )
            data, other.watched = other.data.view(dtype), False
        base = -(-self.out.shared_bytes // 16) * 16
        made = make_array(name, data, (size,), base, shared=True, watched=not self.by_launch)
        self.by_launch[dtype] = made
        return made


def member_of(e: ast.expr) -> str | None:
    """The field that ``e`` names: ``x`` of ``record.x`` and ``record["x"]``."""
    match e:
        case ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str() as name)):
            return name
        case _:
            return None


def if_true(a: Any, b: Any) -> Any:
    """``a and b`` as Python has it: one of the two."""
    return np.where(np.asarray(a).astype(bool), b, a)


def if_false(a: Any, b: Any) -> Any:
    """``a or b``."""
    return np.where(np.asarray(a).astype(bool), a, b)


def merged(value: Any, old: Any, mask: Mask) -> Lanes:
    """``value`` in the lanes of ``mask``, ``old`` in the others."""
    kind = common(value, old)
    new = np.where(mask, data_of(value).astype(kind, copy=False), data_of(old).astype(kind, copy=False))
    return Lanes(new, (*source_of(value), *source_of(old))[:4])


def three(sizes: int | Sequence[int]) -> tuple[int, int, int]:
    dims = [sizes] if isinstance(sizes, int) else [int(s) for s in sizes]
    if not 1 <= len(dims) <= 3 or not all(1 <= s < 2**31 for s in dims):
        raise InputError(f"{dims} is not a launch shape", hint="one to three sizes of at least 1, x first")
    return (*dims, 1, 1)[:3]  # type: ignore[return-value]
