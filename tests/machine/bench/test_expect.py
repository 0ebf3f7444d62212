"""Is a number normal: against the card's own range, not its peak; beside its siblings; with what held it back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from doubles import card, case_of, flop_of

from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.cpus import find_cpu
from gpuwise.machine.bench.cases import CASES, BenchCase
from gpuwise.machine.bench.expect import Verdict, expectation, judge, judge_all, throttle_text
from gpuwise.machine.bench.subjects import Subject
from gpuwise.records.record import Record

BIG = case_of("matmul-bf16-8192x8192x8192")


def measured(case: BenchCase, value: float, subject: Subject, **more: object) -> Record:
    time_s = (flop_of(case) if case.family == "matmul" else 1.0) / value
    return Record(
        1.0,
        case.key,
        case.family,
        subject.device,
        subject.name,
        subject.id,
        case.dtype,
        dict(case.parameters),
        case.unit,
        value,
        time_s=time_s,
        samples=20,
        correct=True,
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("name", "mamf"),
    # stas00/ml-engineering, best achievable bf16 rates: what a healthy card reaches
    [("a100-sxm-80gb", 271e12), ("h100-sxm-80gb", 794.5e12), ("b200-sxm", 1745e12)],
)
def test_what_healthy_cards_reach_is_normal_and_their_peak_is_not_expected(name: str, mamf: float) -> None:
    subject = card(name=name)
    found, _ = expectation(BIG, subject)
    assert found is not None
    assert found.peak == accelerators()[name].peak("bf16")
    assert 0.65 < found.expected / found.peak < 0.90
    assert found.high < found.peak
    assert judge(BIG, subject, measured(BIG, mamf, subject)).verdict is Verdict.NORMAL


def test_slow_and_impossible_numbers_are_told_apart() -> None:
    subject = card()
    slow = judge(BIG, subject, measured(BIG, 450e12, subject, conditions={"event SW_THERMAL": 0.9, "event SW_POWER_CAP": 0.2}))
    assert slow.verdict is Verdict.LOW
    assert slow.reason == "SW_THERMAL 90%, SW_POWER_CAP 20%"
    assert slow.of_expected is not None
    assert slow.of_expected < 0.7
    assert judge(BIG, subject, measured(BIG, 1200e12, subject)).verdict is Verdict.HIGH


def test_what_is_not_known_has_no_verdict_and_says_why() -> None:
    nobody = Subject("cuda", 0, "ACME 9000", "GPU-9")
    judged = judge(BIG, nobody, measured(BIG, 5e14, nobody))
    assert (judged.verdict, judged.reason, judged.of_expected) == (Verdict.UNKNOWN, "unknown GPU", None)
    part = replace(card(), slice=True)
    assert judge(BIG, part, measured(BIG, 1e14, part)).verdict is Verdict.UNKNOWN


def test_a_part_of_a_processor_is_not_held_to_the_whole() -> None:
    case = case_of("matmul-fp32-2048x2048x2048")
    known = find_cpu("EPYC 9654")
    some = Subject("cpu", 0, known.name, "cpu", processor=known, units=2)
    assert expectation(case, some)[1] == "2 of 96 cores"
    whole = replace(some, units=96)
    found, _ = expectation(case, whole)
    assert found is not None
    assert 0.3 < found.expected / known.peak("fp32") < 1.0


def test_every_row_of_the_table_is_expected_or_says_why_not() -> None:
    for name in ("h100-sxm-80gb", "rtx-4090", "t4", "mi300x"):
        subject = card(name=name)
        for case in CASES:
            if "cuda" in case.on:
                found, reason = expectation(case, subject)
                assert (found is None) == bool(reason), (name, case.key)
                if found is not None:
                    assert 0 < found.low < found.expected < found.high
                    if found.peak is not None:
                        assert found.expected <= found.peak, (name, case.key)


def test_one_slow_card_of_eight_is_named_with_fake_timings() -> None:
    cards = [replace(card(i), name="NVIDIA H100") for i in range(8)]
    rates = [700e12 * (1 + 0.004 * i) for i in range(8)]
    rates[5] = 590e12
    judged = judge_all([(BIG, c, measured(BIG, r, c)) for c, r in zip(cards, rates, strict=True)])
    assert [j.subject.index for j in judged if j.slow_among] == [5]
    assert judged[5].slow_among == 8


def test_latencies_are_slow_when_they_are_long() -> None:
    case = case_of("launch-eager-1")
    cards = [replace(card(i), name="NVIDIA H100") for i in range(4)]
    seconds = [3e-6, 3.1e-6, 9e-6, 3e-6]
    judged = judge_all([(case, c, replace(measured(case, s, c), value=s)) for c, s in zip(cards, seconds, strict=True)])
    assert [j.subject.index for j in judged if j.slow_among] == [2]


def test_different_cards_are_no_siblings() -> None:
    cards = [card(0), card(1), card(2, name="rtx-4090"), card(3)]
    judged = judge_all([(BIG, c, measured(BIG, 700e12 if c.index != 2 else 160e12, c)) for c in cards])
    assert not any(j.slow_among for j in judged)


def test_the_past_of_the_same_device_stands_beside() -> None:
    subject = card()
    earlier = [measured(BIG, v, subject) for v in (690e12, 700e12, 710e12)]
    assert judge(BIG, subject, measured(BIG, 500e12, subject), earlier).before == 700e12
    assert judge(BIG, subject, measured(BIG, 500e12, subject)).before is None


def test_a_narrow_link_stands_beside_a_slow_copy() -> None:
    case = case_of("copy-h2d-pinned-256MiB")
    subject = card()
    judged = judge(case, subject, measured(case, 12e9, subject, conditions={"pcie_width": 4.0}))
    assert judged.verdict is Verdict.LOW
    assert judged.reason == "PCIe x4"
    assert throttle_text(judged.record) == "PCIe x4"
