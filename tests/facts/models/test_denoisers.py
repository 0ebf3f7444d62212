"""The catalogue of image networks."""

from __future__ import annotations

import pytest

from gpuwise.errors import UnknownNameError
from gpuwise.facts.models.denoisers import denoisers, find_denoiser
from gpuwise.serve.passes.diffusion.networks import MODELS


def test_every_entry_is_within_what_such_networks_are() -> None:
    for one in denoisers().values():
        assert 1e8 < one.parameters < 1e11 and 1 <= one.evaluations <= 200
        assert one.bits == tuple(sorted(one.bits, reverse=True)) and one.device_bytes(4) < one.device_bytes(16)


def test_the_flop_of_a_transformer_follow_from_its_dimensions() -> None:
    """12 widths squared a token and block where the MLP is four wide (FLUX.1-dev: 57 blocks of width 3,072 over 4,608 tokens)."""
    for one in denoisers().values():
        if one.kind == "unet":
            continue
        net = MODELS[one.network]
        tokens = net.latents(one.pixels, one.width or one.pixels, one.frames) + net.text
        counted = net.layers * (2 * (4 * net.hidden**2 + 2 * net.hidden * net.width) * tokens + 4 * tokens**2 * net.hidden)
        assert one.flop == pytest.approx(counted, rel=0.03), one.id


def test_blocks_hold_most_of_the_published_parameters() -> None:
    """Double blocks have weights of their own for the prompt; the rest is modulation, and the embeddings of both ends."""
    for name, double in (("flux-2-dev", 8), ("flux-2-klein-4b", 5), ("flux-2-klein-9b", 8), ("qwen-image", 60), ("z-image", 0)):
        one, net = find_denoiser(name), MODELS[find_denoiser(name).network]
        blocks = (net.layers + double) * (4 * net.hidden**2 + 2 * net.hidden * net.width)
        modulated = 12 * net.hidden**2 * double if name == "qwen-image" else 0
        assert 0.9 < (blocks + modulated) / one.parameters < 1.01, name


def test_names_are_found_in_any_case() -> None:
    assert find_denoiser("Stable Diffusion XL") == find_denoiser("SDXL")
    with pytest.raises(UnknownNameError):
        find_denoiser("dall-e")
