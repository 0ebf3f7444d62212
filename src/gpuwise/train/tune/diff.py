"""The lines to change in the person's script, where the change is one that a reader of the script can check at a glance.

Four kinds are made: arguments of ``DataLoader(...)``, of an optimizer of torch and of ``zero_grad()``; settings of one line
after the imports; and one line on the model, behind the optimizer that takes its parameters. Everything else stays with
``gpuwise run``.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

OPTIMIZERS = ("Adam", "AdamW", "SGD", "Adagrad")
EVERY_OPTIMIZER = (
    *OPTIMIZERS,
    "Adadelta",
    "Adafactor",
    "Adamax",
    "ASGD",
    "LBFGS",
    "Muon",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SparseAdam",
)
LOADER_ARGUMENTS = {"workers": "num_workers", "prefetch": "prefetch_factor", "pin_memory": "pin_memory"}
LINES = {
    "tf32": 'torch.set_float32_matmul_precision("high")',
    "cudnn_benchmark": "torch.backends.cudnn.benchmark = True",
    "threads": "torch.set_num_threads({value})",
}
MODEL_LINES = {
    ("compile", "whole"): "{model}.compile()",
    ("compile", "reduce-overhead"): '{model}.compile(mode="reduce-overhead")',
    ("channels_last", True): "{model}.to(memory_format=torch.channels_last)",
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
    edits: list[Edit] = []
    covers: list[str] = []
    for part in (_loaders, _optimizers, _gradients, _settings, _model):
        made, names = part(source, tree, levers)
        edits += made
        covers += names
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


Edit = tuple[int, int, str]
"""From, to (characters of the source), and what stands there then."""
Made = tuple[list[Edit], list[str]]


def _loaders(source: str, tree: ast.Module, levers: Mapping[str, object]) -> Made:
    wanted = {LOADER_ARGUMENTS[k]: v for k, v in levers.items() if k in LOADER_ARGUMENTS}
    if levers.get("workers"):
        wanted["persistent_workers"] = True
    calls = _calls(tree, ("DataLoader",))
    if not wanted or not calls or any(_unclear(call) for call in calls):
        return [], []
    edits = [edit for call in calls for edit in _arguments(source, call, wanted)]
    return edits, [k for k in levers if k in LOADER_ARGUMENTS]


def _optimizers(source: str, tree: ast.Module, levers: Mapping[str, object]) -> Made:
    calls = _calls(tree, OPTIMIZERS)
    if "fused_optimizer" not in levers or not calls or any(_unclear(call) for call in calls):
        return [], []
    return [edit for call in calls for edit in _arguments(source, call, {"fused": True})], ["fused_optimizer"]


def _gradients(source: str, tree: ast.Module, levers: Mapping[str, object]) -> Made:
    calls = _calls(tree, ("zero_grad",))
    if "set_to_none" not in levers or not calls or any(call.args or _unclear(call) for call in calls):
        return [], []
    return [edit for call in calls for edit in _arguments(source, call, {"set_to_none": True})], ["set_to_none"]


def _settings(source: str, tree: ast.Module, levers: Mapping[str, object]) -> Made:
    own, place = [k for k in levers if k in LINES], _after_imports(tree)
    if not own or place is None or not _imports_torch(tree):
        return [], []
    at = sum(len(line) for line in source.splitlines(keepends=True)[:place])
    return [(at, at, "".join(LINES[k].format(value=levers[k]) + "\n" for k in own))], own


def _model(source: str, tree: ast.Module, levers: Mapping[str, object]) -> Made:
    """Behind ``optimizer = Optimizer(model.parameters(), ...)``, where there is one such line and the model is a plain name."""
    lines = {k: MODEL_LINES[k, v] for k, v in levers.items() if isinstance(v, (str, bool)) and (k, v) in MODEL_LINES}
    places = [
        (node, name)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Call) and (name := _learner(node.value))
    ]
    if not lines or len(places) != 1 or not _imports_torch(tree):
        return [], []
    node, name = places[0]
    rows = source.splitlines(keepends=True)
    first, last = rows[node.lineno - 1], node.end_lineno or node.lineno
    indent = first[: len(first) - len(first.lstrip())]
    alone = len(indent.encode()) == node.col_offset and ";" not in rows[last - 1].split("#")[0]
    if not alone or not rows[last - 1].endswith("\n"):
        return [], []
    at = sum(len(row) for row in rows[:last])
    return [(at, at, "".join(f"{indent}{line.format(model=name)}\n" for line in lines.values()))], list(lines)


def _learner(call: ast.Call) -> str | None:
    """``model`` of ``torch.optim.Adam(model.parameters(), ...)``."""
    name = getattr(call.func, "attr", getattr(call.func, "id", "")) or ""
    first = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "params"), None)
    if name not in EVERY_OPTIMIZER or not (isinstance(first, ast.Call) and isinstance(first.func, ast.Attribute)):
        return None
    owner = first.func.value
    return owner.id if first.func.attr == "parameters" and isinstance(owner, ast.Name) else None


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
