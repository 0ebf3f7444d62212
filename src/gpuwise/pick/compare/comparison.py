"""Accelerators and clusters side by side: specifications with their sources, what is really reached, prices, predicted
work, and what follows in words.

Pure: names in, a frozen :class:`Comparison` out; the date is the caller's.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from gpuwise.errors import InputError, UnknownNameError
from gpuwise.facts.hardware.naming import USUAL, find_cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.catalogue import find_model
from gpuwise.pick.compare.facts import fact_rows
from gpuwise.pick.compare.rows import Cell, FigureRow, Subject, find_row
from gpuwise.pick.compare.words import verdict
from gpuwise.pick.compare.work import PURPOSES, ComparedWork, check_work, work_rows
from gpuwise.pick.jobs import CONTEXT_TOKENS
from gpuwise.serve.engines.engine import DEFAULT_ENGINE
from gpuwise.serve.formats import FORMAT_OF_PRECISION as SERVED
from gpuwise.serve.simulate.front import known_error
from gpuwise.workload.strategy import PRECISIONS as TRAINED
from gpuwise.workload.tasks import Task, find_task, leaves_method_open, task_for, tasks

FEWEST, MOST = 2, 8


@dataclass(frozen=True, slots=True)
class Comparison:
    """``rows`` in order, each with one cell for each of ``subjects``; ``verdict`` the sentences they add up to."""

    subjects: tuple[Subject, ...]
    rows: tuple[FigureRow, ...]
    verdict: tuple[str, ...]
    today: datetime.date
    work: ComparedWork | None
    notes: tuple[str, ...]

    def row(self, key: str) -> FigureRow:
        """The row called ``key``. Raises KeyError."""
        row = find_row(self.rows, key)
        if row is None:
            raise KeyError(key)
        return row

    @property
    def sections(self) -> tuple[str, ...]:
        """Titles of the groups of rows, in order."""
        return tuple(dict.fromkeys(r.section for r in self.rows))


def compare_accelerators(
    names: Sequence[str],
    *,
    today: datetime.date,
    model: str | Architecture | None = None,
    purpose: str | None = None,
    tokens: float | None = None,
    seq_len: int | None = None,
    precision: str | None = None,
) -> Comparison:
    """Compare :data:`FEWEST` to :data:`MOST` accelerators or clusters by name, and with ``model`` what each does with it.

    ``purpose`` is ``train``, ``finetune``, ``infer`` or a task of training; None predicts training and, of a model that writes
    text, serving.
    ``precision`` is of the matrix products in training and of the weights in serving. Raises InputError and its kinds
    (UnknownNameError, AmbiguousNameError).
    """
    if not FEWEST <= len(names) <= MOST:
        raise InputError(
            f"{len(names)} to compare: it takes {FEWEST} to {MOST}",
            hint='name them, for example gpuwise compare "RTX 4090" L40S "A100 80GB"',
        )
    subjects = tuple(Subject(name, find_cluster(name, prefer=USUAL)) for name in names)
    work = _work(model, purpose, tokens, seq_len, precision)
    rows = fact_rows(subjects, today)
    if work is not None:
        rows += work_rows(subjects, work, today)
    rows = tuple(r for r in rows if _says_something(r))
    return Comparison(subjects, rows, verdict(subjects, rows, work), today, work, _notes(subjects, rows, work))


def _work(
    model: str | Architecture | None, purpose: str | None, tokens: float | None, seq_len: int | None, precision: str | None
) -> ComparedWork | None:
    options = [
        option
        for option, value in (("--for", purpose), ("--tokens", tokens), ("--seq", seq_len), ("--precision", precision))
        if value is not None
    ]
    arch = find_model(model) if isinstance(model, str) else model
    if arch is not None and purpose is not None and leaves_method_open(purpose):
        purpose = task_for(purpose, arch.kind).name
    task = None if purpose is None or purpose in PURPOSES else _task(purpose)
    if arch is None:
        if options:
            raise InputError(f"{options[0]} without a model", hint="choose one, for example --model llama-3.1-8b")
        return None
    if task is not None:
        purpose = "train" if task.method == "full" else "finetune"
    purposes = (purpose,) if purpose else ("train", "infer") if arch.kind == "decoder" else ("train",)
    _check_precision(precision, purposes)
    _check_numbers(tokens, seq_len)
    context = seq_len or min(CONTEXT_TOKENS, arch.max_seq_len)
    named = task.name if task is not None and task.method == "full" else None
    work = ComparedWork(arch, purposes, tokens, seq_len, precision, context, named)
    check_work(work)
    return work


def _task(word: str) -> Task:
    """A task of training by its word. Raises InputError for one whose step has phases, UnknownNameError."""
    known = {**dict.fromkeys(PURPOSES), **{t.name: t for t in tasks().values() if not t.prompts}}
    try:
        task = find_task(word)
    except UnknownNameError:
        raise UnknownNameError("purpose", word, known, hint="it is one of " + ", ".join(known)) from None
    if task.prompts:
        raise InputError(f"{task.title} is not compared", hint=f"gpuwise pick MODEL --for {word}, or plan it on each")
    return task


def _check_precision(precision: str | None, purposes: Sequence[str]) -> None:
    """A precision that means something to at least one of the purposes."""
    if precision is None:
        return
    precisions = [p for p in TRAINED if set(purposes) != {"infer"}]
    precisions += [p for p in SERVED if "infer" in purposes and p not in precisions]
    if precision not in precisions:
        raise UnknownNameError("precision", precision, precisions, hint="it is one of " + ", ".join(precisions))


def _check_numbers(tokens: float | None, seq_len: int | None) -> None:
    if tokens is not None and not 0 < tokens < float("inf"):
        raise InputError(f"tokens must be a positive number, not {tokens}", hint="for example 15B")
    if seq_len is not None and seq_len < 1:
        raise InputError(f"sequence length must be at least 1, not {seq_len}", hint="for example 4096")


def _says_something(row: FigureRow) -> bool:
    """Drops rows without known values."""
    return any(c.value is not None or c.words for c in row.cells)


def _notes(subjects: Sequence[Subject], rows: Sequence[FigureRow], work: ComparedWork | None) -> tuple[str, ...]:
    notes = [s.cluster.assumption for s in subjects if s.cluster.assumption]
    if any(s.count > 1 for s in subjects):
        notes.append("memory, bandwidth, rates, power and prices are of all accelerators of a column; caches and links of one")
    for s in subjects:
        if s.count > 1 and s.cluster.system.assumed:
            notes.append(f"not published for {s.cluster.system.name}, assumed: {', '.join(s.cluster.system.assumed)}")
    rent = find_row(rows, "rent")
    if rent is not None:
        stale = [s.name for s, c in zip(subjects, rent.cells, strict=True) if c.weak]
        if stale:
            notes.append(f"rents older than 60 days: {', '.join(dict.fromkeys(stale))}")
    batches = find_row(rows, "decode_batch")
    if batches is not None and work is not None:
        served = (s for s, c in zip(subjects, batches.cells, strict=True) if c.value is not None)
        notes += [e for s in served if (e := known_error(work.arch, s.cluster.accelerator, DEFAULT_ENGINE)) is not None]
    return tuple(dict.fromkeys(notes))


__all__ = ["FEWEST", "MOST", "Cell", "Comparison", "FigureRow", "Subject", "compare_accelerators"]
