"""Changes one can make to a training step without rewriting it, by name. No torch here.

:mod:`gpuwise.workload.capture.changes.contexts` makes them while a step is captured, so that what they save is captured
and not assumed; :mod:`gpuwise.plan.changes.step_remedies` chooses among them and says how to write them.
"""

from __future__ import annotations

from dataclasses import dataclass

CHANGES: tuple[str, ...] = (
    "autocast",
    "tf32",
    "accumulate",
    "checkpoint",
    "fused",
    "for-loop",
    "adam8bit",
    "sgd",
    "set-to-none",
    "channels-last",
    "step-in-backward",
    "offload-states",
    "lora",
    "low-precision",
    "sdpa",
    "chunked-loss",
    "no-benchmark",
    "optimizer",
    "zero-after-step",
    "free-outputs",
)
"""``autocast`` (argument: format), ``accumulate`` (micro-batches), ``checkpoint`` (module paths; none: every repeated
block), ``lora`` (rank), ``low-precision`` (format of the weights), ``chunked-loss`` (chunks), ``optimizer`` (its name)."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change and its argument."""

    kind: str
    argument: object = None

    def __post_init__(self) -> None:
        assert self.kind in CHANGES, self.kind


@dataclass(frozen=True, slots=True)
class Site:
    """A line of the user's own code."""

    file: str
    line: int
    source: str
    """The line itself, with its indentation; empty if it cannot be read."""
    name: str = ""
    """The variable that holds the thing on this line (``model``, ``optimizer``); empty if none is in sight."""

    @property
    def where(self) -> str:
        """``train.py:31``."""
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line}"


@dataclass(slots=True)
class Sites:
    """Where a step does what changes are written at, each the first place met."""

    forward: list[Site]
    """The call of each model, in order."""
    backward: Site | None = None
    optimizer: Site | None = None
    """Where the first optimizer is made."""
    zero_grad: Site | None = None
    step: Site | None = None
    """The call of the first optimizer's ``step``."""
    loss: Site | None = None
    """The call of a cross entropy."""
    blocks: tuple[str, ...] = ()
    """Paths of the repeated blocks, with the model's variable where it is known: ``model.transformer.h``."""
    large_linear: str = ""
    """Path of the widest linear layer (the head over a vocabulary)."""
    n_linear: int = 0
    n_conv: int = 0
    optimizers: tuple[str, ...] = ()
    """Class names, as constructed."""
    zero_grad_keeps: bool = False
    """``zero_grad(set_to_none=False)`` was called."""
    touched: int = 0
    """Modules, parameters or calls that the changes acted on; 0: nothing to act on."""
    problem: str = ""
    """Why a change could not be made."""
