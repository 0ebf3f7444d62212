"""Training kernels: tiles, bytes, implementations, and the published table they are fitted to."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwise.errors import UnknownNameError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.predict.kernels.attention.fused import shape_of
from gpuwise.predict.kernels.attention.implementations import coefficients
from gpuwise.predict.kernels.attention.training import implementation, moved_bytes, tiles, training_time
from studies.attention.implementations import FITTED, read_published, takes_part


def test_tiles_of_a_causal_call_are_those_on_and_below_the_diagonal() -> None:
    for blocks in (1, 2, 7, 32):
        n, m, longest = tiles(shape_of(1, 128 * blocks, 128 * blocks, 1, 1, 64, None, 0), causal=True)
        assert (n[0], m[0], longest[0]) == (blocks * (blocks + 1) / 2, blocks, blocks)
        assert tiles(shape_of(1, 128 * blocks, 128 * blocks, 1, 1, 64, None, 0), causal=False)[0][0] == blocks**2


def test_a_window_leaves_a_band() -> None:
    n, _, longest = tiles(shape_of(1, 16384, 16384, 1, 1, 64, None, 1024), causal=True)
    assert longest[0] == 9 and n[0] == 128 * 9


def test_forward_bytes_are_q_k_v_and_output() -> None:
    s = shape_of(2, 1000, 3000, 8, 2, 64, 32, 0)
    q, k, v, o = 2 * 1000 * 8 * 64, 2 * 3000 * 2 * 64, 2 * 3000 * 2 * 32, 2 * 1000 * 8 * 32
    assert moved_bytes(s, 2.0, backward=False)[0] == 2 * (q + k + v + o)
    assert moved_bytes(s, 2.0, backward=True)[0] > 2.5 * moved_bytes(s, 2.0, backward=False)[0]


def test_names_stand_for_what_the_family_has() -> None:
    h100, a100 = accelerators()["h100-sxm-80gb"], accelerators()["a100-sxm-80gb"]
    found = {n: implementation(h100, n) for n in (None, "flash", "fa2", "fa3", "cudnn")}
    assert [f.name for f in found.values() if f] == ["fa3", "fa3", "fa2", "fa3", "cudnn"]
    older = implementation(a100, "fa3")
    assert older is not None and older.name == "fa2"
    assert implementation(accelerators()["mi300x"], None) is None
    with pytest.raises(UnknownNameError):
        implementation(h100, "flesh")


def test_flash_attention_2_is_slower_than_3_on_hopper() -> None:
    h100, s = accelerators()["h100-sxm-80gb"], shape_of(2, 8192, 8192, 16, 16, 128, None, 0)
    for backward in (False, True):
        slow, fast = (training_time(h100, "bf16", s, causal=True, kernel=k, backward=backward).time_s[0] for k in ("fa2", "fa3"))
        assert 1.4 < slow / fast < 2.1


def errors(rows: list[object]) -> np.ndarray:
    found = []
    for r in rows:
        t = training_time(  # type: ignore[attr-defined]
            r.accelerator,
            r.dtype,
            r.shape,
            causal=r.causal,
            kernel=r.implementation,
            backward=r.phase == "backward",
        )
        found.append(abs(t.time_s[0] / r.seconds - 1))
    return np.array(found)


def test_published_figures_are_met_on_rows_that_took_part_and_on_those_that_did_not() -> None:
    """Other devices of a family (GB300, H20, H200), other precision and other versions were kept from the
    fit."""
    rows = [r for r in read_published() if r.implementation in FITTED.get(r.accelerator.family, {})]
    fit = [r for r in rows if takes_part(r)]
    assert len(fit) > 200 and errors(fit).mean() < 0.06
    gb300 = [r for r in rows if r.accelerator.id == "gb300" and r.dtype == "bf16" and not r.shape.window[0]]
    assert len(gb300) >= 40 and errors(gb300).mean() < 0.1
    h200 = [r for r in rows if r.accelerator.id == "h200-sxm-141gb" and r.implementation == "fa2"]
    assert len(h200) == 20 and errors(h200).mean() < 0.1


def test_every_published_row_has_a_source_and_every_share_is_sane() -> None:
    assert all(r.source and r.seconds > 0 for r in read_published())
    for family in coefficients()["training"]["families"].values():
        for row in family["by_name"].values():
            for part in ("forward", "backward"):
                assert all(0.1 < s < 1.15 for s in row[part]["share"]) and row[part]["widths"] == sorted(row[part]["widths"])


@pytest.mark.parametrize("gpu", ["h100-sxm-80gb", "a100-sxm-80gb"])
def test_flash_attention_runs_heads_in_its_next_wider_size(gpu: str) -> None:
    """flash-attention is compiled for heads of 32, 64, 96, 128, 192 and 256: 72 (PixArt) and 88 (Hunyuan-DiT) run as 96."""
    accelerator = accelerators()[gpu]

    def seconds(head_dim: int) -> float:
        shape = shape_of(32, 4096, 4096, 16, 16, head_dim, None, 0)
        return float(training_time(accelerator, "bf16", shape, causal=False, kernel="fa2", backward=False).time_s[0])

    assert seconds(72) == pytest.approx(seconds(96), rel=0.01) == pytest.approx(seconds(88), rel=0.01)
    assert seconds(64) < 0.85 * seconds(72)
