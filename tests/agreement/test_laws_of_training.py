"""Laws between answers of ``plan`` and ``fit``: a change that was asked for, and the row that reports it."""

from __future__ import annotations

import random

import pytest
from tests.agreement.questions import Draw, Words, answer, answers, fit, plan, seeds
from tests.agreement.test_one_remedy import SAME, options

from gpuwise.cli.called import Asked

EACH = 2
"""Questions of a seed."""
CONSTRAINTS: tuple[Words, ...] = (
    ("--risk", "0.02"),
    ("--pp", "2"),
    ("--tp", "2"),
    ("--sharding", "zero1"),
    ("--sharding", "zero3"),
    ("--recompute", "full"),
    ("--recompute", "none"),
    ("--micro-batch", "1"),
    ("--offload-optimizer",),
)
FASTER = 0.98
"""A default layout may be this much slower than one that was asked for: not every layout is tried."""
LINES = (("3090", "4090", "5090"), ("A100-SXM-40GB", "A100-SXM-80GB"), ("H100-SXM", "H200", "B200"), ("L4", "L40S"))
"""GPUs of which each is faster and has no less memory than the one before."""


def without(words: Words, option: str) -> Words:
    """The question without an option and its value."""
    i = words.index(option) if option in words else len(words)
    return (*words[:i], *words[i + 2 :])


def constrained(draw: Draw, words: Words, asked: Asked, *, same_stack: bool) -> list[tuple[float, Words, Asked]]:
    """Time with each of three constraints over the time without, and that answer where it fits as surely as was asked; with
    ``same_stack`` on the default one."""
    if asked["best"] is None:
        return []
    stack = asked["best"]["strategy"]["stack"]
    found: list[tuple[float, Words, Asked]] = []
    for constraint in draw.sample(CONSTRAINTS, 3):
        again = answer((*words, *constraint, *(("--stack", stack) if same_stack else ())))
        sure = 1 - float(constraint[1]) if constraint[0] == "--risk" else 0.9
        if isinstance(again, Asked) and again["best"] is not None and again["best"]["fit_probability"] >= sure:
            ratio = again["best"]["time_s"]["expected"] / asked["best"]["time_s"]["expected"]
            found.append((ratio, constraint, again))
    return found


def names_its_stack(assumed: list[str], stack: str) -> bool:
    """Whether an answer states the stack it moved to, for want of what is asked in the default one."""
    return any(text.startswith(f"stack {stack} (") and "does not support the requested" in text for text in assumed)


@pytest.mark.parametrize("seed", seeds(2, 60))
def test_a_constraint_on_the_same_stack_never_makes_a_plan_faster(seed: int) -> None:
    draw = random.Random(seed)
    for words, asked in answers(draw, plan, EACH):
        for ratio, constraint, _ in constrained(draw, words, asked, same_stack=True):
            assert ratio >= FASTER, (words, constraint, ratio)


@pytest.mark.slow
def test_a_constraint_that_makes_a_plan_faster_names_the_stack_it_moved_to() -> None:
    """The default stack is the one that people use; another one that a constraint needs may be faster."""
    draw = random.Random(1)
    for words, asked in answers(draw, plan, 40):
        for ratio, constraint, again in constrained(draw, words, asked, same_stack=False):
            stacks = asked["best"]["strategy"]["stack"], again["best"]["strategy"]["stack"]
            moved = stacks[0] != stacks[1] and names_its_stack(again["goal"]["assumed"], stacks[1])
            assert ratio >= FASTER or moved, (words, constraint, ratio, stacks, again["goal"]["assumed"])


@pytest.mark.parametrize("seed", seeds(1, 40))
def test_the_next_gpu_of_a_line_is_not_slower_with_the_same_software(seed: int) -> None:
    draw = random.Random(seed)
    for words, _ in answers(draw, plan, EACH):
        line, i = draw.choice([(line, i) for line in LINES for i in range(len(line) - 1)])
        at = words.index("--on") + 1
        count = words[at].partition("x")[0]
        smaller = answer((*words[:at], f"{count}x{line[i]}", *words[at + 1 :]))
        if isinstance(smaller, Asked) and smaller["best"] is not None:
            stack = ("--stack", smaller["best"]["strategy"]["stack"])
            larger = answer((*words[:at], f"{count}x{line[i + 1]}", *words[at + 1 :], *stack))
            assert isinstance(larger, Asked) and larger["best"] is not None, (words, line[i + 1])
            assert larger["best"]["time_s"]["expected"] <= smaller["best"]["time_s"]["expected"] / FASTER, (words, line[i + 1])


def recomputed(words: Words) -> dict[str, Asked]:
    """The question with each kind of recomputation that is possible, the least first."""
    got = {kind: answer((*words, "--recompute", kind)) for kind in ("none", "selective", "full")}
    return {kind: asked for kind, asked in got.items() if isinstance(asked, Asked)}


@pytest.mark.parametrize("seed", seeds(1, 60))
def test_recomputing_more_on_the_same_stack_never_needs_more_memory(seed: int) -> None:
    for words, asked in answers(random.Random(seed), fit, EACH):
        kinds = recomputed((*without(words, "--recompute"), "--stack", asked["strategy"]["stack"]))
        needed = [kind["memory_bytes"]["expected"] for kind in kinds.values()]
        assert needed == sorted(needed, reverse=True), (words, needed)


@pytest.mark.slow
def test_recomputing_more_needs_more_memory_only_on_a_stack_that_is_named() -> None:
    """Selective recomputation moves to a stack that has it, whose copies of the weights may be others."""
    for words, _ in answers(random.Random(1), fit, 10):
        kinds = recomputed(without(words, "--recompute"))
        needed = [kind["memory_bytes"]["expected"] for kind in kinds.values()]
        used = {kind["strategy"]["stack"]: kind["assumed"] for kind in kinds.values()}
        default = kinds["none"]["strategy"]["stack"] if "none" in kinds else ""
        moved = all(stack == default or names_its_stack(assumed, stack) for stack, assumed in used.items())
        assert needed == sorted(needed, reverse=True) or (len(used) > 1 and moved), (words, needed, used)


@pytest.mark.parametrize("seed", seeds(1, 60))
def test_a_row_of_what_would_change_it_is_what_asking_for_it_gives(seed: int) -> None:
    draw = random.Random(seed)
    for words, asked in answers(draw, fit, EACH):
        rows = [*asked["remedies"], *asked["combinations"]]
        for row in draw.sample(rows, min(2, len(rows))):
            more = options(row["name"], asked["strategy"], row["strategy"])
            replaced = {word.partition("=")[0] for word in more}
            again = words
            for option in replaced & {"--micro-batch", "--recompute", "--optimizer"}:
                again = without(again, option)
            if replaced & {"--lora", "--qlora"}:
                again = tuple(word for word in again if word not in ("--lora", "--qlora"))
            there = answer((*again, *more))
            assert isinstance(there, Asked), (words, row["name"], there)
            assert {key: there[key] for key in SAME} == {key: row[key] for key in SAME}, (words, row["name"])


@pytest.mark.parametrize("seed", seeds(1, 60))
def test_a_verdict_names_a_change_that_fits_and_sizes_that_are_accepted(seed: int) -> None:
    for words, asked in answers(random.Random(seed), fit, EACH):
        if asked["fits"]:
            again = answer((*without(words, "--micro-batch"), "--micro-batch", str(asked["largest_micro_batch"])))
            assert isinstance(again, Asked) and again["fits"], words
        elif any(row["fits"] for row in (*asked["remedies"], *asked["combinations"])):
            assert asked["combinations"], words
