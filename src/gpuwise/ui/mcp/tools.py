"""Tools and their arguments, made from the parser of the command line: there is no second list of options.

An option that names a file, a folder or an address to reach is no argument of a tool. A model may be a file inside the folder
that the person named, and own code runs only where the person allowed it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args, get_origin

from gpuwise.cli.asked import parser
from gpuwise.cli.needs import OWN_CODE
from gpuwise.cli.shown import WHAT
from gpuwise.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from cyclopts import Argument

Kind = Literal["boolean", "array", "number", "string"]
TOOLS: Mapping[str, str] = {
    "fit": "fit",
    "plan": "plan",
    "pick": "pick",
    "capacity": "capacity",
    "compare": "compare",
    "cost_own": "cost own",
    "cost_run": "cost run",
    "cost_serve": "cost serve",
    "prices": "prices",
    "op": "op",
    "doctor": "doctor",
    "export": "export",
    "models": "models",
    "gpus": "gpus",
    "explain": "explain",
}
"""Commands by the name of their tool."""
CODE_TOOLS: Mapping[str, str] = {"profile": "profile"}
"""Those that run a person's own code: only where that is allowed."""
PLACES = frozenset({"FILE", "FOLDER", "PATH", "DATA", "URL", "SERVER"})
"""Placeholders of options that read, write or reach something."""
CHANGING = frozenset({"refresh", "remove", "import", "dry_run", "json"})
"""Options that reach the network or change what is stored, and the one that every call has."""
MEASURING = "Measuring a running server"
"""Group of options that send requests to a server."""
SUBJECTS = ("model", "plan", "script")
"""Arguments that may be a file of the allowed folder."""
FILES = re.compile(r"\.(?:py|json|gguf|toml|ya?ml|csv|pickle)$", re.IGNORECASE)
LONGEST = 400
"""Characters of one value."""
SHOW, OPTIONS = "show", "options"
"""Arguments of every tool: the parts to show in full, and options that are needed less often, by name."""
USUAL = {"Parameters", "Arguments"}
"""Groups of options that the schema describes."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """What the person who started the server allowed: files inside ``folder``, none without one; own code with ``code``."""

    folder: Path | None = None
    code: bool = False


@dataclass(frozen=True, slots=True)
class Field:
    """One argument of a tool: an option or a word of the command."""

    name: str
    option: str
    """As the command line spells it; empty: a word without an option."""
    kind: Kind
    choices: tuple[str, ...]
    help: str
    required: bool
    negative: str
    """Option that refuses it, for a flag that has one."""
    own_code: bool
    named_only: bool
    """Whether the schema has its name alone: a list of tools is read before every question."""

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of its value."""
        made: dict[str, Any] = {"type": ["string", "number"] if self.kind == "number" else self.kind}
        if self.kind == "array":
            made["items"] = {"type": ["string", "number"]}
        if self.choices:
            made["enum"] = list(self.choices)
        return made | ({"description": self.help} if self.help else {})


@dataclass(frozen=True)
class Tool:
    """A command as a tool."""

    name: str
    command: str
    allowed: Allowed

    @cached_property
    def _command(self) -> Any:
        app = parser()
        for word in self.command.split():
            app = app[word]
        return app

    @cached_property
    def _arguments(self) -> Sequence[Argument]:
        defaults = parser().default_parameter
        return [a for a in self._command.assemble_argument_collection(default_parameter=defaults, parse_docstring=True) if a.show]

    @cached_property
    def fields(self) -> Mapping[str, Field]:
        """Its arguments by name, words without an option first."""
        made = [_field(a) for a in self._arguments if _is_answerable(a)]
        made.sort(key=lambda f: bool(f.option))
        return {f.name: f for f in made if self.allowed.code or not f.own_code}

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """Parts of its answer that can be shown in full; ``all`` is the last."""
        return tuple(_name(a) for a in self._arguments if WHAT in _groups(a))

    @property
    def description(self) -> str:
        """What it answers: the text of the command's help."""
        text = (self._command.default_command.__doc__ or "").split("\n    Parameters\n")[0]
        return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n")).replace("``", "`").strip()

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of its arguments; options that are needed less often are named together."""
        plain = [f for f in self.fields.values() if not f.named_only]
        others = [f.name for f in self.fields.values() if f.named_only]
        made = {f.name: f.schema for f in plain}
        if others:
            made[OPTIONS] = {"type": "object", "description": f"More options, by name: {', '.join(others)}."}
        if self.parts:
            choices = {"type": "string", "enum": list(self.parts)}
            made[SHOW] = {"type": "array", "items": choices, "description": "Parts to show in full instead of one screen."}
        return {
            "type": "object",
            "properties": made,
            "required": [f.name for f in plain if f.required],
            "additionalProperties": False,
        }

    def words(self, given: Mapping[str, Any]) -> list[str]:
        """The command line of these arguments. Raises InputError on an unknown one, a value of another type, and what is not
        allowed."""
        more = given.get(OPTIONS, {})
        if not isinstance(more, Mapping):
            raise InputError(f"{OPTIONS} is not an object", hint='for example {"tp": 2}')
        values = {k: v for k, v in given.items() if k not in (OPTIONS, SHOW)} | dict(cast("Mapping[str, Any]", more))
        for name in values:
            if name not in self.fields:
                raise UnknownNameError(
                    "argument", name, [*self.fields, SHOW], otherwise=f"{self.name} has {', '.join(self.fields)}"
                )
        missing = [f.name for f in self.fields.values() if f.required and f.name not in values]
        if missing:
            raise InputError(f"{self.name} needs {missing[0]}", hint=f"give {' and '.join(missing)}")
        words, script = self.command.split(), list[str]()
        for field in self.fields.values():
            if values.get(field.name) is not None:
                made = [*self._words(field, values[field.name])]
                (script if field.own_code and not field.option else words).extend(made)
        return [*words, *(["--", *script] if script else [])]

    def _words(self, field: Field, value: Any) -> Iterator[str]:
        if field.kind == "boolean":
            if not isinstance(value, bool):
                raise InputError(f"{field.name}: {_shown(value)} is neither true nor false", hint="give true or false")
            if value or field.negative:
                yield field.option if value else field.negative
            return
        if field.kind == "array" and not isinstance(value, list):
            raise InputError(f"{field.name}: {_shown(value)} is not a list", hint=f"write it like [{_shown(value)}]")
        for one in cast("list[Any]", value if field.kind == "array" else [value]):
            text = self._checked(field, one)
            yield from ((text,) if not field.option else (f"{field.option}={text}",))

    def _checked(self, field: Field, value: Any) -> str:
        """``value`` as a word. Raises InputError."""
        name = field.name
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_number and field.kind == "string":
            raise InputError(f"{name}: {value} is a number, not text", hint=f'write it in quotes: "{value}"')
        if not isinstance(value, str) and not is_number:
            raise InputError(f"{name}: {_shown(value)} is not {'text' if field.kind == 'string' else 'a number or text'}")
        text = str(value).strip()
        if not text or len(text) > LONGEST or not text.isprintable():
            raise InputError(f"{name}: {_shown(value)} is empty, longer than {LONGEST} characters or not printable")
        if field.choices and text not in field.choices:
            raise UnknownNameError(name, text, field.choices, otherwise=f"one of {', '.join(field.choices)}")
        if field.own_code:
            return text
        if not field.option and text.startswith("-"):
            raise InputError(f"{name}: {text!r} is an option", hint="give the value alone; options are arguments of their own")
        return self._in_folder(name, text) if name in SUBJECTS and _is_place(text) else _no_place(name, text)

    def _in_folder(self, name: str, text: str) -> str:
        """A file inside the allowed folder, as its whole path. Raises InputError."""
        prefix = "hf:" if text.startswith("hf:") else ""
        place, _, function = text.removeprefix("hf:").partition(":")
        is_code = bool(prefix or function) or place.lower().endswith(".py")
        if is_code and not self.allowed.code:
            raise InputError(
                f"{name}: {text!r} is code, and running code was not allowed",
                hint="the person who started the server allows it with: gpuwise mcp --folder DIR --allow-code",
            )
        if self.allowed.folder is None:
            raise InputError(
                f"{name}: {text!r} is a file, and reading files was not allowed",
                hint="name a model of the catalogue, or start the server with: gpuwise mcp --folder DIR",
            )
        inside = self.allowed.folder.resolve()
        path = (inside / place).resolve()
        if not path.is_relative_to(inside) or not path.is_file():
            raise InputError(f"{name}: {text!r} is not a file inside the allowed folder", hint="name it from that folder on")
        return f"{prefix}{path}{':' * bool(function)}{function}"


def tools(allowed: Allowed) -> dict[str, Tool]:
    """Every tool by name."""
    named = {**TOOLS, **(CODE_TOOLS if allowed.code else {})}
    return {name: Tool(name, command, allowed) for name, command in named.items()}


def parts_of(tool: Tool, given: Mapping[str, Any]) -> list[str] | None:
    """The parts to show: none for the first screen, None for all of them. Raises InputError."""
    names: Any = given.get(SHOW) or []
    if not isinstance(names, list):
        raise InputError(f"{SHOW}: {_shown(names)} is not a list", hint=f"write it like [{_shown(names)}]")
    asked = [str(n) for n in cast("list[Any]", names)]
    for name in asked:
        if name not in tool.parts:
            raise UnknownNameError("part", name, tool.parts, otherwise=f"one of {', '.join(tool.parts)}")
    return None if "all" in asked else [n.replace("_", "-") for n in asked]


def _name(argument: Argument) -> str:
    return argument.name.lstrip("-").lower().replace("-", "_")


def _groups(argument: Argument) -> Sequence[Any]:
    return cast("Sequence[Any]", argument.parameter.group or ())


def _is_answerable(argument: Argument) -> bool:
    """Whether a tool may have it: it names no place, and changes nothing."""
    groups = _groups(argument)
    names_a_place = "Path" in str(argument.hint) or (argument.parameter.metavar or "").strip("[]") in PLACES
    is_script = argument.index == 0 and _name(argument) == "script"
    others = WHAT in groups or any(getattr(g, "name", "") == MEASURING for g in groups) or _name(argument) in CHANGING
    return (is_script or not names_a_place) and not others


def _field(argument: Argument) -> Field:
    hint, metavar = argument.hint, argument.parameter.metavar or ""
    literals = [c for part in (hint, *get_args(hint)) if get_origin(part) is Literal for c in get_args(part)]
    choices = literals or (metavar.split("|") if "|" in metavar and metavar.islower() else [])
    words = str(hint)
    kind: Kind = "string"
    if "bool" in words:
        kind = "boolean"
    elif words.startswith(("tuple[str", "list[")):
        kind = "array"
    elif not choices and (argument.parameter.converter is not None or "int" in words or "float" in words):
        kind = "number"
    bare = argument.index is not None
    name = _name(argument)
    return Field(
        name=name,
        option="" if bare else argument.name,
        kind=kind,
        choices=tuple(choices),
        help=" ".join((argument.parameter.help or "").split()),
        required=bool(argument.required),
        negative=next((n for n in argument.names if n.startswith("--no-")), ""),
        own_code=OWN_CODE in _groups(argument) or name == "arguments",
        named_only=not argument.required and not USUAL & {str(getattr(g, "name", "")) for g in _groups(argument)},
    )


def _is_place(text: str) -> bool:
    """Whether a model's name could be a file's, or a function's in one."""
    from gpuwise.facts.models.names import is_tagged

    return text.startswith(("/", "~", ".", "hf:")) or bool(FILES.search(text)) or (":" in text and not is_tagged(text))


def _no_place(name: str, text: str) -> str:
    from gpuwise.facts.hardware.scheduled import names_nodes_file

    place = text.startswith(("/", "~", "./", "../")) or "\\" in text or "../" in text or FILES.search(text)
    if place or names_nodes_file(text):
        raise InputError(f"{name}: {text!r} names a file", hint="no file is read or written by this argument: give a value")
    return text


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
