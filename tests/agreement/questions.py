"""Random valid questions, as words of a command line, and their answers in this process.

``question(draw, command)`` draws one; a law asks it, perhaps once more with a change, and compares the answers. The default run
checks a few questions a law, the slow group hundreds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import pytest

from gpuwise.cli.called import Asked, ask
from gpuwise.errors import GpuwiseError

Words = tuple[str, ...]
Draw = random.Random

MODELS = ("gpt2", "llama-3.2-1b", "qwen2.5-7b", "llama-3.1-8b", "gemma-2-9b", "mixtral-8x7b", "llama-3.1-70b")
CARDS = ("T4", "3060", "3090", "4090", "5090", "L4", "L40S", "A100-SXM-40GB", "A100-SXM-80GB", "H100-SXM", "H200", "MI300X")
BUDGETS = ("30", "200", "1000", "2000", "5000", "20000")
ORDERS = ("cost", "time", "balance", "value", "energy")


def seeds(few: int, many: int) -> list[Any]:
    """Seeds of a law's questions: ``few`` in the default run, ``many`` in the slow group."""
    return [seed if seed < few else pytest.param(seed, marks=pytest.mark.slow) for seed in range(many)]


@lru_cache(4096)
def answer(words: Words) -> Asked | str:
    """The answer of a command line, or the message with which it is refused."""
    try:
        return ask(words[0], *words[1:])
    except GpuwiseError as error:
        return error.message


def answers(draw: Draw, question: Callable[[Draw], Words], n: int) -> Iterator[tuple[Words, Asked]]:
    """``n`` drawn questions that are answered."""
    while n:
        words = question(draw)
        got = answer(words)
        if isinstance(got, Asked):
            n -= 1
            yield words, got


def some(draw: Draw, *options: Words, share: float = 0.5) -> Words:
    """Each of ``options`` with a probability of ``share``."""
    return tuple(word for option in options if draw.random() < share for word in option)


def on(draw: Draw) -> str:
    """Accelerators of one kind."""
    return f"{draw.choice([1, 1, 2, 4, 8])}x{draw.choice(CARDS)}"


def pick(draw: Draw) -> Words:
    """For a purpose, within few limits."""
    small, model = draw.choice(MODELS[:4]), draw.choice(MODELS)
    work: Words = draw.choice(
        [
            ("infer", "--model", model),
            ("infer", "--model", model, "--users", draw.choice(["1", "4", "20"])),
            ("infer", "--model", model, "--requests-per-day", draw.choice(["2k", "50k", "1M"])),
            ("finetune", "--model", model, "--tokens", draw.choice(["2M", "30M"])),
            ("finetune", "--model", small, "--method", draw.choice(["full", "qlora"])),
            ("train", "--model", small, "--tokens", draw.choice(["300M", "3B"])),
            ("embed", "--model", "bert-base", "--tokens-per-day", draw.choice(["1M", "10G"])),
            ("speech", "--model", "whisper-large-v3"),
            ("image", "--model", draw.choice(["sdxl", "flux-dev"])),
            ("vision", "--model", "resnet-50", "--images", draw.choice(["1M", "30M"])),
        ]
    )
    by = ("--by", draw.choice(ORDERS)) if draw.random() < 0.7 else ()
    return ("pick", "--for", *work, *by, *limits(draw, 0.15))


def limits(draw: Draw, share: float) -> Words:
    """Limits of ``pick``, each with a probability of ``share``."""
    return some(
        draw,
        ("--budget", draw.choice(BUDGETS)),
        ("--deadline", draw.choice(["12h", "3d", "10d"])),
        (draw.choice(["--rent", "--own"]),),
        ("--vendor", draw.choice(["nvidia", "amd", "nvidia,amd"])),
        ("--count", draw.choice(["1", "2", "8"])),
        ("--no-used",),
        share=share,
    )


def compare(draw: Draw) -> Words:
    """Two accelerators or systems, alone or at a model's work."""
    first, second = draw.sample(CARDS, 2)
    names = draw.choice([(first, second), (f"8x{first}", f"8x{second}"), (f"2x{first}", second)])
    model = draw.choice(MODELS)
    work = draw.choice([(), ("--model", model), ("--model", model, "--for", draw.choice(["train", "finetune", "infer"]))])
    return (
        "compare",
        *names,
        *work,
        *(some(draw, ("--precision", draw.choice(["fp16", "fp8", "int4"])), share=0.3) if work else ()),
    )


def own(draw: Draw) -> Words:
    """GPU-hours rented or owned."""
    card = draw.choice(["3090", "4090", "5090", "L40S", "A100-SXM-80GB", "H100-SXM", "H200"])
    hours = draw.choice(["40", "150", "300", "600", "2000", "5000", "20000"])
    return (
        "cost own",
        "--on",
        f"{draw.choice([1, 2, 4, 8])}x{card}",
        "--hours",
        f"{hours}/month",
        *some(
            draw,
            ("--years", draw.choice(["1", "2", "5"])),
            ("--country", draw.choice(["DE", "US-CA", "FR"])),
            (draw.choice(["--simple", "--still"]),),
            share=0.4,
        ),
    )


def run(draw: Draw) -> Words:
    """The bill of a training."""
    return ("cost run", draw.choice(MODELS), "--on", on(draw), "--tokens", draw.choice(["100M", "1B", "20B"]))


METHODS: tuple[Words, ...] = ((), (), ("--lora",), ("--qlora",), ("--optimizer", "adamw8bit"))


def plan(draw: Draw) -> Words:
    """A training on accelerators."""
    return (
        "plan",
        draw.choice(MODELS),
        "--on",
        on(draw),
        "--tokens",
        draw.choice(["100M", "1B", "20B"]),
        *draw.choice(METHODS),
        *some(draw, ("--seq", draw.choice(["512", "2048", "4096"]))),
    )


def fit(draw: Draw) -> Words:
    """Whether a training fits, and what makes it fit."""
    return (
        "fit",
        draw.choice(MODELS),
        "--for",
        "train",
        "--on",
        on(draw),
        *draw.choice(METHODS),
        *some(draw, ("--seq", draw.choice(["512", "2048", "4096"]))),
        *some(draw, ("--micro-batch", draw.choice(["1", "2", "8"])), ("--recompute", draw.choice(["none", "full"])), share=0.25),
    )


def local(draw: Draw) -> Words:
    """What a model does on a device: run, adapt, train."""
    return ("fit", draw.choice(MODELS), "--on", on(draw), *some(draw, ("--for", draw.choice(["run", "finetune"]))))


def capacity(draw: Draw) -> Words:
    """A load on accelerators."""
    return (
        "capacity",
        draw.choice(MODELS[1:6]),
        "--on",
        f"{draw.choice([1, 1, 2, 4])}x{draw.choice(CARDS)}",
        *draw.choice(
            [("--rate", draw.choice(["0.5/s", "5/s", "40/s"])), ("--users", draw.choice(["4", "50", "300"])), ("--max",)]
        ),
        *some(draw, ("--workload", draw.choice(["chat", "code", "rag", "agent", "summarise"]))),
        "--quick",
    )


def most(draw: Draw) -> Words:
    """The most that accelerators of one kind carry."""
    return (
        "capacity",
        draw.choice(MODELS[1:6]),
        "--on",
        f"{draw.choice([2, 3, 4, 6, 8])}x{draw.choice(CARDS)}",
        "--max",
        *some(draw, ("--workload", draw.choice(["chat", "code", "rag", "in=1000,out=200"]))),
        "--quick",
    )


COMMANDS: dict[str, Callable[[Draw], Words]] = {
    "pick": pick,
    "compare": compare,
    "cost own": own,
    "cost run": run,
    "plan": plan,
    "fit": fit,
    "fit on a device": local,
    "capacity": capacity,
}
