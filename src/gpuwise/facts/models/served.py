"""What can be served under a name: a model of text or sound, a CNN, or a network that makes images or videos."""

from __future__ import annotations

from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.catalogue import find_model
from gpuwise.facts.models.convnets import ConvNet, known_convnet
from gpuwise.facts.models.denoisers import Denoiser, find_denoiser, known_denoiser


def served_model(name: str, workload: str | None = None) -> Architecture | ConvNet | Denoiser:
    """The model of this ``name`` (for ``workload`` image or video, one that makes these). Raises UnknownNameError."""
    if workload in ("image", "video"):
        return find_denoiser(name, f"{workload}s")
    return known_convnet(name) or known_denoiser(name) or find_model(name)
