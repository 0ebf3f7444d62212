"""The verdict does not waver around a threshold, nor between two wastes of one size."""

from __future__ import annotations

import pytest

from gpuwise.train.profile.finding import Finding
from gpuwise.train.profile.findings.table import rank_s
from gpuwise.train.profile.split import PARTS, Split
from gpuwise.train.profile.verdict import NAMED, NAMED_IN_CROWD, STILL_NAMED, decide, remember, verdict_before

SPLIT = Split("cpu", 3, 1.0, {**dict.fromkeys(PARTS, 0.0), "compute": 1.0}, {"matrix products": 1.0}, 0.97)


def _finding(kind: str, saved_s: float) -> Finding:
    return Finding(kind, f"waste by {kind}", saved_s, "high", (), ("mend",))


@pytest.mark.parametrize(
    ("share", "before", "kind"),
    [
        (NAMED + 0.01, None, "data wait"),
        (NAMED - 0.01, None, "healthy"),
        (NAMED - 0.01, "healthy", "healthy"),
        (NAMED - 0.01, "data wait", "data wait"),
        (STILL_NAMED - 0.01, "data wait", "healthy"),
        (NAMED - 0.01, "padding", "healthy"),
    ],
)
def test_named_above_one_threshold_dropped_below_another(share: float, before: str | None, kind: str) -> None:
    assert decide([_finding("data wait", share)], SPLIT, before).kind == kind


@pytest.mark.parametrize(("queue_share", "kind"), [(0.1, "data wait"), (0.8, "healthy")])
def test_in_a_crowd_a_waste_near_the_threshold_is_not_named(queue_share: float, kind: str) -> None:
    """As two classifiers of digits had it: 9 to 10 % of data wait when idle, 12 % where others had 80 % of the time."""
    share = (NAMED + NAMED_IN_CROWD) / 2
    split = Split(
        "cpu", 3, 1.0, {**SPLIT.parts, "compute": 1 - share, "data wait": share}, {"convolutions": 1 - share}, 1 - share
    )
    assert decide([_finding("data wait", share)], split, queue_share=queue_share).kind == kind
    assert decide([_finding("data wait", NAMED_IN_CROWD)], split, queue_share=queue_share).kind == "data wait"


def test_of_two_alike_the_one_named_before_stays() -> None:
    pair = [_finding("padding", 0.31), _finding("data wait", 0.30)]
    assert decide(pair, SPLIT).kind == "padding"
    assert decide(pair, SPLIT, "data wait").kind == "data wait"
    assert decide([_finding("padding", 0.6), _finding("data wait", 0.3)], SPLIT, "data wait").kind == "padding"


def test_several_small_wastes_are_not_nothing() -> None:
    """powerful-gnns: 14 % in pointwise chains and 13 % in Adam, and 5 of 12 ms a step did not depend on the batch when timed."""
    pair = [_finding("pointwise chains", 0.14), _finding("unfused optimizer", 0.13)]
    found = decide(pair, SPLIT, queue_share=0.6)
    assert found.kind == "no single waste"
    assert "27 % of the step: pointwise chains 14 %, unfused optimizer 13 %" in found.sentence
    assert decide([_finding("data wait", 0.07), _finding("unfused optimizer", 0.07)], SPLIT).kind == "healthy"


@pytest.mark.parametrize(("saved_s", "first"), [(0.66, "tiny batch"), (0.5, "small operations")])
def test_few_samples_are_why_operations_are_small(saved_s: float, first: str) -> None:
    """One sample a step, 24 layers of width 32: eight of them save seven eighths of what no operation between gaps would."""
    found = [_finding("small operations", 0.70), _finding("tiny batch", saved_s)]
    assert max(found, key=lambda f: rank_s(f, found)).kind == first


def test_the_sentence_has_the_seconds() -> None:
    said = decide([_finding("data wait", 0.4)], SPLIT).sentence
    assert "400 ms of 1 s" in said and "40 %" in said
    assert "97 %" in decide([], SPLIT).sentence


@pytest.mark.parametrize(
    ("parts", "busy", "named"),
    [
        ({"compute": 0.7, "host gaps": 0.2, "other": 0.1}, 0.7, "host gaps 20 % and other 10 %"),
        ({"compute": 0.85, "data wait": 0.15}, 0.85, "data wait 15 %"),
        ({"compute": 0.79, "host gaps": 0.11, "other": 0.1}, 0.79, "host gaps 11 %"),
    ],
)
def test_nothing_is_wasted_only_where_the_device_works(parts: dict[str, float], busy: float, named: str) -> None:
    split = Split("cpu", 3, 1.0, {**dict.fromkeys(PARTS, 0.0), **parts}, {"matrix products": parts["compute"]}, busy)
    found = decide([_finding("padding", 0.05)], split)
    assert found.kind == "no single waste"
    assert named in found.sentence and "padding, 5 %" in found.sentence and "Nothing" not in found.sentence


def test_time_of_other_programs_is_no_waste_of_the_script() -> None:
    split = Split("cpu", 3, 1.0, {**dict.fromkeys(PARTS, 0.0), "compute": 0.7, "other": 0.25}, {"matrix products": 0.7}, 0.7)
    assert decide([], split, elsewhere_s=0.2).sentence.startswith("No change would save enough")
    assert "70 %" in decide([], split, elsewhere_s=0.2).sentence and "20 %" in decide([], split, elsewhere_s=0.2).sentence
    assert decide([], split, elsewhere_s=0.05).kind == "no single waste"
    crowded = Split("cpu", 3, 1.0, {**dict.fromkeys(PARTS, 0.0), "compute": 0.4, "other": 0.6}, {"matrix products": 0.4}, 0.4)
    assert "too busy" in decide([], crowded, elsewhere_s=0.6).sentence
    waits = Split("cpu", 3, 1.0, {**dict.fromkeys(PARTS, 0.0), "compute": 0.7, "data wait": 0.3}, {"matrix products": 0.7}, 0.7)
    assert decide([], waits, elsewhere_s=0.5).kind == "no single waste"


@pytest.mark.usefixtures("home")
def test_gaps_that_other_programs_make_longer_are_not_blamed() -> None:
    """Of a step of which others had the processor for four tenths."""
    assert decide([_finding("small operations", 0.14)], SPLIT, elsewhere_s=0.43).kind == "healthy"
    assert decide([_finding("small operations", 0.3)], SPLIT, elsewhere_s=0.43).kind == "small operations"
    assert decide([_finding("data wait", 0.14)], SPLIT, elsewhere_s=0.43).kind == "data wait"


def test_verdicts_are_remembered_by_script_and_arguments() -> None:
    assert verdict_before("train.py", ()) is None
    remember("train.py", (), "padding")
    remember("train.py", ("--lr", "1"), "healthy")
    assert verdict_before("train.py", ()) == "padding"
    assert verdict_before("train.py", ("--lr", "1")) == "healthy"
    remember("train.py", (), "healthy")
    assert verdict_before("train.py", ()) == "healthy"


@pytest.mark.parametrize(("between", "kind"), [(0.55, "between updates"), (0.4, "small operations")])
def test_where_most_of_the_time_is_spent_is_named_first(between: float, kind: str) -> None:
    """As PPO on CartPole (minimalRL): its rollouts take more than half, of which two processors save half."""
    split = Split("cpu", 3, 1.0, {**SPLIT.parts, "compute": 1 - between, "between updates": between}, {}, 1 - between)
    assert decide([_finding("small operations", 0.35), _finding("between updates", between / 2)], split).kind == kind
