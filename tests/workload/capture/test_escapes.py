"""Processes and threads of a script that would train for real are refused before they do; what trains nothing runs on."""

from __future__ import annotations

import multiprocessing.process
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpuwise.errors import InputError

pytest.importorskip("torch")

import torch

from gpuwise.workload.capture.captured import Capture
from gpuwise.workload.capture.target import find_target

TRAINING = """
import concurrent.futures, multiprocessing, os, subprocess, sys, threading
import torch
from torch import nn
import torch.multiprocessing as mp
from pathlib import Path

def train(rank=0, *rest):
    Path("trained").touch()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(8, 8).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for i in range(3):
        x = torch.randn(4, 8, device=device)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    Path("finished").touch()

if __name__ == "__main__":
    if len(sys.argv) > 1:
        train()
        sys.exit()
"""
PROCESSES = {
    "mp.spawn": "mp.spawn(train, args=(1,), nprocs=2)",
    "torch processes": "mp.start_processes(train, nprocs=1, start_method='fork')",
    "Process": "p = multiprocessing.Process(target=train); p.start(); p.join()",
    "a forked process": "p = multiprocessing.get_context('fork').Process(target=train); p.start(); p.join()",
    "Pool": "multiprocessing.Pool(1).map(train, [0])",
    "an executor": "list(concurrent.futures.ProcessPoolExecutor(1).map(train, [0]))",
    "an executor's submit": "concurrent.futures.ProcessPoolExecutor(1).submit(train).result()",
    "os.fork": "if not os.fork():\n        train(); os._exit(0)",
    "subprocess": "subprocess.run([sys.executable, __file__, 'child'])",
    "check_call": "subprocess.check_call(f'{sys.executable} {__file__} child', shell=True)",
    "with an environment": "subprocess.Popen(['env', 'A=1', 'python3', __file__, 'child']).wait()",
    "in a shell": "subprocess.run(['bash', '-c', f'cd . && python {__file__} child'])",
    "torchrun": "subprocess.run(['torchrun', '--nproc-per-node', '2', __file__, 'child'])",
    "os.system": "os.system(f'python {__file__} child')",
    "os.execv": "os.execv(sys.executable, [sys.executable, __file__, 'child'])",
    "os.execvp": "os.execvp('python', ['python', __file__, 'child'])",
    "os.spawnv": "os.spawnv(os.P_WAIT, sys.executable, [sys.executable, __file__, 'child'])",
    "os.posix_spawn": "os.waitpid(os.posix_spawn(sys.executable, [sys.executable, __file__, 'child'], os.environ), 0)",
    "elastic": "from torch.distributed.run import main; main(['--nproc-per-node', '1', __file__, 'child'])",
    "caught": "try:\n        mp.spawn(train, nprocs=1)\n    except BaseException: print('caught')",
}
THREADS = {
    "Thread": "t = threading.Thread(target=train); t.start(); t.join()",
    "caught": "t = threading.Thread(target=train); t.start()\n    try: t.join()\n    except BaseException: print('caught')",
    "waited for": "import queue; q = queue.Queue()\n"
    "    threading.Thread(target=lambda: (train(), q.put(1)), daemon=True).start()\n    q.get(timeout=60)",
    "an executor": "concurrent.futures.ThreadPoolExecutor(1).submit(train).result()",
}


def captured(folder: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> Capture:
    monkeypatch.chdir(folder)
    path = folder / "train.py"
    path.write_text(f"{TRAINING}    {code}\n")
    return find_target(str(path), whole=True).capture()


@pytest.mark.parametrize("way", PROCESSES)
def test_processes_that_train_are_refused(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"train.py:\d+: .* would run for real and uncaptured") as error:
        captured(tmp_path, PROCESSES[way], monkeypatch)
    assert "make_step" in str(error.value.hint)
    assert [p.name for p in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize("way", THREADS)
def test_threads_end_before_they_train(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"train.py:\d+ in train: Linear is used in its own thread") as error:
        captured(tmp_path, THREADS[way], monkeypatch)
    assert "main thread" in str(error.value.hint) and not (tmp_path / "finished").exists()


HARMLESS = {
    "a command": "subprocess.run(['uname', '-a'], check=True, capture_output=True)",
    "git": "subprocess.run('git --version || true', shell=True, check=True)",
    "a version": "subprocess.run([sys.executable, '--version'], check=True)",
    "a thread of data": "t = threading.Thread(target=lambda: torch.stack([torch.ones(3)] * 4)); t.start(); t.join()",
    "an executor of data": "list(concurrent.futures.ThreadPoolExecutor(2).map(torch.ones, [2, 3]))",
    "a transform in a thread": "t = threading.Thread(target=lambda: nn.ReLU()(torch.ones(3))); t.start(); t.join()",
    "workers of a loader": "print(len([*torch.utils.data.DataLoader(torch.ones(8, 2), num_workers=2)]))",
    "progress": "import tqdm; tqdm.tqdm.monitor_interval = 0.01; [*tqdm.tqdm(range(3))]",
    "what the platform is": "import platform; platform.platform(); platform.processor()",
}


@pytest.mark.parametrize("way", HARMLESS)
def test_what_trains_nothing_runs_on(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "progress":
        pytest.importorskip("tqdm")
    assert len(captured(tmp_path, f"{HARMLESS[way]}\n    train()", monkeypatch).steps) == 2


def test_everything_is_as_it_was_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owners = (
        (multiprocessing.process.BaseProcess, "start"),
        (subprocess.Popen, "__init__"),
        (os, "fork"),
        (os, "system"),
        (torch.nn.Module, "__call__"),
        (torch.optim.Optimizer, "__init__"),
        (torch.autograd.graph, "_engine_run_backward"),
    )
    before = [getattr(owner, name) for owner, name in owners]
    for code in ("mp.spawn(train)", "train()", THREADS["Thread"]):
        with pytest.raises(InputError) if code != "train()" else monkeypatch.context():
            captured(tmp_path, code, monkeypatch)
        assert [getattr(owner, name) for owner, name in owners] == before
    assert threading.active_count() < 20 and subprocess.run([sys.executable, "-c", ""], check=False).returncode == 0
