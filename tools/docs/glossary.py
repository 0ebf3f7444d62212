"""Writes the glossary, its numbers put in by the commands it names, and checks it.

    python -m tools.docs.glossary docs/learn/glossary.md             write the page
    python -m tools.docs.glossary --check docs/learn/glossary.md     say whether it is stale (exit code 1)

The terms are ``glossary.toml`` beside the page. A figure is a value in the JSON document of a command, and stands in the
text where its name is in braces.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.docs.claims import Figure, at_path, run_command

STAMP = "<!-- Written by `python -m tools.docs.glossary docs/learn/glossary.md` from glossary.toml. Do not edit. -->"
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Term:
    """A word with what it means; ``see`` is where to read on."""

    name: str
    group: str
    says: str
    figures: tuple[Figure, ...] = ()
    see: str = ""

    def text(self, documents: dict[str, Any]) -> str:
        """``says`` with each figure where its name stands. Raises KeyError for a name that is no figure."""
        figures = {f.name: f for f in self.figures}

        def shown(match: re.Match[str]) -> str:
            figure = figures[match[1]]
            if figure.command not in documents:
                documents[figure.command] = run_command(figure.command)
            return figure.text(at_path(documents[figure.command], figure.path))

        return _PLACEHOLDER.sub(shown, self.says)


def read_terms(path: Path) -> tuple[Term, ...]:
    """The terms of a file."""
    return tuple(
        Term(
            e["name"],
            e["group"],
            e["says"],
            tuple(Figure(expected=1.0, tolerance=0.0, **f) for f in e.get("figures", ())),
            e.get("see", ""),
        )
        for e in tomllib.loads(path.read_text(encoding="utf-8"))["term"]
    )


def page(terms: Sequence[Term]) -> str:
    """The whole page; a command that several terms name runs once."""
    documents: dict[str, Any] = {}
    lines = [STAMP, "", "# Glossary", "", f"{len(terms)} words; the numbers are those of the tool's own commands.", ""]
    for group in dict.fromkeys(t.group for t in terms):
        lines += [f"## {group}", "", "| word | what it is |", "|---|---|"]
        for term in (t for t in terms if t.group == group):
            more = f" [More]({term.see})." if term.see else ""
            lines.append(f"| **{term.name}** | {term.text(documents)}{more} |")
        lines.append("")
    commands = dict.fromkeys(f.command for t in terms for f in t.figures)
    lines += ["## The commands behind the numbers", "", "```bash", *commands, "```"]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Write the page, or with ``--check`` say whether it is stale."""
    places = [Path(a) for a in arguments if a != "--check"]
    if len(places) != 1:
        sys.stderr.write("error: name the page\nhint: python -m tools.docs.glossary docs/learn/glossary.md\n")
        return 2
    text = page(read_terms(places[0].with_suffix(".toml")))
    if "--check" not in arguments:
        places[0].write_text(text, encoding="utf-8")
        return 0
    if places[0].exists() and places[0].read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write(f"error: {places[0]} is stale\nhint: python -m tools.docs.glossary {places[0]}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
