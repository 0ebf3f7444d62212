"""The table of measurements: names that stay apart, words that find rows, a calibration that covers its sizes."""

from __future__ import annotations

from importlib import import_module

import pytest

from gpuwise.errors import UnknownNameError
from gpuwise.machine.bench.cases import CALIBRATION_SIZES, CASES, FAMILIES, LARGEST_CPU_FLOP, calibration_cases, select_cases
from gpuwise.machine.bench.run import MAKERS


def test_every_row_has_a_name_of_its_own_and_a_maker() -> None:
    assert len({c.key for c in CASES}) == len(CASES)
    for family, maker in MAKERS.items():
        module, _, name = maker.partition(":")
        assert callable(getattr(import_module(module), name))
        assert any(c.family == family for c in CASES)
    assert {c.family for c in CASES} == set(FAMILIES) == set(MAKERS)


def test_a_processor_alone_has_a_quick_run_of_many_families() -> None:
    families = {c.family for c in select_cases((), quick=True) if "cpu" in c.on}
    assert {"matmul", "attention", "memory", "launch", "collective", "loader", "disk"} <= families


def test_words_choose_rows() -> None:
    assert {c.family for c in select_cases(("disk",), quick=False)} == {"disk"}
    assert {c.dtype for c in select_cases(("matmul-fp8",), quick=True)} == {"fp8"}
    (one,) = select_cases(("matmul-bf16-16384x8192x1280",), quick=True)
    assert not one.quick, "a row named in full is measured even in a quick run"
    twice = select_cases(("launch", "launch-eager-1"), quick=False)
    assert len(twice) == len({(c.key, c.on) for c in twice})


@pytest.mark.parametrize("word", ["warp", "", "matmul-fp9", "matmulx"])
def test_a_word_that_means_nothing_is_refused_with_the_families(word: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        select_cases((word,), quick=False)
    assert "matmul" in (caught.value.hint or "")


def test_the_calibration_is_the_same_everywhere_and_covers_every_side() -> None:
    cases = [c for c in calibration_cases("bf16", "cuda") if c.family == "matmul"]
    assert len(cases) == 200
    assert len({c.key for c in cases}) == 200
    for side, sizes in CALIBRATION_SIZES.items():
        seen = [c.parameters[side] for c in cases]
        fewest = min(seen.count(size) for size in sizes)
        assert fewest >= 200 // len(sizes) // 2
        # cut short, it has still seen most of them
        assert len(set(seen[:40])) >= 0.7 * len(sizes)


def test_a_processor_is_not_asked_for_minutes() -> None:
    cases = [c for c in calibration_cases("fp32", "cpu", 40) if c.family == "matmul"]
    assert len(cases) == 40
    assert max(2.0 * c.parameters["m"] * c.parameters["n"] * c.parameters["k"] for c in cases) <= LARGEST_CPU_FLOP


def test_a_format_or_a_kind_may_be_asked_for() -> None:
    assert {c.dtype for c in select_cases(("fp8",), quick=False)} == {"fp8"}
    assert {c.family for c in select_cases(("nccl",), quick=False)} == {"collective"}
    assert {c.family for c in select_cases(("copy",), quick=False)} == {"copy"}, "a family before a kind of another one"
    with pytest.raises(UnknownNameError) as caught:
        select_cases(("matmull",), quick=False)
    assert "did you mean matmul?" in str(caught.value.hint)


def test_words_tell_the_rows_of_one_device_apart() -> None:
    for kind in ("cpu", "cuda"):
        rows = [c.words for c in CASES if kind in c.on]
        assert len(set(rows)) == len(rows)
        assert max(map(len, rows)) <= 41
