"""Kernels of a serving iteration: the registry's, in the formats a device has."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.kernels.accelerator_factors import factor_key
from gpuwise.predict.kernels.conditions import SERVING
from gpuwise.predict.kernels.single import matmul
from gpuwise.serve import iteration_kernels
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.engines.sglang import SGLang
from gpuwise.serve.engines.vllm import VLLM
from gpuwise.serve.formats import weight_bytes_read
from gpuwise.serve.iteration import Iterations, device_times, one_iteration
from gpuwise.serve.iteration_kernels import expert_format, product_format


@pytest.mark.parametrize("weights", ["bf16", "fp8", "fp8_block", "int8_wo", "int4_wo", "nvfp4", "mxfp4"])
@pytest.mark.parametrize("on", ["rtx-4090", "a100-sxm-80gb", "b200-sxm"])
def test_products_are_those_of_the_one_registry(on: str, weights: str) -> None:
    """The layers' products in their format and the head in bf16, each as the registry times it while serving."""
    arch, system = find_model("llama-3.1-8b"), find_cluster(on).system
    times = one_iteration(arch, system, EngineConfig(weights=weights), 8, 1, 1024)
    heads, hidden, ffn = (arch.heads + 2 * arch.kv_heads) * arch.head_dim, arch.hidden, arch.ffn
    form = product_format(system.accelerator, weights)
    layer = matmul(system.accelerator, form, 8, [heads, hidden, 2 * ffn, hidden], [hidden, hidden, hidden, ffn], 1, SERVING)
    head = matmul(system.accelerator, "bf16", 8, arch.vocab, hidden, 1, SERVING)
    products = times.kernels_s - times.attention_s - times.memory_s
    assert products[0] == pytest.approx(arch.n_layers * layer.time_s.sum() + head.time_s[0], rel=1e-9)


def test_formats_a_device_lacks() -> None:
    a100, b200, h100, ada, card = (
        find_cluster(n).accelerator for n in ("A100-SXM4-80GB", "B200-SXM", "H100-SXM", "L40S", "rtx-pro-6000-blackwell-server")
    )
    assert product_format(a100, "fp8") == "int8_wo"
    assert product_format(b200, "nvfp4") == "nvfp4"
    # vLLM's experts in MXFP4: Marlin where neither Triton's nor FlashInfer's kernels of that format run
    assert [expert_format(a, "mxfp4", VLLM()) for a in (a100, ada, h100, b200, card)] == [
        "int4_wo",
        "w4a16_mxfp4",
        "w4a16_mxfp4",
        "w4a8_mxfp4_mxfp8",
        "int4_wo",
    ]
    assert expert_format(a100, "mxfp4", SGLang()) == "w4a16_mxfp4"
    assert expert_format(a100, "fp8_block", VLLM()) == "int8_wo"


@pytest.mark.parametrize(("weights", "since"), [("bf16", "0.18"), ("fp8_block", "0.15"), ("fp8", "0.15")])
def test_experts_of_a_release(weights: str, since: str) -> None:
    """vLLM takes FlashInfer's experts on Blackwell unasked since a release; before, and where told, Triton's. Hopper's stay."""
    arch = find_model("qwen3-30b-a3b")

    def seconds(on: str, config: EngineConfig) -> float:
        return float(one_iteration(arch, find_cluster(on).system, config, 16, 1, 1024).kernels_s[0])

    for on, same in (("b200-sxm", False), ("h100-sxm", True)):
        old, new, told = (
            seconds(on, EngineConfig(weights=weights, version=version, experts=experts))
            for version, experts in (("0.10.2", None), (since, None), (since, "triton"))
        )
        assert old == told
        assert (old == new) is same
        assert old >= new


def test_sglangs_experts_in_16_bits() -> None:
    """FlashInfer's on Blackwell were taken unasked for narrow formats first."""
    arch, system = find_model("qwen3-30b-a3b"), find_cluster("b200-sxm").system
    old, new = (
        one_iteration(arch, system, EngineConfig("sglang", version=version), 16, 1, 1024).kernels_s[0]
        for version in ("0.5.6", "0.5.8")
    )
    assert old > new


def test_8_bit_experts_without_an_8_bit_rate_lie_between_4_and_16() -> None:
    """Few rows read weights: time lies between those of the widths. Many compute: what four bits take, which is no less."""
    arch, system = find_model("qwen3-30b-a3b"), find_cluster("A100-SXM4-80GB").system
    for tokens, lies_between in ((8, True), (8192, False)):
        one = Iterations(np.array([1 if tokens > 100 else tokens]), np.array([tokens if tokens > 100 else 1]), np.array([tokens]))
        few, mid, many = (
            float(device_times(arch, system, EngineConfig(weights="bf16", expert_weights=w), one).kernels_s[0])
            for w in ("int4_wo", "fp8", "bf16")
        )
        assert few < mid < many if lies_between else few <= mid


def test_prompts_are_read_in_proportion_to_layers_and_ranks_share_them() -> None:
    arch, system = find_model("llama-3.1-8b"), find_cluster("8xh100-sxm").system
    alone, split = (one_iteration(arch, system, EngineConfig(tp=n), 1, 4096, 4096) for n in (1, 8))
    assert alone.communication_s[0] == 0 < split.communication_s[0]
    assert split.kernels_s[0] < alone.kernels_s[0] / 4
    parts = alone.attention_s + alone.memory_s
    assert np.all((parts > 0) & (parts < alone.kernels_s))


def test_a_card_that_networks_measured_has_its_factors_here_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention of a GeForce takes what whole networks say of the card, of a data-centre GPU the plain kernel's time."""
    arch, one = find_model("llama-3.1-8b"), Iterations(np.array([16]), np.array([1]), np.array([1430]))
    games, centre = (find_cluster(n).system for n in ("rtx-4090", "h100-sxm"))
    with_factor = [device_times(arch, s, EngineConfig(), one).attention_s[0] for s in (games, centre)]
    monkeypatch.setattr(iteration_kernels, "family_factor", lambda accelerator, family: 1.0)
    plain = [device_times(arch, s, EngineConfig(), one).attention_s[0] for s in (games, centre)]
    key = factor_key(games.accelerator)
    assert key is not None and factor_key(centre.accelerator) is None
    factor = load_json("card_factors")["factor"][key]["attention"]
    assert with_factor == pytest.approx([plain[0] * factor, plain[1]]) and factor != 1.0


@pytest.mark.parametrize("model", ["qwen3-30b-a3b", "gpt-oss-120b", "qwen3.6-35b-a3b", "nemotron-3-nano-30b-a3b"])
def test_a_token_alone_reads_all_of_its_experts(model: str) -> None:
    """No iteration of one sequence is faster than its weights can be read, nor than that of a batch."""
    arch, system = find_model(model), find_cluster("h100-sxm-80gb").system
    seconds = [one_iteration(arch, system, EngineConfig(weights="bf16"), n, 1, 512).kernels_s[0] for n in (1, 2, 4, 16)]
    assert seconds == sorted(seconds)
    assert seconds[0] > weight_bytes_read(arch, "bf16") / system.accelerator.memory_bandwidth_bytes_per_s


def test_deepgemm_pads_the_rows_of_each_expert() -> None:
    """vLLM 0.12 took 51 to 55 ms a step of Qwen3 235B in 8 bits on two H200, with 7 and with 16 users alike, and 34 on four (rows
    of aiconfigurator, Apache-2.0); Triton's kernels, of 0.15 on, read the experts of the batch alone."""
    arch = find_model("qwen3-235b-a22b")

    def decode_s(n: int, users: int, version: str) -> float:
        split = {"moe_ep": n} if n == 8 else {"moe_tp": n}
        config = EngineConfig(weights="fp8_block", kv_dtype="fp8", tp=n, version=version, **split)
        return float(one_iteration(arch, find_cluster(f"{n}xH200").system, config, users, 1, 3000).kernels_s[0])

    assert decode_s(2, 16, "0.12.0") == pytest.approx(51e-3, rel=0.15)
    assert decode_s(2, 7, "0.12.0") == pytest.approx(decode_s(2, 16, "0.12.0"), rel=0.03)
    assert decode_s(4, 16, "0.12.0") == pytest.approx(34e-3, rel=0.15)
    assert decode_s(2, 7, "0.15") < 0.6 * decode_s(2, 7, "0.14")
    assert decode_s(8, 7, "0.12.0") == decode_s(8, 7, "0.15")
