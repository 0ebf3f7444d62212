"""Each waste of a GPU, planted in a trace of two steps of 10 ms, is what the profile names first; a healthy trace has none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuwise.train.profile.result import Profile, profile_run, profile_traces
from gpuwise.train.profile.run_facts import RunFacts
from gpuwise.train.ticks import Step

STEP = 10_000.0
Make = Callable[[Any, float], None]
BF16 = "c10::BFloat16"
FAST = "nvjet_tst_128x256_64x4_2x1_v_bz_TNT"


@pytest.fixture
def profile_of(kineto: Any, tmp_path: Path) -> Callable[..., Profile]:
    """The profile of two steps that a function fills."""

    def profiled(make: Make, device: Any = None) -> Profile:
        made = kineto(device)
        for n in range(2):
            made.step(n, n * STEP, STEP)
            make(made, n * STEP)
        return profile_traces([made.write(tmp_path / "trace.json")])

    return profiled


def _busy(k: Any, at: float, until: float, **more) -> None:
    """The GPU multiplies in bf16, well issued ahead."""
    settings = {"m": 4096, "n": 4096, "k": 4096, "dtype": BF16, "kernel": FAST, **more}
    while at < until - 1:
        long = min(500.0, until - at)
        k.product(at, long, lead=min(30.0, max(at % STEP, 1.0)), **settings)
        at += long


def healthy(k: Any, t: float) -> None:
    _busy(k, t, t + STEP)


def pageable(k: Any, t: float) -> None:
    of = k.op("aten::copy_", t, 2900)
    k.kernel(
        "Memcpy HtoD (Pageable -> Device)",
        t + 10,
        2900,
        t + 2,
        of,
        cat="gpu_memcpy",
        launcher="cudaMemcpyAsync",
        bytes=30_000_000,
    )
    _busy(k, t + 2950, t + STEP)


def pinned_alone(k: Any, t: float) -> None:
    of = k.op("aten::copy_", t, 20)
    k.kernel(
        "Memcpy HtoD (Pinned -> Device)", t + 10, 2500, t + 2, of, cat="gpu_memcpy", launcher="cudaMemcpyAsync", bytes=60_000_000
    )
    _busy(k, t + 2550, t + STEP)


def data_wait(k: Any, t: float) -> None:
    k.host("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", t, 4000, cat="user_annotation")
    _busy(k, t + 4040, t + STEP)


def reads(k: Any, t: float) -> None:
    """Every .item() waits for the queue to end; then the GPU waits for the host to issue again."""
    for i in range(10):
        at = t + i * 1000
        _busy(k, at, at + 600)
        k.op("aten::item", at + 100, 505)
        k.host("cudaStreamSynchronize", at + 110, 490, cat="cuda_runtime")


def launches(k: Any, t: float) -> None:
    for i in range(500):
        at = t + i * 20
        of = k.op("aten::add", at, 18, [[64, 64], [64, 64]])
        k.kernel("vectorized_elementwise_kernel", at + 10, 4, at + 5, of)


def plain_fp32(k: Any, t: float) -> None:
    _busy(k, t, t + STEP, dtype="float", kernel="sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x64 sgemm")


def tf32(k: Any, t: float) -> None:
    _busy(k, t, t + STEP, dtype="float", kernel="sm90_xmma_gemm_tf32f32_tf32f32_f32_tn")


def turned(k: Any, t: float) -> None:
    of = k.op("aten::cudnn_convolution", t, 30, [[64, 64, 56, 56], [64, 64, 3, 3]], "c10::Half")
    k.kernel("void cudnn::engines_precompiled::nchwToNhwcKernel<__half, __half, float>", t + 20, 2000, t + 5, of)
    k.kernel("sm90_xmma_fprop_implicit_gemm_f16f16", t + 2020, 5500, t + 8, of)
    k.kernel("void cudnn::engines_precompiled::nhwcToNchwKernel<__half, __half, float>", t + 7520, 2400, t + 11, of)


def unfused(k: Any, t: float) -> None:
    _busy(k, t, t + 5000)
    k.host("Optimizer.step#AdamW.step", t + 5000, 5000, cat="user_annotation")
    for i in range(400):
        at = t + 5000 + i * 12
        of = k.op(("aten::mul_", "aten::addcdiv_", "aten::lerp_", "aten::sqrt")[i % 4], at, 10, [[1024], [1024]])
        k.kernel("vectorized_elementwise_kernel", at + 6, 5, at + 3, of)


def chains(k: Any, t: float) -> None:
    """Of one size, where a row and a column are broadcast too; a number to compare with is converted on the way."""
    for i in range(20):
        shapes = [[8192, 1], [1, 8192]] if i % 3 == 1 else [[8192, 8192], [8192, 8192]]
        k.op("aten::_to_copy", t + i * 20 - 6, 4, [[]], BF16)
        of = k.op(("aten::mul", "aten::add", "aten::tanh")[i % 3], t + i * 20, 12, shapes, BF16)
        k.kernel("vectorized_elementwise_kernel", t + 40 + i * 480, 480, t + i * 20 + 4, of)


def math_attention(k: Any, t: float) -> None:
    k.op("aten::_scaled_dot_product_attention_math", t, 100, [[16, 12, 1024, 64]] * 3, BF16)
    for i, (name, kernel) in enumerate((("aten::bmm", FAST), ("aten::_softmax", "softmax_warp_forward"), ("aten::bmm", FAST))):
        of = k.op(name, t + 10 + i * 30, 20, [[192, 1024, 64], [192, 64, 1024]], BF16)
        k.kernel(kernel, t + 50 + i * 1500, 1500, t + 15 + i * 30, of)
    _busy(k, t + 4550, t + STEP)


def by_hand(k: Any, t: float) -> None:
    for i, (name, kernel) in enumerate((("aten::bmm", FAST), ("aten::softmax", "softmax_warp_forward"), ("aten::bmm", FAST))):
        of = k.op(name, t + 10 + i * 30, 20, [[192, 1024, 64], [192, 64, 1024]], BF16)
        k.kernel(kernel, t + 50 + i * 1500, 1500, t + 15 + i * 30, of)
    _busy(k, t + 4550, t + STEP)


def odd(k: Any, t: float) -> None:
    _busy(k, t, t + 4000)
    k.product(t + 4000, 5900, 4096, 50257, 1024, BF16, "ampere_bf16_s16816gemm_bf16_64x64_sliced1x2_ldg8_f2f_tn")


def _all_reduce(k: Any, at: float, long: float, launched: float, stream: int = 20) -> None:
    of = k.host("nccl:all_reduce", launched - 2, 10)
    k.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", at, long, launched, of, stream=stream)


def ddp(k: Any, t: float) -> None:
    for i in range(4):
        at = t + i * 2400
        k.host("DistributedDataParallel.forward", at, 50)
        k.host("autograd::engine::evaluate_function: torch::autograd::GraphRoot", at + 60, 2)
        _busy(k, at, at + 1200)
        _all_reduce(k, at + 1200, 1150, at + 900)
    k.host("Optimizer.step#AdamW.step", t + 9700, 100, cat="user_annotation")


def fsdp(k: Any, t: float) -> None:
    for i in range(4):
        at = t + i * 2400
        k.host("FSDP::root_pre_forward", at, 20, cat="user_annotation")
        k.host("autograd::engine::evaluate_function: torch::autograd::GraphRoot", at + 60, 2)
        _busy(k, at, at + 1200)
        of = k.host("nccl:_reduce_scatter_base", at + 900, 10)
        k.kernel("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", at + 1200, 1150, at + 903, of, stream=20)
    k.host("Optimizer.step#AdamW.step", t + 9700, 100, cat="user_annotation")


def bare_communication(k: Any, t: float) -> None:
    _busy(k, t, t + 6000)
    _all_reduce(k, t + 6000, 3900, t + 5500)


def begging(k: Any, t: float) -> None:
    for i in range(5):
        at = t + i * 2000
        k.host("cudaMalloc", at, 700, cat="cuda_runtime")
        k.host("cudaFree", at + 700, 300, cat="cuda_runtime")
        _busy(k, at + 1010, at + 2000)


WASTES = {
    "unpinned copies": pageable,
    "copies not overlapped": pinned_alone,
    "data wait": data_wait,
    "sync points": reads,
    "launch-bound": launches,
    "NCHW convolutions": turned,
    "unfused optimizer": unfused,
    "pointwise chains": chains,
    "odd sizes": odd,
    "DDP syncs every micro-batch": ddp,
    "FSDP syncs every micro-batch": fsdp,
    "communication not overlapped": bare_communication,
    "allocator thrash": begging,
}


@pytest.mark.parametrize("kind", sorted(WASTES))
def test_the_waste_is_named_first(kind: str, profile_of: Callable[..., Profile]) -> None:
    found = profile_of(WASTES[kind])
    assert found.findings, found.split.parts
    first = found.findings[0]
    assert first.kind == kind == found.verdict.kind, [(f.kind, f.saved_s) for f in found.findings]
    assert first.evidence and first.fix
    assert 0 < first.saved_s <= found.split.wall_s
    assert sum(found.split.parts.values()) == pytest.approx(found.split.wall_s) == pytest.approx(STEP * 1e-6)


@pytest.mark.parametrize("make", [math_attention, by_hand])
def test_attention_that_writes_its_scores(make: Make, profile_of: Callable[..., Profile]) -> None:
    assert profile_of(make).verdict.kind == "attention not flash"


def test_fp32_on_tensor_cores_is_two_findings(profile_of: Callable[..., Profile]) -> None:
    """TF32 costs nothing to try; 16 bits save more."""
    kinds = {f.kind for f in profile_of(plain_fp32).findings}
    assert kinds == {"fp32 without TF32", "no mixed precision"}
    assert {f.kind for f in profile_of(tf32).findings} == {"no mixed precision"}


def test_kernels_longer_than_a_launch_wait_for_a_slow_host(profile_of: Callable[..., Profile]) -> None:
    """minGPT's gpt-mini on an H100: kernels of 16 us, one launched every 35 us; it was told that its products are in 32 bits."""

    def slow_host(k: Any, t: float) -> None:
        for i in range(280):
            at = t + 35 * i
            k.product(at + 12, 16, 8192, 192, 768, "float", "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8", lead=9)
            k.op("aten::view", at + 14, 18, [[8192, 192]])

    found = profile_of(slow_host)
    assert found.verdict.kind == "launch-bound", [(f.kind, f.saved_s) for f in found.findings]
    kinds = {f.kind: f for f in found.findings}
    assert kinds["launch-bound"].evidence[0].what.startswith("kernels, 16 us each (median), one every 35 us")
    products = 280 * 16e-6
    assert kinds["no mixed precision"].saved_s < products * found.split.busy_share < 0.5 * products


@pytest.mark.parametrize("save_s", [0.0, 0.003])
def test_neither_the_profilers_end_nor_a_file_written_elsewhere_is_a_gap(kineto: Any, tmp_path: Path, save_s: float) -> None:
    """nanoGPT on an H100: four traced steps of 44 to 56 ms, 146 ms in which the profiler ended, a checkpoint in other steps."""
    made = kineto()
    for n in range(4):
        made.step(n, n * STEP, STEP if n < 3 else 4 * STEP)
        launches(made, n * STEP)
    clean = Step(0.0, 0.0, 0.003, 0.003, 0.0, save_s, 1, 1, 1, 1, 8, 0, wall_s=0.006 + save_s)
    timed = Step(0.0, 0.0, 0.005, 0.005, 0.0, 0.0, 1, 1, 1, 1, 8, 0, wall_s=0.010)
    facts = RunFacts((clean,) * 20, clean, ({"name": "SGD"},), has_trace=True, traced=(timed,) * 4)
    split = profile_run("train.py", facts, made.write(tmp_path / "trace.json")).split
    assert split.wall_s == pytest.approx(0.006 + save_s) and split.parts["save and log"] == pytest.approx(save_s)
    assert split.parts["compute"] == pytest.approx(0.002)
    assert split.parts["host gaps"] > 0.9 * (0.006 - 0.002)


def _watched(kineto: Any, folder: Path, make: Make, clean: Step) -> Profile:
    """Four steps of 10 ms that a function fills, beside those that were timed without the profiler."""
    made = kineto()
    for n in range(4):
        made.step(n, n * STEP, STEP)
        make(made, n * STEP)
    timed = Step(0.001, 0.0, 0.004, 0.004, 0.001, 0.0, 1, 1, 1, 1, 64, 0, wall_s=0.010)
    facts = RunFacts((clean,) * 20, clean, ({"name": "SGD"},), has_trace=True, traced=(timed,) * 4)
    return profile_run("train.py", facts, made.write(folder / "trace.json"))


def test_a_loader_that_keeps_up_with_the_profiler_alone_is_a_wait(kineto: Any, tmp_path: Path) -> None:
    """ViT-S on an H100 with one worker: 63 of 100 ms in the loader, 16 of 96 while the profiler held up the rest."""
    clean = Step(0.0063, 0.0, 0.0015, 0.0015, 0.0005, 0.0, 1, 1, 1, 1, 64, 0, wall_s=0.010)
    found = _watched(kineto, tmp_path, launches, clean)
    assert found.verdict.kind == "data wait"
    # at most all of the device's two milliseconds hide the wait
    assert found.split.parts["data wait"] == pytest.approx(0.0043) and found.split.wall_s == pytest.approx(0.010)


def test_no_format_makes_a_step_shorter_than_its_host(kineto: Any, tmp_path: Path) -> None:
    """Six layers of width 768 in fp32 on an H100: 37 ms of which the host issues 18; TF32 brought it to 21, bf16 to 25."""
    clean = Step(0.0, 0.0, 0.001, 0.0017, 0.0022, 0.0, 1, 1, 1, 1, 64, 0, wall_s=0.010)
    found = {f.kind: f for f in _watched(kineto, tmp_path, plain_fp32, clean).findings}
    assert found["fp32 without TF32"].saved_s == found["no mixed precision"].saved_s == pytest.approx(0.010 - 0.0049)


def test_what_a_card_cannot_do_is_not_advised(kineto: Any, profile_of: Callable[..., Profile]) -> None:
    found = profile_of(plain_fp32, kineto.T4)
    assert [f.kind for f in found.findings] == ["no mixed precision"]
    assert any("float16" in line for line in found.findings[0].fix)
    assert any("GradScaler" in line for line in found.findings[0].fix)


def test_a_healthy_trace_has_no_finding(profile_of: Callable[..., Profile]) -> None:
    found = profile_of(healthy)
    assert (found.verdict.kind, found.findings) == ("healthy", ())
    assert found.split.busy_share > 0.98
    assert found.utilisation is not None and found.utilisation > 0.1


def test_products_are_held_against_the_card(profile_of: Callable[..., Profile]) -> None:
    """4096 cubed in bf16 takes an H100 a fifth of a millisecond, not a half."""
    slower = profile_of(healthy).slower[0]
    assert slower.count == 20 and slower.measured_s == pytest.approx(0.01, rel=0.05)
    assert 0.2 < slower.expected_s / slower.measured_s < 0.8


def test_the_rank_all_wait_for(kineto: Any, tmp_path: Path) -> None:
    files = []
    for rank in range(4):
        made = kineto(rank=rank)
        late = 3000.0 if rank == 2 else 0.0
        for n in range(2):
            t = n * STEP
            made.step(n, t, STEP)
            _busy(made, t, t + 5500 + late)
            _all_reduce(made, t + 5500 + late, 4400 - late, t + 5000)
        files.append(made.write(tmp_path / f"rank{rank}.json"))
    found = profile_traces(files)
    assert "straggler" in {f.kind for f in found.findings}
    straggler = next(f for f in found.findings if f.kind == "straggler")
    assert "rank 2" in straggler.title and straggler.saved_s == pytest.approx(3e-3, rel=0.1)
    assert [rank for rank, _ in found.ranks] == [0, 1, 2, 3]


def test_lines_of_the_script_are_in_the_evidence(profile_of: Callable[..., Profile]) -> None:
    def make(k: Any, t: float) -> None:
        k.host("train.py(31): step", t, STEP - 1, cat="python_function")
        k.host("torch/nn/modules/module.py(1): _call_impl", t, STEP - 2, cat="python_function")
        reads(k, t)

    found = profile_of(make)
    assert found.findings[0].evidence[0].where == "train.py:31 step"
