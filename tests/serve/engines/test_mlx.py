"""MLX LM: its own figures of memory and speed, what starts it, where it does not run."""

from __future__ import annotations

import pytest

from gpuwise.errors import InputError
from gpuwise.facts.hardware.naming import find_accelerator, find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.serve.capacity.commands import load_tests, start_commands
from gpuwise.serve.capacity.configurations import Configuration, Requirements, layouts
from gpuwise.serve.engines.engine import ENGINES, EngineConfig, engine_name, engine_of
from gpuwise.serve.engines.releases import engine_rules
from gpuwise.serve.engines.settings import Settings
from gpuwise.serve.formats import weight_bytes
from gpuwise.serve.load.load import Load
from gpuwise.serve.load.workloads import find_workload
from gpuwise.serve.memory import local_memory
from gpuwise.serve.streams import token_time

MLX = ENGINES[engine_name("mlx")]
MAX = find_accelerator("M4 Max 40c")


@pytest.mark.parametrize(
    ("model", "weights", "peak_gb", "tokens_per_s"),
    [  # mlx-lm mlx_lm/BENCHMARKS.md, mlx-lm 0.28.2: a prompt of 2,048 tokens, 128 written; experts are not in the fit
        ("qwen3-4b", "bf16", 9.02, 52.47),
        ("qwen3-4b", "mlx_8bit", 5.254, 86.907),
        ("qwen3-4b", "mlx_6bit", 4.25, 104.68),
        ("qwen3-4b", "mlx_5bit", 3.86, 116.39),
        ("qwen3-4b", "mlx_4bit", 3.35, 134.52),
        ("qwen3-30b-a3b", "mlx_8bit", 33.46, 83.16),
        ("qwen3-30b-a3b", "mlx_6bit", 25.82, 94.14),
        ("qwen3-30b-a3b", "mlx_5bit", 22.01, 101.00),
        ("qwen3-30b-a3b", "mlx_4bit", 18.20, 113.33),
    ],
)
def test_published_peaks_and_speeds(model: str, weights: str, peak_gb: float, tokens_per_s: float) -> None:
    arch = find_model(model)
    assert local_memory(MLX, arch, MAX, weights, n_devices=1, context=2176).total / 1e9 == pytest.approx(peak_gb, rel=0.03)
    time = token_time(arch, MAX, weights, context=2112, engine=MLX)
    assert 1 / time.expected == pytest.approx(tokens_per_s, rel=0.18)


def test_groups_of_64_weights_have_a_scale_and_a_bias() -> None:
    arch = find_model("llama-3.1-8b")
    for bits in (4, 5, 6, 8):
        each = weight_bytes(arch, f"mlx_{bits}bit") / weight_bytes(arch, "bf16") * 16
        assert each == pytest.approx(bits + 2 * 16 / 64)
    assert engine_of("mlx_4bit") is MLX


def test_what_starts_it() -> None:
    arch, system = find_model("llama-3.1-8b"), find_cluster("M3 Max").system
    chosen = Configuration(arch, system, EngineConfig(MLX.name, "mlx_4bit"), Settings(max_num_seqs=16, max_model_len=4096))
    (command,) = start_commands(chosen)
    sizes = "--decode-concurrency 16 --prompt-concurrency 8 --prefill-step-size 2048"
    assert command.line == f"mlx_lm.server --model llama-3.1-8b-4bit --port 8000 {sizes}"
    assert "mlx_lm.convert" in command.note
    load = Load(find_workload("in=300,out=200"), 4096)
    ours, bench = load_tests(chosen, load, [], 1.0)
    assert "--engine mlx-lm" in ours.line and "--served-model default_model" in ours.line  # other names are loaded from the hub
    assert "--model meta-llama/Llama-3.1-8B --served-model-name default_model" in bench.line
    assert chosen.words == "one GPU, mlx_4bit weights, 16 sequences"


def test_one_machine_of_its_own_kind() -> None:
    arch, wanted = find_model("llama-3.1-8b"), Requirements(MLX.name, bits=(4,), context=4096)
    with pytest.raises(InputError, match="MLX LM does not run on RTX 4090") as refused:
        layouts(arch, find_cluster("4090").system, 1, wanted)
    assert "llama.cpp" in (refused.value.hint or "")
    with pytest.raises(InputError, match="one device at most"):
        EngineConfig(MLX.name, "mlx_4bit", pp=2)
    with pytest.raises(InputError, match=r"mlx-lm 0\.28 is not simulated"):  # its server had one request at a time
        engine_rules(EngineConfig(MLX.name, "mlx_4bit", version="0.28"))
