"""How long a script means to go on: the steps that a trainer (transformers, Lightning) intends, the epochs of a plain loop."""

from __future__ import annotations

import argparse
import ast
import linecache
from contextlib import suppress
from types import FrameType, ModuleType
from typing import Any, cast

MOST_FRAMES = 200


def find_total(frame: FrameType | None) -> dict[str, Any] | None:
    """``steps`` (optimizer steps) and ``by`` of the nearest trainer that calls this frame; None without one.

    Transformers has them in ``Trainer.state.max_steps``; Lightning gives ``max_steps``, or epochs with a number of batches.
    """
    for _ in range(MOST_FRAMES):
        if frame is None:
            return None
        owner = frame.f_locals.get("self")
        module = type(owner).__module__.partition(".")[0]
        if owner is not None and module in ("transformers", "lightning", "pytorch_lightning"):
            with suppress(Exception):
                total = _transformers(owner) if module == "transformers" else _lightning(owner)
                if total is not None and total > 0:
                    return {"steps": total, "by": module}
        frame = frame.f_back
    return None


def _transformers(owner: Any) -> int | None:
    state = getattr(owner, "state", None)
    steps = getattr(state, "max_steps", None)
    return steps if isinstance(steps, int) and hasattr(state, "global_step") else None


def _lightning(owner: Any) -> int | None:
    """Turns of a fit."""
    if type(owner).__name__ != "Trainer":
        return None
    if owner.max_steps and owner.max_steps > 0:
        return int(owner.max_steps)
    batches, epochs = owner.num_training_batches, owner.max_epochs
    if not epochs or epochs < 0 or batches == float("inf"):
        return None
    return -(-int(batches) // int(owner.accumulate_grad_batches or 1)) * int(epochs)


def find_epochs(frame: FrameType | None) -> int | None:
    """Passes over the data of the loop that calls this frame, from its source: the product of the ranges of the loops around
    the innermost one, 1 without such loops. None if a loop is not a ``range`` of readable values, or the innermost itself is
    one (it counts steps then)."""
    loops: list[tuple[ast.For | ast.While, FrameType]] = []
    for _ in range(MOST_FRAMES):
        if frame is None:
            break
        if not _is_library(frame.f_code.co_filename):
            loops += [(node, frame) for node in _loops_around(frame)]
        frame = frame.f_back
    if not loops or _range_of(*loops[0]) is not None or isinstance(loops[0][0], ast.While):
        return None
    total = 1
    for node, owner in loops[1:]:
        n = _range_of(node, owner)
        if n is None:
            return None
        total *= n
    return total


def _is_library(file: str) -> bool:
    return any(part in file for part in ("site-packages", "dist-packages", "/gpuwise/", "<frozen")) or "/lib/python3" in file


def _loops_around(frame: FrameType) -> list[ast.For | ast.While]:
    """Loops around the frame's line, in its own function, the innermost first."""
    source = "".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals))
    try:
        tree: ast.AST = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    line, loops = frame.f_lineno, list[ast.For | ast.While]()
    node: ast.AST | None = tree
    while node is not None:
        inner = None
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt) and child.lineno <= line <= (child.end_lineno or child.lineno):
                inner = child
        if isinstance(inner, ast.For | ast.While):
            loops.append(inner)
        if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            # loops outside of the function are not around its call
            loops.clear()
        node = inner
    return loops[::-1]


def _range_of(node: ast.For | ast.While, frame: FrameType) -> int | None:
    """How often a ``for ... in range(...)`` turns; None for any other loop. A progress bar around the range is looked through."""
    if isinstance(node, ast.While):
        return None
    call = node.iter
    while isinstance(call, ast.Call) and not (isinstance(call.func, ast.Name) and call.func.id == "range"):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name not in ("tqdm", "trange", "track", "enumerate") or not call.args:
            return None
        if name == "trange":
            break
        call = call.args[0]
    if not isinstance(call, ast.Call) or not 1 <= len(call.args) <= 3:
        return None
    numbers = [_value_of(a, frame) for a in call.args]
    if not all(isinstance(n, int) for n in numbers):
        return None
    with suppress(ValueError):
        return len(range(*numbers))
    return None


def _value_of(node: ast.expr, frame: FrameType) -> Any:
    """Value of a number, a variable, an attribute of plain options, or their sum; None for an expression that would have to be
    executed."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        owner = _value_of(node.value, frame)
        plain = isinstance(owner, argparse.Namespace | ModuleType) or hasattr(owner, "__dict__")
        return vars(owner).get(node.attr) if plain else None
    if isinstance(node, ast.Subscript):
        owner, key = _value_of(node.value, frame), _value_of(node.slice, frame)
        return cast("dict[Any, Any]", owner).get(key) if type(owner) is dict and isinstance(key, str | int) else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
        left_value, right = _value_of(node.left, frame), _value_of(node.right, frame)
        if isinstance(left_value, int) and isinstance(right, int):
            signs = {ast.Add: left_value + right, ast.Sub: left_value - right, ast.Mult: left_value * right}
            return signs[type(node.op)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "int" and len(node.args) == 1:
        inner = _value_of(node.args[0], frame)
        return int(inner) if isinstance(inner, int | float) else None
    return None
