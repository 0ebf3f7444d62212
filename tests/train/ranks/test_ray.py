"""The job that is written for Ray, run by Ray: two nodes in one process tree, a rank killed, the training gone on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuwise.cli.run.submit import files
from gpuwise.export.job import Job
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.train.ranks.layout import layout_of
from gpuwise.train.ranks.settings import RankSettings
from gpuwise.workload.strategy import Strategy

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
TASK = f"{Path(__file__).with_name('tasks.py')}:tokens"
STEPS = 30


def steps(out: Path, rank: int) -> list[dict[str, object]]:
    path = out / f"rank-{rank}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_ray_runs_two_nodes_and_a_killed_rank_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    strategy = Strategy(dp=2, sharding="zero3", precision="fp32", recompute="none", micro_batch=4, stack="eager-fsdp")
    job = Job(find_model("gpt2"), find_cluster("2x1xH100-SXM"), strategy, 128, output=str(tmp_path / "out"))
    settings = RankSettings(TASK, layout_of(strategy), job.output, ["n=80"], steps=STEPS, save_every=3)
    folder = tmp_path / "job"
    folder.mkdir()
    for name, text in files("ray", job, settings).files.items():
        (folder / name).write_text(text)
    # in place of the storage that all nodes mount
    written = json.loads((folder / "settings.json").read_text())
    assert written["out"].startswith("/storage/")
    (folder / "settings.json").write_text(json.dumps({**written, "out": str(tmp_path / "out")}))
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1, num_gpus=1)
        # what `ray job submit --working-dir .` sets for the driver
        environment = {
            **os.environ,
            "RAY_ADDRESS": cluster.address,
            "RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"runtime_env": {"working_dir": str(folder)}}),
            "OMP_NUM_THREADS": "1",
        }
        driver = subprocess.Popen(
            [sys.executable, "ray_job.py"], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        out, until = tmp_path / "out", time.monotonic() + 600
        while driver.poll() is None and time.monotonic() < until:
            if any(e["event"] == "step" and int(str(e["step"])) >= 8 for e in steps(out, 1)):
                os.kill(int(str(steps(out, 1)[0]["pid"])), signal.SIGKILL)
                break
            time.sleep(0.1)
        said = driver.communicate(timeout=300)[0].decode(errors="replace")
        assert driver.returncode == 0, said[-3000:]
        for rank in (0, 1):
            events = steps(out, rank)
            assert events[-1]["event"] == "end" and events[-1]["reason"] == "done" and events[-1]["step"] == STEPS
            # an agent whose own rank lives joins the next round without counting a restart
            assert any(e["event"] == "resumed" for e in events) and sum(e["event"] == "begin" for e in events) >= 2
    finally:
        cluster.shutdown()
