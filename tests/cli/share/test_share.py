"""Shared files: what a program printed beside its prediction, without names, refused when edited, scored by ``validate``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuwise.calibrate.shared import read_shared, score
from gpuwise.errors import FieldError, FileError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.machine.model_speeds.nccl_tests import read_nccl_tests
from gpuwise.predict.comm.collectives import collective_time
from gpuwise.serve.local_measured import MeasuredSpeed, predicted

LLAMA = Path(__file__).parents[2] / "answers" / "data" / "llama-bench.json"
HEAD = """# nThread 1 nGpus 8 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 validation: 1 graph: 0
#
# Using devices
"""
TABLE = """#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1    33.20    0.00    0.00      0    32.84    0.00    0.00      0
   134217728      33554432     float     sum      -1    660.1  203.33  355.83      0    655.2  204.85  358.49      0
  8589934592    2147483648     float     sum      -1    31550  272.26  476.46      0    31540  272.35  476.61      0
# Out of bounds values : 0 OK
"""


def nccl(n: int = 8, device: str = "NVIDIA H100 80GB HBM3") -> str:
    ranks = [f"#  Rank  {i} Group  0 Pid  {4321 + i} on   nodename device  {i} [0x{i:02x}] {device}" for i in range(n)]
    return HEAD + "\n".join(ranks) + "\n" + TABLE


def test_a_file_has_what_is_shown_and_no_names(gpuwise: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "mine.gpuwise.json"
    shown = gpuwise("share", str(LLAMA), "--content")
    written = gpuwise("share", str(LLAMA), "--out", str(out))
    text = out.read_text()
    assert not any(word in text + shown.out for word in ("somebody", "Ryzen", "gguf"))
    assert all(line.strip() in shown.out for line in text.splitlines()) and "measured.gpuwise.json" in written.out
    made = read_shared(out)
    prompt, decode = made.rows
    assert (prompt.hardware.device, prompt.software.build, decode.question.weights) == ("rtx-4090", "5163", "Q4_K_M")
    assert decode.measured_s == pytest.approx(1 / 145.1)
    speed = MeasuredSpeed("decode", "llama-bench", "llama.cpp", 1.0, 128)
    expected = predicted(speed, find_model("llama-3.1-8b"), accelerators()["rtx-4090"], "Q4_K_M")
    assert expected is not None and decode.predicted_s is not None
    assert decode.predicted_s["expected"] == pytest.approx(1 / expected.expected)


def test_validate_scores_a_folder_of_them(gpuwise: Callable[..., Any], tmp_path: Path) -> None:
    gpuwise("share", str(LLAMA), "--out", str(tmp_path / "a.gpuwise.json"))
    (tmp_path / "nccl.txt").write_text(nccl())
    gpuwise("share", str(tmp_path / "nccl.txt"), "--out", str(tmp_path / "b.gpuwise.json"))
    scores = score(tmp_path, True)
    assert scores is not None and list(scores.measured) == pytest.approx([512 / 11000.5, 1 / 145.1, 660.1e-6, 31550e-6])
    assert set(scores.gpu) == {"rtx-4090", "h100-sxm-80gb"} and set(scores.split) == {"check"} and not any(scores.reason)
    time = collective_time(find_cluster("8xH100-SXM").system, "all_reduce", 134217728.0, 8, 8).time_s[0]
    assert scores.predicted[2] == pytest.approx(time)
    results = json.loads(gpuwise("validate", "--data", str(tmp_path), "--family", "shared", "--json").out)["results"]
    assert {r["source"].split()[0] for r in results} == {"llama-bench", "nccl-tests"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["rows"][0].__setitem__("measured_s", 1.0), "was edited"),
        (lambda d: d.__setitem__("month", "2026-01"), "was edited"),
        (lambda d: d.__setitem__("author", "me"), "unknown field author"),
        (lambda d: d["rows"][0].__setitem__("measured_s", -1.0), "measured_s: "),
        (lambda d: d.__setitem__("version", 2), "version: "),
        (lambda d: d.__setitem__("rows", []), "rows: "),
    ],
)
def test_an_edited_file_is_refused(
    change: Callable[[dict[str, Any]], None], message: str, gpuwise: Callable[..., Any], tmp_path: Path
) -> None:
    out = tmp_path / "mine.gpuwise.json"
    gpuwise("share", str(LLAMA), "--out", str(out))
    document = json.loads(out.read_text())
    change(document)
    out.write_text(json.dumps(document))
    with pytest.raises(FieldError, match=message):
        read_shared(out)
    ran = gpuwise("validate", "--data", str(tmp_path))
    assert ran.code == 2 and "hint: " in ran.err


def test_another_collective_and_unlike_gpus_are_refused() -> None:
    assert read_nccl_tests(nccl(), "x").rows[0] == (134217728.0, pytest.approx(660.1e-6))
    with pytest.raises(FileError, match="another collective"):
        read_nccl_tests(nccl(4), "x")
    with pytest.raises(FileError, match="one rank"):
        read_nccl_tests(nccl(1), "x")
    with pytest.raises(FileError, match="2 kinds of GPUs"):
        read_nccl_tests(nccl() + nccl(device="NVIDIA A100-SXM4-80GB"), "x")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--out", "x.json"), "does not end in .gpuwise.json"),
        (("--on", "4090x"), "unknown"),
        (("--model", "gpt-2000"), "unknown model"),
    ],
)
def test_bad_options_are_refused(words: tuple[str, ...], message: str, gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("share", str(LLAMA), *words)
    assert ran.code == 2 and message in ran.err
