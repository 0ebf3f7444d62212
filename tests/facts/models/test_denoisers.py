"""The catalogue of image networks."""

from __future__ import annotations

import pytest

from gpuwise.errors import UnknownNameError
from gpuwise.facts.models.denoisers import denoisers, find_denoiser


def test_every_entry_is_within_what_such_networks_are() -> None:
    for one in denoisers().values():
        assert 1e8 < one.parameters < 1e11 and 2 <= one.evaluations <= 200
        assert one.bits == tuple(sorted(one.bits, reverse=True)) and one.device_bytes(4) < one.device_bytes(16)


def test_the_flop_of_a_transformer_follow_from_its_dimensions() -> None:
    """FLUX.1-dev: 57 blocks of width 3,072 over 4,608 tokens."""
    tokens, width, blocks = 4608, 3072, 57
    counted = blocks * (2 * 12 * width**2 * tokens + 4 * tokens**2 * width)
    assert find_denoiser("flux").flop == pytest.approx(counted, rel=0.02)


def test_names_are_found_in_any_case() -> None:
    assert find_denoiser("Stable Diffusion XL") == find_denoiser("SDXL")
    with pytest.raises(UnknownNameError):
        find_denoiser("dall-e")
