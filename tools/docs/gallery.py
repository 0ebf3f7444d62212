"""Writes the gallery: pictures that the web application exports, each with the command line behind it.

python -m tools.docs.gallery docs/learn/gallery.md     write the page and its pictures
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuwise.ui.questions import line_of, words_of
from gpuwise.ui.views import export
from tools.docs.claims import run_command

STAMP = "<!-- Written by `python -m tools.docs.gallery docs/learn/gallery.md`. Do not edit. -->"


@dataclass(frozen=True, slots=True)
class Picture:
    """A question of the web application and what one sees in its figures."""

    question: str
    query: Mapping[str, str]
    title: str
    shows: str
    named: str = ""

    @property
    def file(self) -> str:
        """Its file beside the page; by default of the question's name."""
        return f"{self.named or self.question}.svg"

    @property
    def command(self) -> str:
        return line_of(words_of(self.question, self.query))

    def svg(self) -> str:
        return export(self.question, "svg", run_command(self.command), self.command)


PICTURES = (
    Picture(
        "plan",
        {"model": "llama-3.1-8b", "on": "8xH100-SXM", "tokens": "15B"},
        "A plan",
        "What fills the fullest GPU, where a step's time goes, and the layouts that are slower and need less memory.",
    ),
    Picture(
        "fit",
        {"model": "llama-3.1-8b", "on": "4090", "for": "train"},
        "It does not fit",
        "Weights, gradients and optimizer of eight billion parameters on a card of 24 GB: the line is the card.",
    ),
    Picture(
        "fit",
        {"model": "llama-3.1-8b", "on": "3060", "for": "run"},
        "A model on a card of one's own",
        "Weights in 8 bits, the cache of a conversation and buffers on a card of 12 GB: the line is what a program can have.",
        named="run",
    ),
    Picture(
        "simulate",
        {"task": "transpose", "size": "64", "on": "v100"},
        "A transpose, warp by warp",
        "The cores and the multiprocessors with work, and the times of both, copies included. Below, each row is a warp, the"
        " colour what it waited for.",
    ),
    Picture(
        "occupancy",
        {"on": "V100", "regs": "37", "block": "320"},
        "Occupancy",
        "Forty of sixty-four warps: the registers of a quarter bind.",
    ),
    Picture(
        "compare",
        {"names": "4090, L40S, A100-80GB"},
        "Three GPUs",
        "What is reached in long runs and what it costs; below, the attainable rate over intensity, a dot where products are.",
    ),
    Picture(
        "cost",
        {"on": "4090", "hours": "3600"},
        "Rent or own",
        "Money over the years, and what the answer turns on: each assumption alone from its low to its high end.",
    ),
)


def page() -> str:
    """The page; its pictures lie beside it."""
    lines = [
        STAMP,
        "",
        "# Gallery",
        "",
        "Every picture is an export of `gpuwise ui` (the link SVG under an answer), of the command below it.",
    ]
    for picture in PICTURES:
        lines += ["", f"## {picture.title}", "", picture.shows, ""]
        lines += [f"![{picture.title}](pictures/{picture.file})", "", "```bash", picture.command, "```"]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Write the page and its pictures."""
    if len(arguments) != 1:
        sys.stderr.write("error: name the page\nhint: python -m tools.docs.gallery docs/learn/gallery.md\n")
        return 2
    target = Path(arguments[0])
    folder = target.parent / "pictures"
    folder.mkdir(exist_ok=True)
    target.write_text(page(), encoding="utf-8")
    for picture in PICTURES:
        (folder / picture.file).write_text(picture.svg(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
