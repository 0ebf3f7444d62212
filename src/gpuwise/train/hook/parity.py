"""Records losses and first gradients of a run, so that two runs of a script can be compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gpuwise.train.hook.generators import random_digest, reseed
from gpuwise.train.hook.settings import Parity
from gpuwise.train.hook.watch import Watch
from gpuwise.train.ticks import Tick

_save = torch.save


class ParityKeeper:
    """Writes the gradients of each optimizer's first step beside the journal, named by the parameters.

    The optimizer sees the gradients at that point: after unscaling, clipping and accumulation.
    """

    def __init__(self, settings: Parity, seed: int, watch: Watch, *, folder: Path, tell: Callable[..., None]) -> None:
        self._settings, self._seed, self._watch, self._tell, self._folder = settings, seed, watch, tell, folder
        self._seen_parameters: set[int] = set()
        self._n = 0
        self._states: list[dict[str, float]] = []

    @property
    def is_busy(self) -> bool:
        """Always False: it keeps no run going."""
        return False

    def close(self) -> None:
        """Does nothing; part of the observer interface."""

    def before_optimizer(self, optimizer: Any) -> None:
        """Write the gradients of the first step, and the norms of every step."""
        scale = getattr(optimizer, "grad_scale", None)
        factor = 1.0 if scale is None else 1.0 / float(scale)
        names = names_of(self._watch.roots)
        gradients: dict[str, torch.Tensor] = {}
        parameters: dict[str, torch.Tensor] = {}
        total = 0.0
        first = id(optimizer) not in self._seen_parameters
        for at, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
            if parameter.grad is None:
                continue
            gradient = parameter.grad.detach()
            gradient = (gradient.to_dense() if gradient.is_sparse else gradient).to(torch.float32) * factor
            total += float(torch.linalg.vector_norm(gradient, dtype=torch.float64)) ** 2  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
            if first:
                name = names.get(id(parameter), f"parameter {at}")
                gradients[name] = gradient.cpu()
                parameters[name] = parameter.detach().to("cpu", torch.float32)
        if first:
            number = len(self._seen_parameters)
            self._seen_parameters.add(id(optimizer))
            file = self._folder / f"gradients_{number}.pt"
            _save({"gradients": gradients, "parameters": parameters}, file)
            self._tell("gradients", optimizer=number, file=str(file), n=len(gradients))
        self._tell("norm", optimizer=type(optimizer).__name__, step=self._n, gradient_norm=total**0.5, random=random_digest())

    def on_tick(self, tick: Tick) -> None:
        """Reseed for the next step."""
        self._n += 1
        if self._settings.reseed:
            reseed(self._seed, self._n)


def names_of(roots: list[torch.nn.Module]) -> dict[int, str]:
    """Names of parameters by identity, without the prefixes of torch.compile and data parallelism."""
    names: dict[int, str] = {}
    for at, root in enumerate(roots):
        for name, parameter in root.named_parameters():
            plain = ".".join(
                part for part in name.split(".") if part not in ("_orig_mod", "module", "_checkpoint_wrapped_module")
            )
            names.setdefault(id(parameter), plain if at == 0 else f"{at}:{plain}")
    return names
