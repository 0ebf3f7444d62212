"""Lambda, MLPerf and vendor tables: assumptions, reasons and scores on a few typed rows."""

from pathlib import Path

import numpy as np
import pytest

from gpuwise.facts.hardware.naming import find_accelerator
from studies.published import lambda_training, mlperf
from studies.published.reference_transformers import arithmetic_format

COLUMNS = "round,benchmark,accelerator,n_accel,accel_per_node,gbs,grad_accum,seq,step_time_ms,time_to_train_min"
MLPERF = f"""{COLUMNS}
v5.0,resnet,NVIDIA L40S,8,8,2400,1,,161,50
v2.1,bert,NVIDIA A100-SXM4-80GB,8,8,448,1,,32,17
v4.0,dlrm_dcnv2,NVIDIA H100-SXM5-80GB,8,8,55296,1,,4,4
v2.1,bert,NVIDIA A100-SXM4-80GB,8,8,448,1,,,17
"""
EXAMPLES = """model,gpu,precision,section,batch_text,n_gpus,batch_per_gpu,seq_len,throughput
BERT,A100-80GB,tf32,Training,,1,16,,60
GNMT,A100-40GB,amp_fp16,Training,128,1,128,,100000
"""


def test_formats() -> None:
    assert arithmetic_format(find_accelerator("A100-SXM4-80GB"), "fp32") == "tf32"
    assert arithmetic_format(find_accelerator("V100-SXM2-16GB"), "fp32") == "fp32"
    assert arithmetic_format(find_accelerator("GTX 1080 Ti"), "amp_fp16") == "fp32"
    h100, b200 = (find_accelerator(n) for n in ("H100-SXM5-80GB", "B200-SXM"))
    assert mlperf.language_precision(h100, "llama31_8b", "v5.1") == "fp8"
    assert mlperf.language_precision(b200, "llama31_8b", "v5.1") == "nvfp4"
    assert mlperf.language_precision(b200, "llama2_70b_lora", "v5.0") == "fp8"


def test_mlperf(tmp_path: Path) -> None:
    assert mlperf.score(tmp_path, True) is None
    (tmp_path / "models").mkdir()
    (tmp_path / "models/mlperf_training.csv").write_text(MLPERF)
    (tmp_path / "models/deeplearningexamples.csv").write_text(EXAMPLES)
    scores = mlperf.score(tmp_path, False)
    assert scores is not None
    assert [bool(r) for r in scores.reason] == [True, False, True, True, False, True]
    assert "captured" in scores.reason[0]
    assert 0.0 < scores.predicted[1] < 1.0
    assert scores.predicted[4] == pytest.approx(1 / 60, rel=0.4)
    assert "captured" in scores.reason[5]


def test_lambda(tmp_path: Path) -> None:
    assert lambda_training.score(tmp_path, True) is None
    (tmp_path / "models").mkdir()
    (tmp_path / "models/lambda_training.csv").write_text(
        "gpu,task,precision,torch,suite,n_gpus,batch_per_gpu,throughput,seq\n"
        "RTX_A6000,bert_base_squad,amp_fp16,1.13,v1,1,80,160,\nRTX_A6000,bert_large_squad,fp32,1.9,v0,4,16,100,\n"
        "RTX_A6000,ncf,fp32,1.9,v0,1,128,100,\nRTX_A6000,bert_base_squad,fp32,1.9,v0,1,,100,\n"
    )
    scores = lambda_training.score(tmp_path, False)
    assert scores is not None
    assert [bool(r) for r in scores.reason] == [False, False, True, True]
    assert np.isfinite(scores.predicted[:2]).all() and set(scores.split) == {"check"}
