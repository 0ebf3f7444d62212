from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

FINETUNE = ("pick", "--for", "finetune", "--model", "llama-3.1-8b", "--own", "--budget", "2000")


def test_the_verdict_comes_first_and_the_reasons_last(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise(*FINETUNE)
    assert ran.code == 0 and ran.err == ""
    text = " ".join(ran.out.split())
    assert text.startswith("Buy ") and "Fine-tune Llama 3.1 8B" in text and "Assumed" in text
    whole = " ".join(gpuwise(*FINETUNE, "--all").out.split())
    for part in ("How the best", "Why not", "over budget", "Assumed", "Least time for its money within $2,000"):
        assert part in whole


@pytest.mark.parametrize("width", [80, 120])
def test_nothing_is_wider_than_the_screen(width: int, gpuwise: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for arguments in (FINETUNE, ("pick", "--for", "infer", "--model", "llama-3.1-70b", "--rent")):
        out = gpuwise(*arguments).out
        assert all(len(line) <= width for line in out.splitlines()) and "…" not in out


def test_json_is_one_document_on_the_last_line(gpuwise: Callable[..., Any]) -> None:
    document = json.loads(gpuwise(*FINETUNE, "--json").out.splitlines()[-1])
    assert document["limits"]["budget_usd"] == 2000 and document["objective"] == "balance"
    first = document["ranked"][0]
    for field in ("usd_per_pflop", "usd_per_gb", "usd_per_gb_per_s", "tokens_per_joule", "software", "changes", "basis"):
        assert field in first
    assert document["considered"] == len(document["ranked"]) + len(document["left_out"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--for", "infer"), "needs a model"),
        (("--for", "dance", "--model", "gpt2"), "one of"),
        (("--for", "train", "--model", "gpt2"), "--tokens"),
        (("--for", "lora", "--method", "full", "--model", "gpt2"), "--for finetune"),
        (("--for", "distill", "--model", "gpt2"), "--teacher"),
        (("--for", "grpo", "--model", "gpt2", "--tokens", "1B"), "leave it out"),
        (("--for", "learn", "--budget", "-5"), "2000"),
        (("--for", "learn", "--rent", "--own"), "leave both out"),
        (("--for", "learn", "--vendor", "acme"), "NVIDIA"),
        (("--for", "learn", "--have", "a nice PC"), "PSU 850W"),
        (("--for", "learn", "--country", "Atlantis"), ""),
        (("--for", "infer", "--model", "gpt2", "--tokens", "3"), "leave it out"),
        (("--for", "infer", "--model", "gpt2", "--weights", "3"), "16,8"),
        (("--for", "mixed", "--model", "gpt2"), "--budget"),
        (("--for", "learn", "--years", "1000"), "--years 3"),
        (("--for", "learn", "--top", "1000"), "--top 10"),
        (("--for", "infer", "--model", "gpt2", "--users", "2", "--requests-per-day", "5"), "one of them"),
        (("--for", "learn", "--by", "beauty"), "one of"),
        (("--for", "learn", "--max-watts", "0"), ""),
    ],
)
def test_bad_input_is_refused_with_a_hint(arguments: tuple[str, ...], says: str, gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("pick", *arguments)
    assert ran.code == 2 and ran.out == ""
    assert ran.err.startswith("error:") and "hint:" in ran.err and says in ran.err


def test_nothing_within_the_limits_is_an_answer_with_code_one(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("pick", "--for", "finetune", "--model", "llama-3.1-405b", "--own", "--budget", "500")
    assert ran.code == 1 and "nearest is" in ran.out and "Why not" in ran.out


@pytest.mark.thorough
def test_learning_without_a_model_has_exercises_and_says_so(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("pick", "--for", "learn", "--rent", "--top", "3")
    assert ran.code == 0 and "fine-tune an 8B model" in " ".join(ran.out.split()) and "4 of 4" in ran.out


@pytest.mark.thorough
def test_a_mixed_fleet_splits_the_budget(gpuwise: Callable[..., Any]) -> None:
    document = json.loads(
        gpuwise("pick", "--for", "mixed", "--model", "llama-3.2-1b", "--budget", "1500", "--json").out.splitlines()[-1]
    )
    assert [r["role"] for r in document["roles"]] == ["train", "serve", "develop"]
    assert document["cost_usd"] <= 1500


@pytest.mark.parametrize("width", [60, 80])
def test_money_stands_whole_at_every_width(width, gpuwise, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    out = gpuwise("pick", "--model", "llama-3.1-8b", "--for", "infer", "--budget", "3000").out
    assert "…" not in out
    row = next(line for line in out.splitlines() if line.startswith("  1x ") and "/h" in line)
    assert row.count("$") >= 2  # its price and what the job costs


@pytest.mark.parametrize("word", ["serve", "chat", "Inference"])
def test_other_words_for_a_purpose_are_understood(word: str, gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("pick", "--for", word, "--model", "gpt2", "--users", "999999999999")
    assert ran.code == 2 and "more than 100,000,000" in ran.err


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("sdxl", "Make images"),
        ("ltx-video", "Make videos"),
        ("bge-m3", "Embed"),
        ("whisper", "Transcribe"),
        ("qwen3-8b", "Serve"),
    ],
)
def test_a_model_alone_is_picked_for_what_it_does(model: str, says: str, gpuwise: Callable[..., Any]) -> None:
    assert says in gpuwise("pick", model).out


def test_a_bare_model_is_that_of_the_option(gpuwise: Callable[..., Any]) -> None:
    bare, named = (gpuwise("pick", *words, "--for", "run", "--json") for words in (["gpt2"], ["--model", "gpt2"]))
    assert bare.code == 0 and bare.out == named.out


@pytest.mark.parametrize(("purpose", "model"), [("embed", "bert-base"), ("image", "sdxl"), ("infer", "llama-3.1-8b")])
def test_a_missing_model_is_asked_for_by_example(purpose: str, model: str, gpuwise: Callable[..., Any]) -> None:
    assert f"gpuwise pick {model} --for {purpose}" in gpuwise("pick", "--for", purpose).err


@pytest.mark.thorough
def test_lora_is_fine_tuning_by_that_method(gpuwise: Callable[..., Any]) -> None:
    limits = ("--model", "llama-3.2-1b", "--own", "--budget", "1000", "--vendor", "nvidia", "--json")
    by_word, by_method = (
        gpuwise("pick", "--for", "LoRA", *limits),
        gpuwise("pick", "--for", "finetune", "--method", "lora", *limits),
    )
    assert by_word.code == 0 and by_word.document == by_method.document


def test_rows_say_what_they_are_ranked_by(gpuwise: Callable[..., Any]) -> None:
    asked = ("pick", "--for", "infer", "--model", "llama-3.1-8b", "--rent", "--top", "3", "--order")
    text = " ".join(gpuwise(*asked).out.split())
    assert "The cheapest" in text and "compared at the worse end of the 80 % interval" in text
    assert "15 % off where weights of twice the width would fit too" in text
    assert "The fastest first" in " ".join(gpuwise(*asked, "--by", "time").out.split())
