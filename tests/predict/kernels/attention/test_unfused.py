"""Attention that writes its scores: bytes, products, and how it compares with published eager attention."""

from __future__ import annotations

import pytest

from gpuwise.errors import InputError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.predict.kernels.attention.fused import attention_flop, attention_forward_time, attention_unfused_time, shape_of
from gpuwise.predict.kernels.attention.unfused import PASSES, products, score_bytes

SHAPE = (2, 1024, 1024, 16, 16, 64)


def test_products_hold_twice_and_four_times_the_flop_of_one() -> None:
    s = shape_of(*SHAPE, None, 0)
    one = attention_flop(1, 1024, 1024, 1, 64, None, False) / 2
    for phase, count in (("forward", 2), ("backward", 4)):
        assert sum(2 * m[0] * n[0] * k[0] for m, n, k in products(s, phase)) == count * one


def test_passes_move_the_bytes_they_say() -> None:
    s = shape_of(*SHAPE, None, 0)
    scores = 2 * 16 * 1024 * 1024
    moved = {
        key: sum(sum(float(x[0]) for x in score_bytes(s, p, 2.0)) for p in passes.values()) / scores
        for key, passes in PASSES.items()
    }
    assert moved == {
        ("forward", True): 4,
        ("backward", True): 6,
        ("forward", False): 20,
        ("backward", False): 28,
    }


@pytest.mark.parametrize(
    ("width", "phase", "published"),
    [
        (64, "forward", 72),
        (128, "forward", 133),
        (64, "backward", 92),
        (128, "backward", 174),
    ],
)
def test_standard_attention_on_h100_lies_between_the_two_forms(width: int, phase: str, published: float) -> None:
    """arXiv 2407.08608 figures 5 and 6, length 4096, 16k tokens, hidden 2048: fp16 softmax, scale folded into
    the product."""
    heads = 2048 // width
    flop = 4 * 4 * heads * width * 4096**2 * (2.5 if phase == "backward" else 1)
    fused, eager = (
        flop
        / attention_unfused_time(
            accelerators()["h100-sxm-80gb"],
            "bf16",
            4,
            4096,
            4096,
            heads,
            heads,
            width,
            causal=False,
            phase=phase,
            fused_softmax=f,
        ).time_s[0]
        / 1e12
        for f in (True, False)
    )
    assert eager < published < fused


def test_fused_kernels_beat_written_scores_and_dropout_costs() -> None:
    for name in ("a100-sxm-80gb", "h100-sxm-80gb", "l40s"):
        a = accelerators()[name]
        flash = attention_forward_time(a, "bf16", *SHAPE).time_s[0]
        plain, dropped = (attention_unfused_time(a, "bf16", *SHAPE, causal=True, dropout=d).time_s[0] for d in (False, True))
        assert flash < plain < dropped


def test_another_phase_is_refused() -> None:
    with pytest.raises(InputError):
        attention_unfused_time(accelerators()["h100-sxm-80gb"], "bf16", *SHAPE, causal=True, phase="sideways")
