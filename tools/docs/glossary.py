"""Writes the glossary, its numbers put in by the commands it names, and checks it.

    python -m tools.docs.glossary docs/learn/glossary.md             write the page
    python -m tools.docs.glossary --check docs/learn/glossary.md     say whether it is stale (exit code 1)

The terms are those of ``gpuwise explain``: ``words.toml`` of the package.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from gpuwise.facts.words import Term, terms
from tools.docs.claims import run_command

STAMP = "<!-- Written by `python -m tools.docs.glossary docs/learn/glossary.md` from words.toml. Do not edit. -->"


def page(words: Sequence[Term]) -> str:
    """The whole page; a command that several terms name runs once."""
    ask = cache(run_command)
    lines = [STAMP, "", "# Glossary", "", f"{len(words)} words; the numbers are those of the tool's own commands.", ""]
    for group in dict.fromkeys(t.group for t in words):
        lines += [f"## {group}", "", "| word | what it is |", "|---|---|"]
        for term in (t for t in words if t.group == group):
            more = f" [More]({term.see})." if term.see else ""
            lines.append(f"| **{term.name}** | {term.text(ask)}{more} |")
        lines.append("")
    commands = dict.fromkeys(f.command for t in words for f in t.figures.values())
    lines += ["## The commands behind the numbers", "", "```bash", *commands, "```"]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Write the page, or with ``--check`` say whether it is stale."""
    places = [Path(a) for a in arguments if a != "--check"]
    if len(places) != 1:
        sys.stderr.write("error: name the page\nhint: python -m tools.docs.glossary docs/learn/glossary.md\n")
        return 2
    text = page(terms())
    if "--check" not in arguments:
        places[0].write_text(text, encoding="utf-8")
        return 0
    if places[0].exists() and places[0].read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write(f"error: {places[0]} is stale\nhint: python -m tools.docs.glossary {places[0]}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
