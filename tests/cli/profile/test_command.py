"""``gpuwise profile``: one screen, one page, one document; the script's words and exit code are its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuwise.cli.app import run

GPUWISE = (sys.executable, "-c", "import sys; from gpuwise.cli.app import run; sys.exit(run())")
SCRIPT = """
import sys, time, torch
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
print("begins with", sys.argv[1:])
for step in range(40):
    time.sleep(0.02)
    model(torch.randn(16, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("the end", end="")
sys.exit(3)
"""


@pytest.mark.parametrize("columns", [80, 120])
def test_a_trace_on_one_screen(
    trace: Path, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    assert run(["profile", "--trace", str(trace)]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert max(map(len, lines)) <= columns and len(lines) <= 26
    assert "The step waits for its data: about 2 ms of 3 ms a step (67 %)." in lines[0]
    assert any("matrix products" in line and "600 us  20 %" in line for line in lines)
    assert run(["profile", "--trace", str(trace), "--fixes"]) == 0
    assert "DataLoader(..., num_workers=" in capsys.readouterr().out
    assert not any("\x1b" in line for line in lines)


def test_the_document_and_the_page(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "p.html"
    assert run(["profile", "--trace", str(trace), "--html", str(page), "--json"]) == 0
    told = json.loads(capsys.readouterr().out.strip().split("\n")[-1])
    assert told["verdict"]["kind"] == "data wait" and told["wall_s"] == pytest.approx(3e-3)
    assert sum(told["parts"].values()) == pytest.approx(told["wall_s"])
    assert told["findings"][0]["saved_s"] == pytest.approx(2e-3) and told["findings"][0]["mend"]
    text = page.read_text()
    assert text.count("<svg") >= 2 and "The step waits for its data" in text
    assert "<script" not in text and "http://" not in text.replace("http://www.w3.org", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no script"),
        (["--trace", "none.json"], "none.json"),
        (["train.py", "--trace", "t.json"], "both"),
        (["--trace", "none.json", "--html", "page.txt"], ".html"),
        (["--steps", "0", "x.py"], "steps"),
    ],
)
def test_bad_input(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", *arguments]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.startswith("error: ") and "hint: " in told.err and said in told.err


@pytest.mark.usefixtures("home")
def test_a_script_is_run_as_it_is(tmp_path: Path) -> None:
    """In a process of its own: its words stay on stdout, its exit code is kept, a trace is taken on the way."""
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [*GPUWISE, "profile", "train.py", "--steps", "8", "--whole", "--json", "--", "--lr", "0.1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False, env=environment)
    lines = done.stdout.strip().split("\n")
    assert done.returncode == 3, done.stderr
    assert lines[:2] == ["begins with ['--lr', '0.1']", "the end"] and len(lines) == 3
    told = json.loads(lines[-1])
    assert told["exit_code"] == 3 and sum(told["parts"].values()) == pytest.approx(told["wall_s"])
    assert told["samples_per_s"] == pytest.approx(16 / told["wall_s"])
    assert told["families"], "the trace was read"
    assert [f["kind"] for f in told["findings"]][:1] == ["python in the step"]
    assert "Traceback" not in done.stderr


@pytest.mark.thorough
@pytest.mark.usefixtures("home")
def test_a_script_that_crashes_keeps_its_exit_code(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "broken.py").write_text("import sys\nsys.exit(7)\n")
    command = [*GPUWISE, "profile", "-m", "broken"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 7
    assert "error: the script ended before its second step" in done.stderr and "hint: " in done.stderr
