"""The launcher inside a node: torchrun, one call a node, the same on every one (torch.distributed.run of PyTorch 2.7 to 2.13)."""

from __future__ import annotations

from gpuwise.export.job import Job

PORT = 29500
MOST_RESTARTS = 3
"""Of all workers, when one of them dies; each goes on from the last checkpoint. Rule of this project."""


def torchrun(job: Job, nodes: str | None = None, head: str = "$HEAD_NODE", rank: str | None = None) -> list[str]:
    """torchrun with its options, up to the script. ``nodes``: their number as text, where a scheduler knows it."""
    words = ["torchrun", "--nproc-per-node", str(job.gpus_per_node)]
    if job.n_nodes > 1 or nodes is not None:
        words += ["--nnodes", nodes or str(job.n_nodes)]
        if rank is not None:
            words += ["--node-rank", rank, "--master-addr", head, "--master-port", str(PORT)]
        else:
            words += ["--rdzv-backend", "c10d", "--rdzv-id", job.name, "--rdzv-endpoint", f"{head}:{PORT}"]
    else:
        words += ["--standalone"]
    return [*words, "--max-restarts", str(MOST_RESTARTS)]
