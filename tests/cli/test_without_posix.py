"""Commands on a system without process groups, signals and modules of POSIX, as Windows: an answer, or one line and a hint."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpuwise.errors import GpuwiseError, require_posix

PROGRAM = Path(__file__).with_name("without_posix.py")
ANSWERED = (
    "fit llama-3.1-8b --on 4090",
    "plan llama-3.1-8b --on 8xH100-SXM --tokens 15B",
    "pick llama-3.1-8b --for infer --budget 1000",
    "capacity llama-3.1-8b --on h100-sxm --users 20",
    "compare 4090 h100-sxm",
    "cost own --on h100-sxm",
    "prices h100",
    "op gemm 4096 4096 4096 --on h100-sxm",
    "models llama",
    "gpus h100",
    "cpus",
    "explain mfu",
    "doctor",
    "check {}/asked.toml",
    "validate",
    "export llama-3.1-8b --on 8xH100-SXM --tokens 15B --out {}/exported",
    "top --demo --once",
    "bench --list",
    "lab",
    "ui --help",
    "mcp --help",
)
REFUSED = ("tune {}/train.py", "run {}/train.py", "run {}/train.py --ranks 2", "profile {}/train.py", "profile -m train")


def answers(commands: Sequence[str], folder: Path) -> list[tuple[int | None, str, str]]:
    (folder / "train.py").write_text("print(1)\n", encoding="utf-8")
    (folder / "asked.toml").write_text(
        'version = 1\n[checks.fits]\nask = "fit llama-3.1-8b --on 4090"\nfits = true\n', encoding="utf-8"
    )
    asked = folder / "commands.json"
    asked.write_text(json.dumps([shlex.split(c.replace("{}", folder.as_posix())) for c in commands]), encoding="utf-8")
    ran = subprocess.run([sys.executable, PROGRAM, asked], capture_output=True, text=True, check=True, cwd=folder)
    return json.loads(ran.stdout.splitlines()[-1])


def test_commands_answer_without_posix(tmp_path: Path, home: Path) -> None:
    for command, (code, out, err) in zip(ANSWERED, answers(ANSWERED, tmp_path), strict=True):
        assert code in (0, 1) and out and "error:" not in err, f"{command}: {code}\n{err}"


def test_a_watched_script_names_the_systems_it_needs(tmp_path: Path, home: Path) -> None:
    for command, (code, out, err) in zip(REFUSED, answers(REFUSED, tmp_path), strict=True):
        assert code == 1 and not out, f"{command}: {code}\n{err}"
        error, hint = err.splitlines()
        assert error.startswith("error: ") and error.endswith(" needs Linux or macOS")
        assert hint.startswith("hint: ") and "WSL" in hint


def test_functions_that_start_scripts_name_the_systems_they_need(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from gpuwise.train.hook.launch import launch
    from gpuwise.train.ranks.launch import run_ranks

    nothing: Any = None
    monkeypatch.delattr("os.killpg")
    for start in (lambda: launch(nothing, tmp_path), lambda: run_ranks(nothing)):
        with pytest.raises(GpuwiseError, match="needs Linux or macOS"):
            start()
    assert not list(tmp_path.iterdir())


def test_a_system_with_process_groups_is_accepted() -> None:
    require_posix("a watched run of a script")
