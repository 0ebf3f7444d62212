"""Convolutions, attention and memory-bound operations of a trace, as the op table has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuwise.facts.hardware.cpus import cpus
from gpuwise.train.profile.result import profile_traces
from gpuwise.train.profile.trace import Detail
from gpuwise.train.profile.trace_ops import _BIAS, _IS_CAUSAL, KNOWN_OPS, signature_of, trace_ops_of

STEP = 10_000.0
IMAGES, FILTERS = [64, 256, 56, 56], [64, 256, 1, 1]
GIVEN = ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"]


def test_places_are_those_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    for places, argument in ((_IS_CAUSAL, "is_causal"), (_BIAS, "attn_bias")):
        for name, place in places.items():
            schema = torch._C._jit_get_schemas_for_operator(name)[0]
            assert schema.arguments[place].name == argument, name


def test_every_known_name_is_an_operation_of_pytorch() -> None:
    torch = pytest.importorskip("torch")
    # what has no in-place or no backward form is listed with the others by rule, and never seen
    real = {name for name in KNOWN_OPS if torch._C._jit_get_schemas_for_operator(name)}
    assert {"aten::gelu_backward", "aten::copy_", "aten::convolution_backward", "aten::cudnn_batch_norm"} <= real
    assert len(real) > 0.7 * len(KNOWN_OPS)


@pytest.fixture(scope="module")
def real_trace(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A step of strided, dilated and transposed convolutions and of attention; and the convolutions' FLOP by PyTorch's own
    counter, which counts the filter's gradient of a grouped one too often, and no attention on a processor."""
    torch = pytest.importorskip("torch")
    from torch import nn
    from torch.utils.flop_counter import FlopCounterMode

    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=2, dilation=2),
        nn.ConvTranspose2d(8, 4, 4, stride=2, padding=1),
        nn.Conv2d(4, 4, 1),
    )
    images = torch.randn(4, 3, 32, 32)
    rows = torch.randn(2, 2, 64, 16, requires_grad=True)

    def step() -> None:
        attended = torch.nn.functional.scaled_dot_product_attention(rows, rows, rows)
        (model(images).square().mean() + nn.functional.gelu(attended).sum()).backward()

    step()
    with FlopCounterMode(display=False) as counted:
        step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        step()
    file = tmp_path_factory.mktemp("trace") / "trace.json"
    profiler.export_chrome_trace(str(file))
    return file, float(counted.get_total_flops())


def test_flop_are_those_that_pytorch_counts(real_trace: tuple[Path, float]) -> None:
    file, counted = real_trace
    works = trace_ops_of(profile_traces([file]).data)
    convolutions = [w for w in works if "convolution" in w.signature.op]
    assert sum(w.signature.flop * w.count for w in convolutions) == pytest.approx(counted, rel=1e-9)
    names = {w.signature.op.split(".")[1] for w in works}
    assert {"convolution", "convolution_backward", "native_batch_norm", "relu", "gelu", "gelu_backward"} <= names
    assert sum(w.count for w in convolutions) == 8
    attention = {w.signature.op.split(".")[1]: w.signature.flop for w in works if "attention" in w.signature.op}
    # two products of 64 x 64 x 16 for 2 x 2 heads, and five backward
    assert sorted(attention.values()) == [4 * 2 * 2 * 64 * 64 * 16.0, 2.5 * 4 * 2 * 2 * 64 * 64 * 16.0]


def test_a_grouped_convolution_multiplies_within_its_groups() -> None:
    given = ("", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "4")
    found = signature_of("aten::convolution", Detail(((4, 8, 16, 16), (8, 2, 3, 3)), ("float", "float"), given=given))
    assert found is not None and found.flop == 2.0 * 4 * 8 * 16 * 16 * 2 * 9 and found.outputs[0].shape == (4, 8, 16, 16)
    assert signature_of("aten::convolution", Detail(((4, 8, 16, 16), (8, 2, 3, 3)), ("float", "float"))) is None


def test_a_processor_is_held_to_its_own_rates(real_trace: tuple[Path, float]) -> None:
    cpu = next(iter(cpus().values()))
    slower = profile_traces([real_trace[0]], target=cpu).slower
    ops = {s.op for s in slower}
    assert {"convolution", "convolution_backward", "native_batch_norm", "_scaled_dot_product_flash_attention_for_cpu"} <= ops
    assert all(s.expected_s > 0 and s.measured_s > 0 for s in slower)


def test_a_slow_convolution_is_named_with_what_the_card_could(kineto: Any, tmp_path: Path) -> None:
    trace = kineto()
    for n in range(2):
        t = n * STEP
        trace.step(n, t, STEP)
        shapes = [IMAGES, FILTERS, [], [], [], [], [], [], []]
        types = ["c10::BFloat16", "c10::BFloat16", *[""] * 7]
        trace.host("aten::convolution", t + 10, 100, **{"Input Dims": shapes, "Input type": types, "Concrete Inputs": GIVEN})
        inner = trace.host("aten::cudnn_convolution", t + 20, 60)
        trace.kernel("sm90_xmma_fprop_implicit_gemm_bf16", t + 200, 5000, t + 40, inner)
        add = trace.op("aten::add", t + 120, 20, [IMAGES, IMAGES], "c10::BFloat16")
        trace.kernel("vectorized_elementwise_kernel", t + 5300, 120, t + 130, add)
    slower = {s.op: s for s in profile_traces([trace.write(tmp_path / "trace.json")]).slower}
    convolution = slower["convolution"]
    assert convolution.measured_s == pytest.approx(5e-3, rel=0.01)
    assert convolution.flop == pytest.approx(2.0 * 64 * 56 * 56 * 256 * 64)
    # 129 MB at 3.35 TB/s are 38 microseconds; images that are not channels-last are copied besides
    assert 3.8e-5 < convolution.expected_s < 4e-4
    # three times 103 MB at 3.35 TB/s are 92 microseconds
    assert slower["add"].expected_s == pytest.approx(9.2e-5, rel=0.3)
    assert slower["add"].lost_s < 6e-5


def test_a_call_that_was_interrupted_once_is_timed_as_the_others(kineto: Any, tmp_path: Path) -> None:
    """Five steps of two products and an addition; another program has the processor in one of each."""
    trace = kineto()
    for n in range(5):
        t = n * STEP
        trace.step(n, t, STEP)
        for call in range(2):
            trace.op("aten::mm", t + 100 + 4000 * call, 3000 if (n, call) == (3, 1) else 200, [[256, 256], [256, 256]], "float")
        trace.op("aten::add", t + 8000, 1500 if n == 1 else 100, [[1024, 1024], [1024, 1024]], "float")
    data = profile_traces([trace.write(tmp_path / "trace.json")]).data
    (product,) = data.products
    assert (product.count, product.seconds) == (2, pytest.approx(400e-6 * data.factor))
    (add,) = trace_ops_of(data)
    assert add.seconds == pytest.approx(100e-6 * data.factor)
