"""``gpuwise capacity`` as a person meets it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuwise.cli.app import run
from gpuwise.cli.capacity import command
from gpuwise.cli.options import rate_per_s
from gpuwise.errors import InputError, NoRoomError, UnpredictableError
from gpuwise.serve.capacity.answer import Draft, Question
from gpuwise.text import shell_lines

SMALL = ("capacity", "llama-3.2-1b", "--on", "l40s", "--workload", "in=400,out=60", "--quick")


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_verdict_comes_first_and_everything_stands_within_the_width(
    gpuwise: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    ran = gpuwise(*SMALL, "--rate", "30/s", "--slo", "ttft_p95=1s")
    assert ran.code == 0, ran.err
    assert " ".join(ran.out.split()).startswith("Llama 3.2 1B for 30 requests/s (400 tokens in, 60 out): 1x L40S")
    whole = gpuwise(*SMALL, "--rate", "30/s", "--slo", "ttft_p95=1s", "--all").out
    for part in ("Latency of one replica", "What is full first", "The fleet", "Start a replica", "Prove it"):
        assert part in whole
    assert not [line for line in ran.out.splitlines() if len(line) > columns]


@pytest.mark.thorough
def test_commands_can_be_copied_whole(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise(*SMALL, "--slo", "ttft_p95=1s")
    line = shlex.split(ran.out[ran.out.index("  vllm serve") :].replace("\\\n", " "))
    document = gpuwise(*SMALL, "--slo", "ttft_p95=1s", "--json").document
    assert line == shlex.split(document["served"]["start"]["command"])


def test_the_document_and_the_table_say_the_same(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise(*SMALL, "--rate", "1M/day", "--slo", "ttft_p95=1s,itl_p99=40ms", "--json")
    document = ran.document
    assert [t["target"] for t in document["targets"]] == ["ttft_p95", "itl_p99"]
    assert document["demand"]["requests_per_s"] == pytest.approx(1e6 / 86400)
    served = document["served"]
    each = served["requests_per_s_of_a_copy"]
    assert each["low"] <= each["expected"] <= each["high"]
    assert all(t["met"] for t in served["at_limit"]["targets"])
    fleet = served["fleet"]
    assert fleet["accelerators_peak"] >= fleet["accelerators_now"] >= 1
    assert fleet["usd_per_million_output_tokens"]["expected"] > fleet["usd_per_million_tokens"] > 0
    assert {p["saturated"] for p in served["curve"]} == {True, False}
    assert all((p["latency_s"]["ttft"]["p95"] is None) == p["saturated"] for p in served["curve"])


def test_nothing_meets_it_and_the_nearest_miss_is_shown(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise(*SMALL, "--slo", "ttft_p95=1ms")
    assert ran.code == 1
    assert "nothing here keeps p95 time to first token within 1 ms" in " ".join(ran.out.split())
    assert "more replicas do not change that" in " ".join(ran.out.split())
    assert "The nearest miss" in ran.out


@pytest.mark.thorough
def test_a_budget_that_does_not_suffice_is_said_first(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise(*SMALL, "--rate", "3000/s", "--slo", "ttft_p95=1s", "--budget", "1")
    assert ran.code == 1
    assert "over the budget of $1.00 an hour" in " ".join(ran.out.split())


def test_a_trace_is_replayed(gpuwise: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = "".join(f"{i * 0.25},{200 + i % 100},{20 + i % 30}\n" for i in range(400))
    path.write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    base = SMALL[:4]
    document = gpuwise(*base, "--trace", str(path), "--slo", "ttft_p95=1s", "--quick", "--json").document
    assert document["demand"]["requests_per_s"] == pytest.approx(4.0)
    assert document["workload"]["source"] == "CSV trace"
    named = gpuwise(*base, "--workload", str(path), "--slo", "ttft_p95=1s", "--quick", "--json").document
    assert named == document
    refused = gpuwise(*base, "--trace", str(path), "--context", "250", "--quick")
    assert refused.code == 2
    assert "--drop-long" in refused.err


def test_rates_as_people_write_them() -> None:
    assert rate_per_s("20/s", "--rate") == 20
    assert rate_per_s("20", "--rate") == 20
    assert rate_per_s("90 per minute", "--rate") == 1.5
    assert rate_per_s("86400/day", "--rate") == 1
    for text in ("x/s", "-1/s", "5/fortnight", ""):
        with pytest.raises(InputError):
            rate_per_s(text, "--rate")


def test_lines_of_a_shell_are_broken_where_it_reads_the_same() -> None:
    line = 'vllm serve a/b --max-num-seqs 12 --data \'{"a": 1, "bb": 22, "ccc": 333}\' --last'
    lines = shell_lines(map(shlex.quote, shlex.split(line)), 24)
    assert all(len(part) <= 24 for part in lines)
    words = shlex.split("\n".join(lines).replace("\\\n", " "))
    assert words[:6] == shlex.split(line)[:6]
    assert json.loads(words[6]) == {"a": 1, "bb": 22, "ccc": 333}
    assert words[7] == "--last"


@pytest.mark.thorough
def test_a_page_stands_alone(gpuwise: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "capacity.html"
    ran = gpuwise(*SMALL, "--rate", "30/s", "--slo", "ttft_p95=1s", "--html", str(path))
    assert ran.code == 0
    page = path.read_text()
    for part in ("Latency against load", "A simulated minute", "Throughput against interactivity", "vllm serve", "30 requests/s"):
        assert part in page
    assert page.count('<figure id="') == 2 + ('id="front"' in page)
    assert "<script" not in page
    assert gpuwise(*SMALL, "--html", str(tmp_path / "a.txt")).code == 2


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (("--on", "h100-sxm", "--form", "edge"), "search for hardware, and --on names it"),
        (("--form", "zeppelin"), "unknown form 'zeppelin'"),
        (("--max-watts", "0"), "not a whole number of at least 1"),
        (("--on", "h100-sxm", "--lora", "5:17"), "adapters of rank 17"),
        (("--on", "h100-sxm", "--lora", "many"), "cannot be read"),
        (("--on", "h100-sxm", "--lora", "4:16:5"), "5 of 4 adapters on the device"),
        (("--on", "h100-sxm", "--engine", "llama.cpp", "--lora", "5"), "adapters are not simulated under llama.cpp"),
        (("--on", "h100-sxm", "--engine", "sglang", "--pp", "2"), "pipeline stages are simulated under vllm"),
        (("--on", "2xh100-sxm", "--pp", "2", "--lora", "5"), "not simulated over pipeline stages"),
        (("--on", "h100-sxm", "--disaggregate", "3"), "'3' cannot be read"),
        (("--on", "h100-sxm", "--disaggregate", "9:1"), "'9:1' cannot be read"),
        (("--on", "1xh100-sxm", "--disaggregate", "1:1"), "no separate prefill and decode replicas fit"),
        (("--on", "h100-sxm", "--draft", "3:9"), "9 tokens accepted per step of 3 guesses"),
        (("--on", "h100-sxm", "--draft", "0"), "0 guessed tokens"),
        (("--on", "gb10", "--engine", "llama.cpp", "--draft", "3"), "not simulated under llama.cpp"),
        (("--on", "gb10", "--engine", "llama.cpp", "--tp", "2"), "splits layers, not tensors"),
        (("--on", "gb10", "--engine", "llama.cpp", "--kv-cache", "fp8"), "in 16 bits"),
    ],
)
def test_what_cannot_be_meant_is_an_error_with_a_hint(gpuwise: Callable[..., Any], asked: tuple[str, ...], words: str) -> None:
    ran = gpuwise("capacity", "llama-3.2-1b", *asked)
    assert ran.code != 0
    assert words in ran.err
    assert "hint:" in ran.err
    assert not ran.out


@pytest.mark.thorough
def test_a_gguf_files_name_says_the_engine_and_the_weights(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("capacity", "llama-3.2-1b-Q4_K_M.gguf", "--on", "4090", *SMALL[4:], "--users", "2", "--json")
    options = ran.document["served"]["configuration"]
    assert (options["engine"], options["weights"]) == ("llama.cpp", "Q4_K_M")
    for asked in (["--engine", "sglang"], ["--weights", "8"]):
        refused = gpuwise("capacity", "llama-3.2-1b-Q4_K_M.gguf", "--on", "4090", *asked)
        assert refused.code == 2 and ("reads no Q4_K_M" in refused.err or "contradicts" in refused.err) and "hint:" in refused.err


def test_a_fleet_of_two_kinds_is_refused_in_words(gpuwise: Callable[..., Any]) -> None:
    for on in ("2xh100+4xl40s", "2xh100 and 4xl40s"):
        ran = gpuwise("capacity", "llama-3.1-8b", "--on", on)
        assert ran.code == 2
        said = " ".join(ran.err.split())
        assert f"unknown accelerator '{on}'" in said
        assert "hint: GPUs of one kind at a time: 2xh100 or 4xl40s" in said


def test_a_gpu_without_a_number_is_as_many_as_hold_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["capacity", "llama-3.1-70b", "--users", "20", "--quick", "--json", "--on"]
    assert run([*words, "h100-sxm"]) in (0, 1)
    answer = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert "no number was given" in json.dumps(answer) and "2x" in answer["on"]
    assert run([*words, "1xh100-sxm"]) != 0  # as many as were said


def test_more_gpus_are_tried_only_where_the_model_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another refusal says nothing of a number, and is the answer."""
    asked: list[str] = []

    def answer(question: Question) -> Draft:
        asked.append(question.cluster.label)
        raise NoRoomError("does not fit") if len(asked) < 3 else UnpredictableError("no rate", "no kernel of this has a rate")

    monkeypatch.setattr(command, "_answer", answer)
    with pytest.raises(NoRoomError):
        command.capacity("llama-3.1-70b", on="h100-sxm")
    assert [words.split()[0] for words in asked] == ["1x", "2x", "4x"]  # and the refusal is that of the one that was named
    with pytest.raises(UnpredictableError):
        command.capacity("llama-3.1-70b", on="h100-sxm")
    assert len(asked) == 4


def test_a_split_over_more_gpus_than_there_are_is_refused_or_given_them(gpuwise: Callable[..., Any]) -> None:
    words = ("capacity", "llama-3.2-1b", "--workload", "in=400,out=60", "--quick", "--tp", "2", "--on")
    ran = gpuwise(*words, "1xl40s")
    assert ran.code == 2
    assert "no replica of TP 2 fits 1x L40S" in ran.err
    assert gpuwise(*words, "l40s", "--json").document["on"] == "2x L40S"


def test_an_engine_of_one_kind_of_machine_under_its_other_name(gpuwise: Callable[..., Any]) -> None:
    load = ("--workload", "in=300,out=200", "--slo", "ttft_p95=5s,tpot_p95=100ms")
    asked = ("--engine", "mlx", "--weights", "4", "--quick", "--json", *load)
    ran = gpuwise("capacity", "llama-3.1-8b", "--on", "M3 Max", *asked)
    assert ran.code == 0, ran.err
    chosen = json.loads(ran.out)["served"]["configuration"]
    assert (chosen["engine"], chosen["weights"]) == ("mlx-lm", "mlx_4bit")
    refused = gpuwise("capacity", "llama-3.1-8b", "--on", "4090", *asked)
    assert refused.code == 2 and "MLX LM does not run on RTX 4090" in refused.err and "hint: take vllm" in refused.err


LOOP = ("capacity", "llama-3.2-1b", "--on", "l40s", "--workload", "in=400,out=60", "--concurrency")


def test_requests_in_flight_are_answered_as_they_are(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise(*LOOP, "16", "--slo", "ttft_p95=1s")
    assert ran.code == 0 and "with 16 in flight" in ran.out.splitlines()[0]
    missed = gpuwise(*LOOP, "16", "--slo", "ttft_p95=1ms")
    assert missed.code == 1 and "34.6 ms, target 1 ms" in " ".join(missed.out.split())
    made = json.loads(gpuwise(*LOOP, "16", "--json").out)["closed"]
    assert made["met"] and made["most_in_flight"] is None and [p["in_flight"] for p in made["curve"]] == [1, 4, 8, 16, 32]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ((*LOOP, "16", "--users", "2"), "give one of them"),
        ((*LOOP, "16", "--rate", "2/s"), "give one of them"),
        ((*LOOP, "100000"), "--concurrency 4096, or less"),
        (("capacity", "llama-3.2-1b", "--concurrency", "2"), "--on H100-SXM"),
        ((*LOOP, "2", "--think", "1s"), "--users"),
        ((*LOOP, "2", "--measure", "http://127.0.0.1:1"), "leave --concurrency out"),
    ],
)
def test_what_cannot_be_in_flight_is_refused(gpuwise: Callable[..., Any], words: tuple[str, ...], hint: str) -> None:
    ran = gpuwise(*words)
    assert ran.code == 2 and ran.out == "" and hint in ran.err


def test_typical_targets_are_wider_where_a_request_alone_misses_them(gpuwise: Callable[..., Any]) -> None:
    """Two RTX 3090 without NVLink read a long prompt of a chat in 1.1 s: who names no target gets an answer, with the reason."""
    asked = ("capacity", "qwen3-14b", "--on", "2x3090", "--quick", "--json")
    ran = gpuwise(*asked)
    assert ran.code == 0 and "1 s is allowed" in ran.document["nearest_miss"]["why"]
    assert ran.document["served"] is not None and ran.document["targets"][0]["limit_s"] > 1.0
    assert gpuwise(*asked, "--slo", "ttft_p95=1s").document["served"] is None


def test_people_who_speak_at_once_are_a_load_of_speech(gpuwise: Callable[..., Any]) -> None:
    spoken = json.loads(gpuwise("capacity", "whisper", "--on", "l4", "--users", "200", "--json").out)["forward"][0]
    assert spoken["items_per_s"] * spoken["sound_s_each"] == pytest.approx(200)
    assert gpuwise("capacity", "whisper", "--users", "20", "--rate", "1/s").err.startswith(
        "error: --users and --rate are two loads"
    )
    refused = gpuwise("capacity", "sdxl", "--users", "20").err
    assert "--users means nothing for --workload image" in refused and "--rate 5/s" in refused


def test_without_a_load_the_verdict_has_the_users_too(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise(*SMALL)
    assert "users," in ran.out.partition("\n\n")[0].replace("\n", " ") and "each pauses 45.0 s" in ran.out
