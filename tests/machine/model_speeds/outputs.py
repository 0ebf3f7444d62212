"""Output of programs in their real formats, written by hand: numbers are invented."""

from __future__ import annotations

import json
from typing import Any


def bench_row(*, prompt: int = 0, written: int = 0, depth: int = 0, rate: float = 50.0, **other: Any) -> dict[str, Any]:
    """A row of llama-bench (b7000 and later: flash_attn is a number, -1 layers are all)."""
    samples = [rate * s for s in (0.99, 1.0, 1.01)]
    return {
        "build_commit": "8cf427ff",
        "build_number": 7163,
        "cpu_info": "AMD Ryzen 7 5700G with Radeon Graphics",
        "gpu_info": "NVIDIA GeForce RTX 3060",
        "backends": "CUDA",
        "model_filename": "/models/Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf",
        "model_type": "llama 8B Q4_K - Medium",
        "model_size": 4912898304,
        "model_n_params": 8030261312,
        "n_batch": 2048,
        "n_ubatch": 512,
        "n_threads": 8,
        "cpu_mask": "0x0",
        "cpu_strict": False,
        "poll": 50,
        "type_k": "f16",
        "type_v": "f16",
        "n_gpu_layers": 999,
        "n_cpu_moe": 0,
        "split_mode": "layer",
        "main_gpu": 0,
        "no_kv_offload": False,
        "flash_attn": 1,
        "devices": "auto",
        "tensor_split": "0.00",
        "tensor_buft_overrides": "none",
        "load_mode": "auto",
        "embeddings": False,
        "no_op_offload": 0,
        "no_host": False,
        "fit_target": 0,
        "fit_min_ctx": 0,
        "n_prompt": prompt,
        "n_gen": written,
        "n_depth": depth,
        "test_time": "2026-11-24T11:58:50Z",
        "avg_ns": int(1e9 * (prompt + written) / rate),
        "stddev_ns": 9449585,
        "avg_ts": rate,
        "stddev_ts": 0.01 * rate,
        "samples_ns": [int(1e9 * (prompt + written) / s) for s in samples],
        "samples_ts": samples,
        **other,
    }


ROWS = [bench_row(prompt=512, rate=1500.0), bench_row(written=128), bench_row(written=128, depth=8192, rate=43.0)]
"""What each format of llama-bench below shows."""


def as_csv(rows: list[dict[str, Any]]) -> str:
    """As ``csv_printer`` writes it: samples are left out, every value is quoted."""
    fields = [f for f in rows[0] if not f.startswith("samples")]
    lines = [",".join(f'"{str(int(v)) if isinstance(v, bool) else v}"' for v in (r[f] for f in fields)) for r in rows]
    return "\n".join([",".join(fields), *lines]) + "\n"


MARKDOWN = """ggml_cuda_init: found 1 CUDA devices:
  Device 0: NVIDIA GeForce RTX 3060, compute capability 8.6, VMM: yes
| model                          |       size |     params | backend    | ngl | fa |            test |                  t/s |
| ------------------------------ | ---------: | ---------: | ---------- | --: | -: | --------------: | -------------------: |
| llama 8B Q4_K - Medium         |   4.58 GiB |     8.03 B | CUDA       | 999 |  1 |           pp512 |      1500.00 ± 15.00 |
| llama 8B Q4_K - Medium         |   4.58 GiB |     8.03 B | CUDA       | 999 |  1 |           tg128 |         50.00 ± 0.50 |
| llama 8B Q4_K - Medium         |   4.58 GiB |     8.03 B | CUDA       | 999 |  1 |   tg128 @ d8192 |         43.00 ± 0.43 |

build: 8cf427ff (7163)
"""
OLLAMA = """>>> Why is the sky blue?
The sky is blue because of Rayleigh scattering.

total duration:       4.2198s
load duration:        15.09ms
prompt eval count:    26 token(s)
prompt eval duration: 32.0ms
prompt eval rate:     812.50 tokens/s
eval count:           290 token(s)
eval duration:        6.3s
eval rate:            46.03 tokens/s
"""
MLX_GENERATE = """==========
The sky is blue because of Rayleigh scattering.
==========
Prompt: 36 tokens, 210.512 tokens-per-sec
Generation: 200 tokens, 61.250 tokens-per-sec
Peak memory: 4.681 GB
"""
MLX_BENCHMARK = """Running warmup..
Timing with prompt_tokens=512, generation_tokens=1024, batch_size=1.
Trial 1:  prompt_tps=800.100, generation_tps=60.000, peak_memory=4.900
Trial 2:  prompt_tps=802.100, generation_tps=62.000, peak_memory=4.900
Averages: prompt_tps=801.100, generation_tps=61.000, peak_memory=4.900
"""
VLLM_SERVE = {
    "date": "20261124-101010",
    "endpoint_type": "openai",
    "backend": "vllm",
    "label": None,
    "model_id": "Qwen/Qwen3-8B",
    "tokenizer_id": "Qwen/Qwen3-8B",
    "num_prompts": 100,
    "request_rate": "inf",
    "burstiness": 1.0,
    "max_concurrency": 8,
    "duration": 50.0,
    "completed": 100,
    "failed": 0,
    "total_input_tokens": 51200,
    "total_output_tokens": 12800,
    "request_throughput": 2.0,
    "request_goodput": None,
    "output_throughput": 256.0,
    "total_token_throughput": 1280.0,
    "mean_ttft_ms": 100.0,
    "median_ttft_ms": 98.0,
    "std_ttft_ms": 5.0,
    "p99_ttft_ms": 120.0,
    "mean_tpot_ms": 25.0,
    "median_tpot_ms": 25.0,
    "std_tpot_ms": 0.5,
    "p99_tpot_ms": 27.0,
    "mean_itl_ms": 25.0,
}
VLLM_THROUGHPUT = {
    "elapsed_time": 20.0,
    "num_requests": 100,
    "total_num_tokens": 64000,
    "requests_per_second": 5.0,
    "tokens_per_second": 3200.0,
}
VLLM_LATENCY = {"avg_latency": 3.3, "std_latency": 0.1, "latencies": [3.2, 3.4], "percentiles": {"10": 3.2, "50": 3.3}}
FORMATS = {
    "json": json.dumps(ROWS, indent=2),
    "jsonl": "".join(json.dumps(r) + "\n" for r in ROWS),
    "csv": as_csv(ROWS),
    "md": MARKDOWN,
}
