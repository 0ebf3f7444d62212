"""The lines to change in the person's script, where the change is one that a reader of the script can check at a glance.

Only three kinds are made: arguments of ``DataLoader(...)``, ``fused=True`` in an optimizer of torch, and settings of one line
after the imports. Everything else stays with ``gpuwise run``.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

OPTIMIZERS = ("Adam", "AdamW", "SGD", "Adagrad")
LOADER_ARGUMENTS = {"workers": "num_workers", "prefetch": "prefetch_factor", "pin_memory": "pin_memory"}
LINES = {
    "tf32": 'torch.set_float32_matmul_precision("high")',
    "cudnn_benchmark": "torch.backends.cudnn.benchmark = True",
    "threads": "torch.set_num_threads({value})",
}


@dataclass(frozen=True, slots=True)
class Patch:
    """A unified diff, and the levers that it covers; the others need ``gpuwise run``."""

    text: str
    covers: tuple[str, ...]


def diff_of(script: Path, levers: Mapping[str, object]) -> Patch:
    """Empty where nothing can be changed safely. The changed script is parsed again before the diff is given."""
    source = script.read_text("utf-8")
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return Patch("", ())
    edits: list[tuple[int, int, str]] = []
    covers: list[str] = []
    wanted = {LOADER_ARGUMENTS[k]: v for k, v in levers.items() if k in LOADER_ARGUMENTS}
    if levers.get("workers"):
        wanted["persistent_workers"] = True
    loaders = _calls(tree, ("DataLoader",))
    if wanted and loaders and not any(_unclear(call) for call in loaders):
        for call in loaders:
            edits += _arguments(source, call, wanted)
        covers += [k for k in levers if k in LOADER_ARGUMENTS]
    optimizers = _calls(tree, OPTIMIZERS)
    if "fused_optimizer" in levers and optimizers and not any(_unclear(call) for call in optimizers):
        for call in optimizers:
            edits += _arguments(source, call, {"fused": True})
        covers.append("fused_optimizer")
    own = [k for k in levers if k in LINES]
    place = _after_imports(tree)
    if own and place is not None and _imports_torch(tree):
        lines = source.splitlines(keepends=True)
        at = sum(len(line) for line in lines[:place])
        edits.append((at, at, "".join(LINES[k].format(value=levers[k]) + "\n" for k in own)))
        covers += own
    changed = source
    for begin, end, text in sorted(edits, reverse=True):
        changed = changed[:begin] + text + changed[end:]
    try:
        ast.parse(changed)
    except SyntaxError:
        return Patch("", ())
    name = str(script)
    text = "".join(
        difflib.unified_diff(source.splitlines(keepends=True), changed.splitlines(keepends=True), f"a/{name}", f"b/{name}")
    )
    return Patch(text, tuple(covers) if text else ())


def _calls(tree: ast.AST, names: tuple[str, ...]) -> list[ast.Call]:
    found = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    return [n for n in found if getattr(n.func, "attr", getattr(n.func, "id", None)) in names]


def _unclear(call: ast.Call) -> bool:
    """Arguments that cannot be seen here: ``*args``, ``**options``."""
    return any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords)


def _arguments(source: str, call: ast.Call, wanted: Mapping[str, object]) -> list[tuple[int, int, str]]:
    """Replaced where they are given, added at the end where they are not."""
    edits: list[tuple[int, int, str]] = []
    given = {k.arg: k.value for k in call.keywords}
    new: list[str] = []
    for name, value in wanted.items():
        if name in given:
            node = given[name]
            edits.append((_offset(source, node.lineno, node.col_offset), _offset(source, *_end(node)), repr(value)))
        else:
            new.append(f"{name}={value!r}")
    if new:
        last = _offset(source, *_end(call)) - 1
        before = source[:last].rstrip()
        joint = "" if before.endswith(("(", ",")) else ", "
        if before.endswith(","):
            joint = " "
        edits.append((len(before), len(before), joint + ", ".join(new)))
    return edits


def _end(node: ast.expr) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


def _offset(source: str, line: int, column: int) -> int:
    """Of a place that ``ast`` names: lines from 1, columns in bytes of UTF-8."""
    lines = source.splitlines(keepends=True)
    return sum(len(text) for text in lines[: line - 1]) + len(lines[line - 1].encode()[:column].decode())


def _after_imports(tree: ast.Module) -> int | None:
    """The line after the last import at the top of the file."""
    ends = [n.end_lineno for n in tree.body if isinstance(n, (ast.Import, ast.ImportFrom)) and n.end_lineno]
    return max(ends) if ends else None


def _imports_torch(tree: ast.Module) -> bool:
    return any(isinstance(n, ast.Import) and any(a.name == "torch" and a.asname is None for a in n.names) for n in tree.body)
