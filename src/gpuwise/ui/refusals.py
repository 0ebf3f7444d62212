"""What is wrong with a question, in the words of its page: each fault with the field that it is about."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gpuwise.ui.questions import QUESTIONS, Field

_OPTION = re.compile(r"(?<!\S)--(?:no-)?([a-z][\w-]*)")
_NAMES = re.compile(r"unknown (model|GPU|accelerator|system|processor)|(model|GPU|accelerator|system) '.*' is ambiguous")
KINDS = {"model": "model"}
"""Kinds of fields with names of a catalogue; the others are of GPUs."""
Fault = Mapping[str, str]


def page_faults(name: str, faults: Sequence[Fault], query: Mapping[str, str]) -> list[dict[str, str]]:
    """The faults of a question (``error`` and ``hint``), each with the name of its ``field``, empty where it is of none. Options
    are called as their fields; one field has one fault, the first; in the order of the page."""
    fields = QUESTIONS[name].fields if name in QUESTIONS else ()
    order = {field.name: i for i, field in enumerate(fields)}
    made: dict[str, dict[str, str]] = {}
    for fault in faults:
        field = _field(fields, fault["error"], query)
        error, hint = (_in_page_words(fault[key], fields, field) for key in ("error", "hint"))
        made.setdefault(field.name if field else error, {"field": field.name if field else "", "error": error, "hint": hint})
    return sorted(made.values(), key=lambda fault: order.get(fault["field"], -1))


def _field(fields: Sequence[Field], error: str, query: Mapping[str, str]) -> Field | None:
    """The field that an error begins with, as an option or by its label; else the one whose name or value it names."""
    option = _OPTION.match(error)
    for field in fields:
        if error.startswith(f"{field.label}: ") or (option and option[1].replace("-", "_") == field.name):
            return field
    named = _NAMES.search(error)
    if named:
        kind = KINDS.get(named[1] or named[2], "gpus")
        return next((f for f in fields if f.kind == kind and query.get(f.name)), None)
    quoted = re.search(r"'([^']+)'", error)
    return next((f for f in fields if quoted and quoted[1] in query.get(f.name, "")), None)


def _in_page_words(text: str, fields: Sequence[Field], field: Field | None) -> str:
    """``text`` without its own field's option or label in front, other options called by their labels."""
    if field is not None:
        option = "--" + field.name.replace("_", "-")
        text = text.removeprefix(f"{field.label}: ").removeprefix(f"{option}: ")
        text = re.sub(rf"{option} (?=[\d$])", "", text)
    labels = {f.name: f.label for f in fields}
    return _OPTION.sub(lambda m: labels.get(m[1].replace("-", "_"), m[0]), text)
