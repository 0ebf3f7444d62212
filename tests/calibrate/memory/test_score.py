"""Scoring measured jobs: what has analytic dimensions is predicted, everything is counted."""

from pathlib import Path

import numpy as np
import pytest

from gpuwise.calibrate.memory.score import (
    CAPTURE,
    EAGER,
    TRUNCATED,
    job_memory,
    largest_batch,
    mlp_bytes,
    score,
    vision_transformer,
)
from gpuwise.errors import UnpredictableError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.workload.transformer.parameters import count_parameters

A100 = find_cluster("1xA100-SXM4-40GB").system


def test_perceptron_by_hand() -> None:
    layers = [
        ("linear", 100, 10_100),
        ("batch_normalization", 100, 200),
        ("ReLU", 100, 0),
        ("dropout", 100, 0),
        ("linear", 10, 1010),
        ("Softmax", 10, 0),
    ]
    nothing = mlp_bytes([], 0, 0, A100.accelerator)
    found = mlp_bytes(layers, 100, 32, A100.accelerator) - nothing
    # 20 bytes a parameter; the input, the product before the norm, the activation, the dropout and its mask,
    # softmax
    assert found == 20 * 11_310 + 4 * 32 * (100 + 100 + 100 + 125 + 10)


def test_plain_vision_transformers_have_published_sizes() -> None:
    # timm results: ViT-B/16 86.57 M, ViT-L/16 304.33 M, DeiT-Ti 5.72 M parameters at 224
    for name, millions in (("vit_base_patch16_224", 86.57), ("vit_large_patch16_224", 304.33), ("deit_tiny_patch16_224", 5.72)):
        assert count_parameters(vision_transformer(name)).total / 1e6 == pytest.approx(millions, rel=1e-3)
    with pytest.raises(UnpredictableError, match="captured"):
        vision_transformer("vit_base_patch16_rope_reg1_gap_256")


def test_job_memory_grows_by_the_image() -> None:
    arch = vision_transformer("vit_base_patch16_224")
    sizes = [
        float(job_memory(arch, A100, EAGER.with_(micro_batch=b), arch.max_seq_len, eager_modules=True).allocated.flat[0])
        for b in (64, 128)
    ]
    # 12 layers x 197 tokens x fp32: norms, q k v and output, the MLP's two
    kept = 12 * 197 * (4 * (4 * 768 + 4 * 768 + 2 * 3072) + 4 * 12 + 2 * 8)
    assert (sizes[1] - sizes[0]) / 64 == pytest.approx(kept, rel=0.05)


def test_largest_batch_fits_and_one_more_half_does_not() -> None:
    where = find_cluster("1xRTX 3090").system
    arch = vision_transformer("vit_large_patch16_224")
    fused, unfused = (largest_batch(arch, where, fused=f) for f in (True, False))
    assert 64 <= unfused < 96 < fused  # timm benchmark, torch 1.12: 64 fits, 96 does not


def write(folder: Path, name: str, header: str, *lines: str) -> None:
    (folder / "memory").mkdir(exist_ok=True)
    (folder / "memory" / name).write_text("\n".join([header, *lines]) + "\n")


def test_every_row_is_counted(tmp_path: Path) -> None:
    header = "model,batch,measured_peak_GB,gpu,oom_suspect"
    write(
        tmp_path,
        "gpumemnet_timm_train.csv",
        header,
        "vit_base_patch16_224,64,10.7,A100 40GB,0",
        "resnet50,64,9.0,A100 40GB,0",
        "vit_base_patch16_224,512,39.9,A100 40GB,1",
    )
    write(tmp_path, "lambda_nvidia_smi_peaks.csv", "model,measured_peak_GB,gpu_system", "SSD,16.2,A4000")
    scores = score(tmp_path, False)
    assert scores is not None
    assert list(scores.reason) == ["", CAPTURE, TRUNCATED, "batch not stated"]
    assert np.isfinite(scores.predicted[0]) and np.isnan(scores.predicted[1:]).all()
    assert scores.predicted[0] == pytest.approx(10.7e9, rel=0.15)


def test_nothing_to_score(tmp_path: Path) -> None:
    assert score(tmp_path, False) is None
