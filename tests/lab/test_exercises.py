"""Every exercise has a truth that is computed, hints that do not give it away at once, and a judgement of any answer."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.cli.app import run
from gpuwise.errors import InputError
from gpuwise.lab.exercises import Exercise, exercises, find_exercise

LESSONS = Path(__file__).parent.parent.parent / "docs" / "learn"
EXERCISES = exercises()
BY_HAND = {
    "why-gpus": 989 * 0.8 / (21.8 * 0.52),
    "set-up": 580,
    "first-model": 65e12 * 0.33 / 0.8e9 * 43_200 / 1e6,
    "memory": 8.03e9 * 18 / 2**30,
    "mixed-precision": 312 / 19.5 * 0.85,
    "batch-and-loader": 9,
    "profiling": 100 * 40_000 * (6 * 1.236e9 + 12 * 16 * 2048 * 4096 / 2) / 989e12,
    "several-gpus": 1e3 * 1.75 * 16.06e9 / 450e9,
    "choosing": 1008 / (4.87 + 0.13),
    "renting-or-owning": 1900 / (0.45 - 0.55 * 0.15),
    "serving": 32 * 8192 * 131_072 / 2**30,
    "power-and-cooling": 5.6 * 0.85 * 1.55 * 1.25 * 168,
    "your-own-machine": (8.03e9 * 4.85 / 8 + 32_768 * 131_072) / 2**30 + 0.3,
    "other-chips": 84.8 / (3.21 * 4.85 / 8),
    "smaller-models": 16 / 4.85,
    "which-model": 20 * 2**30 * 8 / 4.85 / 1e9,
}
"""What a reader gets who follows the hints."""


@pytest.mark.parametrize("one", EXERCISES, ids=[e.lesson for e in EXERCISES])
def test_who_follows_the_hints_is_right(one: Exercise) -> None:
    assert one.judge(BY_HAND[one.lesson]).right, (BY_HAND[one.lesson], one.solve())
    assert not one.judge(BY_HAND[one.lesson] * 2.7).right
    assert not one.judge(BY_HAND[one.lesson] / 2.7).right
    assert one.hints and one.question.count("?") >= 1 and one.tolerance >= 1
    assert one.solve().steps and one.solve().command.startswith("gpuwise ")


def test_there_is_one_for_each_lesson() -> None:
    lessons = sorted(p.stem for p in LESSONS.glob("[01][0-9]-*.md"))
    assert lessons == [f"{e.number:02d}-{e.lesson}" for e in EXERCISES] and len(lessons) == 16
    for one in EXERCISES:
        text = (LESSONS / f"{one.number:02d}-{one.lesson}.md").read_text()
        assert text.startswith(f"# {one.number}. ") and f"gpuwise lab exercise {one.number}`" in text


@pytest.mark.parametrize(
    ("number", "text", "right"),
    [
        (2, "580.65.06", True),
        (2, "r580", True),
        (2, "581", False),
        (3, "1.15B", True),
        (3, "1150M tokens", True),
        (3, "1,150", True),
        (4, "144.5GB", True),
        (4, "137,850 MiB", True),
        (5, "13x", True),
        (7, "33.2%", True),
        (7, "0.332", False),
        (8, "0.0612 s", True),
        (8, "~61 ms", True),
        (10, "220 days", True),
        (12, "1.58 MWh", True),
        (12, "5.7 GJ", True),
        (16, "35B", True),
        (16, "35,000 million", True),
    ],
)
def test_an_answer_in_another_unit_is_converted(number: int, text: str, right: bool) -> None:
    one = find_exercise(number)
    assert one.judge(one.read(text)).right is right


@pytest.mark.parametrize("text", ["", "abc", "12,5", "5 bananas", "33 % of it", "nan", "1/3"])
def test_what_is_no_answer_is_refused_with_what_is_understood(text: str) -> None:
    for one in EXERCISES:
        with pytest.raises(InputError) as refused:
            one.read(text)
        assert one.unit in refused.value.message and refused.value.hint


def test_a_wrong_answer_of_a_known_mistake_hears_which() -> None:
    for one in EXERCISES:
        truth = one.solve().value
        for ratio, words in one.slips:
            judged = one.judge(truth * ratio)
            assert not judged.right and words in judged.sentence, (one.lesson, ratio, judged)
        assert "powers of ten" in one.judge(truth * 10).sentence and "powers of ten" in one.judge(truth / 100_000).sentence
    for number in (1, 5, 6, 9):
        one = find_exercise(number)
        assert "turn the fraction over" in one.judge(1 / one.solve().value).sentence
        assert one.judge(1.0).sentence.endswith(tuple("0123456789"))  # nothing is known of it
    for typed in (14.96, 16.06):  # in GiB, and in GB
        assert "weights in 16 bits" in find_exercise(4).judge(typed).sentence
    assert find_exercise(2).judge(13.0).sentence == "too low: 13 is CUDA's own number: the driver's is asked"
    assert find_exercise(2).judge(1.0).sentence == "too low"
    assert "share of 1" in find_exercise(7).judge(0.332).sentence
    assert "in seconds" in find_exercise(8).judge(0.0612).sentence


@given(st.floats())
def test_any_answer_is_judged_or_refused(answer: float) -> None:
    one = find_exercise(11)
    if not math.isfinite(answer) or answer <= 0:
        with pytest.raises(InputError):
            one.judge(answer)
    else:
        judged = one.judge(answer)
        assert judged.right == (1 / one.tolerance <= judged.ratio <= one.tolerance)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    def said(*words: str) -> tuple[int, str]:
        code = run(["lab", "exercise", *words])
        return code, capsys.readouterr().out

    assert said("11", "32")[0] == 0
    code, out = said("11", "128")
    assert code == 1 and "Too high, by a factor of 4" in out
    hints = said("11", "--hint", "2")[1].partition("Hints")[2]
    assert "- 32 layers" in hints and hints.count("  - ") == 2 and "gpuwise lab exercise 11 --hint 3" in hints
    assert "131,072 bytes" in said("11", "--solution")[1]
    code, out = said("2", "579")
    assert code == 1 and "Too low, by little" in out


@pytest.mark.parametrize("words", [["17"], ["0"], ["11", "-3"], ["11", "nan"], ["11", "--hint", "9"], ["11", "many"]])
def test_what_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lab", "exercise", *words]) == 2
    assert "\nhint: " in capsys.readouterr().err


def test_the_documents_hold_no_answer_unasked(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lab", "exercise", "4", "--json"]) == 0
    out = capsys.readouterr().out
    assert '"solution"' not in out and '"hints":[]' in out.replace(" ", "")
