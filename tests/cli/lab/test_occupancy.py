"""``gpuwise lab occupancy``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuwise.lab import occupancy

LOG = """ptxas info    : Compiling entry function 'tile' for 'sm_90'
ptxas info    : Used 37 registers, used 1 barriers, 4224 bytes smem
"""


def test_says_what_binds_and_what_a_simpler_sum_says(gpuwise: Callable[..., Any]) -> None:
    text = gpuwise("lab", "occupancy", "--on", "V100", "--regs", "37", "--block", "320").out
    assert text.startswith("4 blocks, 63 %") and "a simpler sum says 5" in text
    assert "registers" in text and "binds" in text and "use 32 registers a thread" in text


def test_json_is_the_functions_answer(gpuwise: Callable[..., Any]) -> None:
    words = "lab occupancy --on sm_90 --regs 8 --block 32 --smem 8KiB --dynamic-smem 4096 --optin --barriers 2 --carveout 50"
    document = gpuwise(*words.split(), "--json").document
    answer = occupancy(
        "9.0",
        block_threads=32,
        regs_per_thread=8,
        static_smem=8192,
        dynamic_smem=4096,
        optin=True,
        block_barriers=2,
        carveout_percent=50,
    )
    assert document["active_blocks"] == answer.active_blocks and document["limit_smem"] == answer.limit_smem
    assert document["binding"] == list(answer.binding) and document["occupancy"] == answer.occupancy


def test_a_kernel_is_read_from_a_log(gpuwise: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "log").write_text(LOG)
    document = gpuwise("lab", "occupancy", "--ptxas-log", str(tmp_path / "log"), "--block", "256", "--json").document
    assert (document["compute_capability"], document["regs_per_thread"], document["static_smem"]) == ("9.0", 37, 4224)
    other = gpuwise("lab", "occupancy", "--ptxas-log", str(tmp_path / "log"), "--block", "256", "--on", "4090", "--json")
    assert other.document["compute_capability"] == "8.9"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--on V100 --regs 37 --block 2000", "1,024 at most"),
        ("--on V100 --regs 300 --block 32", "255"),
        ("--on V100 --regs 37 --block 32 --dynamic-smem 97KiB --optin", "98,304 at most"),
        ("--on 10.7 --regs 37 --block 32", "unknown compute capability"),
        ("--on 9.9 --regs 37 --block 32", "unknown compute capability"),
        ("--on mi300x --regs 37 --block 32", "no CUDA compute capability"),
        ("--on V100 --regs 37", "--block is missing"),
        ("--on V100 --regs 37 --block 32 --carveout 101", "not a percentage"),
        ("--regs 37 --block 32", "on which GPU"),
        ("--on V100 --regs 37 --block 32 --kernel k", "one of a file"),
        ("--on V100 --regs -3 --block 32", "whole number"),
        ("--on V100 --regs 3 --block 32 --barriers -1", "barriers"),
    ],
)
def test_bad_input_is_refused_with_a_hint(line: str, words: str, gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("lab", "occupancy", *line.split())
    assert ran.code == 2 and words in ran.err and "hint: " in ran.err and not ran.out


def test_a_launch_without_a_block_is_an_answer(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("lab", "occupancy", "--on", "V100", "--regs", "128", "--block", "1024")
    assert ran.code == 0 and ran.out.startswith("0 blocks, 0 %") and "64 registers" in ran.out
