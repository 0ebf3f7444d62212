"""The two commands as a person types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuwise.cli.app import run

SCRIPT = """
import sys
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(20):
    model(torch.ones(8, 4)).sum().backward()
    optimizer.step()
print("done", sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["tune", "nothing.py"], "nothing.py: this script does not exist", "give the training script"),
        (["tune", "train.py", "--only", "magic"], "there is no lever 'magic'", "length_groups"),
        (["tune", "train.py", "--minutes", "-1"], "--minutes", "--minutes 10"),
        (["tune", "train.py", "--resume", "--out", "nowhere"], "no tuning to resume", "leave --resume out"),
        (["run", "nothing.py"], "nothing.py: this script does not exist", "give the training script"),
        (["run", "train.py"], "there is no gpuwise.toml for train.py", "gpuwise tune train.py"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    words: list[str], message: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--resume" in words:
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    assert run(words) == 2
    told = capsys.readouterr()
    assert told.out == "" and message in told.err and hint in told.err.split("hint:")[1]


@pytest.fixture(autouse=True)
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUWISE_RECORDS", str(tmp_path / "records.db"))


def test_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "gpuwise.toml").write_text("version = 1\n[levers]\nfused_optimizer = true\n")
    assert run(["run", "train.py", "--json", "--", "--steps", "3"]) == 0
    first, *_, last = capfd.readouterr().out.splitlines()
    assert first == "done ['--steps', '3']"
    told = json.loads(last)
    assert told["code"] == 0 and told["refused"] == {} and told["measured"]["per"] == "samples"
    assert told["predicted"] is None and told["records"] == str(tmp_path / "records.db")


@pytest.mark.thorough
def test_a_store_that_cannot_be_written_takes_nothing_from_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "gpuwise.toml").write_text("version = 1\n[levers]\nfused_optimizer = true\n")
    monkeypatch.setenv("GPUWISE_RECORDS", str(tmp_path / "train.py" / "records.db"))
    assert run(["run", "train.py", "--json", "--price", "2.5", "--", "--steps", "3"]) == 0
    again = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert again["records"] is None and "cannot be used" in again["not_recorded"]
    assert again["cost_usd"] == pytest.approx(again["wall_s"] / 3600 * 2.5)
