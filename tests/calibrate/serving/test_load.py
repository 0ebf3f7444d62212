"""Published loads as runs to replay."""

from pathlib import Path

import numpy as np
import pytest

from gpuwise.calibrate.serving.load import DISTINCT_PROMPTS, load_check, predicted, read_load_runs
from gpuwise.calibrate.serving.load_score import score_load
from gpuwise.calibrate.serving.pool import predicted_tokens, read_pool_rows
from gpuwise.serve.simulate import Server

LOAD = (
    "experiment,source,confidence,stage(-1=all),request_rate,n_requests,input_len_measured_hint,output_len,max_num_seqs,"
    "max_num_batched_tokens,total_kv_blocks\n"
    "a,x,high,-1,3,600,592,60,128,2048,7462\na,x,high,0,2,200,592,60,128,2048,7462\na,x,high,1,4,400,592,60,128,2048,7462\n"
)
RUNS = (
    "experiment,model,gpu,tp,precision,metric_ms,source,stage(-1=all),max_num_batched_tokens,gpu_mem_util,actual,"
    "pred_blis-trained-physics,pred_aiconfigurator-estimate,pred_llmservingsim,pred_llm-optimizer-estimate\n"
    "a,meta-llama/Llama-2-7b-hf,H100 SXM5 80GB,1,FP16,ttft_mean,x,0,2048,0.9,27,20,,,\n"
    "a,meta-llama/Llama-2-7b-hf,H100 SXM5 80GB,1,FP16,itl_mean,x,1,2048,0.9,8.2,9,,,\n"
    "a,meta-llama/Llama-2-7b-hf,H100 SXM5 80GB,1,FP16,e2e_mean,x,-1,2048,0.9,520,9,,,\n"
)
MEMORY = (
    "engine_version,model,quantization,kv_cache_dtype,dtype,tp,pp,gpu_memory_utilization,activation_memory_gib,"
    "non_torch_forward_gib,cuda_graph_actual_gib,kv_cache_tokens,weights_memory_gib\n"
    "vllm 0.19.0,Qwen/Qwen3-8B,,auto,torch.bfloat16,1,1,0.95,2.21,0.25,0.96,418688,15.27\n"
    "vllm 0.19.0,meta-llama/Llama-3.1-8B-Instruct,,auto,torch.bfloat16,1,2,0.95,1.1,0.07,0.65,1075312,7.51\n"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "serving/load").mkdir(parents=True)
    (tmp_path / "serving/load/vllm_runs_load.csv").write_text(LOAD)
    (tmp_path / "serving/vllm_runs.csv").write_text(RUNS)
    (tmp_path / "serving/load/vllm_memory_h100.csv").write_text(MEMORY)
    return tmp_path


def test_stages_follow_one_another_and_prompts_come_in_turn(folder: Path) -> None:
    (run,) = read_load_runs(folder)
    assert run.requests is not None and run.reason == ""
    assert len(run.requests) == 600
    assert run.requests.text is not None
    assert run.requests.text[DISTINCT_PROMPTS] == run.requests.text[0]
    assert run.requests.arrival_s[199] == pytest.approx(100.0)
    assert run.requests.arrival_s[-1] == pytest.approx(200.0)
    assert [(f.metric, f.first, f.last) for f in run.figures] == [
        ("ttft_mean", 0, 200),
        ("itl_mean", 200, 600),
        ("e2e_mean", 0, 600),
    ]
    assert run.settings.kv_blocks == 7462


def test_the_second_round_of_prompts_is_cached_whole(folder: Path) -> None:
    (run,) = read_load_runs(folder)
    assert run.architecture is not None and run.system is not None and run.config is not None and run.requests is not None
    result = Server(run.architecture, run.system, run.config, run.settings).run(run.requests)
    assert result.cached_tokens[:100].max() == 0
    assert result.cached_tokens[100:].min() == 576
    fresh, cached = result.ttft_s[70:100].mean(), result.ttft_s[100:130].mean()
    # the source: 39 ms and 29 ms
    assert 0.004 < fresh - cached < 0.016
    assert predicted(result, run.figures[1]) == pytest.approx(0.0082, rel=0.3)


def test_figures_are_scored_with_the_peer_beside(folder: Path) -> None:
    scores = score_load(folder, False)
    assert scores is not None
    assert list(scores.source) == ["under load ttft mean", "under load itl mean", "under load e2e mean"]
    assert np.isfinite(scores.predicted).all() and np.isfinite(scores.log_sigma).all()
    assert scores.baseline[0] == pytest.approx(0.020)
    assert set(scores.split) == {"check" if load_check(read_load_runs(folder)[0]) else "fit"}


def test_starts_of_an_engine_are_read_with_their_layout(folder: Path) -> None:
    rows = read_pool_rows(folder)
    assert rows is not None
    assert [r.reason for r in rows] == ["", "pipeline stages are not simulated"]
    assert predicted_tokens(rows[0]) == pytest.approx(418_688, rel=0.02)
