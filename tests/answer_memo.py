"""Dear answers, kept between the tests of one process: what the same model trains or serves with on the same cluster.

Commands ask for them again and again to be shown in another width, in words or as a document. They follow from frozen arguments,
the catalogues and what a person's folder holds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

KEPT = (
    ("gpuwise.pick.training", "train_on"),
    ("gpuwise.pick.serving", "serve_on"),
    ("gpuwise.plan.planner", "plan_on"),
)
"""Modules and the functions of theirs whose answers are kept."""


def keep_answers() -> None:
    """Keep the answers of :data:`KEPT`, before a test or another module has taken one of them."""
    for module, name in KEPT:
        found = import_module(module)
        setattr(found, name, _kept(getattr(found, name)))


def _kept(answer: Callable[..., Any]) -> Callable[..., Any]:
    answers: dict[tuple[object, ...], Any] = {}

    @wraps(answer)
    def kept(*asked: Any) -> Any:
        key = (*_files_of_a_person(), *map(_frozen, asked))
        if key not in answers:
            answers[key] = answer(*asked)
        return answers[key]

    return kept


def _files_of_a_person() -> Iterator[tuple[str, int, int]]:
    """What is measured or kept, and when it was written."""
    home, records = Path(os.environ["GPUWISE_HOME"]), os.environ.get("GPUWISE_RECORDS")
    files = [*home.rglob("*"), *(Path(records).parent.glob(f"{Path(records).name}*") if records else ())]
    for file in files:
        with suppress(FileNotFoundError):  # a journal of the store goes when it is closed
            known = file.stat()
            yield str(file), known.st_mtime_ns, known.st_size


def _frozen(asked: Any) -> object:
    """``asked``, or its words where it holds a dictionary."""
    try:
        hash(asked)
    except TypeError:
        return repr(asked)
    return asked
