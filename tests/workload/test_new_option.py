"""The recipe of CONTRIBUTING for an option: one field of Strategy, and it can be asked for, saved, exported and shown."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FIELD = 'new_thing: str = option("old", "What is new.", choices=("old", "new"), usual="old", label="New thing")'
IN_A_PROCESS = """
import json, sys, types
from pathlib import Path
import gpuwise.workload

place = Path(gpuwise.workload.__file__).parent / "strategy.py"
before = "    row_scales: bool"
text = place.read_text()
assert text.count(before) == 1
module = types.ModuleType("gpuwise.workload.strategy")
module.__file__ = str(place)
sys.modules[module.__name__] = module
exec(compile(text.replace(before, "    " + sys.argv[1] + "\\n" + before), str(place), "exec"), module.__dict__)

from gpuwise.cli.app import run
from gpuwise.ui.questions import QUESTIONS

for words in (
    ["plan", "llama-3.1-8b", "--on", "8xH100-SXM", "--new-thing", "new", "--json"],
    ["export", "llama-3.1-8b", "--on", "8xH100-SXM", "--new-thing", "new", "--to", "megatron", "--json"],
    ["plan", "llama-3.1-8b", "--on", "8xH100-SXM", "--new-thing", "other", "--json"],
):
    print("code", run(words))
print(json.dumps([f.label for f in QUESTIONS["plan"].fields if f.name == "new_thing"]))
run(["plan", "--help-all"])
"""


@pytest.mark.thorough
def test_a_new_option_takes_one_file(tmp_path: Path) -> None:
    command = [sys.executable, "-c", IN_A_PROCESS, FIELD]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    lines = ran.stdout.splitlines()
    codes = [i for i, line in enumerate(lines) if line.startswith("code ")]
    assert [lines[i] for i in codes] == ["code 0", "code 0", "code 2"]
    plan, export, refused = (json.loads(lines[i - 1]) for i in codes)
    strategy: dict[str, Any] = plan["best"]["strategy"]
    assert strategy["new_thing"] == "new"
    assert any(note.startswith("--new-thing new: ") for note in export["notes"])
    assert "it is one of old, new" in refused["hint"]
    assert json.loads(lines[codes[-1] + 1]) == ["New thing"]
    shown = " ".join(ran.stdout.replace("│", " ").split())
    assert "--new-thing old|new What is new. [default: old]" in shown


def test_the_recipe_names_files_that_are_there() -> None:
    root = Path(__file__).parents[2]
    text = (root / "CONTRIBUTING.md").read_text().split("## Add an option")[1].split("\n## ")[0]
    files = re.findall(r"`((?:src|tests)/[\w/]+\.py)`", text) + re.findall(r"tests/[\w/]+\.py", text)
    assert len(files) > 5 and [f for f in files if not (root / f).exists()] == []
