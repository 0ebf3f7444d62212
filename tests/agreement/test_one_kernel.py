"""One kernel, one time: the same operation asked in every way there is takes the same seconds, to the last digit.

Ways that print a rate are turned back into seconds, which leaves the rounding of one division.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.machine.bench.cases import BenchCase
from gpuwise.machine.bench.expect import expectation
from gpuwise.machine.bench.subjects import Subject
from gpuwise.plan.one_op import matmul
from gpuwise.predict.kernels.registry import kernel_times
from gpuwise.predict.step.capture_time import times_of
from gpuwise.workload.attention_flop import attention_pairs
from gpuwise.workload.capture.captured import Settings, Signature, TensorSpec
from gpuwise.workload.row_codes import CAUSAL, FUSED_ATTENTION, Kind, Phase
from gpuwise.workload.step import CUDNN_ATTENTION_ON, OpTableBuilder

GPUS = ("RTX 4090", "RTX 3090", "H100-SXM", "A100-SXM-80GB")
SIDE = 8192
ROUNDING = 1e-12
"""Of a rate turned back into seconds."""
Ask = Callable[..., Any]


def asked_in(ways: Iterable[str]) -> list[object]:
    """(way, GPU) pairs."""
    return [pytest.param(way, gpu, id=f"{way}-{gpu}") for way in ways for gpu in GPUS]


def card(gpu: str) -> Accelerator:
    return find_cluster(gpu).accelerator


def bf16(*shape: int) -> TensorSpec:
    strides = [1]
    for n in reversed(shape[1:]):
        strides.insert(0, strides[0] * n)
    return TensorSpec(tuple(shape), tuple(strides), "bf16")


def captured_seconds(gpu: str, signature: Signature) -> float:
    """What one's own code takes for one operation."""
    return float(times_of([signature], Settings("2.13.0", (8, 0)), card(gpu)).time_s[0])


def table_seconds(
    gpu: str, kind: Kind, shape: tuple[int, ...], *, flop: float, read: float, written: float, **said: Any
) -> float:
    """What a row of a model's op table takes in ``plan`` and ``fit``; ``said`` is what else the row says of its kernel."""
    table = OpTableBuilder()
    table.add("asked", kind, Phase.FORWARD, "bf16", shape, flop=flop, read_bytes=read, written_bytes=written, **said)
    return float(kernel_times(table.build(), card(gpu)).time_s[0])


# --- a matrix product ---

PRODUCT = Signature(
    "aten.mm.default",
    Kind.MATMUL,
    (bf16(SIDE, SIDE), bf16(SIDE, SIDE)),
    (bf16(SIDE, SIDE),),
    (),
    2.0 * SIDE**3,
    4.0 * SIDE**2,
    2.0 * SIDE**2,
    1,
)


def product_in_a_plan(gpu: str, ask: Ask) -> float:
    return table_seconds(gpu, Kind.MATMUL, (1, SIDE, SIDE, SIDE), flop=2.0 * SIDE**3, read=4.0 * SIDE**2, written=2.0 * SIDE**2)


def product_in_own_code(gpu: str, ask: Ask) -> float:
    return captured_seconds(gpu, PRODUCT)


def product_in_compare(gpu: str, ask: Ask) -> float:
    rows = {row["key"]: row for row in ask("compare", gpu, "L40S")["rows"]}
    return 2.0 * SIDE**3 / rows["reached_bf16"]["cells"][0]["value"]


def product_in_profile(gpu: str, ask: Ask) -> float:
    from gpuwise.train.profile.device_comparison import _expected
    from gpuwise.train.profile.products import Product

    return _expected(Product("aten::mm", "bf16", SIDE, SIDE, SIDE, 1, count=1), card(gpu))[0]


def product_in_bench(gpu: str, ask: Ask) -> float:
    case = BenchCase("matmul", "product", "bf16", {"m": SIDE, "n": SIDE, "k": SIDE})
    return rate_expected(gpu, case, 2.0 * SIDE**3)


def rate_expected(gpu: str, case: BenchCase, amount: float) -> float:
    """Seconds that ``bench`` expects for a case whose rate counts ``amount``."""
    found, reason = expectation(case, Subject("cuda", 0, gpu, gpu, card(gpu)))
    assert found is not None, reason
    return amount / found.expected


PRODUCTS = {
    "plan": product_in_a_plan,
    "own code": product_in_own_code,
    "compare": product_in_compare,
    "profile": product_in_profile,
    "bench": product_in_bench,
}


@pytest.mark.parametrize(("way", "gpu"), asked_in(PRODUCTS))
def test_a_matrix_product(way: str, gpu: str, ask: Ask) -> None:
    asked = ask("op", "matmul", str(SIDE), str(SIDE), str(SIDE), "--on", gpu)["rows"][0]["time_s"]["expected"]
    assert PRODUCTS[way](gpu, ask) == pytest.approx(asked, rel=ROUNDING)


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize(
    ("m", "n", "k", "batch"), [(4096, 4096, 4096, 1), (512, 50257, 768, 1), (128, 128, 64, 96), (16, 4096, 14336, 1)]
)
def test_products_of_models(m: int, n: int, k: int, batch: int, gpu: str) -> None:
    """Large, odd, batched and narrow products in a plan and in one's own code."""
    asked = matmul(m, n, k, "bf16", [find_cluster(gpu)], batch=batch).rows[0].time_s.expected
    lead = () if batch == 1 else (batch,)
    flop, read, written = 2.0 * batch * m * n * k, 2.0 * batch * (m * k + k * n), 2.0 * batch * m * n
    turned = TensorSpec((*lead, k, n), (*((k * n,) if lead else ()), 1, k), "bf16")  # as a linear layer's weight lies
    signature = Signature(
        "aten.bmm.default" if lead else "aten.mm.default",
        Kind.MATMUL,
        (bf16(*lead, m, k), turned),
        (bf16(*lead, m, n),),
        (),
        flop,
        read,
        written,
        1,
    )
    table = table_seconds(gpu, Kind.MATMUL, (batch, m, n, k), flop=flop, read=read, written=written, kernel="tn")
    assert (table, captured_seconds(gpu, signature)) == (asked, asked)


# --- attention ---

BATCH, HEADS, SEQ, HEAD_DIM = 1, 32, 4096, 128
QKV = bf16(BATCH, HEADS, SEQ, HEAD_DIM)
ATTENTION_FLOP = 4.0 * BATCH * HEADS * float(attention_pairs(SEQ, SEQ, causal=True)) * HEAD_DIM
ATTENTION = Signature(
    "aten._scaled_dot_product_flash_attention.default",
    Kind.ATTENTION,
    (QKV, QKV, QKV),
    (QKV, TensorSpec((BATCH, HEADS, SEQ), (HEADS * SEQ, SEQ, 1), "fp32")),
    (("is_causal", True),),
    ATTENTION_FLOP,
    6.0 * QKV.stride[0],
    2.0 * QKV.stride[0],
    1,
)


def attention_in_a_plan(gpu: str) -> float:
    shape = (BATCH, SEQ, SEQ, HEADS, HEADS, HEAD_DIM, HEAD_DIM)
    size = 2.0 * QKV.stride[0]
    return table_seconds(
        gpu, Kind.ATTENTION, shape, flop=ATTENTION_FLOP, read=3 * size, written=size, flag=CAUSAL | FUSED_ATTENTION
    )


def attention_in_own_code(gpu: str) -> float:
    """Torch takes cuDNN's kernel on some devices, and a capture says so."""
    op = "cudnn" if card(gpu).compute_capability in CUDNN_ATTENTION_ON else "flash"
    return captured_seconds(gpu, replace(ATTENTION, op=f"aten._scaled_dot_product_{op}_attention.default"))


def attention_in_bench(gpu: str) -> float:
    sizes = {"batch": BATCH, "heads": HEADS, "kv_heads": HEADS, "queries": SEQ, "keys": SEQ, "head_dim": HEAD_DIM}
    return rate_expected(gpu, BenchCase("attention", "prefill", "bf16", sizes), ATTENTION_FLOP)


ATTENTIONS = {"plan": attention_in_a_plan, "own code": attention_in_own_code, "bench": attention_in_bench}


@pytest.mark.parametrize(("way", "gpu"), asked_in(ATTENTIONS))
def test_attention(way: str, gpu: str, ask: Ask) -> None:
    words = [str(n) for n in (BATCH, HEADS, SEQ, HEAD_DIM)]
    asked = ask("op", "attention", *words, "--on", gpu)["rows"][0]["time_s"]["expected"]
    assert ATTENTIONS[way](gpu) == pytest.approx(asked, rel=ROUNDING)


@pytest.mark.parametrize(
    ("words", "measured_s"),
    [("4 32 4096 128 --kv-heads 8", 921.4e-6), ("1 32 8192 128 --no-causal", 1620.9e-6), ("16 12 1024 64", 86.3e-6)],
)
def test_attention_of_torch_on_an_h100(words: str, measured_s: float, ask: Ask) -> None:
    """benchmarks/records/gpu/card_2026-11-26.md: PyTorch 2.11 took cuDNN's kernel for all of them."""
    asked = ask("op", "attention", *words.split(), "--on", "h100-sxm")["rows"][0]["time_s"]
    assert asked["low"] < measured_s < asked["high"]
    assert asked["expected"] == pytest.approx(measured_s, rel=0.1)


# --- a norm, a stream ---

TOKENS, WIDTH = 16384, 4096


@pytest.mark.parametrize("gpu", GPUS)
def test_a_norm(gpu: str) -> None:
    """Layer norm of a model's table and of one's own code: the same tensors, the same seconds."""
    x = bf16(TOKENS, WIDTH)
    moved = 2.0 * TOKENS * WIDTH
    signature = Signature(
        "aten.native_layer_norm.default",
        Kind.MEMORY,
        (x, bf16(WIDTH), bf16(WIDTH)),
        (x,),
        (("normalized_shape", (WIDTH,)),),
        0.0,
        moved,
        moved,
        1,
    )
    said = {"family": "norm", "detail": (1.0, float(TOKENS * WIDTH), 2.0 * WIDTH)}
    assert table_seconds(gpu, Kind.MEMORY, (), flop=0.0, read=moved, written=moved, **said) == captured_seconds(gpu, signature)


STREAM = 1 << 30


def stream_in_a_plan(gpu: str) -> float:
    return table_seconds(gpu, Kind.MEMORY, (), flop=0.0, read=float(STREAM), written=float(STREAM), family="copy")


def stream_in_own_code(gpu: str) -> float:
    x = bf16(STREAM // 2)
    return captured_seconds(
        gpu, Signature("aten.clone.default", Kind.MEMORY, (x,), (x,), (), 0.0, float(STREAM), float(STREAM), 1)
    )


def stream_in_bench(gpu: str) -> float:
    return rate_expected(gpu, BenchCase("memory", "copy", "fp32", {"bytes": STREAM}), 2.0 * STREAM)


STREAMS = {"plan": stream_in_a_plan, "own code": stream_in_own_code, "bench": stream_in_bench}


@pytest.mark.parametrize(("way", "gpu"), asked_in(STREAMS))
def test_a_stream(way: str, gpu: str, ask: Ask) -> None:
    asked = ask("op", "stream", f"{STREAM}B", "--on", gpu)["rows"][0]["time_s"]["expected"]
    assert STREAMS[way](gpu) == pytest.approx(asked, rel=ROUNDING)


# --- an all-reduce ---


@pytest.mark.parametrize("gpu", GPUS)
def test_an_all_reduce(gpu: str, ask: Ask) -> None:
    """One's own code on eight GPUs of a host, and ``op``."""
    from gpuwise.predict.comm.collectives import collective_time

    payload, cluster = 1 << 28, find_cluster(f"8x{gpu}")
    asked = ask("op", "allreduce", f"{payload}B", "--on", f"8x{gpu}")["rows"][0]["time_s"]["expected"]
    x = bf16(payload // 2)
    said = (("collective", "all_reduce"), ("payload_bytes", float(payload)), ("group_size", 8))
    signature = Signature("c10d.allreduce_.default", Kind.COLLECTIVE, (x,), (x,), said, 0.0, float(payload), float(payload), 1)
    mine = times_of([signature], Settings("2.13.0", (8, 0)), cluster.accelerator, system=cluster.system).time_s[0]
    table = collective_time(cluster.system, "all_reduce", np.array([payload]), np.array([8]), np.array([8])).time_s[0]
    assert (float(mine), float(table)) == (asked, asked)
