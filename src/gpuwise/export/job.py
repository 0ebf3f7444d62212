"""Contents of a training run for another tool: model, GPUs, layout, length, checkpoints."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpuwise.errors import InputError
from gpuwise.facts.hardware.systems import Cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.workload.strategy import Strategy
from gpuwise.workload.tasks import Task, tasks

DATA = "DATA"
"""Placeholder in every file for the user's data set."""


def writes_model(arch: Architecture) -> bool:
    """Whether the tools' scripts train ``arch``: a decoder of text."""
    return arch.kind == "decoder" and arch.encoder is None and arch.patches is None


def divided(s: Strategy, *kinds: str) -> Iterator[str]:
    """The parallelism that the layout has of ``kinds`` (``tensor``, ``pipeline``, ``context``, ``expert``), in words."""
    degrees = {"tensor": s.tp, "pipeline": s.pp, "context": s.cp, "expert": s.ep}
    yield from (f"{kind} parallelism of {degrees[kind]}" for kind in kinds if degrees[kind] > 1)


@dataclass(frozen=True, slots=True)
class Job:
    """A run as planned. ``tokens``: number to train on, None for the tool's default number of steps."""

    arch: Architecture
    cluster: Cluster
    strategy: Strategy
    seq_len: int
    tokens: float | None = None
    save_every_s: float | None = None
    """Time between checkpoints (Young and Daly's, as planned)."""
    step_time_s: float | None = None
    """Predicted step time."""
    task: Task = field(default_factory=lambda: tasks()["pretrain"])
    data: str = DATA
    output: str = "out"
    packed: int | None = None
    """Mean length of the documents packed into a sequence, where attention stays inside them."""
    driver: str | None = None
    """NVIDIA's driver on the nodes; None: as new as the newest image requires."""

    def __post_init__(self) -> None:
        s, n = self.strategy, self.cluster.n_accelerators
        if s.n_accelerators != n:
            raise InputError(
                f"the plan's degrees make {s.n_accelerators} GPUs, and the cluster has {n}",
                hint="plan again for the GPUs that you have",
            )

    @property
    def gpus_per_node(self) -> int:
        return min(self.cluster.system.count, self.cluster.n_accelerators)

    @property
    def n_nodes(self) -> int:
        return self.cluster.n_systems

    @property
    def n_steps(self) -> int | None:
        """Optimizer steps of the whole run."""
        if self.tokens is None:
            return None
        return max(math.ceil(self.tokens / (self.strategy.global_batch * self.seq_len)), 1)

    @property
    def learning_rate(self) -> float:
        return self.task.learning_rate

    @property
    def save_every(self) -> int | None:
        """Steps between checkpoints, of which the last is at the end."""
        if self.save_every_s is None or self.step_time_s is None or not math.isfinite(self.save_every_s / self.step_time_s):
            return None
        every = max(round(self.save_every_s / self.step_time_s), 1)
        return every if self.n_steps is None else math.ceil(self.n_steps / max(round(self.n_steps / every), 1))

    @property
    def hub_id(self) -> str | None:
        """The checkpoint's name on the Hugging Face hub; None if unknown."""
        return next((a for a in self.arch.aliases if "/" in a), None)

    @property
    def model(self) -> str:
        """Model argument of a tool that loads a checkpoint."""
        return self.hub_id or "MODEL"

    @property
    def name(self) -> str:
        """Letters, digits and dashes: what Kubernetes and Slurm take as a name."""
        slug = "".join(c if c.isalnum() and c.isascii() else "-" for c in self.arch.id.lower())
        return "-".join(part for part in slug.split("-") if part)[:40].strip("-") or "model"
