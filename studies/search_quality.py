"""How far the usual search of a plan is from a search of every degree: ``python -m studies.search_quality [QUESTIONS] [SEED]``.

Prints each random question on which the exhaustive search is faster by more than 2 %, then the share of questions within that.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterator
from dataclasses import replace

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.plan.goal import Wishes, make_goal
from gpuwise.plan.space.search import find_strategies
from gpuwise.predict.step.training import TrainingEstimate

# fmt: off
MODELS = (
    "gpt2", "gpt2-xl", "llama-3.2-1b", "llama-3.2-3b", "qwen2.5-1.5b", "qwen2.5-7b", "qwen3-14b", "qwen3-32b", "gemma-2-9b",
    "llama-3.1-8b", "llama-2-13b", "llama-3.1-70b", "mixtral-8x7b", "qwen3-30b-a3b", "mistral-7b", "falcon-7b", "pythia-1.4b",
)
CARDS = (
    "4090", "3090", "5090", "L40S", "A10", "L4", "A100-SXM-80GB", "A100-SXM-40GB", "H100-SXM", "H200", "B200", "V100-32GB", "T4",
    "MI300X",
)
# fmt: on
TASKS = ("pretrain", "pretrain", "full", "lora", "qlora")
WITHIN = 1.02


def questions(seed: int) -> Iterator[tuple[str, str, Wishes]]:
    """Trainings of every kind on one to eight accelerators: a search of every degree takes long on more."""
    draw = random.Random(seed)
    while True:
        task = draw.choice(TASKS)
        wishes = Wishes(tokens=draw.choice([1e8, 1e9, 15e9]), seq_len=draw.choice([512, 1024, 2048, 4096, 8192]), task=task)
        yield draw.choice(MODELS), f"{draw.choice([1, 2, 4, 8, 8])}x{draw.choice(CARDS)}", wishes


def best(model: str, on: str, wishes: Wishes) -> TrainingEstimate | None:
    """The best that fits with the probability asked for."""
    try:
        found = find_strategies(make_goal(find_model(model), find_cluster(on), wishes), only_best=True)
    except (InputError, UnpredictableError):
        return None
    return next((e for e in found.ranked[:1] if e.fits and e.fit_probability >= 1 - wishes.risk), None)


def asked(seed: int) -> Iterator[tuple[float, str, TrainingEstimate | None, TrainingEstimate]]:
    """Time of the usual search's best over that of every degree, the question in words and both, of each question that has an
    answer."""
    for model, on, wishes in questions(seed):
        usual, every = best(model, on, wishes), best(model, on, replace(wishes, exhaustive=True))
        if every is not None:
            times = float("inf") if usual is None else usual.step_time_s.expected / every.step_time_s.expected
            yield times, f"{model} on {on}, {wishes.task}, {wishes.seq_len} tokens", usual, every


def main(n: int, seed: int) -> None:
    within = 0
    for times, words, usual, every in itertools.islice(asked(seed), n):
        within += times <= WITHIN
        if times > WITHIN:
            sys.stdout.write(f"{times:.3f}  {words}\n       {usual and usual.strategy}\n       {every.strategy}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{within} of {n} within 2 %\n")


if __name__ == "__main__":
    main(*(int(word) for word in (*sys.argv[1:], *("500", "0")[len(sys.argv) - 1 :])))
