"""Workloads: the catalogue, those one writes, and what is drawn from them."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwise.errors import InputError, UnknownNameError
from gpuwise.serve.load.workloads import catalogue, draw, find_workload


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_a_thousand_requests_have_the_workload_s_figures(name: str) -> None:
    workload = find_workload(name)
    load = draw(workload, 1000, 5.0)
    assert len(load) == 1000
    assert (np.diff(load.arrival_s) >= 0).all()
    assert load.arrival_s[0] == 0
    assert load.output_tokens.min() >= 1
    assert load.prompt_tokens.min() >= 1
    if workload.sessions is None:
        assert load.mean_rate == pytest.approx(5.0)
        assert load.prompt_tokens.mean() == pytest.approx(workload.prompt.mean, rel=0.06)
        assert load.output_tokens.mean() == pytest.approx(workload.output.mean, rel=0.1)


def test_lengths_go_together_as_they_were_seen_to() -> None:
    load = draw(find_workload("summarise"), 4000, 1.0)
    seen = np.corrcoef(np.log(load.prompt_tokens), np.log(load.output_tokens))[0, 1]
    assert seen == pytest.approx(-0.489, abs=0.12)


def test_the_same_seed_gives_the_same_requests_at_every_rate() -> None:
    slow, fast = (draw(find_workload("chat"), 500, rate) for rate in (1.0, 8.0))
    assert (slow.prompt_tokens == fast.prompt_tokens).all()
    assert slow.arrival_s == pytest.approx(fast.arrival_s * 8)
    other = draw(find_workload("chat"), 500, 1.0, seed=1)
    assert (other.prompt_tokens != slow.prompt_tokens).any()


def test_questions_on_a_document_reuse_what_the_trace_reused() -> None:
    """65 % of prompt tokens of the trace were asked before."""
    load = draw(find_workload("rag"), 4000, 1.0)
    assert load.reused_share == pytest.approx(0.65, abs=0.05)


def test_calls_of_a_session_read_all_that_was_read_before() -> None:
    """91 % of an agent's prompt tokens are shared with the call before, and prompts have the mean of the corpus."""
    load = draw(find_workload("agent"), 4000, 50.0)
    assert load.reused_share == pytest.approx(0.89, abs=0.04)
    assert load.prompt_tokens.mean() == pytest.approx(49_141, rel=0.25)
    assert load.text is not None
    for session in range(20):
        assert (np.diff(load.prompt_tokens[load.text == session]) >= 0).all()


def test_a_prefix_that_all_share_is_computed_once() -> None:
    load = draw(find_workload("in=1000,out=100,prefix=600"), 100, 2.0)
    assert load.reused_tokens().tolist() == [0, *[600] * 99]


def test_a_workload_as_one_writes_it() -> None:
    workload = find_workload("in=2k, out=300, cv=2, out_cv=0.5, peak=3")
    assert (workload.prompt.mean, workload.output.mean, workload.gap_cv, workload.peak_over_mean) == (2048, 300, 2, 3)
    assert draw(workload, 50, 1.0).prompt_tokens.tolist() == [2048] * 50


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("chatt", "unknown workload 'chatt'"),
        ("in=100", "lacks out"),
        ("in=100,out=x", "not a number"),
        ("in=100,out=-5", "does not lie between"),
        ("in=100,out=nan", "does not lie between"),
        ("in=100,out=10,speed=3", "unknown part of a workload 'speed'"),
        ("in=100,in=200,out=10", "twice"),
        ("in=100,out=10,prefix=100", "is not shorter than"),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_workload(text)


def test_a_misspelt_workload_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as refused:
        find_workload("reasonning")
    assert refused.value.nearest == ("reasoning",)
