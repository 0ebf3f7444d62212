"""A hook of mkdocs: the first use of a glossary word on a page shows its meaning, and each cell of a table names its column.

The words are those of ``words.toml``, their texts those of the written glossary.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as etree
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from markdown import Markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor

from gpuwise.facts.words import terms

GLOSSARY = Path(__file__).parents[2] / "docs" / "learn" / "glossary.md"
WITHOUT_WORDS = ("learn/glossary.md", "reference/", "concepts/claims.md")
"""Pages whose words are explained there, or are names of options."""
_ROW = re.compile(r"^\| \*\*(?P<name>.+?)\*\* \| (?P<text>.+?)(?: \[More\]\(\S+\)\.)? \|$", re.MULTILINE)
_SILENT = {"a", "abbr", "code", "pre", "th", "svg", "h1", "h2", "h3", "h4", "h5", "h6"}


def meanings(page: str) -> dict[str, str]:
    """The text of each word of the written glossary by all its names, as in a sentence: ``tensor parallelism``, ``MFU``."""
    rows = {m["name"]: re.sub(r"[`*]|\[([^\]]+)\]\([^)]+\)", r"\1", m["text"]) for m in _ROW.finditer(page)}
    return {form: rows[term.name] for term in terms() for name in term.names for form in {name, _in_sentence(name)}}


def _in_sentence(name: str) -> str:
    """``Tensor core`` in the middle of a sentence; acronyms and names (``MFU``, ``LoRA``, ``FlashAttention``) stay."""
    return name if re.search(r"[A-Z0-9]", name[1:]) else name[0].lower() + name[1:]


class FirstWords(Treeprocessor):
    """``<abbr title=...>`` around the first use of each word in running text."""

    def __init__(self, md: Markdown, texts: Mapping[str, str]) -> None:
        super().__init__(md)
        self.texts = texts
        longest_first = sorted(texts, key=len, reverse=True)
        self.pattern = re.compile(rf"(?<![\w/-])({'|'.join(map(re.escape, longest_first))})(?![\w/-])")

    def run(self, root: etree.Element) -> None:
        self.shown: set[str] = set()
        self._mark(root)

    def _mark(self, element: etree.Element) -> None:
        children = list(element)
        if element.tag in _SILENT:
            return
        self._split(element, None, element.text)
        for child in children:
            self._mark(child)
            self._split(element, child, child.tail)

    def _split(self, parent: etree.Element, after: etree.Element | None, text: str | None) -> None:
        """Put marks into ``text``: that of ``parent``, or what follows its child ``after``."""
        for match in self.pattern.finditer(text or ""):
            meaning = self.texts[match[1]]
            if meaning in self.shown:
                continue
            self.shown.add(meaning)
            head, tail = (text or "")[: match.start()], (text or "")[match.end() :]
            mark = etree.Element("abbr", title=meaning)
            mark.text, mark.tail = match[1], tail
            if after is None:
                parent.text = head
                parent.insert(0, mark)
            else:
                after.tail = head
                parent.insert(list(parent).index(after) + 1, mark)
            self._split(parent, mark, tail)
            return


class Labels(Treeprocessor):
    """``data-label`` of each cell: its column's name, for screens on which a row is a card."""

    def run(self, root: etree.Element) -> None:
        for table in root.iter("table"):
            names = ["".join(cell.itertext()) for cell in table.iter("th")]
            for row in table.iter("tr"):
                for name, cell in zip(names, row.findall("td"), strict=False):
                    if name:
                        cell.set("data-label", name)


class Reading(Extension):
    """Both of the above; ``page`` is set before each page is made."""

    page = ""

    def extendMarkdown(self, md: Markdown) -> None:
        md.treeprocessors.register(Labels(md), "labels", 4)  # what inline text is, is known from 20 down
        if not self.page.startswith(WITHOUT_WORDS):
            md.treeprocessors.register(FirstWords(md, self.texts), "first-words", 3)

    def __init__(self, texts: Mapping[str, str]) -> None:
        super().__init__()
        self.texts = texts


def _reading(config: Any) -> Iterator[Reading]:
    return (e for e in config.markdown_extensions if isinstance(e, Reading))


def on_config(config: Any) -> Any:
    """Add the extension."""
    config.markdown_extensions.append(Reading(meanings(GLOSSARY.read_text(encoding="utf-8"))))
    return config


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Name the page to the extension."""
    for extension in _reading(config):
        extension.page = page.file.src_uri
    return markdown
