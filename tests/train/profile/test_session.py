"""Scripts that give nothing to profile get a clear word; what a script does is left alone."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuwise.train.hook.zygote import Zygote
from gpuwise.train.profile.session import Request, ScriptError, Session, profile_script

LOOP = """
import sys, torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range({steps}):
    model(torch.randn(16, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
{end}
"""


def _run(text: str, zygote: Zygote, folder: Path, **more: object) -> Session:
    (folder / "train.py").write_text(text)
    request = Request(str(folder / "train.py"), steps=6, **more)  # type: ignore[arg-type]
    return profile_script(request, folder, zygote=zygote, output=folder / "output")


@pytest.mark.parametrize(
    ("text", "said", "hint", "code"),
    [
        ("import torch\nprint('hello')\n", "without a single training step", "inference", 1),
        ("raise ValueError('no such dataset')\n", "train.py:1: ValueError: no such dataset", "fix it", 1),
        ("import torch\nname = input('which model? ')\n", "reads standard input", "after --", 1),
        (LOOP.format(steps=1, end=""), "after its first step", "10 steps", 1),
        ("import sys\nsys.exit(7)\n", "before its second step", "its own words", 7),
        (
            "import multiprocessing\ndef worker():\n    pass\n"
            "p = multiprocessing.get_context('fork').Process(target=worker)\np.start()\np.join()\n",
            "processes that it starts itself \\(worker\\)",
            "gpuwise.profile",
            1,
        ),
        ("def broken(:\n", "not Python", "python would", 2),
    ],
)
def test_what_cannot_be_profiled_says_why(text: str, said: str, hint: str, code: int, zygote: Zygote, tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match=said) as caught:
        _run(text, zygote, tmp_path)
    assert hint in (caught.value.hint or "")
    assert caught.value.code == code


MEMBERS = """
import torch, torch.multiprocessing as mp
def train(rank, rows):
    torch.set_num_threads(1)
    model = torch.nn.Linear(256, 256)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(60):
        model(torch.randn(rows, 256)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    print("trained", rank)
if __name__ == "__main__":
    mp.set_start_method("{method}")
    processes = [mp.Process(target=train, args=(rank, 64)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    print("codes", [process.exitcode for process in processes])
"""


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_processes_that_a_script_starts_are_measured_each(method: str, zygote: Zygote, tmp_path: Path) -> None:
    session = _run(MEMBERS.format(method=method), zygote, tmp_path)
    assert [number for number, _ in session.profile.ranks] == [0, 1]
    assert any("2 processes train" in note for note in session.profile.notes)
    assert all(split.wall_s > 0 and split.parts["compute"] > 0 for _, split in session.profile.ranks)
    said = (tmp_path / "output").read_text()
    assert "codes [0, 0]" in said and "trained" not in said
    assert session.code == 0


@pytest.mark.slow
def test_the_ranks_of_a_launcher_give_one_report(zygote: Zygote, tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text("""
import sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.set_num_threads(1)
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(60):
    model(torch.randn(16, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
sys.stdout.write(f"ended with {sys.argv[1:]} {__name__}" + chr(10))
""")
    given = ["--standalone", "--nproc_per_node", "2", str(tmp_path / "ranks.py"), "--lr", "0.1"]
    request = Request("torch.distributed.run", given, module=True, steps=6, whole=True)
    session = profile_script(request, tmp_path, zygote=zygote, output=tmp_path / "output")
    assert [number for number, _ in session.profile.ranks] == [0, 1]
    assert session.profile.data.trace is not None and len(session.profile.data.ranks) == 2
    assert (tmp_path / "output").read_text().count("ended with ['--lr', '0.1'] __main__") == 2
    assert session.code == 0


def test_a_short_script_is_profiled_without_a_trace(zygote: Zygote, tmp_path: Path) -> None:
    session = _run(LOOP.format(steps=5, end="sys.exit(3)"), zygote, tmp_path)
    assert (session.code, session.trace) == (3, None)
    assert any("no trace" in note for note in session.profile.notes)
    assert "too short" in session.profile.verdict.sentence or session.profile.findings
    assert sum(session.profile.split.parts.values()) == pytest.approx(session.profile.split.wall_s)


FEW_LONG_STEPS = """
import pathlib, torch
torch.set_num_threads(1)
model = torch.nn.LSTMCell(1, 64).double()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
data = torch.randn(40, 200, 1, dtype=torch.float64)
def closure():
    optimizer.zero_grad()
    state = None
    for row in data.split(1):
        state = model(row[0], state)
    loss = state[0].square().mean()
    loss.backward()
    return loss
for step in range(3):
    optimizer.step(closure)
    torch.save(model.state_dict(), pathlib.Path(__file__).with_name("weights.pt"))
"""


@pytest.mark.thorough
def test_a_script_that_ends_before_its_trace_is_run_again_for_it(zygote: Zygote, tmp_path: Path) -> None:
    session = _run(FEW_LONG_STEPS, zygote, tmp_path)
    assert "double precision" in {finding.kind for finding in session.profile.findings}
    assert any("run again to trace the last of its 3 steps" in note for note in session.profile.notes)
    assert session.trace is not None and session.code == 0
    # the second run leaves what the first has saved alone
    assert (tmp_path / "weights.pt").stat().st_mtime_ns < session.trace.stat().st_mtime_ns
    assert (session.trace.parent / "saved" / "weights.pt").exists()


def test_a_gpu_that_a_script_leaves_alone_is_told(zygote: Zygote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tiny-diffusion's ddpm.py trains on the processor, whatever the machine has."""
    card = SimpleNamespace(name="NVIDIA H100 80GB HBM3")
    meter = SimpleNamespace(wall_s=1.0, held_back_s={}, mean_power_w=60.0, cards=(card,))
    monkeypatch.setattr("gpuwise.machine.measure", lambda: contextlib.nullcontext(meter))
    profile = _run(LOOP.format(steps=40, end=""), zygote, tmp_path).profile
    assert profile.notes[0].startswith("NVIDIA H100 80GB HBM3 is here, and every step ran on the processor")


def test_the_whole_script_runs_where_asked(zygote: Zygote, tmp_path: Path) -> None:
    session = _run(LOOP.format(steps=60, end="print('the end', step)\nsys.exit(4)"), zygote, tmp_path, whole=True)
    assert (session.code, session.outcome.ended) == (4, "exit")
    assert "the end 59" in (tmp_path / "output").read_text()
    assert session.profile.data.trace is not None


def test_a_crash_after_enough_was_seen_still_tells(zygote: Zygote, tmp_path: Path) -> None:
    session = _run(LOOP.format(steps=40, end="raise RuntimeError('late')"), zygote, tmp_path, whole=True)
    assert session.code == 1
    assert any("late" in note for note in session.profile.notes)
    assert session.profile.split.wall_s > 0


@pytest.fixture
def crowd() -> Iterator[None]:
    """Twice as many busy loops as processors, while the test runs."""
    busy = [sys.executable, "-c", "import time\nend = time.time() + 120\nwhile time.time() < end: pass"]
    loops = [subprocess.Popen(busy) for _ in range(2 * (os.cpu_count() or 1))]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


@pytest.mark.slow
@pytest.mark.usefixtures("crowd")
def test_what_other_programs_take_is_no_python_of_the_loop(zygote: Zygote, tmp_path: Path) -> None:
    """A loop that has none, as yunjey's GAN; the delays are in the steps, and no finding takes them for the script's own."""
    text = LOOP.replace("64, 64", "256, 2048").replace("16, 64", "64, 256").format(steps=200, end="")
    profile = _run(text, zygote, tmp_path).profile
    facts = profile.data.facts
    assert facts is not None and sum(step.queue_s for step in facts.steps) > 0
    assert "python in the step" not in {f.kind for f in profile.findings}
