"""A person's script as text and syntax tree, and edits of it at places that a reader can check at a glance."""

from __future__ import annotations

import ast
import difflib
import linecache
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from gpuwise.workload.changes.change import NOWHERE, Site, Sites

FUSED_OPTIMIZERS = ("Adam", "AdamW", "SGD", "Adagrad")
"""Classes of torch with a fused form."""
EVERY_OPTIMIZER = (
    *FUSED_OPTIMIZERS,
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


@dataclass(frozen=True, eq=False)
class Script:
    """``source`` begins at line ``first_line`` of ``file``; a part of a file (one line) has lost its indentation."""

    file: str
    source: str
    tree: ast.Module
    first_line: int = 1
    is_whole: bool = True

    @classmethod
    def parse(cls, file: str, source: str) -> Script | None:
        """None where it is no Python."""
        try:
            return cls(file, source, ast.parse(source))
        except SyntaxError:
            return None

    @classmethod
    def line_of(cls, site: Site) -> Script | None:
        """The one line of ``site``; None where it is no whole statement."""
        text = site.source.strip()
        try:
            return cls(site.file, text + "\n", ast.parse(text), site.line, False) if text else None
        except SyntaxError:
            return None

    @cached_property
    def rows(self) -> list[str]:
        return self.source.splitlines(keepends=True)

    def offset(self, line: int, column: int) -> int:
        """Offset of a position from ``ast``: lines from 1, columns in bytes of UTF-8."""
        before = sum(len(row) for row in self.rows[: line - 1])
        return before + len(self.rows[line - 1].encode()[:column].decode())

    def start_of(self, node: ast.stmt | ast.expr) -> int:
        return self.offset(node.lineno, node.col_offset)

    def end_of(self, node: ast.stmt | ast.expr) -> int:
        return self.offset(node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)

    def row(self, line: int) -> int:
        """Characters before ``line`` (one past the last: the whole source)."""
        return sum(len(row) for row in self.rows[: line - 1])

    def indent(self, line: int) -> str:
        text = self.rows[line - 1]
        return text[: len(text) - len(text.lstrip())]

    def calls(self, names: Iterable[str]) -> list[ast.Call]:
        """Calls of anything with one of ``names``, in order of their place."""
        callees = set(names)
        found = [n for n in ast.walk(self.tree) if isinstance(n, ast.Call)]
        return [n for n in found if getattr(n.func, "attr", getattr(n.func, "id", None)) in callees]

    def bodies(self) -> Iterable[list[ast.stmt]]:
        """Every list of statements."""
        for node in ast.walk(self.tree):
            for field in ("body", "orelse", "finalbody"):
                body = getattr(node, field, None)
                if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
                    yield body

    def is_alone(self, node: ast.stmt) -> bool:
        """Whether the statement is alone on its lines."""
        first, last = self.rows[node.lineno - 1], self.rows[(node.end_lineno or node.lineno) - 1]
        indent = first[: len(first) - len(first.lstrip())]
        return len(indent.encode()) == node.col_offset and ";" not in last.split("#")[0] and last.endswith("\n")

    def after_imports(self) -> int | None:
        """The line after the last import at the top of the file."""
        ends = [n.end_lineno for n in self.tree.body if isinstance(n, (ast.Import, ast.ImportFrom)) and n.end_lineno]
        return max(ends) + 1 if ends else None

    @property
    def imports_torch(self) -> bool:
        """``import torch``, by that name; a part of a file is taken to."""
        if not self.is_whole:
            return True
        return any(
            isinstance(n, ast.Import) and any(a.name == "torch" and a.asname is None for a in n.names) for n in self.tree.body
        )


@dataclass(frozen=True, slots=True)
class Edit:
    """Replacement of the characters ``begin`` to ``end`` of a script's source."""

    script: Script
    begin: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """Keyword arguments of a call: replaced where they are given, added at its end where they are not."""

    script: Script
    call: ast.Call
    wanted: Mapping[str, object]


def edited(script: Script, edits: Sequence[Edit | Arguments]) -> str | None:
    """The changed source; None if it would not be valid Python. Edits of one place are applied in order."""
    source = script.source
    plain = list(dict.fromkeys(e for e in edits if isinstance(e, Edit) and e.script is script))
    arguments_of: dict[ast.Call, dict[str, object]] = {}
    for e in edits:
        if isinstance(e, Arguments) and e.script is script:
            arguments_of.setdefault(e.call, {}).update(e.wanted)
    plain += [e for call, names in arguments_of.items() for e in _arguments(script, call, names)]
    plain.sort(key=lambda e: (e.begin, e.end))
    for edit in plain[::-1]:
        source = source[: edit.begin] + edit.text + source[edit.end :]
    try:
        ast.parse(source)
    except SyntaxError:
        return None
    return source


def hunks(script: Script, new_source: str) -> list[str]:
    """Lines that go as ``- ``, lines that come as ``+ ``, each group under its place as ``@ train.py:31``."""
    old, new = script.source.splitlines(), new_source.splitlines()
    lines: list[str] = []
    for tag, i, j, a, b in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        margin = min((len(t) - len(t.lstrip()) for t in (*old[i:j], *new[a:b]) if t.strip()), default=0)
        # insertions go behind the line before
        at = Site(script.file, script.first_line + (i if j > i else max(i - 1, 0)), "")
        lines.append(f"@ {at.where}")
        lines += [f"- {t[margin:]}" for t in old[i:j]] + [f"+ {t[margin:]}" for t in new[a:b]]
    return lines


def _arguments(script: Script, call: ast.Call, arguments: Mapping[str, object]) -> list[Edit]:
    edits: list[Edit] = []
    keywords = {k.arg: k.value for k in call.keywords}
    new: list[str] = []
    for name, value in arguments.items():
        if name in keywords:
            node = keywords[name]
            edits.append(Edit(script, script.start_of(node), script.end_of(node), repr(value)))
        else:
            new.append(f"{name}={value!r}")
    if new:
        last = script.end_of(call) - 1
        before = script.source[:last].rstrip()
        joint = "" if before.endswith(("(", ",")) else ", "
        if before.endswith(","):
            joint = " "
        edits.append(Edit(script, len(before), len(before), joint + ", ".join(new)))
    return edits


def is_unclear(call: ast.Call) -> bool:
    """Arguments that cannot be seen here: ``*args``, ``**options``."""
    return any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords)


class Code:
    """Known parts of the user's code: the whole script, or the places that a capture noted."""

    def __init__(
        self, sites: Sites = NOWHERE, script: Script | None = None, *, is_blind: bool = False, device: str = "cuda"
    ) -> None:
        """``is_blind``: as if no line could be read. ``device``: torch's name of the kind that the code trains on."""
        self.sites, self.script, self.is_blind, self.device = sites, script, is_blind, device
        self._files: dict[str, Script | None] = {}
        self._lines: dict[tuple[str, int], Script | None] = {}

    def near(self, site: Site | None) -> Script | None:
        """The script around ``site``: its file where that can be read and is as it was captured, else its line."""
        if site is None or self.is_blind:
            return self.script
        if site.file not in self._files:
            self._files[site.file] = Script.parse(site.file, "".join(linecache.getlines(site.file)))
        script = self._files[site.file]
        rows = script.rows if script is not None else []
        if script is not None and site.line <= len(rows) and rows[site.line - 1].rstrip("\n") == site.source.rstrip("\n"):
            return script
        key = (site.file, site.line)
        if key not in self._lines:
            self._lines[key] = Script.line_of(site)
        return self._lines[key]

    def calls(self, site: Site | None, names: Iterable[str]) -> tuple[Script | None, list[ast.Call]]:
        """Calls by name: those on the line of ``site``, or all calls of the script if no site is known."""
        script = self.near(site)
        if script is None:
            return None, []
        found = script.calls(names)
        if site is not None:
            line = site.line - script.first_line + 1
            found = [c for c in found if c.lineno <= line <= (c.end_lineno or c.lineno)]
        return script, found

    def learner(self) -> tuple[Script, ast.stmt, str] | None:
        """``optimizer = Optimizer(model.parameters(), ...)``, where there is one such line, alone, and the model has a plain
        name: the script, the statement and the name."""
        script = self.near(self.sites.optimizer)
        if script is None:
            return None
        places = [
            (node, name)
            for node in ast.walk(script.tree)
            if isinstance(node, (ast.Assign, ast.AnnAssign))
            and isinstance(node.value, ast.Call)
            and (name := _learner(node.value, self.sites.optimizers))
        ]
        if self.sites.optimizer is not None:
            line = self.sites.optimizer.line - script.first_line + 1
            places = [(n, name) for n, name in places if n.lineno <= line <= (n.end_lineno or n.lineno)]
        if len(places) != 1 or not script.is_alone(places[0][0]):
            return None
        return script, *places[0]


def _learner(call: ast.Call, classes: Sequence[str]) -> str | None:
    """``model`` of ``torch.optim.Adam(model.parameters(), ...)``."""
    name = getattr(call.func, "attr", getattr(call.func, "id", "")) or ""
    first = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "params"), None)
    if name not in (*EVERY_OPTIMIZER, *classes) or not (isinstance(first, ast.Call) and isinstance(first.func, ast.Attribute)):
        return None
    owner = first.func.value
    return owner.id if first.func.attr == "parameters" and isinstance(owner, ast.Name) else None
