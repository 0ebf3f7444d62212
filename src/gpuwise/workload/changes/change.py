"""A change by name and argument, and the lines of a person's code where changes are written. No torch here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Change:
    """One change to a training step. ``name`` is one of :data:`gpuwise.workload.changes.registry.CHANGES`."""

    name: str
    argument: object = None


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
    """Places in the step where changes are written, each the first one encountered."""

    forward: list[Site]
    """The call of each model, in order."""
    backward: Site | None = None
    optimizer: Site | None = None
    """Place where the first optimizer is created."""
    zero_grad: Site | None = None
    step: Site | None = None
    """The call of the first optimizer's ``step``."""
    loss: Site | None = None
    """The call of a cross entropy."""
    blocks: tuple[str, ...] = ()
    """Paths of the lists of repeated blocks, with the model's variable if known: ``model.transformer.h``."""
    block_types: tuple[str, ...] = ()
    """Class names of the repeated blocks that no list holds alone."""
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

    @property
    def has_blocks(self) -> bool:
        """Whether a model has repeated blocks."""
        return bool(self.blocks or self.block_types)

    @property
    def model(self) -> str:
        """The model's variable where it is called; ``model`` where none is in sight."""
        return self.forward[0].name if self.forward and self.forward[0].name else "model"

    @property
    def files(self) -> tuple[str, ...]:
        """Every file a site is in, each once."""
        sites = [*self.forward, self.backward, self.optimizer, self.zero_grad, self.step, self.loss]
        return tuple(dict.fromkeys(s.file for s in sites if s is not None))


NOWHERE = Sites([])
"""No places in the code are known."""
