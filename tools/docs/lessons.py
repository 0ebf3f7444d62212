"""Writes the lessons of ``docs/learn`` as pages of the web application, which shows them without a network, and checks them.

    python -m tools.docs.lessons src/gpuwise/ui/assets/lessons             write them, with their pictures
    python -m tools.docs.lessons --check src/gpuwise/ui/assets/lessons     say whether one is stale (exit code 1)

A lesson is the inside of a page: its first use of a glossary word has the meaning beside it, to be shown by hovering, focus or a
tap. Links go to other lessons and to pages of the application; what the application does not have stays as text.
"""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from markdown import Markdown

from tools.docs.site import GLOSSARY, Reading, meanings

LEARN = GLOSSARY.parent
PAGES = {"simulation": "/lab", "occupancy": "/lab?ask=occupancy"}
"""Pages of ``docs/learn`` that the application answers itself."""
_LINK = re.compile(r'<a href="([^"]*)">(.*?)</a>', re.DOTALL)
_MEANING = re.compile(r'<abbr title="([^"]*)">([^<]*)</abbr>')
_EXERCISE = re.compile(r"<code>gpuwise lab exercise (\d+)</code>")
_HEADING = re.compile(r"<(/?)h([1-5])>")
"""The page around a lesson has a heading above its own."""
_PICTURE = re.compile(r'src="pictures/([\w-]+\.svg)"')


def lessons() -> dict[str, str]:
    """File name to content, of every lesson and of its pictures."""
    markdown = Markdown(extensions=["tables", "fenced_code", Reading(meanings(GLOSSARY.read_text(encoding="utf-8")))])
    made: dict[str, str] = {}
    for source in sorted(LEARN.glob("[0-9]*.md")):
        page = lesson(markdown.reset().convert(source.read_text(encoding="utf-8")))
        made[f"{source.stem}.html"] = page + "\n"
        for name in re.findall(r'src="/assets/([\w-]+\.svg)"', page):
            made[name] = (LEARN / "pictures" / name).read_text(encoding="utf-8")
    return made


def lesson(page: str) -> str:
    """A rendered page of ``docs/learn`` as the application shows it."""
    count = iter(range(1, 1000))

    def meaning(found: re.Match[str]) -> str:
        key = f"word-{next(count)}"
        return (
            f'<span class="word"><span class="term" tabindex="0" aria-describedby="{key}">{found[2]}</span>'
            f'<span role="tooltip" id="{key}">{found[1]}</span></span>'
        )

    page = _HEADING.sub(lambda found: f"<{found[1]}h{int(found[2]) + 1}>", page).replace("<pre>", '<pre tabindex="0">')
    page = _PICTURE.sub(r'src="/assets/\1"', _MEANING.sub(meaning, page))
    page = _EXERCISE.sub(r'<a href="/learn?ask=exercise&amp;number=\1"><code>gpuwise lab exercise \1</code></a>', page)
    return _LINK.sub(_link, page)


def _link(found: re.Match[str]) -> str:
    """A link as the application has it, or its words."""
    target, words = html.unescape(found[1]), found[2]
    if target.startswith("/"):
        return found[0]
    if target.startswith("https://"):
        return f'<a href="{found[1]}" target="_blank" rel="noreferrer">{words}</a>'
    name = target.partition("#")[0].removesuffix(".md")
    if name in PAGES:
        return f'<a href="{PAGES[name]}">{words}</a>'
    if re.match(r"\d\d-", name):
        return f'<a href="/learn?lesson={name}">{words}</a>'
    return words


def main(arguments: Sequence[str]) -> int:
    """Write the lessons, or with ``--check`` say whether one is stale."""
    places = [Path(a) for a in arguments if a != "--check"]
    if len(places) != 1:
        sys.stderr.write("error: name the folder\nhint: python -m tools.docs.lessons src/gpuwise/ui/assets/lessons\n")
        return 2
    place, made = places[0], lessons()
    there = {p.name: p.read_text(encoding="utf-8") for p in place.glob("*")} if place.is_dir() else {}
    if "--check" not in arguments:
        place.mkdir(exist_ok=True)
        for name in there.keys() - made.keys():
            (place / name).unlink()
        for name, text in made.items():
            (place / name).write_text(text, encoding="utf-8")
        return 0
    stale = sorted(name for name in there.keys() | made.keys() if there.get(name) != made.get(name))
    if not stale:
        return 0
    sys.stderr.write(f"error: stale: {', '.join(stale)}\nhint: python -m tools.docs.lessons {place}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
