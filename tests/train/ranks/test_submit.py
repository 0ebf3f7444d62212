"""``gpuwise run PLAN FILE.py:function --on ENGINE``: the files are handed to the engine's own command."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwise.cli.app import run
from gpuwise.export.job import Job
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.workload.strategy import Strategy

pytest.importorskip("torch")
TASK = f"{Path(__file__).with_name('tasks.py')}:tokens"
PROGRAMS = {"slurm": "sbatch", "ray": "ray", "k8s": "kubectl", "sky": "sky"}


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plan for two nodes, read without being made."""
    strategy = Strategy(dp=16, sharding="zero3", precision="bf16", recompute="none", stack="eager-fsdp")
    job = Job(find_model("llama-3.1-8b"), find_cluster("2x8xH100-SXM"), strategy, 4096, tokens=1e9, step_time_s=2.0)
    monkeypatch.setattr("gpuwise.plan.plan_file.read_job", lambda _: job)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "plan.json"


@pytest.mark.parametrize("on", PROGRAMS)
def test_the_engine_is_given_the_files(
    on: str, plan: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from gpuwise.train.ranks.settings import read_settings

    folder = plan.parent / "bin"
    folder.mkdir()
    program = folder / PROGRAMS[on]
    program.write_text('#!/bin/sh\npwd\necho "$@"\nexit 7\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    assert run(["run", str(plan), TASK, "--on", on, "--out", "job", "--set", "layers=4"]) == 7
    told = capfd.readouterr()
    assert told.out.splitlines()[0] == str(plan.parent / "job")
    assert Path(told.out.split()[-1]).name in {p.name for p in (plan.parent / "job").iterdir()}
    assert "tasks.py alone goes along" in told.err
    settings = read_settings(plan.parent / "job" / "settings.json")
    assert settings.target == "tasks.py:tokens" and settings.settings == ["layers=4"] and settings.layout.dp == 16
    assert (plan.parent / "job" / "tasks.py").read_text() == Path(TASK.split(":")[0]).read_text()
    assert "gpuwise.train.ranks.child settings.json" in (plan.parent / "job" / "train.sh").read_text().replace(" \\\n ", "")
    before = {p: p.read_bytes() for p in (plan.parent / "job").iterdir()}
    assert run(["run", str(plan), TASK, "--on", on, "--out", "job"]) == 2
    assert {p: p.read_bytes() for p in (plan.parent / "job").iterdir()} == before


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["plan.json", TASK, "--on", "slurm"], "sbatch is not on this machine", "--to slurm:torchrun"),
        (["plan.json", TASK, "--on", "mesos"], "unknown launcher", "slurm, ray, k8s, sky"),
        ([TASK, "--ranks", "2", "--on", "slurm"], "needs a plan", "gpuwise plan"),
    ],
)
def test_what_cannot_be_handed_over_is_refused(
    words: list[str], message: str, hint: str, plan: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert run(["run", *words]) == 2
    told = capsys.readouterr().err
    assert message in told and hint in told.split("hint:")[1]
    assert not (plan.parent / "gpuwise-run").exists()


def test_a_job_of_slurm_is_followed_by_its_journals(
    plan: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Stand-ins for Slurm's commands: the job writes what ranks write, and is in the queue until it has."""
    import sys

    folder = plan.parent / "bin"
    folder.mkdir()
    step = '{"event": "step", "step": %d, "at_s": 1.0, "step_s": 0.5, "data_s": 0.0, "wait_s": 0.0, "queue_s": 0.0, "loss": 2.5, '
    step += '"samples": 8, "epoch": 0, "position": 0, "collectives": {}, "memory_bytes": 1}'
    job = f"""
import pathlib, time
folder = pathlib.Path("out"); folder.mkdir()
files = [(folder / f"rank-{{r}}.jsonl").open("w") for r in range(16)]
for n in (1, 2, 3):
    for file in files:
        print({step!r} % n, file=file, flush=True)
    time.sleep(0.3)
for file in files:
    print('{{"event": "end", "reason": "done", "step": 3, "code": 0}}', file=file, flush=True)
pathlib.Path("gone").touch()
"""
    (folder / "job.py").write_text(job)
    (folder / "sbatch").write_text(
        f"#!/bin/sh\n{sys.executable} {folder}/job.py >/dev/null 2>&1 &\necho Submitted batch job 42\n"
    )
    (folder / "squeue").write_text(f"#!/bin/sh\n[ -e {plan.parent}/job/gone ] && exit 1\necho RUNNING\n")
    for program in folder.iterdir():
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr("gpuwise.cli.run.submit.POLL_S", 0.05)
    assert run(["run", str(plan), TASK, "--on", "slurm", "--follow", "--out", "job"]) == 0
    told = capfd.readouterr()
    assert "Submitted batch job 42" in told.out
    assert "step 3" in told.err and "loss 2.5" in told.err and "job 42 ended, step 3" in told.err
    assert run(["run", str(plan), TASK, "--on", "ray", "--follow", "--out", "other"]) == 2
    assert "does not report the progress of its jobs" in capfd.readouterr().err
