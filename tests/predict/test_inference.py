"""Iterations of serving engines: laws, and published times per output token."""

import numpy as np
import pytest

from gpuwise.errors import InputError, UnknownNameError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.architecture import find_model
from gpuwise.predict.inference import Iterations, Serving, device_times, iteration_time
from gpuwise.predict.inference_kernels import expert_format, product_format


def columns(sequences: list[int], q_len: int, kv_len: int) -> Iterations:
    s = np.array(sequences, np.int64)
    return Iterations(s, np.full_like(s, q_len), np.full_like(s, kv_len))


def seconds(model: str, on: str, serving: Serving, sequences: list[int], kv_len: int = 1536) -> np.ndarray:
    return iteration_time(find_model(model), find_cluster(on).system, serving, columns(sequences, 1, kv_len)).time_s


@pytest.mark.parametrize(
    ("model", "on", "serving", "sequences", "milliseconds"),
    [
        # InferenceX, 1024 in and 1024 out, mean time per output token at low concurrency (prefills play
        # little part)
        ("llama-3.1-70b", "1xB200-SXM", Serving("trtllm", "fp8", kv_dtype="fp8"), 4, 14.6),
        ("llama-3.1-70b", "8xB200-SXM", Serving("trtllm", "fp8", kv_dtype="fp8", tp=8), 4, 5.4),
        ("gpt-oss-120b", "8xH200-SXM", Serving("vllm", "bf16", "mxfp4", "fp8", tp=8, moe_tp=8), 4, 3.6),
        (
            "deepseek-r1",
            "8xH200-SXM",
            Serving("sglang", "fp8_block", kv_dtype="fp8", tp=8, moe_tp=8),
            4,
            10.3,
        ),
        ("kimi-k2", "8xH200-SXM", Serving("vllm", "bf16", "int4_wo", tp=8, moe_tp=8), 4, 10.3),
    ],
)
def test_published_decode(model: str, on: str, serving: Serving, sequences: int, milliseconds: float) -> None:
    assert seconds(model, on, serving, [sequences])[0] * 1e3 == pytest.approx(milliseconds, rel=0.35)


def test_a_larger_batch_takes_longer_but_less_than_in_proportion() -> None:
    time = seconds("llama-3.1-8b", "1xH100-SXM5-80GB", Serving(), [1, 16, 128])
    assert time[0] < time[1] < time[2] < 128 * time[0]


def test_longer_context_and_wider_weights_take_longer() -> None:
    short, long = (seconds("llama-3.1-8b", "1xH100-SXM5-80GB", Serving(), [64], kv)[0] for kv in (512, 16384))
    assert short < long
    narrow = seconds("llama-3.1-8b", "1xH100-SXM5-80GB", Serving(weights="fp8"), [4])[0]
    assert narrow < seconds("llama-3.1-8b", "1xH100-SXM5-80GB", Serving(), [4])[0]


def test_weights_bound_one_sequence() -> None:
    system = find_cluster("1xH100-SXM5-80GB").system
    weights_s = 2 * (8.03e9 - 128256 * 4096) / system.accelerator.memory_bandwidth_bytes_per_s
    done = device_times(find_model("llama-3.1-8b"), system, Serving(), columns([1], 1, 64))
    assert weights_s < done.kernels_s[0] < 2 * weights_s
    assert done.communication_s[0] == 0


def test_tensor_parallel_splits_kernels_and_communicates() -> None:
    model, one, four = (
        find_model("llama-3.1-70b"),
        find_cluster("1xH100-SXM5-80GB"),
        find_cluster("4xH100-SXM5-80GB"),
    )
    alone = device_times(model, one.system, Serving(weights="fp8"), columns([16], 1, 1024))
    split = device_times(model, four.system, Serving(weights="fp8", tp=4), columns([16], 1, 1024))
    assert split.kernels_s[0] < 0.5 * alone.kernels_s[0]
    assert split.communication_s[0] > 0


def test_prefill_is_near_its_arithmetic() -> None:
    system = find_cluster("1xH100-SXM5-80GB").system
    done = device_times(find_model("llama-3.1-8b"), system, Serving(), columns([1], 8192, 8192))
    flop_s = 2 * 7.0e9 * 8192 / system.accelerator.peak("bf16")
    assert flop_s < done.kernels_s[0] < 3 * flop_s


def test_formats_a_device_lacks() -> None:
    a100, b200 = (find_cluster(n).accelerator for n in ("A100-SXM4-80GB", "B200-SXM"))
    assert product_format(a100, "fp8") == "int8_wo"
    assert product_format(b200, "nvfp4") == "nvfp4"
    assert expert_format(a100, "mxfp4") == "w4a16_mxfp4"


def test_bad_input() -> None:
    with pytest.raises(UnknownNameError):
        Serving(engine="ollama")
    with pytest.raises(UnknownNameError):
        Serving(weights="fp7")
    with pytest.raises(InputError):
        iteration_time(
            find_model("llama-3.1-8b"),
            find_cluster("1xH100-SXM5-80GB").system,
            Serving(tp=3),
            columns([1], 1, 8),
        )
