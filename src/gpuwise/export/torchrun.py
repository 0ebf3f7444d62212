"""The launcher inside a node: torchrun, one call a node, the same on every one (torch.distributed.run of PyTorch 2.7 to 2.13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuwise.export.job import Job
from gpuwise.export.written import Written, wrapped

PORT = 29500
FIRST = "is_host=$((NODE_RANK == 0))"
"""Whether this node serves the store at which all meet."""
MOST_RESTARTS = 3
"""Maximum restarts of all workers when one fails; each resumes from the last checkpoint. Rule of this project."""
SAVE_S = 240
"""Seconds for the last checkpoint after a signal, before the workers are killed: torchrun's agent allows 30. Rule of this
project."""

TF32 = {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}
"""Setting that allows TF32 for fp32 products in a tool without an option for it (PyTorch, aten/src/ATen/Context.cpp)."""


def host_threads(job: Job) -> list[str]:
    """``NAME=value`` of the threads for each rank's update on the host: by default its share of the host's. torchrun sets one
    (torch.distributed.run of PyTorch 2.7 to 2.13), with which 8 ranks on 2 processors took 17 s instead of 2
    (github.com/ISEEKYAN/Megatron-LM/issues/188). Empty for one rank, or if the device updates."""
    n = job.gpus_per_node
    part = f"$((($(nproc)+{n - 1})/{n}))"
    return [f"OMP_NUM_THREADS=${{OMP_NUM_THREADS:-{part}}}"] if n > 1 and job.strategy.offload_optimizer else []


def torchrun(job: Job) -> list[str]:
    """torchrun with its options, up to the script."""
    words = ["torchrun", "--nproc-per-node", str(job.gpus_per_node)]
    if job.n_nodes > 1:
        words += ["--nnodes", str(job.n_nodes), "--rdzv-backend", "c10d", "--rdzv-id", job.name]
        words += ["--rdzv-endpoint", f"$HEAD_NODE:{PORT}"]
        # torchrun uses the host's own name, which is a loopback address on many machines, and then no process serves the store
        words += ["--rdzv-conf", FIRST]
    else:
        words += ["--standalone"]
    return [*words, "--max-restarts", str(MOST_RESTARTS)]


def started(
    job: Job,
    version: str,
    words: Sequence[str],
    files: Mapping[str, str],
    notes: Sequence[str],
    variables: Mapping[str, str] | None = None,
    unset: Sequence[str] = (),
) -> Written:
    """``train.sh`` beside ``files``: the same on every node, which an engine starts with HEAD_NODE and NODE_RANK set. The
    command replaces the shell, so that a signal reaches it; torchrun passes it on and waits for the last checkpoint."""
    variables = {**(variables or {}), "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(SAVE_S)}
    head = ["#!/usr/bin/env bash", f"# {version}: {job.arch.name} on {job.cluster.label}."]
    if job.n_nodes > 1:
        # without it agents look for the store of the ranks that died (pytorch 2.7 to 2.13)
        variables["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        head[-1] += " Run on every node."
        head += [
            "set -euo pipefail",
            ': "${HEAD_NODE:?name or address of the first node}"',
            ': "${NODE_RANK:?0 on the first node}"',
        ]
    else:
        head += ["set -euo pipefail"]
    head += [f"unset {name}" for name in unset] + [f"export {name}={value}" for name, value in variables.items()]
    head += [f"export {setting}" for setting in host_threads(job)]
    text = "\n".join([*head, *wrapped(["exec", *words])]) + "\n"
    return Written(tuple(words), {**files, "train.sh": text}, variables, tuple(unset), tuple(notes))
