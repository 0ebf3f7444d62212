"""Batches of programs without a server: which rows are replayed, and what the server costs vLLM's first engine."""

from pathlib import Path

import pytest

from gpuwise.calibrate.serving import static_batches
from gpuwise.calibrate.serving.load import predicted, replay
from gpuwise.calibrate.serving.static_batches import read_static_batches
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.simulate.front import front_of

TABLE = """engine,model,gpu,tp,concurrency,input_len_mean,output_len_mean,e2e_mean_s
vLLM,meta-llama/Meta-Llama-3-8B,Nvidia H100 GPU,1,64,128,128,2.4
vLLM,meta-llama/Meta-Llama-3-8B,AMD MI300X GPU,1,64,128,128,2.4
TensorRT-LLM,meta-llama/Llama-2-7b-hf,Nvidia A100 GPU,1,16,256,256,2.4
vLLM,Deci/DeciLM-7B,Nvidia A100 GPU,1,1,128,128,1
Deepspeed,meta-llama/Llama-2-7b-hf,Nvidia A100 GPU,1,1,128,128,1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "serving/load").mkdir(parents=True)
    (tmp_path / "serving/load/argonne_offline.csv").write_text(TABLE)
    monkeypatch.setattr(static_batches, "EVERY", 1)
    return tmp_path


def test_rows_of_engines_and_devices_that_are_simulated_are_taken(folder: Path) -> None:
    runs = read_static_batches(folder)
    assert [(r.source, r.gpu) for r in runs] == [
        ("vLLM V0 in process throughput", "Nvidia H100 GPU"),
        ("trtllm static batch throughput", "Nvidia A100 GPU"),
    ]
    assert runs[0].figures[0].measured == pytest.approx(2.4 / (64 * 128))
    assert runs[0].requests is not None
    assert len(runs[0].requests) == 64


def test_answers_that_ended_early_are_not_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPT-J has a context of 2,048 tokens: with prompts of as many its answers end at once, in 0.35 ms a step (argonne-lcf/
    LLM-Inference-Bench), while its weights take 3 ms to read."""
    (tmp_path / "serving/load").mkdir(parents=True)
    table = TABLE + "vLLM,EleutherAI/gpt-j-6b,Nvidia GH200 GPU,1,16,2048,2048,0.72\n"
    (tmp_path / "serving/load/argonne_offline.csv").write_text(table)
    monkeypatch.setattr(static_batches, "EVERY", 1)
    assert [r.reason for r in read_static_batches(tmp_path)] == ["", "", static_batches.SHORT]


def test_a_server_in_the_same_process_slows_the_first_engine_and_not_the_second(folder: Path) -> None:
    run = read_static_batches(folder)[0]
    called, served = (predicted(replay(run, f), run.figures[0]) for f in (None, front_of(EngineConfig("vllm", version="0.6"))))
    assert 1.3 < served / called < 2.5  # vLLM's blog of 5 September 2024: a third of the time was the server's
    newer = EngineConfig("vllm", version="0.19")
    assert front_of(newer, in_process=True) == front_of(newer)
