"""Whole fp32 models of the NeuSight study: op lists against counted FLOP, times against its published
measurements."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpuwise.calibrate.neusight.models import eager_pass, parallel_seconds
from gpuwise.calibrate.neusight.ops import eager_ops, fused, parameters
from gpuwise.calibrate.neusight.score import score
from gpuwise.calibrate.neusight.tables import accelerator_of
from gpuwise.calibrate.validation import summarise
from gpuwise.errors import UnpredictableError
from gpuwise.facts.hardware.naming import find_accelerator

# Milliseconds, fp32 without TF32, eager, best 5 of 25 (Lee et al., ASPLOS 2025;
# github.com/sitar-lab/NeuSight, MIT).
PUBLISHED = [
    ("NVIDIA_A100-PCIE-40GB", "bert_large", "inference", 512, 8, 205.51),
    ("NVIDIA_A100-PCIE-40GB", "opt_13", "inference", 2048, 2, 987.86),
    ("Tesla_V100-PCIE-32GB", "gpt2_large", "training", 1024, 1, 576.92),
    ("Tesla_V100-PCIE-32GB", "bert_large", "training", 512, 8, 841.12),
    ("Tesla_P100-PCIE-16GB", "gpt2_large", "inference", 1024, 4, 1303.00),
    ("Tesla_T4", "opt_13", "inference", 2048, 2, 3889.72),
    ("AMD_Instinct_MI100", "gpt3_xl", "inference", 2048, 2, 1088.42),
]


@pytest.mark.parametrize(("gpu", "model", "mode", "seq", "batch", "milliseconds"), PUBLISHED)
def test_whole_models(gpu: str, model: str, mode: str, seq: int, batch: int, milliseconds: float) -> None:
    accelerator = accelerator_of(gpu)
    assert accelerator is not None
    time = eager_pass(accelerator, model, batch, seq, mode == "training")
    assert time.total_s * 1e3 == pytest.approx(milliseconds, rel=0.1)


@pytest.mark.parametrize(
    ("option", "seconds"), [("dp4", 0.4523), ("tp4", 0.4849), ("pp4_1", 1.5976)]
)  # GPT-2 large, batch 4, four A100 SXM 40 GB
def test_four_gpus(option: str, seconds: float) -> None:
    predicted = parallel_seconds(find_accelerator("a100-sxm-40gb"), "gpt2_large", 4, 1024, option)
    assert predicted == pytest.approx(seconds, rel=0.1)


def test_products_hold_the_flop_of_the_model() -> None:
    """6 P per token in training (2 forward, 4 backward), attention products apart; GPT-2 large has 774 M
    parameters."""
    assert parameters("gpt2_large") == pytest.approx(774e6, rel=0.01)
    ops = [o for o in eager_ops("gpt2_large", 2, 1024, True) if o.kind == "product" and not o.batched]
    flop = sum(2 * np.prod(o.shape) * o.count for o in ops)
    assert flop == pytest.approx(6 * parameters("gpt2_large") * 2048, rel=0.01)
    backward = sum(2 * np.prod(o.shape) * o.count for o in ops if o.backward)
    assert backward == pytest.approx(2 / 3 * flop, rel=1e-6)


def test_inference_has_no_backward_and_no_dropout() -> None:
    for model in ("bert_large", "gpt2_large", "opt_13", "switchxl4"):
        ops = eager_ops(model, 2, 256, False)
        assert not any(o.backward or o.pattern == "dropout" for o in ops)
        assert len(fused(ops)) < len(ops)
        assert sum(o.read + o.written for o in fused(ops)) <= sum(o.read + o.written for o in ops)


def test_unknown_models_and_machines_say_so() -> None:
    with pytest.raises(UnpredictableError):
        eager_ops("llama", 1, 128, False)
    with pytest.raises(UnpredictableError):
        parallel_seconds(find_accelerator("a100-sxm-40gb"), "gpt2_large", 4, 1024, "ep4")


def test_score_reads_the_published_layout(tmp_path: Path) -> None:
    assert score(tmp_path, False) is None
    (tmp_path / "models").mkdir()
    head = "gpu,model,mode,seq_len,batch,option,measured_ms,measured_fw_ms,measured_bw_ms,pred_neusight_ms"
    rows = [f"{g},{m},{d},{s},{b},,{t},{t},0,{t}" for g, m, d, s, b, t in PUBLISHED]
    rows.append("Imaginary_GPU,bert_large,inference,512,8,,100,100,0,100")
    (tmp_path / "models" / "neusight_e2e.csv").write_text("\n".join([head, *rows]) + "\n")
    scores = score(tmp_path, True)
    assert scores is not None
    assert set(scores.split) == {"check"}
    total = next(r for r in summarise("neusight", scores) if r.gpu is None)
    assert total.rows == len(rows)
    assert total.unpredicted == {"accelerator not in the catalogue": 1}
    assert total.mape is not None
    assert total.baseline_mape is not None
    assert total.mape < 0.06 < total.baseline_mape
