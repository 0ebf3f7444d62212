"""Answers about one's own step, on hand-made captures and on a small real one."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gpuwise.errors import InputError, UnknownNameError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.plan.document import answer_document
from gpuwise.plan.own.fit import fit_step, source_of
from gpuwise.plan.own.plan import plan_step
from gpuwise.plan.step.time_parts import by_module, general_path, main_dtype, mfu
from gpuwise.predict.step.sharding_time import gradient_bytes
from gpuwise.workload.capture.captured import Capture, Category, Parameter, Settings, Signature, StepSpan, TensorSpec
from gpuwise.workload.changes.change import Change
from gpuwise.workload.row_codes import Kind, Phase

TODAY = datetime.date(2026, 11, 21)
GIB = 2**30


def step(activation_bytes: int = GIB, weight_bytes: int = GIB // 4, tf32: bool = False) -> Capture:
    """A product forward and two backward, with a weight, its gradient and what is kept between."""
    m = n = k = 4096
    a, b = TensorSpec((m, k), (k, 1), "fp32"), TensorSpec((k, n), (n, 1), "fp32")
    mm = Signature("aten.mm.default", Kind.MATMUL, (a, b), (a,), (), 2.0 * m * n * k, 2.0 * 4 * m * k, 4.0 * m * n, 1)
    ones = np.ones(3, dtype=np.int64)
    return Capture(
        (mm,),
        ("", "blocks.0.fc"),
        ("", "Linear"),
        ("", "train.py:3 in step"),
        0 * ones,
        np.array([Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD]),
        ones,
        ones,
        0 * ones,
        0 * ones,
        storage_bytes=np.array([weight_bytes, activation_bytes, weight_bytes]),
        storage_category=np.array([Category.PARAMETER, Category.ACTIVATION, Category.GRADIENT]),
        storage_op=np.array([-1, 0, 1]),
        storage_module=ones,
        storage_dtype=("fp32",) * 3,
        storage_stream=0 * ones,
        event_storage=np.array([0, 1, 2, 1, 2]),
        event_sign=np.array([1, 1, 1, -1, -1], dtype=np.int8),
        event_op=np.array([-1, 0, 1, 2, 2]),
        steps=(StepSpan(0, 3, 1, 5),),
        settings=Settings("2.13.0", (8, 0), matmul_tf32=tf32),
        parameter_count=weight_bytes // 4,
        trainable_count=weight_bytes // 4,
        batch=4,
        name="by hand",
        parameter_bytes_by_module={"blocks.0.fc": weight_bytes},
        parameters=(Parameter("blocks.0.fc.weight", 0, (weight_bytes // 4,), "fp32", True),),
    )


def test_a_ready_capture_is_judged() -> None:
    fits = fit_step(step(), "RTX 3060", today=TODAY)
    assert fits.fits and fits.step.captures == 0 and fits.remedies is None and fits.bigger == ()
    assert 1.4 * GIB < fits.estimate.memory.allocated.expected < 1.8 * GIB
    short = fit_step(step(30 * GIB), "RTX 3060", today=TODAY)
    assert not short.fits and short.estimate.memory.oom is not None
    assert short.estimate.memory.oom.place.line == "train.py:3 in step"
    assert short.bigger and all(c.estimate.fits for c in short.bigger)
    prices = [c.price.expected for c in short.bigger if c.price is not None]
    assert prices == sorted(prices) and len(prices) == len(short.bigger)


def test_documents_are_json() -> None:
    for document in (
        answer_document(fit_step(step(30 * GIB), "RTX 3060", today=TODAY)),
        answer_document(plan_step(step(), "8xA100-80GB", samples=1e6, today=TODAY)),
    ):
        assert json.loads(json.dumps(document, allow_nan=False))["operations"] == 3


def test_money_follows_time() -> None:
    plan = plan_step(step(), "A100-80GB", samples=1e6, usd_per_hour=2.0, today=TODAY)
    assert plan.best is not None and plan.best.cost_usd is not None and plan.step_time_s is not None
    assert plan.best.time_s.expected == pytest.approx(1e6 / 4 * plan.step_time_s.expected)
    assert plan.best.cost_usd.expected == pytest.approx(plan.best.time_s.expected * 2.0 / 3600)
    assert plan.samples_per_s is not None and plan.samples_per_s.low < plan.samples_per_s.expected < plan.samples_per_s.high


def test_more_gpus_are_faster_by_less_than_their_number() -> None:
    scaling = plan_step(step(), "8xA100-80GB", today=TODAY).scaling
    assert [s.n for s in scaling] == [1, 2, 2, 4, 4, 8, 8]
    assert [s.how for s in scaling] == ["one", *(["DDP", "FSDP"] * 3)]
    assert scaling[0].efficiency == 1.0
    for how in ("DDP", "FSDP"):
        rates = [s.samples_per_s for s in scaling if s.how in ("one", how)]
        assert rates == sorted(rates)
    sharded = [s.memory_bytes for s in scaling if s.how == "FSDP" and s.memory_bytes is not None]
    whole = [s.memory_bytes for s in scaling if s.how == "DDP" and s.memory_bytes is not None]
    assert len(sharded) == len(whole) == 3 and sharded == sorted(sharded, reverse=True)
    assert all(a < b for a, b in zip(sharded, whole, strict=True))
    assert all(0 < s.efficiency <= 1 and s.exposed_s >= 0 for s in scaling)
    assert gradient_bytes(step()) == GIB // 4
    assert gradient_bytes(replace(step(), parameters=())) == GIB // 4


def test_cards_are_compared_by_what_a_step_costs() -> None:
    plan = plan_step(step(20 * GIB), today=TODAY)
    assert len(plan.hardware) >= 5
    usd = [
        c.estimate.step_time_s.expected * c.price.expected
        for c in plan.hardware
        if c.estimate.fits and c.estimate.step_time_s is not None and c.price is not None
    ]
    assert usd == sorted(usd)
    assert plan.cluster.label == plan.hardware[0].cluster.label
    fits = [c.estimate.fits for c in plan.hardware]
    assert fits == sorted(fits, reverse=True)


def test_utilisation_is_of_the_format_used() -> None:
    card = find_cluster("A100-80GB").accelerator
    plain, fast = plan_step(step(), "A100-80GB", today=TODAY), plan_step(step(tf32=True), "A100-80GB", today=TODAY)
    assert (main_dtype(plain.step.capture), main_dtype(fast.step.capture)) == ("fp32", "tf32")
    for plan in (plain, fast):
        assert plan.best.estimate.time is not None
        share, dtype = mfu(plan.step.capture, plan.best.estimate.time, card)
        assert share is not None and 0.3 < share <= 1.0
        assert share == pytest.approx(plan.step.capture.flop() / plan.step_time_s.expected / card.peak(dtype))
    assert fast.step_time_s.expected < plain.step_time_s.expected
    assert list(by_module(plain.best.estimate.time)) == ["blocks.*.fc"]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "general"),
    [("", ""), ("fc", "fc"), ("blocks.3.mlp.up.0", "blocks.*.mlp"), ("4.0.path.1", "4.*.path.*"), ("a.b.c.d", "a.b")],
)
def test_paths_of_repeats(path: str, general: str) -> None:
    assert general_path(path) == general


@pytest.mark.parametrize("batch", [0, -4, 2.5, "many"])
def test_batches_that_cannot_be(batch: object) -> None:
    with pytest.raises(InputError) as caught:
        fit_step(step(), "4090", batch=batch, today=TODAY)  # type: ignore[arg-type]
    assert caught.value.hint


def test_refusals() -> None:
    with pytest.raises(InputError, match="cannot be changed"):
        fit_step(step(), "4090", precision="bf16", today=TODAY)
    with pytest.raises(UnknownNameError, match="precision 'fp7'"):
        source_of(len, precision="fp7")
    with pytest.raises(UnknownNameError, match="optimizer 'adamm'"):
        source_of(len, optimizer="adamm")
    for samples in (0.0, -1.0, float("nan"), float("inf"), 1e30):
        with pytest.raises(InputError, match="samples"):
            plan_step(step(), "4090", samples=samples, today=TODAY)
    with pytest.raises(InputError, match="--samples needs"):
        plan_step(replace(step(), batch=None), "4090", samples=1e6, today=TODAY)
    with pytest.raises(InputError, match="needs a GPU"):
        plan_step(step(), batch="auto", today=TODAY)


EXAMPLE = Path(__file__).parents[3] / "examples" / "train_gpt.py"


@pytest.mark.thorough
def test_a_small_step_of_ones_own() -> None:
    """Two layers of width 64: what would make it fit on a card it does not fit on, each change captured."""
    pytest.importorskip("torch")
    from gpuwise.workload.capture.target import find_target

    target = find_target(f"{EXAMPLE}:make_step", ["width=64", "n_layers=2", "n_heads=2", "vocabulary=8192"])
    fit = fit_step(target, "GTX 1650", batch=64, seq=1024, today=TODAY)
    assert not fit.fits and fit.step.batch == 64 and fit.remedies is not None
    by_name = {r.name: r for r in fit.remedies}
    assert fit.failed == ()
    for name in ("chunked loss", "full recompute"):
        assert by_name[name].saved_bytes > 0 and by_name[name].lines
    assert any(r.fits for r in by_name.values())
    order = [(not r.fits, r.slower) for r in fit.remedies]
    assert order == sorted(order)  # type: ignore[type-var]
    assert any("for block in model.blocks:" in line for line in by_name["full recompute"].lines)
    assert json.dumps(answer_document(fit), allow_nan=False)
    for remedy in (by_name["full recompute"], by_name["chunked loss"], next(r for r in fit.remedies if r.allocator_conf)):
        asked = fit_step(target, "GTX 1650", batch=64, seq=1024, changes=remedy.changes, today=TODAY)
        assert asked.estimate.memory_bytes == remedy.estimate.memory_bytes and asked.remedies is None
        assert asked.estimate.step_time_s == remedy.estimate.step_time_s and asked.step.name.endswith(f"with {remedy.name}")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ([Change("workers", 2)], "not a change to a step"),
        ([Change("sharding", "zero3")], "several ranks"),
        ([Change("checkpointing", ("nowhere",))], "changes nothing in this step"),
        ([Change("autocast", "bf16"), Change("low_precision", "bf16")], "does not go with"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused(changes: list[Change], says: str) -> None:
    pytest.importorskip("torch")
    from gpuwise.workload.capture.target import find_target

    target = find_target(f"{EXAMPLE}:make_step", ["width=64", "n_layers=2", "n_heads=2", "vocabulary=512"])
    with pytest.raises(InputError, match=says):
        fit_step(target, "4090", batch=2, seq=64, changes=changes, today=TODAY)


def test_changes_and_a_search_do_not_go_together() -> None:
    with pytest.raises(InputError, match="do not go together"):
        fit_step("no.py:such", "4090", changes=[Change("lora", 16)], batch="auto", today=TODAY)
    with pytest.raises(InputError, match="cannot be changed"):
        fit_step(step(), "4090", changes=[Change("lora", 16)], today=TODAY)
