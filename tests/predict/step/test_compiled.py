"""What compiling a captured step changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.predict.captures import capture, convolution, matmul, op, pointwise, spec

from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.predict.step.capture_time import captured_time
from gpuwise.workload.capture.captured import OpFlag, Settings
from gpuwise.workload.row_codes import Phase

A100 = find_accelerator("A100 SXM 80GB")
F, B, U = Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER
N = 2**26


def both(program, **kwargs):
    taken = capture(program, **kwargs)
    return captured_time(taken, A100, compiled=False), captured_time(taken, A100, compiled=True)


@pytest.mark.parametrize("flow", [True, False])
def test_a_chain_becomes_one_kernel_that_reads_and_writes_once(flow):
    eager, fused = both([(pointwise(N, name=n), F) for n in ("relu", "sigmoid", "tanh", "exp")], flow=flow)
    assert (eager.kernels, fused.kernels) == (4, 1)
    assert fused.device_total_s == pytest.approx(eager.device_total_s / 4, rel=0.05)


def test_a_product_in_between_keeps_kernels_apart():
    side = 4096
    around = op("relu", [spec(side, side, dtype="bf16")], [spec(side, side, dtype="bf16")])
    eager, fused = both([(around, F), (matmul(side, side, side), F), (around, F)], flow=True)
    assert fused.kernels == 3
    assert fused.family_s["matmul"] == eager.family_s["matmul"]
    assert fused.device_total_s == pytest.approx(eager.device_total_s, rel=1e-3)


def test_the_optimizer_stays_eager():
    eager, fused = both([(pointwise(N), U)] * 3, flow=True)
    assert fused.kernels == eager.kernels == 3
    assert fused.device_total_s == eager.device_total_s


def test_norm_joins_its_neighbours_and_moments_need_a_kernel():
    rows, width = 2**14, 1024
    x = spec(rows, width, dtype="bf16")
    norm = op("native_layer_norm", [x], [x], normalized_shape=(width,))
    gelu = op("gelu", [x], [x])
    assert both([(gelu, F), (norm, F), (gelu, F)], flow=True)[1].kernels == 1
    image = spec(32, 64, 56, 56, dtype="fp16")
    batch = op("cudnn_batch_norm", [image], [image], training=True)
    relu = op("relu", [image], [image])
    eager, fused = both([(batch, F), (relu, F)], flow=True)
    assert fused.kernels == 2
    assert 0.5 * eager.device_total_s < fused.device_total_s < eager.device_total_s


def test_only_marked_regions_are_compiled_unless_asked():
    program = [(pointwise(N), F)] * 4
    mark = int(OpFlag.COMPILED)
    taken = capture(program, flow=True, flags=[mark, mark, 0, 0], settings=Settings("2.13.0", (8, 0), compiled=True))
    assert captured_time(taken, A100).kernels == 3
    assert captured_time(taken, A100, compiled=True).kernels == 1
    assert captured_time(taken, A100, compiled=False).kernels == 4


def test_cuda_graphs_take_the_host_out():
    program = [(matmul(64, 64, 64), F)] * 200
    plain = capture(program, flow=True, settings=Settings("2.13.0", (8, 0), compiled=True))
    graph = replace(plain, settings=replace(plain.settings, compile_mode="reduce-overhead"))
    eager, compiled, graphed = captured_time(plain, A100, compiled=False), captured_time(plain, A100), captured_time(graph, A100)
    assert graphed.host_total_s < 0.1 * compiled.host_total_s < 0.1 * eager.host_total_s
    assert graphed.step_time_s.expected <= compiled.step_time_s.expected <= eager.step_time_s.expected


def test_compiling_lays_images_out_for_the_matrix_unit():
    eager, fused = both([(convolution(32, 256, 256, 28), F)], flow=True)
    assert fused.device_total_s < eager.device_total_s


def test_what_the_backward_can_compute_again_is_not_written():
    """relu, sigmoid; the backward reads both results: the kernel's own input stands for them."""
    x = spec(N, dtype="bf16")
    chain = [(pointwise(N, name="relu"), F), (pointwise(N, name="sigmoid"), F)]
    back = (op("mul", [x, x], [x]), B)
    taken = capture([*chain, (pointwise(N, name="sum"), F), back], flow=True)
    inputs = taken.op_inputs.copy()
    inputs[taken.op_input_end[2] :] = [1, 0]
    taken = replace(taken, op_inputs=inputs)
    eager, fused = captured_time(taken, A100, compiled=False), captured_time(taken, A100, compiled=True)
    assert fused.device_total_s < 0.6 * eager.device_total_s
