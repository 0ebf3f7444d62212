"""Vision transformers: FLOP against the figures torchvision publishes for 224 x 224 images (multiply-adds)."""

from __future__ import annotations

import pytest

from gpuwise.facts.models.catalogue import find_model
from gpuwise.workload.transformer.tables import model_flop_per_token

PUBLISHED = {"vit-b-16": 17.56e9, "vit-l-16": 61.55e9, "vit-h-14": 167.29e9}
"""torchvision.models ViT_B_16, ViT_L_16 and ViT_H_14 weights, field ``_ops`` (GFLOPS there are
multiply-adds)."""


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_multiply_adds_of_an_image(name: str) -> None:
    arch = find_model(name)
    assert arch.patches is not None
    per_image = model_flop_per_token(arch, arch.patches.n_tokens) * arch.patches.n_tokens
    # forward and backward are three forwards of two FLOP a multiply-add (less one product of the first layer)
    assert per_image / 6 == pytest.approx(PUBLISHED[name], rel=0.01)
