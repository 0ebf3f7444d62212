from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from gpuwise import __version__
from gpuwise.cli.app import COMMANDS, GROUPS

HEAVY = ("numpy", "pandas", "scipy", "pydantic", "fastapi", "textual", "torch", "pynvml", "pyarrow")


def _modules_after(code: str) -> set[str]:
    script = f"{code}\nimport sys; sys.stderr.write(chr(10).join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stderr.splitlines())


@pytest.mark.parametrize(
    "code",
    [
        "import gpuwise",
        "from gpuwise.cli.app import run; run(['--help'])",
        "from gpuwise.cli.app import run; run(['--version'])",
        "from gpuwise.cli.app import run; run(['plan', '--help'])",
        "from gpuwise.cli.app import run; run(['gpus', 'h100'])",
        "from gpuwise.cli.app import run; run(['models'])",
    ],
)
def test_nothing_heavy_is_imported(code: str) -> None:
    assert not _modules_after(code) & set(HEAVY)


def test_json_needs_no_rich_and_a_plan_no_pyarrow() -> None:
    code = "from gpuwise.cli.app import run; run(['fit', 'gpt2', '--on', '4090', '--json'])"
    assert not _modules_after(code) & {"rich.console", "rich.table", "pyarrow", "scipy"}


def test_version(gpuwise: Callable[..., Any]) -> None:
    assert gpuwise("--version").out.strip() == __version__


def test_help_names_every_command_with_its_question(gpuwise: Callable[..., Any]) -> None:
    text = gpuwise("--help").out
    for name, _, question in COMMANDS:
        assert name in text
        assert question.split()[0] in text
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(name for name, *_ in COMMANDS)


@pytest.mark.parametrize("columns", ["60", "80", "120"])
def test_no_line_of_the_help_ends_in_a_blank(columns: str, gpuwise: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert not [line for line in gpuwise("--help").out.splitlines() if line.endswith(" ")]


def test_a_line_end_of_a_docstring_is_none_in_the_help(gpuwise: Callable[..., Any]) -> None:
    lines = [line.strip("│ ") for line in gpuwise("fit", "--help").out.splitlines() if line.startswith("│")]
    texts = " ".join(line for line in lines if line)
    assert "several with commas" in " ".join(texts.split())
    assert not any(line.startswith("│" + " " * 36) for line in gpuwise("fit", "--help").out.splitlines())


@pytest.mark.parametrize("name", [*(c[0] for c in COMMANDS), "cost own", "cost run", "cost serve"])
def test_every_command_has_help(name: str, gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise(*name.split(), "--help")
    assert ran.code == 0 and "Usage" in ran.out and ("--json" in ran.out) == (name != "cost")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plam"], "plan"),
        (["plan"], "model"),
        (["plan", "llama-3.1-8b", "--on"], "requires"),
        (["plan", "llama-3.1-8b", "--onn", "4090"], "--on"),
        (["plan", "llama-9b", "--on", "4090"], "did you mean"),
        (["plan", "llama-3.1-8b", "--on", "rtx 4091"], "4090"),
        (["plan", "llama-3.1-8b", "--on", "rtx 6000"], "ambiguous"),
        (["plan", "llama-3.1-8b", "--on", "0x4090"], "hint"),
        (["plan", "llama-3.1-8b", "--on", "8xH100-SXM", "--tp", "3"], "rule: heads"),
        (["plan", "llama-3.1-8b", "--on", "8xH100-SXM", "--tp", "nan"], "whole number"),
        (["plan", "llama-3.1-8b", "--on", "8xH100-SXM", "--tp", "-4"], "whole number"),
        (["plan", "llama-3.1-8b", "--on", "8xH100-SXM", "--tokens", "inf"], "count"),
        (["plan", "llama-3.1-8b", "--on", "8xH100-SXM", "--tokens", "-3"], "count"),
        (["plan", "llama-3.1-8b", "--on", "8xH100-SXM", "--deadline", "soon"], "duration"),
        (["plan", "llama-3.1-8b", "--on", "8xH100-SXM", "--deadline", "3d"], "--tokens"),
        (["plan", "llama-3.1-8b", "--on", "8xH100-SXM", "--budget", "nan"], "dollars"),
        (["plan", "llama-3.1-8b", "--on", "8xH100-SXM", "--price", "0"], "dollars"),
        (["plan", "llama-3.1-8b", "--on", "8xH100-SXM", "--precision", "bf61"], "bf16"),
        (["plan", "llama-3.1-8b", "--on", "8xH100-SXM", "--sharding", "zero9"], "zero"),
        (["plan", "llama-3.1-8b", "--on", "8xH100-SXM", "--lora-rank", "8"], "--lora"),
        (["plan", "llama-3.1-8b", "--deadline", "3d"], "--tokens"),
        (["plan", "gpt2", "--on", "4090", "--tokens", "-5B"], "'-5B' is negative"),
        (["op", "stream", "-1GB", "--on", "4090"], "'-1GB' is negative"),
        (["gpus", "zzz"], "gpuwise gpus"),
        (["models", "zzz"], "config.json"),
        (["validate", "--data", "/no/such/folder"], "folder"),
        (["validate", "--family", "gem"], "gemm"),
    ],
)
def test_bad_input_is_refused_with_a_hint_and_code_2(arguments: list[str], words: str, gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise(*arguments)
    assert ran.code == 2
    assert ran.out == ""
    assert words in ran.err
    assert ran.err.startswith("error: ") and ran.err.splitlines()[-1].startswith("hint: ")


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "llama-3.1-8b", "--on", "8xA100-SXM-80GB", "--precision", "fp8"],
        ["fit", "llama-3.1-8b", "--on", "v100-sxm-32gb", "--precision", "bf16"],
        ["op", "matmul", "4096", "4096", "4096", "--on", "v100-sxm-32gb", "--dtype", "bf16"],
        ["cost", "llama-3.1-8b", "--on", "8xA100-SXM-80GB", "--precision", "fp8", "--tokens", "1B"],
    ],
)
def test_a_format_that_the_gpu_lacks_is_bad_input(words: list[str], gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise(*words)
    assert ran.code == 2 and ran.out == ""
    assert words[words.index("--precision" if "--precision" in words else "--dtype") + 1] in ran.err and "hint: it has" in ran.err


def test_what_does_not_fit_is_code_1(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("plan", "llama-3.1-405b", "--on", "4090", "--tokens", "1B")
    assert ran.code == 1 and "does not fit" in ran.out and ran.err == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["top", "--device", "0"], "error: unknown option: --device"),
        (["plan", "llama-3.1-8b", "--hardware", "h100"], "error: unknown option: --hardware"),
        (["plan", "llama-3.1-8b", "--on", "h100", "--bacth", "8"], "error: unknown option: --bacth. Did you mean --batch?"),
    ],
)
def test_only_an_option_of_like_spelling_is_suggested(words: list[str], said: str, gpuwise: Callable[..., Any]) -> None:
    """Two dashes alone had made --price of --device, and --year of --hardware."""
    assert gpuwise(*words).err.splitlines()[0] == said
