"""Every command on narrow and wide terminals: no line is wider, no figure is cut, what the answer turns on is there."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from gpuwise.calibrate import validation
from gpuwise.calibrate.validation import Result as Score
from gpuwise.cli import out
from gpuwise.cli.app import COMMANDS
from gpuwise.cli.fitted_table import FittedTable
from gpuwise.cli.run.view import summary
from gpuwise.cli.tune.view import show as show_tuning
from gpuwise.train.hook.journal import Journal
from gpuwise.train.hook.launch import Outcome
from gpuwise.train.run.comparison import RunComparison
from gpuwise.train.run.run import RunResult
from gpuwise.train.tune.facts import Facts
from gpuwise.train.tune.parity import Verdict
from gpuwise.train.tune.search import CandidateResult, Result
from gpuwise.train.tune.stats import Gain
from gpuwise.train.tune.trial import Trial
from gpuwise.workload.changes.diff import Patch

WIDTHS = (60, 80, 120)
CASES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("--help", ("Usage", "plan", "prices")),
    ("plan --help", ("--tokens", "--json")),
    ("pick --help", ("--budget", "--json")),
    ("cost own --help", ("--hours", "--json")),
    ("top --help", ("--once", "--json")),
    (
        "plan llama-3.1-8b --on 8xH100-SXM --tokens 15B",
        (r"2\.\d+ days", r"\$1,\d{3}", "MFU", "GiB", "micro-batch", "gpuwise export"),
    ),
    ("plan gpt2 --tokens 10B", ("time", "cost", r"\d+x RTX", "MFU")),
    ("plan llama-3.1-8b --on 4090 --qlora --tokens 10M", ("QLoRA|4-bit", r"\$")),
    ("plan llama-3.1-405b --on 8x4090", ("not fit", "GiB")),
    ("fit llama-3.1-8b --on 4090", ("runs in Q8_0", "adapt it", "GiB")),
    ("fit llama-3.3-70b --on 4090 --for run", ("part of it in RAM", "2x RTX 4090", "GiB")),
    ("fit gpt2 --on 4090 --for train", ("fits", "GiB", "tokens a second")),
    ("fit llama-3.1-8b --on 4090 --for train", ("does not fit", "LoRA", "--optimizer adafactor")),
    ("fit llama-3.1-8b --on 4090 --for train --all", ("does not fit", "QLoRA", "MI300X", r"\$\d\.\d+")),
    ("fit llama-3.1-70b --on 8xh100-sxm --tried", ("does not fit", "fits", "GiB")),
    ("fit examples/train_resnet.py --on T4", ("fits", "GiB", "reserved", "gpuwise plan")),
    ("plan examples/train_resnet.py --on T4 --all", ("a step", "By module", "Memory over the step", "Noticed in the step")),
    ("pick --for infer --model llama-3.1-8b --budget 2000", ("price", "to pay", "tokens/s", r"\$\d")),
    ("pick --for train --model gpt2 --tokens 10B", ("price", "cost", "time", r"\$\d")),
    ("pick --for learn --budget 500", ("cost", "does", r"\d of 4")),
    ("pick --for image --model flux --budget 3000", ("price", "to pay", r"\$\d")),
    ("compare 4090 3090", ("RTX 4090", "RTX 3090", "--sources")),
    ("compare 4090 h100-sxm mi300x --model llama-3.1-8b", ("RTX 4090", "MI300X", "--sources")),
    ("compare 4090 3090 --sources", ("whitepaper", "https://")),
    ("cost --on 4090 --hours 3600", ("total", r"\$\d[\d.]*k", "pays back", "a GPU-hour", "cheapest in", "own - rent")),
    ("cost --on 4090 --hours 3600 --all", ("Every way", "What drives it", "Assumptions", "variance", "prices to come")),
    ("cost --on 4090 --hours 3600 --simple", ("total", "a GPU-hour")),
    ("cost --on 4090,8xH100-SXM --rules", ("own wins at 100", "437", r"\$\d")),
    ("cost llama-3.1-8b --on 8xh100 --tokens 15B", (r"\$2,\d{3}", "kWh", "total", "gpuwise plan")),
    ("cost llama-3.1-8b --on 8xh100 --tokens 15B --all", ("kWh", "total", "at the meter", "a checkpoint every")),
    ("cost llama-3.1-8b --on 8xh100 --tokens 15B --country DE", ("CO2e", "--power")),
    ("models", ("model", "parameters", "context")),
    ("models llama-3.1-8b --all", ("8,030,261,248", "arxiv")),
    ("cpus", ("vendor", "processors")),
    ("explain", ("The chip", "gpuwise explain MFU")),
    ("explain tdp", ("Design power", "near it")),
    ("cpus ryzen 7 5700g", ("name", "GB/s")),
    ("prices", (r"\$/h", "provider", "age")),
    ("prices h100", (r"\$/h", "hyperstack", "age")),
    ("prices 4090 --kind spot", ("of list", r"\$/h")),
    ("prices --buy", ("price", "used", "new", "age")),
    ("prices 4090 --buy", ("RTX 4090", r"\$1,\d{3}", "used", "age")),
    ("prices h100 --history", ("2024", r"\$\d")),
    ("prices h100 --history --months", ("2024", "Jan", "Dec", r"4\.84")),
    ("prices h100 --all", (r"\$/h", "azure")),
    ("prices --stored", ("nothing is kept",)),
    ("gpus", ("name", "memory", r"\$/h")),
    ("gpus h100-sxm-80gb --all", (r"3\.35 TB/s", "https://", "Rent")),
    ("gpus 4090", (r"1\.01 TB/s", "Rent", "gpuwise compare")),
    ("gpus 4090 --sources", ("https://images.nvidia.com",)),
    (
        "capacity llama-3.2-1b --on l40s --workload in=400,out=60 --rate 30/s --quick",
        ("30 requests/s", "p99|p95", r"\$\d", "vllm serve"),
    ),
    (
        "capacity llama-3.2-1b --on l40s --workload in=400,out=60 --concurrency 16 --all",
        ("16 in flight", "tokens/s", "Latency of one replica", "--max-concurrency 16"),
    ),
    ("capacity llama-3.2-1b --on l40s --workload in=400,out=60 --slo ttft_p95=1ms", ("nothing here", "allowed")),
    ("capacity vit-l-16 --on A100-80GB --rate 200/s", ("200 images/s", "one alone", r"\$3\.\d\d", "gpuwise capacity")),
    ("capacity whisper-large-v3 --on L40S --rate 2/s --all", ("windows/s", "speech", r"\$\d")),
    ("op matmul 4096 4096 4096 --on 4090", ("time", "of peak", "TFLOP/s")),
    ("op attention 8 32 2048 128 --on 4090", ("time", "of peak")),
    ("op stream 1GB --on 4090", ("GB/s", "of peak")),
    ("op copy 1GB --on 8xh100", ("GB/s", "NVLink|nvlink|PCIe")),
    ("op allreduce 1GB --on 8xh100", ("GB/s", "bus bandwidth")),
    ("op decode llama-3.1-8b --on 4090", ("tokens/s",)),
    ("top --demo --once --all", ("H100 SXM5 80GB", "93 %", r"61\.0/79\.6", "python train.py")),
    ("bench --list", ("matmul-bf16-8192x8192x8192", "gpu", "bench --only")),
    ("share {timed}", ("llama-bench", "measured", "predicted", "--out")),
    ("check {checks}", ("3 of 4 checks fail", "memory of a GPU", "max_price|price", "gpuwise fit")),
    ("memory {recorded}", ("GiB|MiB", "reserved", "expandable_segments")),
    ("memory {recorded} --capacity 60MiB", ("out of memory", "train.py:1")),
    ("profile --trace {trace}", ("a step", "data")),
    ("lab", ("lab occupancy",)),
    ("lab occupancy --on V100 --regs 37 --block 320 --chart", ("4 blocks, 63 %", "1024", "255")),
    ("lab occupancy --on V100 --regs 37 --block 320", ("simpler sum says 5", "32 registers")),
    ("lab exercise", ("Why a GPU", "Serving")),
    ("lab simulate", ("vector-add", "convolution")),
    ("lab simulate transpose --size 64 --on v100 --all", ("values equal", "load unit", "bank conflicts", "EPYC")),
    ("lab cpu-vs-gpu 64 --on 4090", ("this CPU", "RTX 4090", "FLOP/s")),
    ("validate", ("MAPE", "gemm", r"5\.0 %")),
    ("validate --runs", ("No prediction", "gpuwise run")),
)
LONG = r"capacity|pick|plan gpt2"
"""What is computed for a second: by default on the narrow terminal alone, where most is cut."""
PATH = "/pytest-of-"
"""A path stays in one piece, to be copied, however long the folder of this test is."""
ABSENT = {"doctor", "export", "mcp", "run", "tune", "ui"}
"""What export prints is files, whole; mcp and ui print one address. What the others print depends on the machine: it is
printed below from
results made by hand, and the doctor's (whose commands to be copied stay whole) in the doctor's own test."""


@pytest.fixture
def timed() -> Path:
    """What llama-bench printed."""
    return Path(__file__).parents[1] / "answers" / "data" / "llama-bench.json"


@pytest.fixture
def checks() -> Path:
    """A file of checks, one of which passes."""
    return Path(__file__).parents[1] / "answers" / "data" / "gpuwise.checks.toml"


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No prices and records of whoever runs the tests, and a score that takes no measured tables."""
    for name in ("GPUWISE_PRICES", "GPUWISE_RECORDS"):
        monkeypatch.setenv(name, str(tmp_path / name))
    rows = [
        Score("gemm", "a table", None, "check", 12, 0.03, 0.05, -0.01, 0.8, 0.2, {"no rate": 2}),
        Score("gemm", "a table", "H100", "check", 12, 0.03, 0.05, -0.01, 0.8, 0.2, {"no rate": 2}),
    ]
    monkeypatch.setattr(validation, "validate", lambda *_, **__: rows)  # pyright: ignore[reportUnknownLambdaType]


@pytest.mark.parametrize(
    ("line", "figures", "width"),
    [
        pytest.param(
            line, figures, width, id=f"{line}-{width}", marks=[pytest.mark.slow] if width > 60 and re.match(LONG, line) else []
        )
        for line, figures in CASES
        for width in WIDTHS
    ],
)
def test_output_suits_the_terminal(
    line: str,
    figures: tuple[str, ...],
    width: int,
    gpuwise: Callable[..., Any],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    words = [str(request.getfixturevalue(w[1:-1])) if w.startswith("{") else w for w in line.split()]
    ran = gpuwise(*words)
    assert not ran.err and ran.out, ran.err
    _assert_suits(ran.out, width)
    joined = " ".join(ran.out.replace("\\\n", " ").split())
    for figure in figures:
        assert re.search(figure, ran.out) or re.search(figure, joined), f"{figure} is not shown"


def test_every_command_is_looked_at() -> None:
    assert {name for name, *_ in COMMANDS} <= {line.split()[0] for line, _ in CASES} | ABSENT


def _assert_suits(text: str, width: int) -> None:
    lines = [line for line in text.splitlines() if PATH not in line]
    assert not [line for line in lines if len(line) > width]
    assert not [line for line in lines if "…" in line]


def _on(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))


@pytest.mark.parametrize("width", WIDTHS)
def test_a_tuning_suits_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _on(width, monkeypatch)
    before = Trial("done", True, 40, 0.1, 320.0, "samples", {"data": 0.4}, memory_bytes=2**33)
    after = Trial("done", True, 40, 0.04, 800.0, "samples", {"data": 0.02}, memory_bytes=2**32)
    same = Verdict(True, "nothing in the maths", "fp32", "gradient of blocks.0.attention.out.weight", 1e-7, 1e-5, places=120)
    gain = Gain(2.5, 2.4, 2.6, 5)
    tried = (
        CandidateResult("workers", 8, "workers = 8", "kept", "kept", gain, 2.6, same),
        CandidateResult("compile", True, "compile = true", "undecided", "1.01x in 3 pairs", Gain(1.01, 0.99, 1.03, 3), 1.4),
        CandidateResult("bf16", True, "bf16 = true", "not tried", "this processor multiplies no bf16 in hardware"),
        CandidateResult("channels_last", True, "channels_last = true", "not tried", "the model has no convolutions"),
    )
    facts = Facts("cpu", 2, 8, 0, 100)
    result = Result(facts, before, after, {"workers": 8}, tried, gain, same, 120.0, out_of_time=False)
    show_tuning(result, Patch("", ()), "train.py", Path("gpuwise.toml"))
    text = capsys.readouterr().out
    _assert_suits(text, width)
    for figure in (r"2\.50x", "320", "800", "workers = 8", "8.0 GiB|8 GiB", "no convolutions"):
        assert re.search(figure, text), figure


@pytest.mark.parametrize("width", WIDTHS)
def test_a_run_suits_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _on(width, monkeypatch)
    compared = RunComparison(800.0, "samples", 0.04, None, 2**32, 100, 4.0, 3200.0)
    summary(RunResult(Outcome("end", 0, Journal(), 5.0, None), {}, compared))
    text = capsys.readouterr().err
    _assert_suits(text, width)
    assert ("800" in text and "40.0 ms" in text) or "0.04" in text


WORD = st.text(alphabet="abcde 0123", max_size=30)


@given(
    st.lists(st.tuples(WORD, WORD, WORD, WORD), min_size=1, max_size=4),
    st.integers(30, 140),
    st.booleans(),
)
def test_a_table_is_never_wider_than_its_room(rows: list[tuple[str, ...]], width: int, under: bool) -> None:
    table = FittedTable(("name", "a", "b", "why"), ("name",), ("name",), ("b", "a"), "why" if under else None)
    for row in rows:
        table.add_row(*row)
    assert max(map(len, _printed(table, width).splitlines()), default=0) <= width


def test_figures_stay_whole_while_other_columns_give_way() -> None:
    table = FittedTable(("name", "note", "cost"), ("name", "note"), (), ("note",))
    table.add_row("1x RTX 4090", "an old price", "$1,312.00")
    narrow, wide = _printed(table, 24), _printed(table, 60)
    assert "$1,312.00" in narrow and "an old" not in narrow
    assert "$1,312.00" in wide and "an old price" in wide


def test_a_long_column_goes_under_its_row() -> None:
    table = FittedTable(("name", "cost", "why"), ("name",), under="why")
    table.add_row("1x RTX 4090", "$1,312.00", "the price of a card that nobody has sold for a year")
    assert len(_printed(table, 100).splitlines()) == 2
    head, row, *under = _printed(table, 40).splitlines()
    assert head.split() == ["name", "cost"] and row.endswith("$1,312.00")
    assert all(line.startswith("    ") for line in under)
    assert " ".join(" ".join(under).split()) == "the price of a card that nobody has sold for a year"


def test_a_heading_takes_the_whole_width() -> None:
    table = FittedTable(("name", "cost"), ("name",))
    table.add_heading("what does not count for the columns")
    table.add_row("a", "$1")
    assert "what does not count for the columns" in _printed(table, 60) and "a       $1" in _printed(table, 60)


def _printed(table: FittedTable, width: int) -> str:
    with Path("/dev/null").open("w") as null:
        to = Console(width=width, record=True, color_system=None, file=null)
        to.print(table)
        return "\n".join(line.rstrip() for line in to.export_text().splitlines())


def test_further_lines_are_indented_as_the_first(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _on(30, monkeypatch)
    out.console().print("  a sentence that is longer than its terminal")
    assert all(line.startswith("  ") and line[2] != " " for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize("width", [24, 40, 80])
@pytest.mark.parametrize("under", [None, "why"])
def test_rows_of_one_line_are_printed_as_in_a_table_of_rich(
    width: int, under: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of plain text are put together here; what breaks over lines, has a style or wide characters, by rich."""

    def printed() -> str:
        table = out.table_of(("name", "GB", "why"), left=("name",), wrap=("why",), gives_way=("GB",), under=under)
        table.add_row("one", "1.5", "it fits")
        table.add_heading("a heading over the whole width")
        table.add_row("two", "10 ", "a longer reason that breaks between its words", style="dim")
        table.add_row(Text("three", style="bold"), "7")
        table.add_row("四", "2", "narrow")
        table.add_row("five", "33", "")
        file = io.StringIO()
        Console(file=file, width=width, highlight=False).print(table)
        return file.getvalue()

    fast = printed()
    monkeypatch.setattr(FittedTable, "_line", lambda *args: None)
    assert fast == printed()
