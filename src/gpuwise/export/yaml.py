"""Documents of plain values as YAML 1.2: blocks of mappings and lists, strings quoted as JSON unless they are plain words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_WORDS = frozenset(("true", "false", "yes", "no", "on", "off", "null", "y", "n", "none"))
Value = Mapping[str, "Value"] | Sequence["Value"] | str | int | float | bool | None


def to_yaml(document: Mapping[str, Value], comment: str = "") -> str:
    """The text of one document, with ``comment`` above it."""
    head = [f"# {line}".rstrip() for line in comment.splitlines()]
    return "\n".join([*head, *_lines(document, 0)]) + "\n"


def _lines(value: Value, depth: int) -> Iterator[str]:
    pad = "  " * depth
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _entry(f"{pad}{_scalar(key)}:", item, depth)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            if isinstance(item, Mapping) and item:
                first, *more = _lines(item, depth + 1)
                yield f"{pad}- {first.lstrip()}"
                yield from more
            else:
                yield f"{pad}- {_inline(item)}"


def _entry(head: str, item: Value, depth: int) -> Iterator[str]:
    if isinstance(item, str) and _is_block(item):
        yield f"{head} |" + ("" if item.endswith("\n") else "-")
        for line in item.removesuffix("\n").split("\n"):
            yield f"{'  ' * (depth + 1)}{line}".rstrip()
    elif isinstance(item, (Mapping, list, tuple)) and item:
        yield head
        yield from _lines(item, depth + 1)
    else:
        yield f"{head} {_inline(item)}"


def _is_block(text: str) -> bool:
    """Lines that a block keeps as they are."""
    lines = text.removesuffix("\n").split("\n")
    whole = all(line.isascii() and line.isprintable() and line == line.rstrip() for line in lines)
    return len(lines) > 1 and whole and lines[0] == lines[0].strip() != "" and lines[-1] != ""


def _inline(value: Value) -> str:
    if isinstance(value, (Mapping, list, tuple)):
        return "{}" if isinstance(value, Mapping) else "[]" if not value else _flow(value)
    return _scalar(value)


def _scalar(value: object) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    if isinstance(value, str):
        return '"' + "".join(_character(c) for c in value) + '"'
    text = json.dumps(value)
    if isinstance(value, float) and "e" in text and "." not in text:
        return text.replace("e", ".0e")  # YAML 1.1 takes 1e-05 for a word
    return text


def _character(c: str) -> str:
    if c.isascii() and c.isprintable():
        return f"\\{c}" if c in '"\\' else c
    return f"\\U{ord(c):08x}"


def _flow(items: Sequence[Value]) -> str:
    """A list inside a list."""
    return "[" + ", ".join(_inline(i) if not isinstance(i, Mapping) else _mapping(i) for i in items) + "]"


def _mapping(value: Mapping[str, Value]) -> str:
    return (
        "{" + ", ".join(f"{_scalar(k)}: {_mapping(v) if isinstance(v, Mapping) else _inline(v)}" for k, v in value.items()) + "}"
    )
