"""A step that can be captured again: at another batch, for another card, with changes made to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.workload.capture.captured import Capture
from gpuwise.workload.capture.errors import UserCodeError
from gpuwise.workload.changes.change import Change, Sites
from gpuwise.workload.changes.diff import snippet
from gpuwise.workload.changes.registry import kind_of

PRECISIONS: Mapping[str, tuple[Change, ...]] = {
    "as-is": (),
    "bf16": (Change("autocast", "bf16"),),
    "fp16": (Change("autocast", "fp16"),),
    "fp32": (Change("autocast", "fp32"), Change("tf32", False)),
    "tf32": (Change("tf32", True),),
}
"""Changes to the step for each requested precision."""


class StepSource(Protocol):
    """What makes a step: own code (:class:`Source`), or a shipped table (:mod:`gpuwise.plan.own.named`)."""

    @property
    def name(self) -> str: ...
    @property
    def options(self) -> Mapping[str, Any]: ...
    @property
    def is_script(self) -> bool: ...
    @property
    def notes(self) -> tuple[str, ...]: ...
    def effect_of(self, change: Change) -> object: ...
    def lines(self, changes: Sequence[Change], sites: Sites) -> tuple[str, ...]: ...
    def lighter(self, accelerator: Accelerator) -> tuple[tuple[Change, ...], ...] | None: ...
    def captured(
        self, accelerator: Accelerator, batch: int | None, seq: int | None = None, changes: Sequence[Change] = (), parts: int = 1
    ) -> tuple[Capture, Sites]: ...


@dataclass(frozen=True, slots=True)
class Source:
    """``subject`` is a ``Target`` or what :func:`gpuwise.capture` takes; ``options`` are passed on to the capture."""

    subject: Any
    name: str
    changes: tuple[Change, ...] = ()
    """Changes applied in every capture: the requested precision."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    ranks: int = 1
    """How many there are of a program that runs as a rank of torchrun."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Assumptions: none beside what the code has."""
        return ()

    @property
    def is_script(self) -> bool:
        """Whether it is a whole script, which has its sizes from its own command line."""
        return bool(getattr(self.subject, "is_script", False))

    def effect_of(self, change: Change) -> object:
        """How a step shows ``change``: the registry's effect, or why there is none."""
        return kind_of(change).step

    def lines(self, changes: Sequence[Change], sites: Sites) -> tuple[str, ...]:
        """Lines of code that make the changes."""
        return snippet(changes, sites)

    def lighter(self, accelerator: Accelerator) -> tuple[tuple[Change, ...], ...] | None:
        """Changes that may take less memory; None where the capture has to show them."""
        return None

    def captured(
        self, accelerator: Accelerator, batch: int | None, seq: int | None = None, changes: Sequence[Change] = (), parts: int = 1
    ) -> tuple[Capture, Sites]:
        """The step at ``batch`` and ``seq`` for ``accelerator``; of a whole script, that have no ``batch``, with its loaders'
        batches cut in ``parts``. A program that needs torchrun is captured as the first of ``ranks``. Raises the user's own
        exceptions, and InputError."""
        from gpuwise.workload.capture.rerun import captured_with

        def run(**more: Any) -> tuple[Capture, Sites]:
            own = (*self.changes, *changes), parts if self.is_script else 1
            return captured_with(
                self.subject, *own, batch=batch, seq=seq, capability=capability_of(accelerator), **{**self.options, **more}
            )

        try:
            return run()
        except UserCodeError as error:
            if not error.is_ranks:
                raise
        return run(world_size=self.ranks)


def capability_of(accelerator: Accelerator) -> tuple[int, int]:
    """The compute capability kernels are chosen by; a card without one is taken as 8.0, with every fused kernel."""
    major, _, minor = (accelerator.compute_capability or "8.0").partition(".")
    return int(major), int(minor or 0)
