"""Published loads of SGLang, TensorRT-LLM and vLLM's first engine as runs to replay."""

from pathlib import Path

import numpy as np
import pytest

from gpuwise.calibrate.serving.engine_loads import read_engine_runs, score_engine_runs
from gpuwise.calibrate.serving.load import replay
from gpuwise.serve.engines.costs import EngineCosts
from gpuwise.serve.simulate.front import Front
from studies.serving.engine_fit import STEP, throughput

COLUMNS = (
    "source,engine,engine_version,model,gpu,dtype,arrival,chunked,saturated,spec_decode,notes,tp,request_rate,concurrency,n_requests,"
    "input_len_mean,output_len_mean,max_num_seqs,max_num_batched_tokens,gpu_mem_util,req_s,"
    "ttft_mean_s,ttft_p50_s,tpot_mean_s,tpot_p50_s,e2e_mean_s,e2e_p50_s\n"
)
APEX = "microsoft/apex_plus,vllm,0.6.0 (V0 engine),meta-llama/Meta-Llama-3.1-70B,H100 SXM5 80GB,bf16,Poisson"
SMALL = "sgl-project/sglang,{},meta-llama/Llama-3.1-8B-Instruct,A100 SXM4 80GB,bf16,Poisson"
TABLES = {
    "apex_plus_h100.csv": f"{APEX},,,,one replica,4,0.5,,100,74,81,,,0.97,,0.0394,,0.0203,,1.652,\n",
    "sglang_small_tables.csv": f"{SMALL.format('sglang,0.3.0')},,,,,1,4,,300,,,,,,,,0.032,,0.0132,,1.564\n"
    f"{SMALL.format('vllm,0.6.0 (V0 --num-scheduler-steps 10)')},,,,,1,4,,300,,,,,,,,0.1,,0.0141,,1.69\n"
    f"{SMALL.format('sglang,0.3.0')},,,,,1,4,,300,,,,,,,,,,,,\n",
    "dstack_405b_and_pd.csv": "dstackai/benchmarks PD ratio,sglang,latest,openai/gpt-oss-120b,H200 SXM 141GB,mxfp4,closed loop"
    ",,,,1:3,2,,32,96,128,128,,,,9.0,0.1,0.1,0.01,0.01,,\n",
}
SWEEPS = (
    "kind,engine_version,model,gpu,parallel,precision,load,notes,n_gpu,tp,pp,isl,osl,qps,output_tok_s,ttft_ms,itl_ms\n"
    "offline_max_throughput,1.0,Llama-3.1-8B,H100 SXM5 80GB,TP1,FP8,inf,,1,1,1,1000,1000,,14991,,\n"
    "offline_max_throughput,1.0,Llama-3.1-8B,H100 SXM5 80GB,TP2 PP2,FP8,inf,,4,2,2,1000,1000,,14991,,\n"
    "online_qps_sweep,0.14,Llama-3.1-8B,H100 SXM5 80GB,TP1,BF16,poisson?,,1,1,1,202,214,8,1700,25,9\n"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "serving/load").mkdir(parents=True)
    for name, text in TABLES.items():
        (tmp_path / "serving/load" / name).write_text(COLUMNS + text)
    (tmp_path / "serving/measured.csv").write_text(SWEEPS)
    return tmp_path


def test_runs_say_what_they_are_or_why_not(folder: Path) -> None:
    runs = read_engine_runs(folder)
    assert [(r.source, bool(r.reason)) for r in runs] == [
        ("vLLM V0", False),
        ("sglang", False),
        ("vLLM V0", True),
        ("sglang", True),
        ("sglang", True),
        ("trtllm throughput", False),
        ("trtllm throughput", True),
        ("trtllm", False),
    ]
    assert "num-scheduler-steps" in runs[2].reason
    assert "no figure" in runs[3].reason
    assert runs[5].config is not None and runs[5].config.kv_dtype == "fp8"


def test_scores_are_near_what_was_measured(folder: Path) -> None:
    scores = score_engine_runs(folder, False)
    assert scores is not None
    ok = [i for i, reason in enumerate(scores.reason) if not reason]
    assert len(ok) == 9
    assert scores.predicted[ok] == pytest.approx(scores.measured[ok], rel=0.6)
    assert "trtllm throughput" in scores.source and "vLLM V0 under load tpot mean" in scores.source
    assert score_engine_runs(folder / "nowhere", False) is None


def test_throughput_without_a_rate_is_linear_in_the_costs(folder: Path) -> None:
    """All come at once, and nothing is sent back: times do not move who is in which step."""
    run = next(r for r in read_engine_runs(folder) if r.source == "trtllm throughput" and not r.reason)
    assert run.settings.max_num_seqs == 640
    assert run.requests is not None and len(run.requests) == 3000
    costs = dict(zip(STEP, (1.1, 0.9, 1.0, 2e-3, 3e-6, 1e-5), strict=True))
    expected = replay(run, Front(EngineCosts(**costs))).duration_s
    assert float(throughput(run).parts @ np.array(list(costs.values()))) == pytest.approx(expected, rel=1e-6)
