"""The command line, in process: any words end in an answer, or in ``error:`` and a hint."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.cli.app import COMMANDS, run

MODELS = st.sampled_from(("gpt2", "gpt2-medium", "lama", "", "layers=2,hidden=64,heads=4,vocab=100", "layers=x", "/no/file.json"))
GPUS = st.sampled_from(("a100-sxm-80gb", "2xa100-sxm-80gb", "8xH100", "0x4090", "toaster", "", "4090", "1e9xH100", "2x2x2xH100"))
WORDS = st.sampled_from(
    (
        "8",
        "0",
        "-1",
        "1.5",
        "nan",
        "inf",
        "1e999",
        "15B",
        "3d",
        "$20",
        "",
        "none",
        "zero3",
        "full",
        "fp8",
        "bf16,fp32",
        "½",
        "--",
        "x",
    )
)
SHARED = (
    "--tokens --deadline --budget --seq --global-batch --precision --optimizer --stack --lora --lora-rank "
    "--qlora --packed --tp --pp --cp --ep --dp --micro-batch --accumulation --virtual-stages --schedule "
    "--sharding --recompute --recompute-every --context-parallel --gradient-dtype --no-sequence-parallel "
    "--offload-optimizer --chunked-loss --price --provider --json --nonsense --data --family --all-check"
)
OPTIONS = st.sampled_from(SHARED.split())
COMPUTED = [name for name, *_ in COMMANDS if name not in ("bench", "doctor", "mcp", "top", "ui")]
"""Commands that answer by arithmetic; the others measure this machine, for seconds or until stopped."""


def outcome(words: list[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(words)
    return code, out.getvalue(), err.getvalue()


def assert_mannerly(words: list[str], code: int, out: str, err: str) -> None:
    assert code in (0, 1, 2), words
    assert "Traceback" not in out + err
    if err:
        assert code and err.startswith("error: ") and "\nhint: " in err, (words, err)
        if "--json" in words:
            document = json.loads(out)
            assert err.startswith(f"error: {document['error']}\nhint: {document['hint']}"), words
        else:
            assert not out, f"{words}: data on stdout beside an error"
    assert code != 2 or err, f"{words}: bad input without a word"
    if "--json" in words and out and "--help" not in words:
        document = json.loads(out.strip().split("\n")[-1], parse_constant=lambda c: pytest.fail(f"{c} in JSON"))
        assert isinstance(document, dict)
    assert err or not re.search(r"\b(nan|inf)\b", out.lower())


@settings(max_examples=3 * settings().max_examples)
@given(
    st.sampled_from(("plan", "fit")),
    MODELS,
    GPUS,
    st.lists(st.tuples(OPTIONS, WORDS | st.text(max_size=4)), min_size=1, max_size=3),
)
def test_plans_and_fits(command: str, model: str, gpus: str, options: list[tuple[str, str]]) -> None:
    words = [command, model, "--on", gpus, *(w for pair in options for w in pair)]
    assert_mannerly(words, *outcome(words))


ONE = (
    "seq",
    "global-batch",
    "tp",
    "pp",
    "cp",
    "ep",
    "dp",
    "micro-batch",
    "accumulation",
    "virtual-stages",
    "recompute-every",
)


@settings(max_examples=settings().max_examples)
@given(st.dictionaries(st.sampled_from(ONE), st.sampled_from((1, 2, 3, 4, 8, 64, 10**9)), min_size=1, max_size=3))
def test_layouts_that_may_or_may_not_run(degrees: dict[str, int]) -> None:
    words = ["fit", "gpt2", "--on", "8xa100-sxm-80gb", *(f"--{k}={v}" for k, v in degrees.items()), "--json"]
    code, out, err = outcome(words)
    assert_mannerly(words, code, out, err)
    if code == 0:
        answer = json.loads(out.strip().split("\n")[-1])
        assert all(math.isfinite(v) and v > 0 for k, v in answer["step_time_s"].items() if k != "basis")


@settings(max_examples=2 * settings().max_examples)
@given(st.lists(st.sampled_from(COMPUTED) | OPTIONS | WORDS | st.text(max_size=6), max_size=3))
def test_any_words(words: list[str]) -> None:
    assert_mannerly(words, *outcome(words))


ABSURD = (
    "-1",
    "0",
    "nan",
    "inf",
    "1e300",
    "1e999",
    "9" * 10_000,
    "x" * 10_000,
    "",
    " ",
    "½",
    "\x00",
    "\ud800",
    "-5B",
    "--",
    ",",
    "0x10",
)
BASES = {
    "plan": ("gpt2", "--on", "a100-sxm-80gb"),
    "fit": ("gpt2", "--on", "a100-sxm-80gb"),
    "pick": ("--for", "infer", "--model", "gpt2"),
    "compare": ("4090", "3090"),
    "cost own": ("--on", "4090", "--hours", "100", "--scenarios", "100"),
    "cost run": ("gpt2", "--on", "a100-sxm-80gb", "--tokens", "1B"),
    "cost serve": ("gpt2", "--on", "4090"),
    "prices": ("4090",),
    "gpus": (),
    "cpus": (),
    "models": (),
    "op": ("matmul", "64", "64", "64", "--on", "4090"),
    "memory": ("/no/such/file",),
    "profile": ("/no/such.py",),
    "tune": ("/no/such.py",),
    "run": ("/no/such.py",),
    "doctor": ("--no-frameworks",),
    "top": ("--demo", "--once"),
    "bench": ("--list",),
    "validate": ("--runs",),
}
"""Each command with words that it answers at once, or refuses at once."""
WRITES = {
    "--html",
    "--svg",
    "--out",
    "--csv",
    "--record",
    "--export",
    "--snapshot",
    "--timeline",
    "--grafana",
    "--config",
    "--help",
}
WRITES |= {
    "--fix-plan",
    "--dockerfile",
    "--compose",
    "--prometheus",
    "--otlp",
    "--exec",
    "--refresh",
    "--import",
    "--remove",
    "--version",
}
STAYS = {
    "--module",
    "--local",
    "--stress",
    "--calibrate",
    "--screen",
    "--no-screen",
    "--interval",
    "--duration",
    "--count",
    "--replay",
}
NUMBERS = (
    "plan --tokens|plan --seq|plan --global-batch|plan --deadline|plan --budget|plan --micro-batch|plan --tp|plan --risk|"
    "fit --seq|fit --lora-rank|pick --users|pick --budget|pick --context|pick --tokens-per-day|pick --years|"
    "cost own --peak|cost own --years|cost own --kwh-price|cost own --colo|cost own --staff|cost own --demand-spread|"
    "prices --max-price|prices --min-memory"
)
"""Options whose values are numbers: none of them may be absurd."""


def options_of(command: str) -> list[str]:
    _, out, _ = outcome([*command.split(), "--help"])
    found = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", "\n".join(line for line in out.split("\n") if line.startswith("│"))))
    return sorted(found - WRITES - STAYS)


@pytest.mark.parametrize("first", [0, pytest.param(4, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("command", BASES)
def test_every_option_takes_or_refuses_every_value(command: str, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each option with every eighth value, from another one on."""
    monkeypatch.setenv("COLUMNS", "200")
    options = options_of(command)
    assert "--json" in options
    for i, option in enumerate(options):
        for value in ABSURD[first + i % 4 :: 8]:
            words = [*command.split(), "--json", *BASES[command], option, value]
            code, out, err = outcome(words)
            if command != "doctor" or err:  # 2 without an error: faults were found
                assert_mannerly(words, code, out, err)
            assert not err or len(out) < 4000, f"{words[:4]} {option}: a refusal that repeats its input without end"


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "1e300", "9" * 10_000, "x", ""])
@pytest.mark.parametrize("option", NUMBERS.split("|"))
def test_no_number_is_absurd(option: str, value: str) -> None:
    command, name = option.rsplit(maxsplit=1)
    extra = ("--lora",) if name == "--lora-rank" else ()
    code, _, err = outcome([*command.split(), *BASES[command], *extra, name, value])
    assert code == 2 and err.startswith("error: "), err
    assert "negative" in err if value == "-1" else True


@given(st.sampled_from(("models", "gpus")), st.lists(WORDS | MODELS | GPUS | st.text(max_size=8), max_size=2))
def test_catalogues(command: str, query: list[str]) -> None:
    words = [command, *query]
    assert_mannerly(words, *outcome(words))
