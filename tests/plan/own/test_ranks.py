"""A script that needs torchrun is captured as the first rank of the GPUs of --on, by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from gpuwise.plan.own.fit import fit_step
from gpuwise.plan.own.plan import plan_step
from gpuwise.plan.step.scaling import OWN
from gpuwise.workload.capture.errors import UserCodeError

BEGIN = """
import os
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

NET = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
"""
TRAINING = """
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(9):
    net(torch.randn(16, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SCRIPTS = {
    "DDP": 'rank = int(os.environ["LOCAL_RANK"])\ndist.init_process_group("nccl")\nnet = DDP(NET.to(rank), device_ids=[rank])',
    "FSDP": 'dist.init_process_group("nccl")\nnet = NET.cuda()\nfully_shard(net)',
    "default of 0": 'rank = int(os.environ.get("LOCAL_RANK", 0))\ndist.init_process_group()\nnet = DDP(NET.cuda())',
}
COLLECTIVES = {"DDP": {"allreduce_"}, "FSDP": {"_allgather_base_", "_reduce_scatter_base_"}, "default of 0": {"allreduce_"}}


def written(folder: Path, script: str) -> str:
    path = folder / "train.py"
    path.write_text(BEGIN + script + TRAINING)
    return str(path)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_of_torchrun_is_a_rank_of_the_gpus_asked_for(name: str, tmp_path: Path) -> None:
    plan = plan_step(written(tmp_path, SCRIPTS[name]), "4xh100-sxm")
    capture = plan.subject.capture
    sent = {s.op.split(".")[1] for s in capture.signatures if s.op.startswith("c10d")}
    assert capture.settings.world_size == 4 and COLLECTIVES[name] <= sent
    (row,) = plan.scaling
    assert (row.n, row.how) == (4, OWN) and row.samples_per_s == pytest.approx(4 * 16 / row.step_time_s.expected)


def test_a_rank_alone_and_a_script_without_ranks(tmp_path: Path) -> None:
    alone = fit_step(written(tmp_path, SCRIPTS["DDP"]), "4090").subject.capture
    assert alone.settings.world_size == 1 and any(s.op.startswith("c10d") for s in alone.signatures)
    several = fit_step(written(tmp_path, "net = NET.cuda()"), "4x4090").subject.capture
    assert several.settings.world_size == 1


def test_what_fails_as_a_rank_too_says_so(tmp_path: Path) -> None:
    script = 'dist.init_process_group("nccl")\nnet = NET.cuda()\nint(os.environ["RANK"] + "x")'
    with pytest.raises(UserCodeError) as error:
        fit_step(written(tmp_path, script), "4090")
    assert "as a rank of torchrun it fails too" in str(error.value.hint)
