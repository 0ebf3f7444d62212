"""Serving tables: which rows are iterations, and what layout they state."""

from pathlib import Path

import pytest

from gpuwise.calibrate.serving import score as serving
from gpuwise.calibrate.serving.rows import QUEUEING, model_of, read_rows

COLUMNS = (
    "kind,engine,model,gpu,parallel,precision,notes,n_gpu,isl,osl,concurrency,output_tok_s,ttft_ms,itl_ms,"
    "engine_version,tp,pp,load,qps,prefill_tok_s"
)
SWEEP = "online_saturated_maxseqs,vLLM"
MEASURED = f"""{COLUMNS}
single_stream,llama.cpp,Llama-3-8B,RTX 4090,,Q4_K_M,x,1,1024,1024,1,127.74,,,,,,,,
offline_max_throughput,TensorRT-LLM,Llama-3.1-70B,H100 SXM5 80GB,TP4,FP8,,4,128,2048,,10000,,,1.0,4,1,inf,,
{SWEEP},Qwen/Qwen3-32B,H100 SXM5 80GB,TP1,bfloat16,LM Arena chat; itl=median,1,,400,8,300,,26,,,,,,
{SWEEP},nvidia/Nemotron-Nano-9B,B200 SXM,TP1,bfloat16,LM Arena chat; itl=median,1,,400,8,300,,8,,,,,,
{SWEEP},Qwen/Qwen3-VL-8B-Instruct,B200 SXM,TP1,bfloat16,image chat; itl=median,1,,400,8,300,,8,,,,,,
"""
HEADER = (
    "silicon_data_source,backend,backend_version,model_path,system,precision,mode,isl,osl,batch_size,"
    "tp_size,attention_dp_size,moe_tp_size,moe_ep_size,silicon_ttft_ms,silicon_tpot_ms"
)
INFERENCEX = (
    HEADER
    + """
a,vllm,0.18.0,meta-llama/Llama-3.1-70B,h200_sxm,fp8,agg,1024,1024,4,8,1,8,1,90,7.6
a,trtllm,1.1.0rc2,deepseek-ai/DeepSeek-R1,h200_sxm,fp8,agg,1024,1024,4,64,1,8,8,90,8.6
a,vllm,nightly-5b8c,moonshotai/Kimi-K2.5,b200_sxm,fp4,agg,1024,1024,16,4,4,1,16,90,27.9
a,trtllm,,deepseek-ai/DeepSeek-R1,gb200,fp4,agg,1024,1024,2252,12,1,12,1,90,31.5
a,trtllm,,deepseek-ai/DeepSeek-R1,gb200,fp4,disagg,1024,1024,,,,,,90,31.5
"""
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "serving").mkdir()
    (tmp_path / "serving/measured.csv").write_text(MEASURED)
    (tmp_path / "serving/inferencex.csv").write_text(INFERENCEX)
    return tmp_path


def test_rows(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert read_rows(tmp_path_factory.mktemp("none")) is None
    rows = read_rows(folder)
    assert rows is not None
    # throughput is of a load, and replayed
    assert [bool(r.reason) for r in rows[:4]] == [False, False, True, True]
    llama, deepseek, kimi, wide, split = rows[4:]
    assert llama.config is not None and (llama.config.tp, llama.sequences) == (8, 4)
    # tensor times expert degree, on eight devices
    assert deepseek.config is not None
    assert (deepseek.config.tp, deepseek.config.moe_tp, deepseek.config.moe_ep) == (8, 1, 8)
    # the batch is a rank's; the layout is what the launch script did with it
    assert kimi.config is not None
    assert (kimi.config.tp, kimi.config.attention_dp, kimi.config.moe_ep, kimi.sequences) == (4, 1, 1, 64)
    # releases by their numbers; a nightly build has none
    assert (llama.config.version, deepseek.config.version, kimi.config.version) == ("0.18.0", "1.1.0rc2", None)
    assert wide.reason and QUEUEING in split.reason


def test_layouts_are_those_of_the_launch_script(tmp_path: Path) -> None:
    """MiniMax before vLLM 0.19: expert parallel whatever was asked, a cache in 16 bits, Triton's experts; gpt-oss: such a cache
    always."""
    lines = [
        f"a,vllm,{version},{model},b200_sxm,{precision},agg,1024,1024,16,2,1,2,1,90,9"
        for version, model, precision in (
            ("0.17.0", "MiniMaxAI/MiniMax-M2.5", "fp8"),
            ("0.19.0", "MiniMaxAI/MiniMax-M2.5", "fp8"),
            ("0.18.0", "openai/gpt-oss-120b", "fp4"),
        )
    ]
    (tmp_path / "serving").mkdir()
    (tmp_path / "serving/measured.csv").write_text(MEASURED)
    (tmp_path / "serving/inferencex.csv").write_text("\n".join([HEADER, *lines]) + "\n")
    rows = read_rows(tmp_path)
    assert rows is not None
    configs = [r.config for r in rows[4:]]
    assert [(c.moe_tp, c.moe_ep, c.kv_dtype, c.experts) for c in configs if c is not None] == [
        (1, 2, "bf16", "triton"),
        (2, 1, "fp8", None),
        (2, 1, "bf16", None),
    ]


def test_users_are_those_published(tmp_path: Path) -> None:
    """One run of 64 users, of which the table has the groups as 8 and as 64; ten users on each of eight ranks; weights that do
    not fit on the device."""
    lines = [
        "silicon_concurrency=64;,trtllm,1.1.0rc2,deepseek-ai/DeepSeek-R1,h200_sxm,fp8,agg,8192,1024,8,1,8,1,8,6422,39.75",
        "silicon_concurrency=64;,trtllm,1.1.0rc2,deepseek-ai/DeepSeek-R1,h200_sxm,fp8,agg,8192,1024,1,1,64,8,8,6422,39.75",
        "silicon_concurrency=80;,trtllm,1.3.0rc1,nvidia/DeepSeek-R1-NVFP4,b200_sxm,fp4,agg,4000,1000,10,8,1,1,8,90,85",
        "silicon_concurrency=416;,trtllm,1.3.0rc5,nvidia/Qwen3-32B-NVFP4,b200_sxm,fp4,agg,15000,500,13,2,1,2,1,90,85",
        "silicon_concurrency=4;,vllm,0.12.0,Qwen/Qwen3-235B-A22B-FP8,h200_sxm,fp8,agg,4000,100,4,1,1,1,1,90,43.8",
    ]
    (tmp_path / "serving").mkdir()
    (tmp_path / "serving/inferencex.csv").write_text("\n".join([HEADER, *lines]) + "\n")
    rows = read_rows(tmp_path)
    assert rows is not None
    found = [(r.sequences, r.config.tp, r.config.attention_dp, r.config.moe_ep) for r in rows if r.config is not None]
    assert found == [(64, 1, 8, 8), (64, 1, 8, 8), (80, 1, 8, 8)]
    assert [bool(r.reason) for r in rows] == [False, False, False, True, True]


def test_names() -> None:
    found = model_of("Qwen/Qwen3-VL-30B-A3B-Instruct")
    assert found is not None and found.id == "qwen3-30b-a3b"
    assert model_of("Qwen/Qwen3.5-397B-A17B") is None


def test_score(folder: Path) -> None:
    scores = serving.score(folder, True)
    assert scores is not None
    first = [s.startswith("InferenceX") for s in scores.source]
    ok = [i for i, r in enumerate(scores.reason) if not r and not first[i]]
    assert len(ok) == 6
    # first tokens and gaps of the same closed loops, one layout of them unknown and one of separate fleets
    assert [bool(scores.reason[i]) for i, f in enumerate(first) if f] == [False] * 6 + [True] * 4
    for i in ok:
        assert scores.predicted[i] == pytest.approx(scores.measured[i], rel=0.6)
    assert serving.score(folder / "nowhere", True) is None
