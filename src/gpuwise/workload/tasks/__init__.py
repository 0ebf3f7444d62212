"""Tasks: what a training is for. ``tasks.toml`` has a row each: batch, sequence length, learning rate and length of such
runs, with their sources."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gpuwise.errors import DataError, UnknownNameError
from gpuwise.workload.strategy import Strategy


@dataclass(frozen=True, slots=True)
class Task:
    """One row. ``None`` for a size: it follows the model's (``plan.defaults``)."""

    name: str
    title: str
    """In a sentence after "taken as"."""
    learning_rate: float
    source: str
    """Where batch, sequence length and learning rate come from."""
    batch: int | None = None
    """Sequences an update."""
    batch_tokens: float | None = None
    """Tokens an update, where recipes fix these."""
    seq_len: int | None = None
    tokens: float | None = None
    """Length of such a run."""
    tokens_source: str = ""
    method: str = "full"
    """``full``, ``lora`` or ``qlora``: which weights are trained."""
    checkpoint: bool = True
    """It starts from a checkpoint, and takes the software of fine-tuning; otherwise that of pre-training."""
    also: tuple[str, ...] = ()
    """Other words for it."""


@cache
def tasks() -> Mapping[str, Task]:
    """Every task by name. Raises DataError on a row that is not one."""
    rows: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("tasks.toml").read_text(encoding="utf-8"))
    try:
        return {name: Task(name, also=tuple(row.pop("also", ())), **row) for name, row in rows.items()}
    except TypeError as error:
        raise DataError(f"tasks.toml: {error}") from None


def find_task(word: str) -> Task:
    """The task of that name or other word. Raises UnknownNameError with the nearest names."""
    text = word.strip().lower()
    for task in tasks().values():
        if text == task.name or text in task.also:
            return task
    raise UnknownNameError("task of --for", word, tuple(tasks()), hint="it is one of " + ", ".join(tasks()))


def task_of_method(s: Strategy) -> Task:
    """The fine-tuning of the weights that ``s`` trains: all, or adapters on 16-bit or 4-bit ones."""
    return tasks()["qlora" if s.quantized_base else "lora" if s.lora_rank else "full"]


FEWEST_TOKENS = 0.5
"""Tokens for each active parameter below which a training is no pre-training: the fewest of a published one (MT-NLG, 530B
parameters on 270B tokens, arXiv 2201.11990, section 3.2)."""
FEW_UPDATES = 100
"""Updates below which a run is a trial: warm-up alone takes about as many (500 in Llemma, arXiv 2310.10631, section 2.2; 3 % of
the run in Stanford Alpaca)."""
