"""A task for SkyPilot, of the schema of 0.14.1: nodes of any cloud, a managed job that comes back after it lost them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuwise.export.engines import containers
from gpuwise.export.engines.start import STORAGE, Start
from gpuwise.export.job import Job
from gpuwise.export.torchrun import MOST_RESTARTS
from gpuwise.export.yaml import to_yaml

VERSION = "SkyPilot 0.14.1"
NAMES = {
    "a100-sxm-40gb": "A100",
    "a100-pcie-40gb": "A100",
    "a100-sxm-80gb": "A100-80GB",
    "a100-pcie-80gb": "A100-80GB",
    "a10": "A10",
    "a10g": "A10G",
    "a40": "A40",
    "b200-sxm": "B200",
    "gh200-96gb": "GH200",
    "h100-sxm-80gb": "H100",
    "h100-pcie-80gb": "H100",
    "h200-sxm-141gb": "H200",
    "l4": "L4",
    "l40": "L40",
    "l40s": "L40S",
    "rtx-4090": "RTX4090",
    "rtx-a6000": "A6000",
    "t4": "T4",
    "v100-sxm-16gb": "V100",
    "v100-sxm-32gb": "V100-32GB",
}
"""Names of ``sky show-gpus`` (docs.skypilot.co, GPUs and accelerators)."""


def gaps(job: Job) -> Iterator[str]:
    """Parts that SkyPilot cannot rent."""
    yield from containers.gaps(job)
    if job.cluster.accelerator.id not in NAMES:
        yield f"{job.cluster.accelerator.name}, for which it has no name"


def task(start: Start) -> dict[str, str]:
    """``sky jobs launch sky.yaml``."""
    of = start.job
    image = containers.image_of(of)
    assert image is not None
    resources = {
        "accelerators": {NAMES[of.cluster.accelerator.id]: of.gpus_per_node},
        "image_id": f"docker:{image.name}",
        "job_recovery": {"strategy": "EAGER_NEXT_REGION", "max_restarts_on_errors": MOST_RESTARTS},
    }
    task_spec: dict[str, Any] = {"name": of.name, "num_nodes": of.n_nodes, "resources": resources, "workdir": "."}
    task_spec["file_mounts"] = {STORAGE: {"source": "s3://BUCKET", "mode": "MOUNT_CACHED"}}
    task_spec["envs"] = {"HF_TOKEN": ""}
    if start.tool.setup:
        task_spec["setup"] = start.tool.setup
    task_spec["run"] = (
        'HEAD_NODE=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)\n'
        "export HEAD_NODE\n"
        "export NODE_RANK=$SKYPILOT_NODE_RANK\n"
        "exec ./train.sh\n"
    )
    return {"sky.yaml": to_yaml(task_spec, start.title)}


def notes(start: Start) -> tuple[str, ...]:
    """Settings that depend on the account."""
    bucket = f"s3://BUCKET stands for a bucket of yours; it is {STORAGE} on every node"
    return *containers.notes(start.job), bucket, "use_spot: true under resources takes machines that may be reclaimed"
