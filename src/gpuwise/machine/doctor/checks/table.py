"""The table of checks in the order of causes: earlier findings explain later ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gpuwise.facts.plugins import plugin_attributes
from gpuwise.machine.doctor.checks import boards as check_boards
from gpuwise.machine.doctor.checks import cards as check_cards
from gpuwise.machine.doctor.checks import companions as check_companions
from gpuwise.machine.doctor.checks import compilers as check_compilers
from gpuwise.machine.doctor.checks import container as check_container
from gpuwise.machine.doctor.checks import driver as check_driver
from gpuwise.machine.doctor.checks import frameworks as check_frameworks
from gpuwise.machine.doctor.checks import host as check_host
from gpuwise.machine.doctor.checks import libraries as check_libraries
from gpuwise.machine.doctor.checks import nodes as check_nodes
from gpuwise.machine.doctor.checks import paths as check_paths
from gpuwise.machine.doctor.checks import torch as check_torch
from gpuwise.machine.doctor.checks import xids as check_xids
from gpuwise.machine.doctor.finding import Finding, Severity, Verdict
from gpuwise.machine.doctor.observation import Machine

Check = Callable[[Machine], Iterable[Finding]]

CHECKS: tuple[Check, ...] = (
    # the way to the card
    check_driver.wsl,
    check_host.c_library,
    check_container.in_a_virtual_machine,
    check_container.no_gpu,
    check_container.lost_gpu,
    check_container.capabilities,
    check_container.toolkit_of_wsl,
    check_libraries.nvml,
    check_driver.mismatch,
    check_driver.not_loaded,
    check_driver.at_thunderbolt,
    check_driver.no_card,
    check_driver.outdated,
    check_driver.card_not_served,
    check_driver.without_driver,
    check_driver.reserved_cards,
    check_nodes.nodes,
    check_nodes.amd_nodes,
    check_nodes.other_nodes,
    check_cards.lost_devices,
    check_cards.unreachable_devices,
    check_cards.silent_devices,
    check_cards.missing_devices,
    check_nodes.fabric,
    check_nodes.imex,
    check_cards.instances,
    # the way from a program to the driver
    check_container.visible_devices,
    check_boards.visible_devices,
    check_container.wrong_libcuda,
    check_libraries.cuda,
    check_host.interpreter,
    check_host.instructions,
    check_torch.ollama_driver,
    check_torch.wheel_kind,
    check_boards.jetson,
    check_boards.intel,
    check_boards.intel_runtime,
    check_boards.metal,
    check_boards.amd_of_wsl,
    check_boards.vulkan,
    check_boards.amd_node,
    check_boards.override,
    check_boards.amd_architecture,
    check_boards.ollama_architecture,
    check_torch.driver_age,
    check_torch.card_served,
    check_torch.duplicate_torch,
    check_torch.shadowed_torch,
    check_torch.older_runtime,
    check_frameworks.broken_frameworks,
    check_nodes.uvm,
    check_frameworks.jax,
    check_frameworks.tensorflow,
    check_frameworks.cupy,
    check_frameworks.llama_cpp,
    check_frameworks.runs,
    check_frameworks.sees_none,
    check_companions.companions,
    check_companions.onnxruntimes,
    check_companions.onnxruntime_cuda,
    check_companions.ctranslate2,
    check_companions.required_torch,
    check_companions.other_imports,
    check_companions.numpy,
    check_compilers.compiler,
    check_compilers.assembler,
    check_compilers.flashinfer,
    check_compilers.toolkit_age,
    check_frameworks.toolkit,
    # what makes it slow or short-lived
    check_cards.recovery,
    check_cards.memory,
    check_xids.xid_log,
    check_cards.clock_limits,
    check_cards.link,
    check_cards.pcie_errors,
    check_cards.vgpu_license,
    check_paths.iommu,
    check_paths.acs,
    check_container.shared_memory,
    check_container.docker,
    check_container.left_over_settings,
    check_host.killed,
    check_host.execution,
    check_host.limits,
    check_host.disks,
    check_host.clock,
    check_host.notes,
)

_ORDER = (Severity.BLOCKER, Severity.LIMIT, Severity.NOTE)


def examine(machine: Machine, checks: Iterable[Check] | None = None) -> tuple[Finding, ...]:
    """The findings of all checks, or of these, most severe first and causes before others; consequences of a finding are
    omitted."""
    every = (*CHECKS, *plugin_attributes("doctor_checks")) if checks is None else checks
    findings = [finding for check in every for finding in check(machine)]
    # of two that would hide each other the first stays
    causes = [
        f
        for at, f in enumerate(findings)
        if not any(_hides(g, f) and not (_hides(f, g) and at < by) for by, g in enumerate(findings))
    ]
    return tuple(sorted(causes, key=lambda f: _ORDER.index(f.severity)))


def _hides(cause: Finding, other: Finding) -> bool:
    """Whether ``cause`` lists ``other`` as its consequence; ``*`` at either end of a word matches anything."""
    return any(
        other.id.startswith(word[:-1])
        if word.endswith("*")
        else other.id.endswith(word[1:])
        if word.startswith("*")
        else other.id == word
        for word in cause.hides
        if other.id != cause.id
    )


def verdict_of(findings: Iterable[Finding]) -> Verdict:
    """Not ready with any blocker, ready with limits with any limit, else ready."""
    severities = {f.severity for f in findings}
    if Severity.BLOCKER in severities:
        return Verdict.NOT_READY
    return Verdict.LIMITS if Severity.LIMIT in severities else Verdict.READY
