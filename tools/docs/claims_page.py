"""The page of claims: a table to look one up, then each with its figures, its commands and why."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Sequence

from tools.docs.claims import ClaimResult

STAMP = "<!-- Written by `python -m tools.docs.claims docs/concepts/claims.md` from claims.toml. Do not edit. -->"
WIDTH = 130
WORDS = {"right": "right", "corrected": "**corrected**", "depends": "*depends*"}
SENTENCES = {"right": "**Right.**", "corrected": "**Not so.**", "depends": "**It depends.**"}


def page(checked: Sequence[ClaimResult]) -> str:
    """The whole page."""
    count = Counter(c.claim.verdict for c in checked)
    lines = [STAMP, "", "# Claims people repeat", ""]
    lines += _wrapped(
        f"{len(checked)} figures one hears about GPUs, each recomputed by the commands shown under it: {count['right']} "
        f"are right, {count['corrected']} are corrected, {count['depends']} depend on what is meant. The numbers on this "
        "page are put in by the program, and a test fails when one of them drifts. Speeds are predictions with an 80 % "
        "interval (add `--json` to a command to see it); facts carry their source in the catalogues."
    )
    for group in dict.fromkeys(c.claim.group for c in checked):
        lines += [f"**{group}**", "", "| claim | verdict | what is so |", "|---|---|---|"]
        for c in checked:
            if c.claim.group == group:
                anchor = f"[{_cell(c.claim.claim)}](#{slug(c.claim.title)})"
                lines.append(f"| {anchor} | {WORDS[c.claim.verdict]} | {_cell(c.fill(c.claim.short))} |")
        lines.append("")
    for group in dict.fromkeys(c.claim.group for c in checked):
        lines += [f"## {group}", ""]
        for c in checked:
            if c.claim.group == group:
                lines += _section(c)
    return "\n".join(lines).rstrip() + "\n"


def _section(c: ClaimResult) -> list[str]:
    claim = c.claim
    lines = [f"### {claim.title}", "", f"> {claim.claim}", ""]
    lines += _wrapped(f"{SENTENCES[claim.verdict]} {c.fill(' '.join(claim.says.split()))}")
    lines += ["```bash", *claim.commands, "```", ""]
    return [*lines, *_wrapped(f"Heard in {claim.heard}. See [{claim.see}]({claim.url}).")]


def slug(title: str) -> str:
    """The anchor of a heading, as GitHub and mkdocs make it."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def _wrapped(text: str) -> list[str]:
    return [*textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False), ""]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
