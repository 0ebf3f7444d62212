"""Words are explained by any of their names, with today's numbers."""

from __future__ import annotations

import json

import pytest

import gpuwise
from gpuwise.cli.app import run
from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.facts.words import find_term, terms

IN_ANSWERS = (
    *("MFU", "zero3", "dp", "tp", "pp", "cp", "ep", "knee", "ITL", "TTFT", "int4_wo", "lost in practice", "Pareto", "QLoRA"),
    *("no recompute", "micro-batch", "KV cache", "Q4_K_M", "fp8", "SLO", "spot", "VRAM", "offload", "quantization"),
)
"""Technical words of first screens and of the help."""


@pytest.mark.parametrize("word", IN_ANSWERS)
def test_words_of_the_screens_are_explained(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", *word.split()]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(find_term(word).name + ":") and len(lines) <= 12
    assert "{" not in lines[0]


def test_a_name_means_one_term() -> None:
    by_name: dict[str, str] = {}
    for term in terms():
        for name in term.names:
            assert by_name.setdefault(name.lower(), term.name) == term.name, name


def test_a_number_is_the_one_of_the_command() -> None:
    watts = find_accelerator("h100-sxm").tdp_w
    assert watts is not None and f"{watts:.0f} W" in gpuwise.ask("explain", "tdp")["text"]


def test_without_a_word_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain"]) == 0
    shown = capsys.readouterr().out
    assert all(term.names[0] in " ".join(shown.split()) for term in terms())
    assert shown.splitlines()[-1].endswith("gpuwise explain MFU")
    assert run(["explain", "--json"]) == 0
    groups = json.loads(capsys.readouterr().out)["groups"]
    assert sum(map(len, groups.values())) == len(terms())


def test_an_unknown_word_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "zreo3"]) == 2
    error = capsys.readouterr().err
    assert "unknown word 'zreo3'" in error and "zero3" in error
