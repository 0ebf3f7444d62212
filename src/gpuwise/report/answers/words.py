"""A word of the field, and what it means."""

from __future__ import annotations

import shlex
from typing import Any

from gpuwise.report.answers.answer import Answer, Command


def word_answer(document: dict[str, Any]) -> Answer:
    """The word, what it means, the words of its subject, and a command that shows its numbers."""
    other = ["gpuwise", "explain", shlex.quote(document["related"][0])] if document["related"] else ["gpuwise", "explain"]
    following = (
        Command("See its numbers", shlex.split(document["commands"][0])) if document["commands"] else Command("Near it", other)
    )
    return Answer(
        "explain", f"{document['word']}: {document['text']}", lead=f"near it: {', '.join(document['related'])}", next=following
    )
