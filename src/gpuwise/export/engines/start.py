"""A tool's files, about to be started on every node by an engine."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpuwise.export.job import Job
from gpuwise.export.tool import Tool
from gpuwise.export.torchrun import SAVE_S
from gpuwise.export.written import Written

STORAGE = "/storage"
"""Persistent storage of containers: checkpoints, and data without a hub name."""


@dataclass(frozen=True, slots=True)
class Start:
    """``inner``: what ``tool`` wrote, with ``train.sh`` for every node."""

    job: Job
    tool: Tool
    inner: Written
    version: str
    """Version of the engine."""

    @property
    def title(self) -> str:
        return f"{self.version}: {self.job.arch.name} on {self.job.cluster.label}, by {self.tool.version}."

    @property
    def grace_s(self) -> int:
        """From the warning to the end: the step that is under way, then the checkpoint."""
        return math.ceil(2 * (self.job.step_time_s or 0)) + SAVE_S
