"""Acme's additions to gpuwise. The folders facts, prices and stacks are read without importing this file."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwise.machine.doctor.finding import Finding, Fix, Severity
from gpuwise.machine.doctor.observation import Machine
from gpuwise.serve.engines.vllm import VLLM


def scratch_disk(machine: Machine) -> Iterator[Finding]:
    """Acme's jobs write checkpoints to /scratch."""
    if "/scratch" not in machine.resources.disks:
        yield Finding(
            "acme-no-scratch",
            Severity.NOTE,
            "/scratch is not mounted",
            (),
            "Jobs of Acme write their checkpoints there.",
            (Fix("Mount it", ("sudo mount /scratch",)),),
        )


class AcmeServe(VLLM):
    """Acme's build of vLLM: the same kernels and releases under another command."""

    name = "acme-serve"
    title = "Acme Serve"
    like = "vllm"


doctor_checks = (scratch_disk,)
engines = (AcmeServe(),)
