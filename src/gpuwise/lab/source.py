"""A kernel as it is written: the function, the constants of its module and the device functions it calls.

The module around a kernel is read, never executed: constants are numbers, dtypes, tuples and arithmetic on them.
"""

# pyright: basic
from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from gpuwise.errors import FieldError, InputError

DTYPES: Mapping[str, np.dtype[Any]] = {
    **{
        name: np.dtype(name)
        for name in (
            *("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
            *("complex64", "complex128"),
        )
    },
    **{name: np.dtype(bool) for name in ("bool_", "boolean", "b1")},
    **{name: np.dtype("float32") for name in ("f4", "single")},
    **{name: np.dtype("float64") for name in ("f8", "double")},
    "i4": np.dtype("int32"),
    "i8": np.dtype("int64"),
}
"""Names of types, as numba and numpy spell them."""
MOST_PREDICATED = 7
"""Instructions behind a condition that nvcc makes conditional instead of jumping (CUDA C++ Best Practices Guide, branch
predication)."""
_ROOTS = ("numba.cuda", "numba.types", "numba", "numpy", "math", "cmath", "operator")
_ALIASES = {
    "cuda": "numba.cuda",
    "nb": "numba",
    "np": "numpy",
    "numpy": "numpy",
    "numba": "numba",
    "math": "math",
    "cmath": "cmath",
}
_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
    ast.LShift: lambda a, b: a << min(b, 64),
    ast.RShift: lambda a, b: a >> b,
}


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel and its module-level context."""

    function: ast.FunctionDef
    functions: Mapping[str, ast.FunctionDef]
    """Others of the module, by name: those it may call."""
    constants: Mapping[str, Any]
    aliases: Mapping[str, str]
    """Original names of imports."""

    @property
    def name(self) -> str:
        return self.function.name

    @property
    def parameters(self) -> list[str]:
        return [a.arg for a in self.function.args.args]

    def dotted(self, e: ast.expr) -> str:
        """``threadIdx.x`` of ``cuda.threadIdx.x``, ``sqrt`` of ``math.sqrt`` or of an imported ``sqrt``,
        ``float32`` of a name that the module gives it."""
        root, dot, rest = ast.unparse(e).partition(".")
        text = self.aliases.get(root, root) + dot + rest
        for known in _ROOTS:
            if text.startswith(known + "."):
                return text[len(known) + 1 :]
        alias = self.constants.get(text)
        return alias.name if isinstance(alias, np.dtype) else text

    def only_read(self) -> frozenset[str]:
        """Parameters that are only read, element by element."""
        read = {id(part) for n in ast.walk(self.function) if (part := _part_read(n)) is not None}
        used = {n.id for n in ast.walk(self.function) if isinstance(n, ast.Name) and id(n) not in read}
        return frozenset(self.parameters) - used

    def reassigned(self) -> frozenset[str]:
        """Names that are given a value more than once, or in a loop."""
        every = [self.function, *self.functions.values()]
        names = [name for f in every for name in _assigned(f.body, 1)]
        return frozenset(name for name in names if names.count(name) > 1)


def _part_read(node: ast.AST) -> ast.expr | None:
    """The object whose element or attribute an expression reads."""
    if isinstance(node, ast.Subscript):
        return node.value if isinstance(node.ctx, ast.Load) else None
    return node.value if isinstance(node, ast.Attribute) else None


def _assigned(body: list[ast.stmt], times: int) -> Iterator[str]:
    for s in body:
        match s:
            case ast.Assign(targets=targets):
                yield from (n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name) for _ in range(times))
            case ast.AugAssign(target=ast.Name(id=name)):
                yield from (name, name)
            case ast.For(target=ast.Name(id=name)):
                yield from (name, name)
            case _:
                pass
        for part in ("body", "orelse"):
            yield from _assigned(getattr(s, part, []), times)


def read_kernel(source: str | Callable[..., Any], name: str | None = None) -> Kernel:
    """The kernel ``name`` of a text, or of a Python function; without a name, the one decorated as a kernel, or not called by
    other functions. Raises FieldError, InputError."""
    tree, name = _unpacked(_Sugar().visit(_parsed(source)), name)
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    constants = _constants(tree)
    if not isinstance(source, str):
        around = _around(source, functions)
        constants = {**around, **constants}
    if name is None:
        name = _only(functions)
    elif name not in functions:
        raise InputError(f"the text has no function {name[:100]}", hint="it has " + ", ".join(list(functions)[:8]))
    others = {n: f for n, f in functions.items() if n != name}
    return Kernel(functions[name], others, constants, _ALIASES | _imports(tree))


def _unpacked(tree: ast.Module, name: str | None) -> tuple[ast.Module, str | None]:
    """The module with the kernels that its factory functions return, and the values of those calls at its top level; and the
    kernel that ``name`` means, which may be the variable assigned from a call. Raises InputError if calls differ."""
    makers = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef) and _made_by(n)}
    if not makers:
        return tree, name
    calls: dict[str, list[tuple[str, ast.Call]]] = {}
    for n in tree.body:
        match n:
            case ast.Assign(targets=[ast.Name(id=target)], value=ast.Call(func=ast.Name(id=maker)) as call) if maker in makers:
                calls.setdefault(maker, []).append((target, call))
            case _:
                pass
    body: list[ast.stmt] = []
    for n in tree.body:
        body.append(n)
        if not isinstance(n, ast.FunctionDef) or n.name not in makers:
            continue
        asked = [c for c in calls.get(n.name, []) if c[0] == name] or calls.get(n.name, [])
        if len({ast.dump(c) for _, c in asked}) > 1:
            raise InputError(f"{n.name} makes several kernels", hint="choose one: " + ", ".join(t for t, _ in asked[:8]))
        if name in [t for t, _ in asked]:
            name = next((s.value.id for s in n.body if isinstance(s, ast.Return) and isinstance(s.value, ast.Name)), name)
        given = _arguments(n, asked[0][1] if asked else ast.Call(ast.Name(n.name, ast.Load()), [], []))
        inner = [s for s in n.body if isinstance(s, ast.Assign | ast.FunctionDef | ast.Import | ast.ImportFrom)]
        twice = (set(given) | _assigned_at_top(inner)) & _assigned_at_top(tree.body)
        if twice:
            what = f"{min(twice)} is a name of {n.name} and of the module"
            raise InputError(what, hint="the lab reads both as one: give one of them another name")
        body += [ast.copy_location(ast.Assign([ast.Name(k, ast.Store())], v), n) for k, v in given.items()]
        body += inner
    return ast.fix_missing_locations(ast.Module(body, [])), name


def _made_by(n: ast.FunctionDef) -> list[str]:
    """Kernels and device functions that a function defines."""
    return [s.name for s in n.body if isinstance(s, ast.FunctionDef) and any("jit" in ast.unparse(d) for d in s.decorator_list)]


def _assigned_at_top(body: Sequence[ast.stmt]) -> set[str]:
    return set(_assigned([s for s in body if isinstance(s, ast.Assign)], 1))


def _arguments(n: ast.FunctionDef, call: ast.Call) -> dict[str, ast.expr]:
    """Parameter to the argument of a call."""
    names, defaults = [a.arg for a in n.args.args], n.args.defaults
    given = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    return given | dict(zip(names, call.args, strict=False)) | {k.arg: k.value for k in call.keywords if k.arg}


class _Sugar(ast.NodeTransformer):
    """Rewrites ``x in (a, b)`` to comparisons, loops over ``enumerate((a, b))`` to loops over pairs, ``ord("a")`` to its
    number."""

    def visit_For(self, node: ast.For) -> ast.stmt:
        self.generic_visit(node)
        match node.iter:
            case ast.Call(func=ast.Name(id="enumerate"), args=[ast.Tuple(elts=parts) | ast.List(elts=parts)], keywords=[]):
                pairs: list[ast.expr] = [ast.Tuple([ast.Constant(i), part], ast.Load()) for i, part in enumerate(parts)]
                node.iter = ast.copy_location(ast.Tuple(pairs, ast.Load()), node.iter)
                return ast.fix_missing_locations(node)
            case _:
                return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.Call(func=ast.Name(id="ord"), args=[ast.Constant(value=str() as letter)], keywords=[]) if len(letter) == 1:
                return ast.copy_location(ast.Constant(ord(letter)), node)
            case _:
                return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        match node:
            case ast.Compare(
                left=left, ops=[ast.In() | ast.NotIn() as op], comparators=[ast.Tuple(elts=parts) | ast.List(elts=parts)]
            ):
                each: list[ast.expr] = [ast.Compare(left, [ast.Eq()], [part]) for part in parts]
                made = ast.BoolOp(ast.Or(), each) if len(each) > 1 else each[0]
                made = ast.UnaryOp(ast.Not(), made) if isinstance(op, ast.NotIn) else made
                return ast.fix_missing_locations(ast.copy_location(made, node))
            case _:
                return node


def _only(functions: Mapping[str, ast.FunctionDef]) -> str:
    """Raises InputError where several, or none, could be meant."""
    decorated = {n: f for n, f in functions.items() if any("jit" in ast.unparse(d) for d in f.decorator_list)}
    kernels = [n for n, f in decorated.items() if not any("device" in ast.unparse(d) for d in f.decorator_list)]
    among = {n: functions[n] for n in kernels} or functions
    called = {n.func.id for f in among.values() for n in ast.walk(f) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    found = [n for n in among if n not in called]
    if len(found) != 1:
        hint = "choose one: " + ", ".join(list(among)[:8]) if among else "def kernel(...)"
        raise InputError(f"the text has {len(among)} {'kernels' if kernels else 'functions'}", hint=hint)
    return found[0]


def _parsed(source: str | Callable[..., Any]) -> ast.Module:
    try:
        return ast.parse(kernel_text(source))
    except (SyntaxError, ValueError, RecursionError) as error:
        raise FieldError(f"is not Python: {error}", file="kernel", line=getattr(error, "lineno", None)) from error


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
    """The source of the kernel ``name`` (or the only one) of a text, with its module's constants and the functions it calls,
    each at its original line; the rest is blank. Raises FieldError, InputError."""
    kernel = read_kernel(text, name)
    called = {kernel.name}
    queue = [kernel.function]
    while queue:
        for n in ast.walk(queue.pop()):
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Name):
                callee = n.func.id
                if callee in kernel.functions and callee not in called:
                    called.add(callee)
                    queue.append(kernel.functions[callee])
    lines = text.splitlines()
    rows = [""] * len(lines)
    makers: set[str] = set()
    target = name if name not in kernel.functions and name != kernel.name else None
    """Target of an assignment, if the kernel is requested by it."""
    for n in ast.parse(text).body:
        first = n.lineno
        if isinstance(n, ast.FunctionDef):
            wanted = n.name in called or not called.isdisjoint(_made_by(n))
            makers |= {n.name} if wanted else set()
            first = min([first, *(d.lineno for d in n.decorator_list)])
        else:
            constant = isinstance(n, ast.Assign) and _is_constant(n, kernel.constants)
            wanted = constant or isinstance(n, ast.Import | ast.ImportFrom) or _is_asked(n, makers, target)
        if wanted:
            last = n.end_lineno or n.lineno
            rows[first - 1 : last] = lines[first - 1 : last]
    return "\n".join(rows) + "\n"


def _is_asked(n: ast.stmt, makers: set[str], name: str | None) -> bool:
    """Whether it is the call that makes the kernel ``name``."""
    match n:
        case ast.Assign(targets=[ast.Name(id=target)], value=ast.Call(func=ast.Name(id=maker))) if maker in makers:
            return name in (None, target)
        case _:
            return False


def _is_constant(n: ast.Assign, constants: Mapping[str, Any]) -> bool:
    targets = [part for t in n.targets for part in (t.elts if isinstance(t, ast.Tuple) else [t])]
    return all(isinstance(t, ast.Name) and t.id in constants for t in targets)


def _imports(tree: ast.Module) -> dict[str, str]:
    imports: dict[str, str] = {}
    for n in ast.walk(tree):
        if isinstance(n, ast.Import):
            imports |= {a.asname: a.name for a in n.names if a.asname}
        elif isinstance(n, ast.ImportFrom) and n.module:
            imports |= {a.asname or a.name: f"{n.module}.{a.name}" for a in n.names}
    return imports


def _constants(tree: ast.Module) -> dict[str, Any]:
    constants: dict[str, Any] = {}
    for n in (n for n in tree.body if isinstance(n, ast.Assign)):
        for target in n.targets:
            value = _constant(n.value, constants)
            if isinstance(target, ast.Name) and value is not None:
                constants[target.id] = value
            elif isinstance(target, ast.Tuple) and isinstance(value, tuple):
                parts = cast("tuple[Any, ...]", value)
                constants |= {t.id: v for t, v in zip(target.elts, parts, strict=False) if isinstance(t, ast.Name)}
    return constants


def _constant(e: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value of a constant expression; None for another expression."""
    match e:
        case ast.Constant(value=bool() | int() | float() as value):
            return value
        case ast.Name(id=name):
            return names.get(name, DTYPES.get(name))
        case ast.Attribute(attr=attr):
            return {"pi": math.pi, "e": math.e, "inf": math.inf}.get(attr, DTYPES.get(attr))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = _constant(operand, names)
            return None if value is None else -value
        case ast.BinOp(left=left, op=op, right=right):
            a, b, act = _constant(left, names), _constant(right, names), _ARITHMETIC.get(type(op))
            if act is None or not isinstance(a, int | float | np.generic) or not isinstance(b, int | float | np.generic):
                return None
            return act(a, b) if b or not isinstance(op, ast.Div | ast.FloorDiv | ast.Mod) else None
        case ast.Tuple(elts=parts):
            values = tuple(_constant(p, names) for p in parts)
            return None if any(v is None for v in values) else values
        case ast.Call(
            func=ast.Attribute(attr="array" | "asarray"), args=[ast.List() | ast.Tuple() as rows, *given], keywords=named
        ):
            values, types = _nested(rows, names), [*given, *(k.value for k in named if k.arg == "dtype")]
            dtype = _constant(types[0], names) if types else None
            return None if values is None or (types and dtype is None) else np.array(values, dtype)
        case ast.Call(func=func, args=[only]):
            value, dtype = _constant(only, names), _constant(func, names)
            is_number = isinstance(dtype, np.dtype) and isinstance(value, int | float)
            return cast("np.dtype[Any]", dtype).type(value) if is_number else None
        case _:
            return None


def _nested(e: ast.expr, names: Mapping[str, Any]) -> Any:
    """Constants in nested lists; None if an element is not constant, or rows differ."""
    if not isinstance(e, ast.List | ast.Tuple):
        value = _constant(e, names)
        return value if isinstance(value, int | float | np.generic) else None
    values = [_nested(part, names) for part in e.elts]
    even = len({len(v) if isinstance(v, list) else -1 for v in values}) == 1
    return values if even and all(v is not None for v in values) else None


def _around(function: Any, functions: dict[str, ast.FunctionDef]) -> dict[str, Any]:
    """Numbers of the module and the closure of a Python function; device functions among them are added to ``functions``."""
    plain = getattr(function, "py_func", function)
    values: dict[str, Any] = {}
    try:
        variables = inspect.getclosurevars(plain)
    except (TypeError, ValueError):
        return values
    for name, value in {**variables.globals, **variables.nonlocals}.items():
        if isinstance(value, bool | int | float | np.generic | np.dtype | np.ndarray) or (isinstance(value, tuple) and value):
            values[name] = value
        elif isinstance(value, type) and issubclass(value, np.generic):
            values[name] = np.dtype(value)
        elif inspect.isfunction(plain := getattr(value, "py_func", value)) and not plain.__module__.startswith("numba"):
            tree = _parsed(plain)
            inner = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
            if name in inner and name not in functions:
                functions[name] = inner[name]
                values |= _around(plain, functions)
    return values


def work_of(body: list[ast.stmt]) -> int:
    """Nodes of the text that become instructions."""
    return sum(
        isinstance(n, ast.BinOp | ast.AugAssign | ast.Subscript | ast.Compare | ast.Call) for s in body for n in ast.walk(s)
    )


def predicable(body: list[ast.stmt]) -> bool:
    """Whether an ``if`` has so few instructions that they are predicated instead of branched over."""
    if not all(isinstance(s, ast.Assign | ast.AugAssign) for s in body):
        return False
    work = ast.BinOp | ast.AugAssign | ast.Subscript | ast.Compare
    nodes = [n for s in body for n in ast.walk(s)]
    calls = any(isinstance(n, ast.Call) and not isinstance(n.func, ast.Name) for n in nodes)
    return not calls and sum(isinstance(n, work) for n in nodes) <= MOST_PREDICATED


def as_load(target: ast.expr) -> ast.expr:
    for node in ast.walk(target):
        if hasattr(node, "ctx"):
            node.ctx = ast.Load()  # type: ignore[attr-defined]
    return target
