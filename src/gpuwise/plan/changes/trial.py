"""Changes tried on a person's own step: each by the effect on a captured step that the registry names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.plan.changes.remedy import Remedy, remedy_of
from gpuwise.plan.step.estimates import StepEstimate, measure, with_host_optimizer
from gpuwise.plan.step.source import StepSource
from gpuwise.workload.capture.captured import Capture
from gpuwise.workload.changes.change import Change, Sites
from gpuwise.workload.changes.registry import label

StepRemedy = Remedy[StepEstimate]


@dataclass(slots=True)
class Trial:
    """A step as it is, and what it is to be captured again with. ``failed`` gathers the changes that broke it, and how."""

    source: StepSource
    accelerator: Accelerator
    capture: Capture
    sites: Sites
    base: StepEstimate
    batch: int | None
    seq: int | None
    conf: str | None
    compiled: bool | None
    tell: Callable[[str], None]
    captures: int = 0
    of: int = 0
    """Captures to come, as far as is known."""
    failed: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def tried(self, changes: tuple[Change, ...]) -> StepRemedy | None:
        """The step under ``changes``; None if they act on nothing, or break it."""
        try:
            made = self.measured(changes)
        except GpuwiseError as error:
            self.failed.append((self.name(changes), error.message))
            return None
        except Exception as error:  # noqa: BLE001 (a user's step may raise anything under a change it was not written for)
            self.failed.append(
                (self.name(changes), f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
            )
            return None
        if made is None:
            return None
        remedy = remedy_of(changes, self.base, made[1], name=self.name(changes), lines=self.source.lines(changes, self.sites))
        return self._for_as_many_samples(remedy)

    def name(self, changes: tuple[Change, ...]) -> str:
        """The labels of the changes, a micro-batch by its size."""
        size = self.batch or 0
        return " + ".join(
            f"micro-batch {size // int(str(c.argument))}" if c.name == "micro_batches" and size else label(c) for c in changes
        )

    def measured(self, changes: tuple[Change, ...]) -> tuple[Capture, StepEstimate] | None:
        """The step captured under ``changes``, and its estimate; None if they act on nothing. Raises what the user's step raises
        under them."""
        by_effect: dict[object, list[Change]] = {}
        for change in changes:
            by_effect.setdefault(self.source.effect_of(change), []).append(change)
        conf = next((str(c.argument) for c in by_effect.get("allocator", ())), self.conf)
        compiled = True if "timing" in by_effect else self.compiled
        parts = next((int(str(c.argument)) for c in changes if c.name == "micro_batches"), 1)
        captured_changes, sizes = by_effect.get("captured", []), by_effect.get("batch", [])
        if not captured_changes and not sizes:
            estimate = measure(self.capture, self.accelerator, allocator_conf=conf, compiled=compiled)
            estimate = estimate if compiled != self.compiled else replace(estimate, time=self.base.time)
            return self.capture, self._of_one_rank(self.capture, estimate, by_effect, conf)
        batch = int(str(sizes[0].argument)) if sizes else None if self.source.is_script else self.batch
        self.captures += 1
        self.tell((f"[{self.captures}/{self.of}] " if self.captures <= self.of else "") + self.name(changes))
        capture, sites = self.source.captured(
            self.accelerator, None if batch is None else batch // parts, self.seq, tuple(captured_changes), parts
        )
        if captured_changes and not sites.touched:
            return None
        estimate = measure(capture, self.accelerator, allocator_conf=conf, compiled=compiled, micro_batches=parts)
        return capture, self._of_one_rank(capture, estimate, by_effect, conf)

    def _of_one_rank(
        self, capture: Capture, estimate: StepEstimate, by_effect: dict[object, list[Change]], conf: str | None
    ) -> StepEstimate:
        if not any(c.name == "offload_optimizer" for c in by_effect.get("ranks", ())):
            return estimate
        return with_host_optimizer(capture, self.accelerator, estimate, allocator_conf=conf)

    def _for_as_many_samples(self, remedy: StepRemedy) -> StepRemedy:
        """Judge a larger batch by the time for the same number of samples, not by its memory."""
        size = next((int(str(c.argument)) for c in remedy.changes if c.name == "batch"), None)
        if size is None or self.batch is None or remedy.slower is None:
            return remedy
        return replace(remedy, saved_bytes=0.0, slower=(remedy.slower + 1.0) * self.batch / size - 1.0)
