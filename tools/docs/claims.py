"""Writes the page of claims people repeat, each recomputed by the commands it names, and checks it.

    python -m tools.docs.claims docs/concepts/claims.md             write the page
    python -m tools.docs.claims --check docs/concepts/claims.md     say what has drifted (exit code 1)

The claims are ``claims.toml`` beside the page. A figure is either a value in the JSON document of a command or
arithmetic on other figures; it is recomputed, compared with the value written down within a tolerance, and put into
the text where its name stands in braces, so that words and numbers cannot part. Each claim holds a test of the
claim itself on those figures: one that is ``right`` passes it, one that is ``corrected`` fails it, one that
``depends`` passes some and fails some.
"""

from __future__ import annotations

import ast
import math
import operator
import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gpuwise.cli.called import ask
from gpuwise.errors import FieldError, GpuwiseError
from gpuwise.facts.words import NumberFormat, at_path

VERDICTS = ("right", "corrected", "depends")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Figure:
    """One number: from ``command`` at ``path`` of its JSON, or ``formula`` over the figures before it."""

    name: str
    expected: float
    tolerance: float
    """Largest relative difference from ``expected``."""
    show: str
    """Python's format of the number shown."""
    unit: str = ""
    scale: float = 1.0
    """Shown number over the SI value."""
    command: str = ""
    path: str = ""
    formula: str = ""

    def text(self, value: float) -> str:
        """``"8.37 ms"``."""
        return NumberFormat(self.show, self.unit, self.scale).text(value)


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim with what recomputes it. ``says`` and ``short`` hold names of figures in braces."""

    id: str
    group: str
    title: str
    claim: str
    """As people say it."""
    heard: str
    """Where it is repeated."""
    see: str
    """Title of what one can read about it, at ``url``."""
    url: str
    verdict: str
    tests: tuple[str, ...]
    """Comparisons over the figures that are true exactly when the claim is."""
    short: str
    says: str
    figures: tuple[Figure, ...]

    @property
    def commands(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(f.command for f in self.figures if f.command))


# --- reading ---


def read_claims(path: Path) -> tuple[Claim, ...]:
    """The claims of a file, checked for names that are unknown, missing or repeated. Raises FieldError."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FieldError(f"cannot be read: {error}", file=str(path), hint="see https://toml.io") from error
    return tuple(_claim(name, table, str(path)) for name, table in document.items())


def _claim(name: str, table: Any, file: str) -> Claim:
    given = dict(table) if isinstance(table, dict) else {}
    figures = tuple(_build(Figure, dict(f), f"{name}.figures", file) for f in given.pop("figures", []))
    given["tests"] = tuple(given.get("tests", ()))
    claim: Claim = _build(Claim, {**given, "id": name, "figures": figures}, name, file)
    _check(claim, file)
    return claim


def _build(cls: Any, given: dict[str, Any], where: str, file: str) -> Any:
    known = {f.name for f in fields(cls)}
    for key in given:
        if key not in known:
            raise FieldError(f"{where}: unknown field {key!r}", file=file, field=key, hint="known: " + ", ".join(known))
    try:
        return cls(**given)
    except TypeError as error:
        raise FieldError(f"{where}: {error}", file=file, hint="give every field") from None


def _check(claim: Claim, file: str) -> None:
    """Raises FieldError where a claim contradicts itself."""

    def refuse(what: str, hint: str) -> FieldError:
        return FieldError(f"{claim.id}: {what}", file=file, hint=hint)

    if claim.verdict not in VERDICTS:
        raise refuse(f"verdict {claim.verdict!r}", "one of " + ", ".join(VERDICTS))
    if not claim.tests or not claim.figures or not claim.url.startswith("https://"):
        raise refuse("no test, no figure or no source", "a claim has at least one of each; a url begins with https://")
    seen: list[str] = []
    for figure in claim.figures:
        if bool(figure.command) == bool(figure.formula) or bool(figure.command) != bool(figure.path):
            raise refuse(f"{figure.name} needs a command and a path, or a formula", "give one of the two")
        if figure.name in seen:
            raise refuse(f"{figure.name} appears twice", "give each figure its own name")
        if not (math.isfinite(figure.expected) and figure.expected and 0 <= figure.tolerance < 0.5):
            raise refuse(f"{figure.name} has no usable expected value", "a number other than 0, tolerance below 0.5")
        seen.append(figure.name)
    for name in _PLACEHOLDER.findall(claim.short + claim.says):
        if name not in seen:
            raise refuse(f"the text names {{{name}}}, which is no figure", "known: " + ", ".join(seen))
    spoken = set(_PLACEHOLDER.findall(claim.short + claim.says))
    used = " ".join((*claim.tests, *(f.formula for f in claim.figures)))
    for name in seen:
        if name not in spoken and not re.search(rf"\b{name}\b", used):
            raise refuse(f"{name} is neither in the text nor in a test", "use it or take it out")


# --- computing ---


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """A claim with its recomputed ``values``; ``problems`` is empty when all is as written down."""

    claim: Claim
    values: Mapping[str, float]
    problems: tuple[str, ...]

    def fill(self, text: str) -> str:
        """``text`` with each figure where its name stands."""
        figures = {f.name: f for f in self.claim.figures}
        return _PLACEHOLDER.sub(lambda m: figures[m[1]].text(self.values[m[1]]), text)


def check_claims(claims: Sequence[Claim]) -> tuple[ClaimResult, ...]:
    """Every claim recomputed; a command that several name runs once."""
    documents: dict[str, Any] = {}
    return tuple(_recompute(claim, documents) for claim in claims)


def _recompute(claim: Claim, documents: dict[str, Any]) -> ClaimResult:
    values: dict[str, float] = {}
    problems: list[str] = []
    for figure in claim.figures:
        try:
            if figure.command:
                if figure.command not in documents:
                    documents[figure.command] = run_command(figure.command)
                value = at_path(documents[figure.command], figure.path)
            else:
                value = float(evaluate(figure.formula, values))
        except (GpuwiseError, ValueError, KeyError, ZeroDivisionError) as error:
            return ClaimResult(claim, values, (*problems, f"{claim.id}: {figure.name}: {error}"))
        values[figure.name] = value
        if not abs(value / figure.expected - 1.0) <= figure.tolerance:
            problems.append(
                f"{claim.id}: {figure.name} is {value:.6g}, written down as {figure.expected:.6g} "
                f"(within {100 * figure.tolerance:g} %)"
            )
    return ClaimResult(claim, values, (*problems, *_contradictions(claim, values)))


def _contradictions(claim: Claim, values: Mapping[str, float]) -> list[str]:
    """The verdict against the claim's own tests."""
    results = [bool(evaluate(test, values)) for test in claim.tests]
    fair = {"right": all(results), "corrected": not any(results), "depends": any(results) and not all(results)}
    if fair[claim.verdict]:
        return []
    shown = ", ".join(f"{t} is {str(r).lower()}" for t, r in zip(claim.tests, results, strict=True))
    return [f"{claim.id}: the verdict is {claim.verdict}, but {shown}"]


def run_command(command: str) -> Any:
    """The JSON document of a ``gpuwise`` command, of an answer of yes or no. Raises FieldError when it does not run."""
    words = shlex.split(command)
    if words[:1] != ["gpuwise"]:
        raise FieldError(f"{command!r} is no gpuwise command")
    try:
        return ask(words[1], *words[2:]).document
    except GpuwiseError as error:
        raise FieldError(f"`{command}` is refused: {error}") from error


_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def evaluate(formula: str, values: Mapping[str, float]) -> float:
    """Arithmetic and comparisons over ``values`` (chains like ``1 < a < 2`` too); nothing else runs.

    Raises ValueError.
    """
    try:
        return _value(ast.parse(formula, mode="eval").body, values)
    except (SyntaxError, TypeError, OverflowError) as error:
        raise ValueError(f"{formula!r} cannot be computed: {error}") from None


def _value(node: ast.expr, values: Mapping[str, float]) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.Name):
        if node.id not in values:
            raise ValueError(f"no figure {node.id!r} before it")
        return values[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _BINARY[type(node.op)](_value(node.left, values), _value(node.right, values))
    if isinstance(node, ast.Compare):
        sides = [_value(side, values) for side in (node.left, *node.comparators)]
        pairs = zip(node.ops, sides, sides[1:], strict=False)
        return all(_BINARY[type(op)](a, b) for op, a, b in pairs)
    raise ValueError(f"{ast.unparse(node)!r} is neither arithmetic nor a comparison")


# --- the command line ---


def main(arguments: Sequence[str]) -> int:
    """Write the page, or with ``--check`` say what has drifted."""
    from tools.docs.claims_page import page

    checking = "--check" in arguments
    places = [a for a in arguments if a != "--check"]
    if len(places) != 1:
        sys.stderr.write("error: name the page\nhint: python -m tools.docs.claims docs/concepts/claims.md\n")
        return 2
    target = Path(places[0])
    try:
        checked = check_claims(read_claims(target.with_suffix(".toml")))
    except FieldError as error:
        sys.stderr.write(f"error: {error.message}\n" + (f"hint: {error.hint}\n" if error.hint else ""))
        return 2
    problems = [problem for c in checked for problem in c.problems]
    if not problems:
        text = page(checked)
        if not checking:
            target.write_text(text, encoding="utf-8")
            return 0
        if target.exists() and target.read_text(encoding="utf-8") == text:
            return 0
        problems = [f"{target} is stale"]
    sys.stderr.write("".join(f"error: {p}\n" for p in problems))
    sys.stderr.write(f"hint: mend {target.with_suffix('.toml').name}, then run python -m tools.docs.claims {target}\n")
    return 1


if __name__ == "__main__":
    import os

    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(main(sys.argv[1:]))
