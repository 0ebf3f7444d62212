"""The batch script in a Slurm of one box: accepted for 200 plans, and told of its end it saves and comes back.

Needs root, and slurmctld, slurmd, slurm-client and munge of Debian 12.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuwise.errors import InputError
from gpuwise.export.job import Job
from gpuwise.export.targets import ENGINES, TOOLS, gaps_of, write
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.workload.strategy import Strategy

pytestmark = pytest.mark.slow
_NODES = 32
_CONF = """ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd%n.log
SlurmctldPort=26817
MpiDefault=none
ReturnToService=2
KillWait=3
GresTypes=gpu
SlurmdParameters=config_overrides
NodeName=n[0-{last}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[27000-{port}] CPUs=1 RealMemory=100 Gres=gpu:8
PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_SAVES = """#!/usr/bin/env bash
trap 'sleep 6; touch "saved.$NODE_RANK"; exit 1' TERM
echo "$HEAD_NODE" > "began.$NODE_RANK"
for _ in $(seq 600); do sleep 0.1; done
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a Slurm of 32 nodes with 8 GPUs each."""
    if os.geteuid() or not all(map(shutil.which, ("slurmctld", "slurmd", "sbatch", "munged"))):
        pytest.skip("no Slurm to start here")
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "state").mkdir()
    host = socket.gethostname()
    (folder / "slurm.conf").write_text(_CONF.format(host=host, folder=folder, last=_NODES - 1, port=27000 + _NODES - 1))
    devices = folder / "gpu[0-7]"
    for i in range(8):
        os.mknod(folder / f"gpu{i}", 0o020666, os.makedev(1, 3))
    (folder / "gres.conf").write_text(f"AutoDetect=off\nNodeName=n[0-{_NODES - 1}] Name=gpu File={devices}\n")
    env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    munge = None
    if subprocess.run("munge -n | unmunge", shell=True, capture_output=True, check=False).returncode:
        Path("/run/munge").mkdir(exist_ok=True)
        shutil.chown("/run/munge", "munge")
        munge = subprocess.Popen(["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "munged", "-F"])
        time.sleep(1)
    running = [subprocess.Popen(["slurmctld", "-D"], env=env)]
    running += [subprocess.Popen(["slurmd", "-D", "-N", f"n{i}"], env=env) for i in range(_NODES)]
    try:
        _until(lambda: _said(["sinfo", "-h", "-t", "idle", "-o", "%D"], env).strip() == str(_NODES), 300)
        yield env
    finally:
        subprocess.run(["scancel", "--user=root"], env=env, check=False)
        time.sleep(1)
        for process in reversed(running):
            process.terminate()
        for process in running:
            process.wait()
        if munge is not None:
            munge.terminate()
            munge.wait()


def _said(words: list[str], env: dict[str, str], folder: Path | None = None) -> str:
    done = subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def _until(true: Callable[[], bool], most_s: float) -> None:
    end = time.monotonic() + most_s
    while not true():
        assert time.monotonic() < end
        time.sleep(0.5)


def test_the_controller_takes_the_scripts(slurm: dict[str, str], jobs: Callable[..., Iterator[Job]], tmp_path: Path) -> None:
    read = 0
    for job in jobs("megatron-core", 900):
        if gaps_of(job, TOOLS["megatron"]) or job.n_nodes > _NODES:
            continue
        (tmp_path / "job.sbatch").write_text(write(job, TOOLS["megatron"], ENGINES["slurm"]).files["job.sbatch"])
        said = _said(["sbatch", "--test-only", "job.sbatch"], slurm, tmp_path)
        assert "to start at" in said, said
        read += 1
        if read == 200:
            break
    assert read == 200
    text = (tmp_path / "job.sbatch").read_text()
    for old, new, said in (("--nodes=", "--nodes=9", "not available"), ("--requeue", "--requeued", "unrecognized option")):
        (tmp_path / "job.sbatch").write_text(text.replace(old, new))
        assert said in _said(["sbatch", "--test-only", "job.sbatch"], slurm, tmp_path)


def test_told_of_its_end_a_job_saves_and_is_queued_again(slurm: dict[str, str], tmp_path: Path) -> None:
    job = Job(find_model("llama-3.1-8b"), find_cluster("2x8xH100-SXM"), Strategy(dp=16, sharding="zero1"), 4096)
    (tmp_path / "job.sbatch").write_text(write(job, TOOLS["megatron"], ENGINES["slurm"]).files["job.sbatch"])
    (tmp_path / "train.sh").write_text(_SAVES)
    (tmp_path / "train.sh").chmod(0o755)
    number = _said(["sbatch", "--parsable", "job.sbatch"], slurm, tmp_path).strip()
    _until(lambda: len(list(tmp_path.glob("began.*"))) == 2, 300)
    assert {(tmp_path / f"began.{i}").read_text() for i in range(2)} == {"n0\n"}
    time.sleep(1)
    _said(["scancel", "--batch", "--signal=USR1", number], slurm)
    _until(lambda: len(list(tmp_path.glob("saved.*"))) == 2, 300)
    _until(lambda: "JobState=PENDING" in _said(["scontrol", "show", "job", number], slurm), 300)
    assert "Restarts=1" in _said(["scontrol", "show", "job", number], slurm)


def test_a_plan_reads_the_nodes_that_are_there(slurm: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuwise.machine.schedulers._answers", dict[str, object]())
    monkeypatch.setenv("SLURM_CONF", slurm["SLURM_CONF"])
    with pytest.raises(InputError, match=f"partition p: {_NODES} nodes of 8 GPUs, whose type it does not state"):
        find_cluster("slurm:p")
