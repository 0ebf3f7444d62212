"""A batch script for Slurm, tested as two nodes on one machine (Slurm 22.05): before the time limit the nodes receive a
signal, save, and the job is requeued."""

from __future__ import annotations

from gpuwise.export.engines.start import Start

VERSION = "Slurm 22.05"


def batch(start: Start) -> dict[str, str]:
    """``sbatch job.sbatch``.

    USR1 reaches the batch script alone (``B:``), which has ``scancel`` send SIGTERM to the step: a TERM to ``srun`` itself, and
    ``scontrol requeue``, would kill the step after KillWait, before it has saved. A trap interrupts ``wait``, hence two.
    """
    of = start.job
    whole = of.gpus_per_node == of.cluster.system.count
    options = [f"job-name={of.name}", f"nodes={of.n_nodes}", "ntasks-per-node=1", f"gpus-per-node={of.gpus_per_node}"]
    options += ["exclusive", "mem=0"] if whole else []
    options += [f"signal=B:USR1@{start.grace_s}", "requeue", "open-mode=append", "output=%x-%j.out"]
    more = """set -uo pipefail
HEAD_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export HEAD_NODE
told=
trap 'told=1; scancel --signal=TERM "$SLURM_JOB_ID"' USR1
srun --kill-on-bad-exit=0 --cpu-bind=none bash -c 'NODE_RANK=$SLURM_NODEID exec ./train.sh' &
step=$!
wait "$step"
ended=$?
if [ -n "$told" ]; then
  wait "$step"
  ended=$?
  [ "$ended" -eq 0 ] || scontrol requeue "$SLURM_JOB_ID"
fi
exit "$ended"
"""
    head = ["#!/usr/bin/env bash", f"# {start.title}", *(f"#SBATCH --{option}" for option in options)]
    return {"job.sbatch": "\n".join(head) + "\n" + more}


def notes(start: Start) -> tuple[str, ...]:
    """Settings that depend on the site."""
    lines = ["add --partition, --account and --time as your site has them; the folder is one that every node sees"]
    if start.job.gpus_per_node < start.job.cluster.system.count:
        lines.append("a part of a node: add --cpus-per-gpu and --mem-per-gpu")
    return (f"{start.tool.version} has to be on the nodes: {start.tool.setup}", *lines)
