"""A person's own GPUs, processors and models, in files of the shipped form. Each question is a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

GPUS = (
    "id,name,vendor,family,year,form,memory_gb,memory_type,bandwidth_gb_s,compute_units,boost_mhz,compute_capability,source\n"
    "rtx-3090-48gb,RTX 3090 48GB,NVIDIA,Ampere,2020,PCIe,48,GDDR6X,936,82,1695,8.6,own\n"
    "rtx-4090,RTX 4090,NVIDIA,Ada,2022,PCIe,24,GDDR6X,2016,128,2520,8.9,own\n"
)
MODELS = """[mine]
source = "https://example.com/my-model"
[mine.models]
"my-12b" = { name = "My 12B", n_layers = 40, hidden = 5120, ffn = 14336, heads = 32, vocab = 131072, max_seq_len = 32768 }
"""


def ask(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "GPUWISE_HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-m", "gpuwise", *words], env=env, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def facts(tmp_path: Path) -> Path:
    (tmp_path / "facts").mkdir()
    (tmp_path / "facts" / "accelerators.csv").write_text(GPUS)
    (tmp_path / "facts" / "models.toml").write_text(MODELS)
    return tmp_path


def test_own_rows_are_asked_as_shipped_ones(facts: Path) -> None:
    ran = ask(facts, "fit", "my-12b", "--for", "run", "--on", "rtx 3090 48gb", "--json")
    answer = json.loads(ran.stdout.splitlines()[-1])
    assert (answer["cluster"]["accelerator"], answer["model"]["id"]) == ("rtx-3090-48gb", "my-12b")
    assert answer["device_bytes"] > 46 * 2**30
    twice = json.loads(ask(facts, "op", "decode", "my-12b", "--on", "4090", "--json").stdout.splitlines()[-1])
    (facts / "facts" / "accelerators.csv").unlink()
    once = json.loads(ask(facts, "op", "decode", "my-12b", "--on", "4090", "--json").stdout.splitlines()[-1])
    rates = [a["rows"][0]["tokens_per_s"]["expected"] for a in (twice, once)]
    assert rates[0] > 1.5 * rates[1], "a row with the id of a shipped one replaces it"


def test_an_own_processor_is_a_line_of_the_shipped_form(facts: Path) -> None:
    from gpuwise.facts.loading import shipped_text

    head, line = (row for row in shipped_text("cpus.csv").splitlines() if row.startswith(("id,", "core-i5-12400,")))
    own = line.replace("core-i5-12400", "my-chip", 1).replace("Core i5-12400", "My Chip", 1)
    (facts / "facts" / "cpus.csv").write_text(f"{head}\n{own}\n")
    ran = ask(facts, "op", "decode", "qwen3-4b", "--on", "my-chip", "--json")
    assert json.loads(ran.stdout.splitlines()[-1])["rows"][0]["id"] == "my-chip"


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        ("accelerators.csv", ",936,", ",many,", "accelerators.csv:2: bandwidth_gb_s is 'many', not a number"),
        ("accelerators.csv", ",own\nrtx-4090", ",nowhere\nrtx-4090", "source 'nowhere' is not in sources.csv"),
        ("models.toml", "n_layers = 40", "n_layers = 'x'", "my-12b"),
        ("models.toml", "[mine.models]", "[mine.models", "not TOML"),
    ],
)
def test_a_wrong_row_is_one_error_and_exit_2(facts: Path, file: str, old: str, new: str, says: str) -> None:
    path = facts / "facts" / file
    path.write_text(path.read_text().replace(old, new, 1))
    ran = ask(facts, "fit", "my-12b", "--for", "run", "--on", "4090")
    assert ran.returncode == 2 and says in ran.stderr and "hint:" in ran.stderr
    assert "Traceback" not in ran.stderr
