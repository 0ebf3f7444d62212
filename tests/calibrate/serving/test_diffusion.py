"""Diffusion transformers: their rows against what PyTorch was seen to launch, and how a generation's seconds add up."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwise.calibrate.serving.diffusion import generations
from gpuwise.serve.passes.diffusion.generation import Generation
from gpuwise.serve.passes.diffusion.networks import MODELS, decoder_table, spread_table, step_table
from gpuwise.workload.row_codes import Kind

FLUX, PIXART, SANA = (
    "black-forest-labs/FLUX.1-dev",
    "PixArt-alpha/PixArt-Sigma-XL-2-1024-MS",
    "Efficient-Large-Model/SANA1.5_1.6B_1024px_diffusers",
)


def columns(**changed: object) -> dict[str, np.ndarray]:
    row: dict[str, object] = {
        "task": "text-to-image",
        "gpu_model": "H100",
        "model_id": FLUX,
        "batch_latency_s": 1.0,
        "batch_size": 1.0,
        "inference_steps": 50.0,
        "num_gpus": 1.0,
        "ulysses_degree": 1.0,
        "ring_degree": 1.0,
        "height": 1024.0,
        "width": 1024.0,
        "num_frames": np.nan,
        **changed,
    }
    return {k: np.array([v]) for k, v in row.items()}


def one(**changed: object) -> Generation:
    parts, reasons = generations(columns(**changed))
    assert reasons == [""]
    assert parts[0] is not None
    return parts[0]


@pytest.mark.parametrize(
    ("name", "tokens", "batch", "gigabytes"),
    [
        # bytes of the kernels that wait for memory, of one pass captured with diffusers 0.42.1 (gpuwise.capture) at 1024 x 1024
        (FLUX, 4608, 1, 143.9),
        (PIXART, 4096, 2, 19.73),
        (SANA, 1024, 2, 26.16),
    ],
)
def test_chains_move_the_bytes_that_were_captured(name: str, tokens: int, batch: int, gigabytes: float) -> None:
    table = step_table(MODELS[name], batch, tokens)
    moving = table.kind == Kind.MEMORY
    moved = ((table.bytes_read + table.bytes_written) * table.count)[moving].sum()
    assert moved / 1e9 == pytest.approx(gigabytes, rel=0.03)


def test_the_image_decoders_have_their_convolutions() -> None:
    """9.89 and 8.07 TFLOP for 1024 x 1024, captured with diffusers 0.42.1."""
    for name, tera in ((FLUX, 9.89), (SANA, 8.07)):
        decoder = MODELS[name].decoder
        assert decoder is not None
        table = decoder_table(decoder, 1, 1024, 1024)
        assert table.flop[table.kind == Kind.CONVOLUTION] @ table.count[table.kind == Kind.CONVOLUTION] / 1e12 == pytest.approx(
            tera, rel=0.02
        )


def test_a_step_is_as_often_run_as_there_are_steps() -> None:
    few, many = one(inference_steps=25.0), one()
    assert many.matmul_s == pytest.approx(2 * few.matmul_s)
    assert many.memory_s == pytest.approx(2 * few.memory_s)
    assert many.decode_s == few.decode_s


def test_a_prompt_that_does_not_divide_is_on_every_device() -> None:
    """Stable Diffusion 3.5 has 333 tokens of prompt, FLUX 512: two devices halve FLUX's products and not the other's."""
    even, odd = (
        [one(model_id=m, num_gpus=n, ulysses_degree=n, batch_size=16.0).matmul_s for n in (1.0, 2.0)]
        for m in (FLUX, "stabilityai/stable-diffusion-3.5-large")
    )
    assert even[1] / even[0] == pytest.approx(0.5, abs=0.02)
    assert odd[1] / odd[0] > 0.52


def test_spreading_tokens_costs_copies() -> None:
    model = MODELS[FLUX]
    alone, heads, ring = (spread_table(model, 1, 512, *degrees) for degrees in ((1, 1), (8, 1), (1, 8)))
    assert len(alone) == 0
    assert (heads.bytes_read * heads.count).sum() == 8 * 2 * 512 * model.hidden * model.layers
    assert (ring.bytes_written * ring.count).sum() > (heads.bytes_written * heads.count).sum()
