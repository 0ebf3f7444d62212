"""Whatever a script saves under a lever is what it saves without: for every lever of the registry."""

from __future__ import annotations

import os
import pickletools
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from gpuwise.train.config import TunedConfig
from gpuwise.train.hook.launch import Limits, Outcome
from gpuwise.train.levers.table import LEVERS
from gpuwise.train.run.run import run_tuned
from gpuwise.train.tune.facts import has_compiler

HERE = Path(__file__).parent
SCRIPT = HERE / "saving_script.py"
WITHOUT_VALUES: dict[str, object] = {"micro_batches": 2, "batch": 4, "threads": 2, "pruning": 0.5}
"""Levers whose values are made for the machine."""
CASES = [(one.name, value) for one in LEVERS for value in (one.put_on.values or (WITHOUT_VALUES[one.name],))]
FIRST = dict(reversed(CASES))
USUAL = {
    "length_groups",
    "workers",
    "autocast",
    "channels_last",
    "fused_optimizer",
    "checkpointing",
    "micro_batches",
    "attention",
}
"""One of each thing a lever wraps (modules, forward, optimizer, loader, batches): by default; all of them in the slow group."""
PICKLES = ("model.pt", "state.pt", "all.pt", "optimizer.pt", "copy.pt", "shallow.pt", "average.pt", "resumed.pt")
CHANGES_VALUES = ("batch",)
"""Another training: the files are compared in their form."""
CHANGES_WEIGHTS = (*CHANGES_VALUES, "pruning")
READS = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "gpuwise":
            raise ImportError("gpuwise is not here")
sys.meta_path.insert(0, Absent())
import pickle, torch
from pathlib import Path
folder = Path(sys.argv[1])
x = torch.ones(1, 12, dtype=torch.long), torch.zeros(1, 3, 6, 6)
for name in ("model.pt", "copy.pt", "shallow.pt", "average.pt"):
    model = torch.load(folder / name, weights_only=False)
    model.eval()(*x).sum().backward()
pickle.loads((folder / "model.pkl").read_bytes())(*x)
assert pickle.loads((folder / "loader.pkl").read_bytes()).num_workers == 0
for name in ("script.pt", "trace.pt"):
    torch.jit.load(folder / name)
for name in ("all.pt", "state.pt", "resumed.pt"):
    torch.load(folder / name, weights_only=True)
torch.load(folder / "optimizer.pt", weights_only=False).step()
print("read")
"""


def script_under(run: Callable[..., Outcome], folder: Path, levers: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [str(HERE), *sys.path])
    # compiling takes a minute of an idle machine
    outcome = run(SCRIPT, str(folder), levers=levers, live=True, limits=Limits(wall_s=900.0 if "compile" in levers else 240.0))
    assert outcome.ok, outcome.error
    return folder


@pytest.fixture(scope="module")
def plain(zygote: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the script by itself: gpuwise has no part in it."""
    folder = tmp_path_factory.mktemp("plain")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, SCRIPT, folder], check=True, timeout=300, env=environment)
    return folder


def pickled(path: Path) -> bytes:
    with zipfile.ZipFile(path) as archive:
        return archive.read(next(n for n in archive.namelist() if n.endswith("/data.pkl")))


def opcodes(path: Path) -> list[tuple[str, object]]:
    """Of a pickle, without raw numbers: storages have their addresses among them."""
    return [(op.name, arg) for op, arg, _ in pickletools.genops(path.read_bytes()) if not isinstance(arg, (bytes, float))]


def code_of(path: Path) -> dict[str, list[str]]:
    """Lines in order of text: constants come in that of a set."""
    with zipfile.ZipFile(path) as archive:
        return {n: sorted(archive.read(n).decode().splitlines()) for n in archive.namelist() if n.endswith(".py")}


@pytest.mark.parametrize(
    ("name", "value"),
    [pytest.param(n, v, id=f"{n}={v}", marks=[pytest.mark.slow] if n not in USUAL or v != FIRST[n] else []) for n, v in CASES],
)
def test_files_are_those_of_the_plain_script(
    run: Callable[..., Outcome], plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    if name == "compile" and not has_compiler("cpu"):
        pytest.skip("torch.compile needs a C++ compiler")
    folder = script_under(run, tmp_path / "saved", {name: value}, monkeypatch)
    for file in PICKLES:
        assert b"gpuwise" not in pickled(folder / file)
        if name not in CHANGES_VALUES:
            assert pickled(folder / file) == pickled(plain / file), file
    assert opcodes(folder / "model.pkl") == opcodes(plain / "model.pkl")
    if name not in CHANGES_VALUES:
        assert opcodes(folder / "loader.pkl") == opcodes(plain / "loader.pkl")
    for file in ("script.pt", "trace.pt"):
        assert code_of(folder / file) == code_of(plain / file), file
    for file in ("export.txt", "fx.txt"):
        assert (folder / file).read_text() == (plain / file).read_text(), file
    if name not in CHANGES_WEIGHTS:
        expected, found = (torch.load(f / "state.pt", weights_only=True) for f in (plain, folder))
        for key, tensor in expected.items():
            torch.testing.assert_close(found[key], tensor, rtol=2e-2, atol=3e-3, msg=key)


@pytest.mark.thorough
def test_files_are_read_where_gpuwise_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under many levers at once, as ``gpuwise run`` puts them on."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]))
    levers = {"autocast": "bf16", "fused_optimizer": True, "checkpointing": "blocks", "workers": 1}
    folder = tmp_path / "saved"
    result = run_tuned(str(SCRIPT), [str(folder)], TunedConfig("saving_script.py", levers), record=False)
    assert result.outcome.ok, result.outcome.error
    assert result.refused == {}
    command = [sys.executable, "-c", READS, folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=HERE, check=False)
    assert done.stdout == "read\n", done.stderr
