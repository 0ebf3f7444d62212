"""``gpuwise op``: what it answers, that its numbers agree, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

MATMUL = ["op", "matmul", "10000", "10000", "10000"]


def test_a_product_beside_a_processor(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise(*MATMUL, "--on", "a100", "--on", "RTX 4090", "--against", "EPYC 9654", "--json")
    assert ran.code == 0 and ran.document["operation"]["flop"] == 2e12
    base = ran.document["against"]["time_s"]["expected"]
    for row in ran.document["rows"]:
        time = row["time_s"]
        assert time["low"] < time["expected"] < time["high"]
        assert row["flop_per_s"] == pytest.approx(2e12 / time["expected"])
        assert row["share_of_peak"] == pytest.approx(row["flop_per_s"] / row["peak"]) and row["share_of_peak"] < 1
        assert row["bound"] == "compute"
        faster = row["speedup"]
        assert faster["expected"] == pytest.approx(base / time["expected"]) and faster["low"] < faster["expected"]


@pytest.mark.parametrize("width", ["80", "120"])
@pytest.mark.parametrize(
    "words",
    [
        [*MATMUL, "--on", "a100", "--on", "4090", "--against", "EPYC 9654"],
        ["op", "attention", "1", "32", "8192", "128", "--on", "h100-sxm"],
        ["op", "copy", "10GB", "--on", "8xh100-sxm", "--against", "i9-13900K"],
        ["op", "stream", "1GB", "--on", "l4", "--on", "graviton3"],
        ["op", "allreduce", "1GB", "--on", "8xH100-SXM", "--on", "16xH100-SXM"],
        ["op", "decode", "llama-3.1-8b", "--on", "4090", "--against", "i5-12400"],
        ["op", "train", "gpt2", "10M", "--on", "a100", "--against", "epyc 7742"],
    ],
    ids=lambda w: w if isinstance(w, str) else w[1],
)
def test_it_is_readable_at_either_width(
    gpuwise: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, words: list[str], width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    ran = gpuwise(*words, "--all")
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert max(map(len, lines)) <= int(width) and "\x1b" not in ran.out and "…" not in ran.out
    assert any("basis:" in line for line in lines)


def test_what_binds() -> None:
    from gpuwise.facts.hardware.targets import find_target
    from gpuwise.plan.one_op import matmul

    a100 = [find_target("a100")]
    assert matmul(8192, 8192, 8192, "bf16", a100).rows[0].bound == "compute"
    assert matmul(1, 16384, 16384, "bf16", a100).rows[0].bound == "memory"
    small = matmul(16, 16, 16, "bf16", a100).rows[0]
    assert small.bound == "launch" and small.notes


def test_links_count_one_direction(gpuwise: Callable[..., Any]) -> None:
    rows = {r["path"]: r for r in gpuwise("op", "copy", "10GB", "--on", "8xh100-sxm", "--json").document["rows"]}
    assert rows["GPU to GPU, nvlink4"]["peak"] == 450e9
    assert rows["host to GPU"]["peak"] == pytest.approx(63e9, rel=0.01)
    assert all(r["share_of_peak"] <= 1 for r in rows.values())
    assert rows["own memory"]["bytes_per_s"] > rows["GPU to GPU, nvlink4"]["bytes_per_s"]


def test_an_all_reduce_needs_longer_over_a_slower_link(gpuwise: Callable[..., Any]) -> None:
    rows = gpuwise("op", "allreduce", "1GB", "--on", "8xh100-sxm", "--on", "8xa100-80gb", "--on", "8xl40s", "--json").document[
        "rows"
    ]
    times = [r["time_s"]["expected"] for r in rows]
    assert times == sorted(times)
    assert rows[0]["bytes_per_s"] == pytest.approx(2 * 7 / 8 * 1e9 / times[0])


def test_decoding_follows_the_weights_and_says_what_does_not_fit(gpuwise: Callable[..., Any]) -> None:
    wide = gpuwise("op", "decode", "llama-3.1-8b", "--weights", "F16", "--on", "4090", "--json").document
    narrow = gpuwise("op", "decode", "llama-3.1-8b", "--weights", "q4_k_m", "--on", "4090", "--json").document
    rate = [d["rows"][0]["tokens_per_s"]["expected"] for d in (wide, narrow)]
    assert 1.5 < rate[1] / rate[0] < 16 / 4.85
    large = gpuwise("op", "decode", "llama-3.1-70b", "--on", "4090", "--on", "a6000", "--json").document["rows"]
    assert [r["fits"] for r in large] == [False, True]
    assert large[0]["time_s"] is None and large[0]["needs_bytes"] > large[0]["has_bytes"]
    assert "does not fit" in gpuwise("op", "decode", "llama-3.1-70b", "--on", "4090").out


def test_training_on_a_processor_costs_what_its_instance_costs(gpuwise: Callable[..., Any]) -> None:
    row = gpuwise("op", "train", "gpt2", "1B", "--on", "graviton3", "--json").document["rows"][0]
    assert row["cost_usd"]["expected"] == pytest.approx(row["time_s"]["expected"] / 3600 * 2.32)
    free = gpuwise("op", "train", "gpt2", "1B", "--on", "i5-12400", "--json").document["rows"][0]
    assert free["cost_usd"] is None


REFUSED = {
    "matmul 0 1 1 --on a100": "not a whole number",
    "matmul -5 1 1 --on a100": "not a whole number",
    "matmul 1e30 1 1 --on a100": "not a whole number",
    "matmul 1 1 --on a100": "matmul takes M N K",
    "matmul 1 1 1 1 --on a100": "matmul takes M N K",
    "matmul 999999999999 999999999999 9999999 --on a100": "larger than anything",
    "matmul 8 8 8": "needs --on",
    "matmul 8 8 8 --on 8xh100-sxm": "runs on one device",
    "matmul 8 8 8 --on nonesuch": "unknown GPU or processor",
    "matmul 8 8 8 --on a100 --dtype fp7": "unknown format",
    "matmul 8 8 8 --on a100 --against h100-sxm": "is not a CPU",
    "attention 1 32 128 4096 --on a100": "has no kernel",
    "attention 1 32 128 64 --kv-heads 5 --on a100": "do not divide",
    "attention 1 32 128 64 --on a100 --dtype fp32": "unknown format",
    "stream 0GB --on a100": "size is 0",
    "stream 12 --on a100": "not a size in bytes",
    "copy nan --on a100": "not a size in bytes",
    "allreduce 1GB --on a100": "needs several devices",
    "allreduce 1GB --on 'EPYC 9654'": "needs several devices",
    "allreduce 1GB --on 8xh100-sxm --against 'EPYC 9654'": "no processor to compare",
    "decode bert-base --on a100": "does not generate",
    "decode llama-3.1-8b --on a100 --weights q9": "unknown weight format",
    "decode llama-3.1-8b --on a100 --context 999999": "takes up to",
    "decode llama-3.1-8b --on a100 --batch 8": "one sequence in llama.cpp",
    "train bert-base 0 --on t4": "not above zero",
    "train bert-base 1M --on t4 --seq 4096": "takes up to",
    "fold 1 --on a100": "unknown operation",
    "decode llama-3.1-8b --on a100 --dtype fp8": "decode takes no --dtype",
    "stream 1GB --on a100 --batch 2": "stream takes no --batch",
    "matmul 8 8 8 --on a100 --no-causal": "matmul takes no --causal",
    "train gpt2 1M --on a100 --weights F16": "train takes no --weights",
}


@pytest.mark.parametrize("words", ["gemm 512 256 128", "matmul 512x256x128", "MM 512*256*128", "gemm 512,256,128"])
def test_a_product_under_other_names_and_in_one_word(gpuwise: Callable[..., Any], words: str) -> None:
    made = gpuwise("op", *words.split(), "--on", "4090")
    assert made.code == 0 and made.out == gpuwise("op", "matmul", "512", "256", "128", "--on", "4090").out
    assert "33.6 MFLOP, 459 kB to move, 73.1 FLOP per byte" in made.out


def test_the_model_of_an_operation_is_a_word(gpuwise: Callable[..., Any]) -> None:
    made = gpuwise("op", "decode", "--model", "llama-3.1-8b", "--on", "4090")
    assert made.code == 2 and "hint: give the model without an option: gpuwise op decode llama-3.1-8b" in made.err


@pytest.mark.parametrize(("words", "message"), REFUSED.items())
def test_nonsense_is_refused(gpuwise: Callable[..., Any], words: str, message: str) -> None:
    import shlex

    ran = gpuwise("op", *shlex.split(words))
    assert ran.code == 2 and ran.out == ""
    assert message in ran.err and "hint: " in ran.err and "Traceback" not in ran.err


def test_a_format_the_gpu_lacks_names_those_it_has(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("op", "matmul", "8", "8", "8", "--dtype", "bf16", "--on", "v100")
    assert ran.code == 2 and "it has fp64, fp32, fp16" in ran.err


def test_several_gpus_with_commas_are_compared_and_share_a_note(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("op", "stream", "1GB", "--on", "a40,l40", "--all")
    assert ran.code == 0 and "A40, L40: with error correction (ECC) on" in " ".join(ran.out.split())
