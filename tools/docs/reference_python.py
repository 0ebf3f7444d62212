"""The reference page of the Python API: signatures, docstrings and the fields of public dataclasses."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cached_property
from typing import Any

import gpuwise
from gpuwise import errors
from gpuwise.cli import called
from gpuwise.plan.goal import Wishes
from gpuwise.workload.strategy import OPTIONS, Strategy


def python_page() -> str:
    """Every name of ``gpuwise.__all__``, then the errors."""
    from tools.docs.reference import STAMP

    # a package with the name of a command is called as the command
    named = {n: getattr(called if inspect.ismodule(getattr(gpuwise, n)) else gpuwise, n) for n in gpuwise.__all__}
    functions = [n for n, value in named.items() if inspect.isfunction(value)]
    classes = [n for n, value in named.items() if inspect.isclass(value)]
    lines = [
        STAMP,
        "",
        "# Python API",
        "",
        "Everything here is imported from `gpuwise` itself, on first use. ",
        "",
    ]
    lines[-2] += "Values are SI: seconds, bytes, bytes/s, FLOP, watts, US dollars. Results are frozen dataclasses."
    lines += ["## Functions", ""]
    for name in functions:
        lines += _function(name, named[name])
    lines += ["## Values", ""]
    for name in classes:
        lines += _class(name, named[name])
    lines += ["## Errors", "", *_errors()]
    return "\n".join(lines).rstrip() + "\n"


def _class(name: str, cls: type) -> list[str]:
    if name != cls.__name__:
        return [f"### {name}", "", f"Another name of `{cls.__name__}`: the answer about own code was a class of its own.", ""]
    return dataclass_lines(cls, heading="###")


def _function(name: str, function: Any) -> list[str]:
    return [f"### {name}", "", "```python", _signature(name, function), "```", "", *markdown(function), ""]


def _signature(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    one = f"{name}{signature}".replace("'", "")
    if len(one) <= 100:
        return one
    parts: list[str] = []
    for p in signature.parameters.values():
        if p.kind is p.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        parts.append(str(p).replace("'", ""))
    returns = "" if signature.return_annotation is signature.empty else f" -> {signature.return_annotation}"
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returns}".replace("'", "")


def dataclass_lines(cls: type, heading: str) -> list[str]:
    """Docstring, table of fields, properties and methods of a dataclass."""
    lines = [f"{heading} {cls.__name__}", "", *markdown(cls), ""]
    if is_dataclass(cls):
        lines += ["| field | type | default | |", "|---|---|---|---|"]
        lines += [f"| `{f.name}` | `{_type(f)}` | {_default(f)} | {meaning} |" for f, meaning in field_meanings(cls)]
        lines.append("")
    for name, member in vars(cls).items():
        if name.startswith("_") or not _is_method(member):
            continue
        text = " ".join(markdown(_function_of(member))) or "-"
        lines += [f"- `{name}{_call(member)}`: {text}"]
    return [*lines, ""]


def field_meanings(cls: Any) -> Iterator[tuple[Field[Any], str]]:
    """Each field of a dataclass with the docstring under it, after what the table of options says."""
    said: dict[str, str] = {}
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    for node, after in zip(body.body, [*body.body[1:], None], strict=True):
        documented = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and documented:
            said[node.target.id] = inspect.cleandoc(str(after.value.value))  # type: ignore[union-attr]
    for f in fields(cls):
        option = OPTIONS.get(f.name) if cls in (Strategy, Wishes) else None
        choices = f"One of {', '.join(option.choices)}." if option and option.choices and cls is Strategy else ""
        parts = (option.help if option else "", choices, said.get(f.name, ""))
        yield f, cell(" ".join(part for part in parts if part))


def cell(text: str) -> str:
    """Text as one cell of a Markdown table."""
    return plain(" ".join(text.split())).replace("|", "\\|")


def plain(text: str) -> str:
    """A docstring's roles and double backticks as Markdown."""
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?([\w]+)`", r"`\1`", text)
    return text.replace("``", "`")


def markdown(thing: Any) -> list[str]:
    """The docstring of ``thing`` as Markdown paragraphs; empty for a dataclass without one."""
    text = inspect.getdoc(thing) or ""
    if inspect.isclass(thing) and text.startswith(f"{thing.__name__}("):
        return []
    parts = [plain(" ".join(p.split())) for p in text.split("\n\n")]
    return "\n\n".join(p for p in parts if p).split("\n") if any(parts) else []


def _is_method(member: object) -> bool:
    return inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod | cached_property)


def _function_of(member: Any) -> Any:
    for name in ("fget", "__func__", "func"):
        if getattr(member, name, None) is not None:
            return getattr(member, name)
    return member


def _call(member: Any) -> str:
    if isinstance(member, property | cached_property):
        return ""
    names = [n for n in inspect.signature(_function_of(member)).parameters if n not in ("self", "cls")]
    return f"({', '.join(names)})"


def _type(f: Field[Any]) -> str:
    name = f.type if isinstance(f.type, str) else getattr(f.type, "__name__", str(f.type))
    return name.replace("|", "\\|").replace('"', "")


def _default(f: Field[Any]) -> str:
    if f.default is not MISSING:
        return f"`{f.default!r}`".replace("'", '"')
    return "" if f.default_factory is MISSING else "empty"


def _errors() -> list[str]:
    """The error tree as a list, deeper errors indented."""

    def tree(cls: type, depth: int) -> Iterator[str]:
        yield f"{'  ' * depth}- `{cls.__name__}`: {markdown(cls)[0]}"
        for below in vars(errors).values():
            if inspect.isclass(below) and below.__bases__ == (cls,):
                yield from tree(below, depth + 1)

    return [
        "All are in `gpuwise.errors`. `error.message` says what is wrong, `error.hint` what to do.",
        "",
        *tree(errors.GpuwiseError, 0),
    ]
