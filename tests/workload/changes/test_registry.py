"""Every change has each effect or says why not, and what makes it is there."""

from __future__ import annotations

import pytest

from gpuwise.errors import UnknownNameError
from gpuwise.workload.changes.change import Change
from gpuwise.workload.changes.registry import (
    BY_NAME,
    CHANGES,
    EXCLUSIVE,
    KINDS,
    SAME,
    TRAINING_WORDS,
    ChangeKind,
    Why,
    clash,
    kind_of,
    label,
    labels,
    on_strategy,
    training_of,
)
from gpuwise.workload.changes.strategy import StrategyEffect, changes_between
from gpuwise.workload.changes.writers import WRITERS
from gpuwise.workload.strategy import Strategy

CLUSTER = Strategy(dp=8, tp=2, micro_batch=4, accumulation=4, sharding="zero1", pp=2, schedule="1f1b")
PLAIN = Strategy(precision="fp32", fused_attention=False, micro_batch=8, dp=4)
ARGUMENTS = {"autocast": "bf16", "optimizer": "adamw8bit", "lora": 8, "qlora": 8, "gradient_dtype": "bf16"}


@pytest.mark.parametrize("kind", CHANGES, ids=lambda k: k.name)
def test_every_effect_is_there_or_says_why_not(kind: ChangeKind) -> None:
    for effect in (kind.strategy, kind.step, kind.lever, kind.writer):
        assert not isinstance(effect, Why) or len(effect.text.split()) >= 4
    assert kind.what and kind.risk and kind.training in TRAINING_WORDS
    assert kind.label(ARGUMENTS.get(kind.name)) and kind_of(kind.name) is kind


def test_what_writes_changes_is_what_the_table_names() -> None:
    assert {k.name for k in CHANGES if k.writer == "diff"} == set(WRITERS)


def test_what_makes_changes_while_a_step_is_captured_is_what_the_table_names() -> None:
    pytest.importorskip("torch")
    from gpuwise.workload.capture.changes.contexts import contexts

    assert set(contexts()) == {k.name for k in CHANGES if k.step == "captured"}


def test_what_puts_levers_on_is_what_the_table_names() -> None:
    pytest.importorskip("torch")
    from gpuwise.train.levers.apply import INNER, PUT_ON

    assert set(PUT_ON) - set(INNER) == {k.name for k in CHANGES if k.is_lever}
    assert set(INNER) <= set(PUT_ON)


@pytest.mark.parametrize("s", [CLUSTER, PLAIN, Strategy()], ids=["cluster", "fp32", "one"])
def test_lighter_and_near_strategies_keep_accelerators_and_batch(s: Strategy) -> None:
    for kind in CHANGES:
        if isinstance(kind.strategy, StrategyEffect):
            for argument in (*kind.strategy.lighter(s), *kind.strategy.near(s)):
                after = on_strategy(Change(kind.name, argument), s)
                assert after != s or getattr(s, kind.name, None) is True
                assert (after.n_accelerators, after.global_batch) == (s.n_accelerators, s.global_batch)


def test_the_changes_between_two_strategies_lead_from_one_to_the_other() -> None:
    for kind in CHANGES:
        if isinstance(kind.strategy, StrategyEffect):
            for argument in kind.strategy.lighter(CLUSTER):
                after = on_strategy(Change(kind.name, argument), CLUSTER)
                again = CLUSTER
                for change in changes_between(CLUSTER, after):
                    again = on_strategy(change, again)
                assert again == after


def test_labels_say_what_is_changed() -> None:
    assert label(Change("checkpointing")) == "full recompute"
    assert label(Change("checkpointing", 2)) == "full recompute of every second layer"
    assert label(Change("checkpointing", ("a", "b"))) == "recompute of 2 modules"
    assert labels([Change("lora", 16), Change("chunked_loss", 8)]) == "LoRA, rank 16 + chunked loss"
    assert labels([Change("lora", (8, ("q_proj", "v_proj")))]) == "LoRA, rank 8, of q_proj and v_proj"
    assert len({label(Change(k.name, ARGUMENTS.get(k.name))) for k in CHANGES}) == len(CHANGES)


def test_the_furthest_change_names_what_a_stack_does() -> None:
    assert training_of([]) == SAME
    assert training_of([Change("lora", 4), Change("chunked_loss", 8)]) == KINDS[-1]


def test_changes_of_one_thing_clash() -> None:
    assert clash([Change("optimizer", "lion")], [Change("fused_optimizer")])
    assert not clash([Change("optimizer", "lion")], [Change("chunked_loss", 8)])
    assert all(name in BY_NAME for group in EXCLUSIVE for name in group)


def test_a_change_that_there_is_not() -> None:
    with pytest.raises(UnknownNameError, match="change 'checkpoint'"):
        kind_of("checkpoint")
    with pytest.raises(ValueError, match="changes no strategy"):
        on_strategy(Change("workers", 2), Strategy())
