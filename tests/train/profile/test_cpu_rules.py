"""Rules on traces of a processor, with the tensors that the operations took."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuwise.train.profile.finding import Finding
from gpuwise.train.profile.findings.host import own_python
from gpuwise.train.profile.profile_data import ProfileData
from gpuwise.train.profile.result import Profile, profile_run
from gpuwise.train.profile.run_facts import Pauses, RunFacts
from gpuwise.train.profile.split import split_step
from gpuwise.train.profile.steps import find_steps
from gpuwise.train.profile.trace_reader import read_trace
from gpuwise.train.ticks import Step

MS = 1000.0
STEP = Step(0.0, 0.0, 0.004, 0.004, 0.001, 0.0, 1, 1, 1, 1, 8, 0, wall_s=0.010)
PARAMETERS = {"name": "SGD", "n_tensors": 5, "n_parameters": 500, "shapes": [[[64, 64], 4], [[64], 1]]}


def _profile(trace: Any, folder: Path, step: Step = STEP, constant: Step | None = None) -> Profile:
    facts = RunFacts((step,) * 20, step, ({**PARAMETERS},), constant=constant, has_trace=True)
    return profile_run("train.py", facts, trace.write(folder / "trace.json"))


def _kinds(profile: Profile) -> dict[str, Finding]:
    return {f.kind: f for f in profile.findings}


def _trace(kineto: type[Any], n: int = 5, work: Any = lambda trace, at: None) -> Any:
    """``n`` steps of 10 ms on a processor, each a product of 4 ms and then ``work`` (called with the time in microseconds)."""
    trace = kineto(device={})
    for number in range(n):
        at = 10 * MS * number
        trace.step(number, at, 10 * MS)
        trace.op("aten::mm", at + 10, 4 * MS, [[512, 512], [512, 512]])
        work(trace, at + 4.2 * MS)
    return trace


@pytest.mark.parametrize(
    ("shapes", "found"),
    [
        ([[64, 64], [64, 64], [64], [64, 64], [64, 64]], True),
        ([[3, 224, 224]] * 5, False),
        ([[8]] * 5, False),
        ([[64, 64]], False),
    ],
    ids=["the parameters", "images of a loader", "a distribution", "one of them"],
)
def test_a_loop_over_parameters_takes_the_parameters(
    kineto: type[Any], tmp_path: Path, shapes: list[list[int]], found: bool
) -> None:
    def work(trace: Any, at: float) -> None:
        for i, shape in enumerate(shapes):
            for j, name in enumerate(("aten::mul", "aten::add_")):
                trace.op(name, at + 1000 * i + 500 * j, 400, [shape, shape])

    assert ("loop over parameters" in _kinds(_profile(_trace(kineto, work=work), tmp_path))) is found


def test_a_chain_saves_of_its_own_time(kineto: type[Any], tmp_path: Path) -> None:
    """SAC of stable-baselines3: two thirds of the elementwise time are single ReLUs, and the chains work on 256 numbers."""

    def work(trace: Any, at: float) -> None:
        trace.op("aten::relu", at, 4 * MS, [[256, 256]])
        trace.op("aten::mm", at + 4.1 * MS, 20, [[256, 256], [256, 1]])
        for i in range(35):
            trace.op(("aten::mul", "aten::add", "aten::tanh")[i % 3], at + 4.2 * MS + 30 * i, 28, [[256, 2]] * 2)

    found = _kinds(_profile(_trace(kineto, work=work), tmp_path))["pointwise chains"]
    spent = found.evidence[0].seconds
    assert spent is not None and found.saved_s / spent == pytest.approx(0.98 / 4.98 * (1 - 2 / (3 * 35)), rel=0.02)


@pytest.mark.parametrize("of_parameters", [True, False], ids=["an optimizer in Python", "activations"])
def test_the_operations_of_such_a_loop_are_no_chain_of_the_model(kineto: type[Any], tmp_path: Path, of_parameters: bool) -> None:
    """fastai's optimizer runs 159 operations on 16 tensors, which a compiled model would not touch."""

    def work(trace: Any, at: float) -> None:
        for i, shape in enumerate([[64, 64], [64, 64], [64], [64, 64], [64, 64]]):
            # what only two of the tensors are asked for lies between what all are
            some = ("aten::sqrt", "aten::maximum", "aten::neg") if i < 2 else ()
            for j, name in enumerate(("aten::mul_", "aten::div_", *some, "aten::add_", "aten::addcmul_")):
                trace.op(name, at + 1000 * i + 140 * j, 130, [shape if of_parameters else [8, *shape]] * 2)

    kinds = _kinds(_profile(_trace(kineto, work=work), tmp_path))
    assert ("loop over parameters" in kinds) is of_parameters
    assert ("pointwise chains" in kinds) is not of_parameters


def test_what_a_fused_form_would_still_take_is_of_all_optimizers(kineto: type[Any], tmp_path: Path) -> None:
    """Two networks with an optimizer each, as GANs have, and one for every parameter."""

    def work(trace: Any, at: float) -> None:
        for half in range(2):
            begun = at + half * 2 * MS
            trace.host("Optimizer.step#Adam.step", begun, 1900, cat="user_annotation")
            for i in range(36):
                trace.op(("aten::mul_", "aten::addcdiv_", "aten::lerp_")[i % 3], begun + 50 * i, 45, [[512], [512]])

    def saved_s(*sizes: tuple[int, int]) -> float:
        optimizers = tuple({**PARAMETERS, "name": "Adam", "n_tensors": t, "n_parameters": n} for t, n in sizes)
        facts = RunFacts((step,) * 20, step, optimizers, has_trace=True)
        made = profile_run("train.py", facts, _trace(kineto, work=work).write(tmp_path / "trace.json"))
        return _kinds(made)["unfused optimizer"].saved_s

    step = replace(STEP, optimizer_s=0.004)
    assert saved_s((3, 60_000), (3, 60_000)) == pytest.approx(saved_s((6, 120_000)))
    assert saved_s(*[(1, 20_000)] * 6) == pytest.approx(saved_s((6, 120_000)))
    assert saved_s((3, 60_000), (3, 60_000)) < saved_s((3, 60_000))


def test_the_torn_end_of_a_step_hides_no_real_ones(kineto: type[Any], tmp_path: Path) -> None:
    trace = _trace(kineto)
    trace.step(5, 50 * MS, 22)
    profile = _profile(trace, tmp_path)
    assert profile.data.traced is not None and profile.data.traced.n_steps >= 3
    assert profile.data.traced.wall_s == pytest.approx(0.010)


@pytest.mark.parametrize(
    ("mask", "call"),
    [([1, 1, 128, 128], "is_causal=True"), ([4, 1, 1, 128], "attn_mask=mask"), (None, "attention(q, k, v)")],
    ids=["causal", "padding", "encoder"],
)
def test_the_mask_of_attention_by_hand_decides_what_replaces_it(
    kineto: type[Any], tmp_path: Path, mask: list[int] | None, call: str
) -> None:
    def work(trace: Any, at: float) -> None:
        trace.op("aten::bmm", at, 1000, [[16, 128, 32], [16, 32, 128]])
        if mask is not None:
            trace.op("aten::masked_fill", at + 1100, 300, [[4, 4, 128, 128], mask])
        trace.op("aten::softmax", at + 1500, 500, [[4, 4, 128, 128]])
        trace.op("aten::bmm", at + 2100, 1000, [[16, 128, 128], [16, 128, 32]])

    finding = _kinds(_profile(_trace(kineto, work=work), tmp_path))["attention not flash"]
    assert call in finding.fix[0]
    assert finding.saved_s <= sum(e.seconds or 0.0 for e in finding.evidence)


def test_no_advice_to_call_what_the_script_calls(kineto: type[Any], tmp_path: Path) -> None:
    def work(trace: Any, at: float) -> None:
        trace.op("aten::_scaled_dot_product_attention_math", at, 4000, [[4, 4, 128, 32]] * 3)
        trace.op("aten::dropout", at + 100, 100, [[4, 4, 128, 128]])

    fix = " ".join(_kinds(_profile(_trace(kineto, work=work), tmp_path))["attention not flash"].fix)
    assert "dropout_p=0.0" in fix and "is_causal" not in fix and "functional" not in fix


@pytest.mark.parametrize(("backward_us", "counted_s"), [(500, 1.5e-3), (5000, 3e-3)], ids=["as traced", "no more than twice"])
def test_the_backward_pass_of_attention_is_that_of_the_trace(
    kineto: type[Any], tmp_path: Path, backward_us: float, counted_s: float
) -> None:
    """Dropout makes the forward pass of the formula dear, not the backward pass."""

    def work(trace: Any, at: float) -> None:
        trace.op("aten::_scaled_dot_product_attention_math", at - 4000, 1000, [[4, 4, 128, 32]] * 3)
        trace.host("autograd::engine::evaluate_function: BmmBackward0", at - 3000, backward_us)
        trace.op("aten::bmm", at - 3000, backward_us, [[16, 128, 32], [16, 32, 128]])

    trace = kineto(device={})
    for number in range(5):
        trace.step(number, 10 * MS * number, 10 * MS)
        work(trace, 10 * MS * number + 4100)
    profile = _profile(trace, tmp_path)
    finding = _kinds(profile)["attention not flash"]
    assert finding.evidence[0].seconds == pytest.approx(counted_s * profile.data.factor, rel=1e-6)


def _calls(trace: Any, name: str, at: float, sequence: int, *, inner: bool = False) -> None:
    """A module's call with two operations, which autograd differentiates where its nodes bear their numbers."""
    trace.host(f"nn.Module: {name}", at, 400, cat="python_function")
    if inner:
        trace.host("nn.Module: Linear_9", at + 5, 380, cat="python_function")
    for i in range(2):
        trace.host("aten::addmm", at + 10 + 180 * i, 170, **{"Sequence number": sequence + i})


@pytest.mark.parametrize(
    ("silent", "inner", "after", "found"),
    [
        (["Linear_1"], False, 0, False),
        (["Linear_0", "Linear_1"], False, 0, True),
        (["Net_1"], True, 0, True),
        (["Net_1"], True, 3500, False),
    ],
    ids=["an output that is used last", "all layers of a bare model", "a module of others", "before the gradients of its pass"],
)
def test_a_layer_whose_output_is_not_used_is_no_evaluation(
    kineto: type[Any], tmp_path: Path, silent: list[str], inner: bool, after: float, found: bool
) -> None:
    """A recurrent net's output layer at all steps but the last; what a policy says of the next state, for the loss."""
    trace, number = kineto(device={}), 10
    for step in range(5):
        at = 10 * MS * step
        trace.step(step, at, 10 * MS)
        for name in silent:
            _calls(trace, name, at + after + 500 * silent.index(name), number, inner=inner)
            number += 2
        learning = ["Linear_0", "Linear_1", "Net_1"][: 3 if inner else 2]
        for i, name in enumerate(learning):
            _calls(trace, name, at + 2000 + 500 * i, number, inner=inner and name == "Net_1")
            for j in range(2):
                node = "autograd::engine::evaluate_function: AddmmBackward0"
                trace.host(node, at + 5000 + 1000 * i + 500 * j, 400, **{"Sequence number": number + j})
            number += 2
    assert ("evaluation in the step" in _kinds(_profile(trace, tmp_path))) is found


@pytest.mark.parametrize(("steps", "found"), [((0, 1, 2, 3, 4), True), ((0, 2), True), ((2,), False)])
def test_an_evaluation_at_the_end_of_an_epoch_is_not_in_the_step(
    kineto: type[Any], tmp_path: Path, steps: tuple[int, ...], found: bool
) -> None:
    """accelerate's nlp_example: the epoch of 30 steps ended in those that were traced."""
    trace, number = kineto(device={}), 10
    for step in range(5):
        at = 10 * MS * step
        trace.step(step, at, 10 * MS)
        for i in range(6 * (step in steps)):
            _calls(trace, "Net_0", at + 100 + 450 * i, number)
            number += 2
        _calls(trace, "Net_0", at + 3000, number)
        for j in range(2):
            node = "autograd::engine::evaluate_function: AddmmBackward0"
            trace.host(node, at + 5000 + 500 * j, 400, **{"Sequence number": number + j})
        number += 2
    assert ("evaluation in the step" in _kinds(_profile(trace, tmp_path))) is found


def test_the_loss_of_an_evaluation_is_of_the_evaluation(kineto: type[Any], tmp_path: Path) -> None:
    """speechbrain's separation: the loss of a validation is in no module; every tenth validation saved twice what was told."""
    trace, number = kineto(device={}), 10
    for step in range(5):
        at = 10 * MS * step
        trace.step(step, at, 10 * MS)
        _calls(trace, "Net_0", at + 100, number)
        trace.op("aten::sort", at + 600, 1000, [[512, 512]])
        _calls(trace, "Net_0", at + 2000, number + 2)
        trace.op("aten::mm", at + 2600, 2000, [[512, 512], [512, 512]])
        for j in range(2):
            node = "autograd::engine::evaluate_function: AddmmBackward0"
            trace.host(node, at + 5000 + 500 * j, 400, **{"Sequence number": number + 2 + j})
        number += 4
    profile = _profile(trace, tmp_path)
    found = _kinds(profile)["evaluation in the step"]
    assert found.saved_s == pytest.approx((2 * 170e-6 + 1000e-6) * profile.data.factor, rel=0.05)


@pytest.mark.parametrize(("waited_s", "found"), [(0.0, True), (0.006, False)], ids=["alone", "in a crowd"])
def test_short_gaps_are_not_python_where_other_programs_had_the_step(
    kineto: type[Any], tmp_path: Path, waited_s: float, found: bool
) -> None:
    trace = _trace(kineto, n=4, work=lambda trace, at: trace.op("aten::mm", at + 800, 5 * MS, [[512, 512], [512, 512]]))
    step = Step(0.0, 0.0, 0.004, 0.004, 0.001, 0.0, 1, 1, 1, 1, 8, 0, wall_s=0.010)
    timed = tuple(Step(0.0, 0.0, 0.004, 0.004, 0.001, 0.0, 1, 1, 1, 1, 8, 0, wall_s=0.010, queue_s=waited_s) for _ in range(4))
    facts = RunFacts((step,) * 20, step, ({**PARAMETERS},), has_trace=True, traced=timed)
    data = _profile(trace, tmp_path).data
    finding = own_python(replace(data, facts=facts))
    assert (finding is not None) is found


def test_the_share_of_other_programs_is_of_all_the_time(kineto: type[Any], tmp_path: Path) -> None:
    """Steps are short while no other program has the processor: none of their time is in the median."""
    disturbed = Step(0.0, 0.0, 0.004, 0.004, 0.001, 0.0, 1, 1, 1, 1, 8, 0, wall_s=0.050, queue_s=0.040)
    facts = RunFacts((STEP, STEP, disturbed) * 4, STEP, ({**PARAMETERS},), has_trace=True)
    notes = profile_run("train.py", facts, _trace(kineto).write(tmp_path / "trace.json")).notes
    assert any("57 % of the time" in note for note in notes)


@pytest.mark.parametrize(("constant_s", "disagree"), [(0.006, False), (0.0105, True), (0.002, True), (0.030, True)])
def test_two_runs_that_disagree_say_so(kineto: type[Any], tmp_path: Path, constant_s: float, disagree: bool) -> None:
    def work(trace: Any, at: float) -> None:
        trace.host("enumerate(DataLoader)#_Iter.__next__", at, 4 * MS, cat="user_annotation")

    waits = Step(0.004, 0.0, 0.002, 0.002, 0.001, 0.0, 1, 1, 1, 1, 8, 0, wall_s=0.010)
    constant = Step(0.0, 0.0, 0.002, 0.002, 0.001, 0.0, 1, 1, 1, 1, 8, 0, wall_s=constant_s)
    profile = _profile(_trace(kineto, work=work), tmp_path, waits, constant)
    assert any("disagree" in note for note in profile.notes) is disagree
    waiting = _kinds(profile).get("data wait")
    saved_s = 0.0 if waiting is None else waiting.saved_s
    # a step that takes three times as long without its data proves nothing of them
    most_s = 0.004 if constant_s > 0.012 else max(0.010 - constant_s, 0.0)
    assert saved_s <= min(0.004, most_s) + 1e-9
    if constant_s > 0.012:
        assert saved_s == pytest.approx(0.004) and any("is not counted" in note for note in profile.notes)


def test_gaps_between_short_operations_are_named(kineto: type[Any], tmp_path: Path) -> None:
    trace = kineto(device={})
    for number in range(5):
        trace.step(number, 10 * MS * number, 10 * MS)
        for i in range(100):
            trace.op("aten::add", 10 * MS * number + 100 * i, 30, [[4], [4]])
    profile = _profile(trace, tmp_path)
    finding = _kinds(profile)["small operations"]
    assert finding.saved_s == pytest.approx(profile.split.parts["host gaps"])
    assert finding.evidence[0].count == pytest.approx(100)
    assert profile.verdict.kind != "healthy"


@pytest.mark.parametrize(("step_us", "found"), [(9400, True), (6200, False)], ids=["as traced", "a third shorter"])
def test_what_the_profiler_takes_is_no_dispatch(kineto: type[Any], tmp_path: Path, step_us: int, found: bool) -> None:
    """700 operations of 5 us in 9.4 ms: of their own where the step is as long without the profiler, recording them where not."""
    trace = kineto(device={})
    for number in range(5):
        at = 9400 * number
        trace.step(number, at, 9400)
        for i in range(700):
            trace.op("aten::add", at + 5 * i, 4.8, [[4], [4]])
        trace.op("aten::mm", at + 3510, 5880, [[512, 512], [512, 512]])
    step = Step(0.0, 0.0, 0.4e-6 * step_us, 0.4e-6 * step_us, 0.0, 0.0, 1, 1, 1, 1, 8, 0, wall_s=1e-6 * step_us)
    assert ("small operations" in _kinds(_profile(trace, tmp_path, step))) is found


def test_recording_between_operations_is_not_taken_from_their_dispatch(kineto: type[Any], tmp_path: Path) -> None:
    """300 operations of 3 us among 600 functions of Python: what the step has longer in the trace lies between them."""
    trace = kineto(device={})
    for number in range(5):
        at = 4500 * number
        trace.step(number, at, 4500)
        for i in range(300):
            trace.op("aten::add", at + 10 * i + 7, 3, [[4], [4]])
            for j in (1, 4):
                trace.host("train.py(9): step", at + 10 * i + j, 2, cat="python_function")
        trace.op("aten::mm", at + 3000, 1500, [[512, 512], [512, 512]])
    step = Step(0.0, 0.0, 1300e-6, 1300e-6, 0.0, 0.0, 1, 1, 1, 1, 8, 0, wall_s=2700e-6)
    finding = _kinds(_profile(trace, tmp_path, step))["small operations"]
    # 900 us of the operations, and 300 us between them; the product and what recording took are neither
    assert finding.evidence[1].seconds == pytest.approx(900e-6, rel=0.1)
    assert finding.saved_s == pytest.approx(1200e-6, rel=0.1)


def test_an_operation_that_stood_still_is_no_work(kineto: type[Any], tmp_path: Path) -> None:
    """Other programs had the processor for 40 of 50 ms of each step, in the middle of one short operation."""
    trace = kineto(device={})
    for number in range(6):
        at = 50 * MS * number
        trace.host("Optimizer.step#SGD.step", at + 49.9 * MS, 50, cat="user_annotation")
        for i in range(180):
            stands = 40 * MS if i == 60 else 0.0
            later = 40 * MS if i > 60 else 0.0
            trace.op("aten::add", at + 50 * i + later, 20 + stands, [[4], [4]])
    waits = Step(0.0, 0.0, 0.025, 0.020, 0.001, 0.0, 1, 1, 1, 1, 64, 0, 0.040, wall_s=0.050)
    facts = RunFacts((waits,) * 20, waits, ({**PARAMETERS},), has_trace=True, traced=(waits,) * 5)
    profile = profile_run("train.py", facts, trace.write(tmp_path / "trace.json"))
    assert profile.data.traced is not None
    assert profile.data.traced.wall_s == pytest.approx(0.010, rel=0.05)
    assert profile.verdict.kind == "small operations"


@pytest.mark.parametrize(("gap_ms", "found"), [(3.8, False), (8, True)], ids=["theirs", "longer than theirs"])
def test_gaps_of_a_crowd_are_no_python_of_the_loop(kineto: type[Any], tmp_path: Path, gap_ms: float, found: bool) -> None:
    """Other programs had the processor for 4 ms of 12, or 5.6 of 16, of each step: its gap is as long, or longer."""
    trace, length = kineto(device={}), (8.1 + gap_ms) * MS
    for number in range(6):
        at = length * number
        trace.host("Optimizer.step#SGD.step", at + length - 60, 50, cat="user_annotation")
        for i in range(2):
            trace.op("aten::mm", at + 10 + i * (4 + gap_ms) * MS, 4 * MS, [[512, 512], [512, 512]])
    wall_s = length * 1e-6
    waits = Step(0.0, 0.0, wall_s / 2, wall_s / 2.1, 5e-5, 0.0, 1, 1, 1, 1, 8, 0, 0.0056 if found else 0.004, wall_s=wall_s)
    facts = RunFacts((waits,) * 20, waits, ({**PARAMETERS},), has_trace=True, traced=(waits,) * 5)
    assert ("python in the step" in _kinds(profile_run("train.py", facts, trace.write(tmp_path / "trace.json")))) is found


@pytest.mark.parametrize(("bare_ms", "in_a_pass", "found"), [(0.05, False, False), (3.1, False, True), (0.05, True, True)])
def test_gaps_outside_of_passes_hold_no_more_than_was_timed_there(
    kineto: type[Any], tmp_path: Path, bare_ms: float, in_a_pass: bool, found: bool
) -> None:
    """A gap of 3 ms in each step of 10, outside of the passes of the model or in one: by the clock of the
    thread there was hardly any outside of the passes, or all of it."""

    def work(trace: Any, at: float) -> None:
        trace.host("nn.Module: Net_0", at + (0 if in_a_pass else 3.0) * MS, (5 if in_a_pass else 1) * MS, cat="python_function")
        trace.op("aten::mm", at + 3.1 * MS, 0.8 * MS, [[512, 512], [512, 512]])

    trace = kineto(device={})
    for number in range(6):
        at = 10 * MS * number
        trace.host("Optimizer.step#SGD.step", at + 9.94 * MS, 50, cat="user_annotation")
        trace.op("aten::mm", at + 10, 4 * MS, [[512, 512], [512, 512]])
        work(trace, at + 4.1 * MS)
        trace.op("aten::mm", at + 8.1 * MS, 1.8 * MS, [[512, 512], [512, 512]])
    passes_s = 0.010 - bare_ms * 1e-3 - 5e-5
    step = Step(0.0, 0.0, passes_s / 2, passes_s / 2, 5e-5, 0.0, 1, 1, 1, 1, 8, 0, wall_s=0.010)
    facts = RunFacts((step,) * 20, step, ({**PARAMETERS},), has_trace=True, traced=(step,) * 5)
    python = _kinds(profile_run("train.py", facts, trace.write(tmp_path / "trace.json"))).get("python in the step")
    assert (python is not None and python.saved_s > 0.001) is found


@pytest.mark.parametrize(("dtypes", "kind"), [(["float64"], "double precision"), (["float32"], "no single waste")])
def test_double_precision_is_seen_without_a_trace(dtypes: list[str], kind: str) -> None:
    step = Step(0.0, 0.0, 4.0, 5.5, 0.3, 0.0, 0, 1, 1, 1, 8, 0, wall_s=10.0)
    facts = RunFacts((step,) * 3, step, ({**PARAMETERS, "dtypes": dtypes},))
    assert profile_run("train.py", facts, None).verdict.kind == kind


@pytest.mark.parametrize(
    ("name", "passes", "played"),
    [
        ("gymnasium/core.py(326): step", True, True),
        ("gymnasium/core.py(326): step", False, False),
        ("torch/optim/lr_scheduler.py(120): step", True, False),
    ],
    ids=["an environment", "no model", "a schedule"],
)
def test_moves_before_every_update_are_between_updates(
    kineto: type[Any], tmp_path: Path, name: str, passes: bool, played: bool
) -> None:
    """As A2C on ten landers: forty moves and passes of 6 of the 10 ms, after which an update follows."""
    trace = kineto(device={})
    for number in range(5):
        at = 10 * MS * number
        trace.step(number, at, 10 * MS)
        for i in range(40):
            trace.host(name, at + 10 + 150 * i, 100, cat="python_function")
            for j in range(18):
                trace.op("aten::mul", at + 15 + 150 * i + 5 * j, 5, [[4], [4]])
            if passes:
                trace.host("nn.Module: Policy_0", at + 150 * i + 112, 45, cat="python_function")
            trace.op("aten::add", at + 150 * i + 120, 30, [[4], [4]])
        trace.op("aten::mm", at + 6 * MS, 4 * MS, [[512, 512], [512, 512]])
    profile = _profile(trace, tmp_path, replace(STEP, optimizer_s=0.0))
    found = _kinds(profile).get("between updates")
    assert (found is not None) is played
    if found is not None:
        assert profile.split.parts["between updates"] == pytest.approx(0.006, rel=0.02)
        assert found.evidence[0].seconds == pytest.approx(0.004, rel=0.02) and found.evidence[0].count == 40
        assert profile.verdict.kind == "between updates" and "small operations" not in _kinds(profile)


@pytest.mark.parametrize(
    ("call", "rows", "kind"),
    [
        ("gpt.py(9): forward", 4, "between updates"),
        ("nn.Module: GPT_0", 4, "between updates"),
        ("gpt.py(9): forward", 120, "evaluation in the step"),
        ("nn.Module: GPT_0", 120, "evaluation in the step"),
        ("other.py(9): forward", 4, None),
    ],
)
def test_text_sampled_before_every_update_is_between_updates(
    kineto: type[Any], tmp_path: Path, call: str, rows: int, kind: str
) -> None:
    """nanochat's chat_rl: 25 passes of one token for four answers, by ``model.forward``, before one pass with gradients."""
    trace = kineto(device={})
    for number in range(5):
        at, sequence = 10 * MS * number, 10 * number
        trace.step(number, at, 10 * MS)
        for i in range(25):
            trace.host(call, at + 10 + 250 * i, 200, cat="python_function")
            trace.op("aten::linear", at + 20 + 250 * i, 180, [[rows // 4, 4, 64], [64, 64]])
        trace.host("nn.Module: GPT_0", at + 7000, 900, cat="python_function")
        trace.host("gpt.py(9): forward", at + 7005, 890, cat="python_function")
        for j in range(2):
            inputs = {"Input Dims": [[30, 4, 64], [64, 64]], "Input type": ["float", "float"]}
            trace.host("aten::linear", at + 7010 + 400 * j, 390, **{"Sequence number": sequence + j}, **inputs)
            node = "autograd::engine::evaluate_function: AddmmBackward0"
            trace.host(node, at + 8200 + 500 * j, 400, **{"Sequence number": sequence + j})
    profile = _profile(trace, tmp_path, replace(STEP, optimizer_s=0.0))
    found = _kinds(profile)
    assert {"between updates", "evaluation in the step"} & found.keys() == ({kind} if kind else set())
    if kind == "between updates":
        assert found[kind].evidence[0].count == 25 and profile.verdict.kind == kind
        assert profile.split.parts[kind] == pytest.approx(0.0062, rel=0.02)
        # 200 us on 4 rows and 900 on 120: of a pass 24 us grow with its rows
        shared_s = (found[kind].evidence[1].seconds or 0.0) * (1 - 1 / max(profile.data.device.n_cores, 1))
        assert found[kind].saved_s - shared_s == pytest.approx(25 * 176e-6 * 7 / 8, rel=0.02)


def test_pauses_of_waits_alone_are_no_moves(kineto: type[Any], tmp_path: Path) -> None:
    """What the watch counted between updates without one pause that it could name; nothing in the trace is a move."""
    trace = kineto(device={})
    for number in range(5):
        trace.step(number, 10 * MS * number, 10 * MS)
        trace.op("aten::mm", 10 * MS * number + 10, 9 * MS, [[512, 512], [512, 512]])
    facts = RunFacts((STEP,) * 20, STEP, ({**PARAMETERS},), has_trace=True, traced=(STEP,) * 5, pauses=Pauses(seconds=0.002))
    profile = profile_run("train.py", facts, trace.write(tmp_path / "trace.json"))
    assert profile.split.parts["between updates"] == 0.002 and "between updates" not in _kinds(profile)


def test_passes_over_lists_of_all_parameters_are_an_optimizers(kineto: type[Any], tmp_path: Path) -> None:
    """Keras' Adam on torch: ten operations on lists, which had been chains of the model; a fused one moves 7 of 30 tensors."""
    trace = kineto(device={})
    for number in range(5):
        at = 10 * MS * number
        trace.step(number, at, 10 * MS)
        trace.op("aten::mm", at + 10, 4 * MS, [[512, 512], [512, 512]])
        for i in range(10):
            trace.op("aten::_foreach_mul_", at + 4100 + 550 * i, 540, [[512, 512]])
    profile = _profile(trace, tmp_path, replace(STEP, optimizer_s=0.0))
    found = _kinds(profile)
    assert "pointwise chains" not in found and profile.verdict.kind == "unfused optimizer"
    assert found["unfused optimizer"].saved_s == pytest.approx(10 * 540e-6 * (1 - 7 / 30) * profile.data.factor, rel=0.02)


PENALTY = """
import sys
from torch import autograd, nn, profiler, randn, tanh
from torch.utils.checkpoint import checkpoint

model = nn.Sequential(nn.Linear(64, 64), nn.Softplus(), nn.Linear(64, 1))


def step(penalty):
    x = randn(512, 64, requires_grad=True)
    out = checkpoint(model, x, use_reentrant=False) if penalty == "recompute" else model(x)
    if penalty == "gradient":
        (out,) = autograd.grad(out.sum(), x, create_graph=True)
    for _ in range(40):
        out = tanh(out) * out + out
    out.sum().backward()


for penalty in ("none", "recompute", "gradient"):
    step(penalty)
    schedule = profiler.schedule(wait=0, warmup=1, active=4, repeat=1)
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU], with_stack=True, schedule=schedule) as seen:
        for _ in range(5):
            step(penalty)
            seen.step()
    seen.export_chrome_trace(f"{sys.argv[1]}/{penalty}.json")
"""


@pytest.mark.thorough
def test_no_compiled_model_where_gradients_are_differentiated(tmp_path: Path) -> None:
    """torch.compile raises on a second backward pass through what it compiled; a forward pass done again is none."""
    subprocess.run([sys.executable, "-c", PENALTY, str(tmp_path)], check=True)
    told = dict[str, bool]()
    for path in tmp_path.glob("*.json"):
        trace = read_trace(path)
        data = ProfileData(split_step(trace, find_steps(trace)), None, trace, find_steps(trace))
        told[path.stem] = "torch.func.grad" in data.compile_mend("one kernel for each chain")
    assert told == {"none": False, "recompute": False, "gradient": True}


@pytest.mark.parametrize(
    ("first_s", "persistent", "mend"),
    [(0.05, False, "# its workers restart every 5 steps"), (0.05, True, "# all cores"), (0.012, False, "# all cores")],
    ids=["started anew", "kept", "slow in every step"],
)
def test_workers_that_every_epoch_starts_are_kept(first_s: float, persistent: bool, mend: str) -> None:
    """A loader that is tried once stands before the one of the training."""
    steps = [
        replace(STEP, wall_s=0.02 + wait, data_s=wait)
        for _ in range(6)
        for wait in (first_s, *[0.01 if mend[2] == "a" else 0.001] * 4)
    ]
    loader = {"dataset": "Own", "n_batches": 5, "num_workers": 128, "persistent_workers": persistent}
    mean = replace(STEP, wall_s=sum(s.wall_s for s in steps) / 30, data_s=sum(s.data_s for s in steps) / 30)
    facts = RunFacts(tuple(steps), mean, loaders=({**loader, "num_workers": 0, "batch_size": 10}, {**loader, "batch_size": 8}))
    found = _kinds(profile_run("train.py", facts, None))["data wait"]
    assert mend in " ".join(found.fix)


@pytest.mark.parametrize(("queue_s", "mend"), [(0.0, "num_workers="), (0.02, "keep what __getitem__ decodes")])
def test_no_worker_is_advised_where_none_would_have_a_processor(queue_s: float, mend: str) -> None:
    """As mnist_rnn in a crowd: with the worker whole processes took 4 % longer, with its items in memory 23 % less."""
    step = replace(STEP, wall_s=0.03, data_s=0.02, queue_s=queue_s)
    loader = {"dataset": "MNIST", "n_batches": 50, "num_workers": 0, "batch_size": 8}
    facts = RunFacts((step,) * 20, step, loaders=(loader,), traced=(step,) * 4)
    assert mend in " ".join(_kinds(profile_run("train.py", facts, None))["data wait"].fix)


@pytest.mark.parametrize(("rows", "share"), [(8 * 77, 0.9), (8 * 50, 0.45)], ids=["of text", "one half of images"])
def test_padding_costs_no_more_than_what_is_done_with_ids(kineto: type[Any], tmp_path: Path, rows: int, share: float) -> None:
    """As CLIP, whose encoder of images has another length."""

    def work(trace: Any, at: float) -> None:
        trace.op("aten::embedding", at, 10, [[1000, 512], [8, 77]])
        trace.op("aten::mm", at + 20, 2 * MS, [[8 * 77, 512], [512, 512]])
        trace.op("aten::mm", at + 20 + 2 * MS, 2 * MS, [[rows, 512], [512, 512]])

    trace = kineto(device={})
    for number in range(5):
        trace.step(number, 10 * MS * number, 10 * MS)
        work(trace, 10 * MS * number + 10)
    step = replace(STEP, n_batches=0, data_s=0.0)
    facts = RunFacts(
        (step,) * 20, step, padding={"share": 0.9, "longest": 77, "by": "the value that ends the rows"}, has_trace=True
    )
    profile = profile_run("train.py", facts, trace.write(tmp_path / "trace.json"))
    assert _kinds(profile)["padding"].saved_s == pytest.approx(share * profile.split.parts["compute"])
