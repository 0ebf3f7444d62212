"""``gpuwise explain``: a word of the field in two sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwise.facts.words import Term


def explain(*word: str, json: Annotated[bool, Parameter(negative="")] = False) -> int:
    """What does a word mean: MFU, zero3, KV cache, knee, Q4_K_M? Without a word: all of them.

    Parameters
    ----------
    word
        The word as an answer or a help page has it.
    json
        One JSON document on the last line of stdout.
    """
    from gpuwise.cli.reports import report
    from gpuwise.facts.words import find_term, terms
    from gpuwise.report.answers.words import word_answer

    if not word:
        _list(terms(), json=json)
        return 0
    term = find_term(" ".join(word))
    report(_document(term, terms()), word_answer, None, json=json)
    return 0


def _list(words: Sequence[Term], *, json: bool) -> None:
    from gpuwise.cli.out import console, print_json

    by_group: dict[str, list[str]] = {}
    for term in words:
        by_group.setdefault(term.group, []).append(term.names[0])
    if json:
        print_json({"groups": by_group})
        return
    to = console()
    to.print(f"{sum(map(len, by_group.values()))} words can be explained", style="bold")
    for group, names in by_group.items():
        to.print(f"{group}: {', '.join(names)}")
    to.print("One of them:  gpuwise explain MFU", style="dim")


def _document(term: Term, every: Sequence[Term]) -> dict[str, Any]:
    import shlex

    from gpuwise.cli.asked import answer_of

    commands = list(dict.fromkeys(f.command for f in term.figures.values()))
    documents: dict[str, Any] = {}
    for command in commands:
        _, (documents[command], _) = answer_of(shlex.split(command)[1:])
    return {
        "word": term.name,
        "text": term.text(documents.__getitem__),
        "group": term.group,
        "related": [t.names[0] for t in every if t.group == term.group and t.name != term.name],
        "commands": commands,
    }
