"""Time of captured steps: laws of the families, of the host and of the timeline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.predict.captures import capture, convolution, matmul, op, pointwise, spec

from gpuwise.calibrate.machine.fit import fit_constant
from gpuwise.errors import InputError
from gpuwise.facts.hardware.corrections import LAUNCH_KEY
from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.predict.step.bounds import Bound
from gpuwise.predict.step.capture_time import Calibration, captured_time
from gpuwise.predict.step.host_time import HostSpeed, host_log_sigma, host_scale
from gpuwise.predict.step.timeline import BLOCKING, SYNC, WAIT, timeline
from gpuwise.workload.capture.captured import OpFlag, Settings
from gpuwise.workload.capture.record.families import family_of
from gpuwise.workload.row_codes import Kind, Phase
from gpuwise.workload.step import FAMILIES

F, B, U = Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER
H100 = find_accelerator("H100-SXM")
A100, T4, P100 = (find_accelerator(n) for n in ("A100 SXM 80GB", "T4", "p100-pcie-16gb"))


def one(signature, accelerator=A100, **settings_):
    """Device seconds of a single operation."""
    step = Settings("2.13.0", (8, 0), **settings_)
    return float(captured_time(capture([(signature, F)], settings=step), accelerator).device_s[0])


# --- families ---


@pytest.mark.parametrize(
    ("signature", "family"),
    [
        (matmul(8, 8, 8), "matmul"),
        (convolution(1, 8, 8, 8), "convolution"),
        (op("native_layer_norm", [spec(8, 8)], [spec(8, 8)], normalized_shape=(8,)), "norm"),
        (op("cudnn_batch_norm", [spec(2, 8, 4, 4)], [spec(2, 8, 4, 4)], training=True), "norm"),
        (op("_log_softmax", [spec(8, 8)], [spec(8, 8)], dim=1), "softmax"),
        (op("max_pool2d_with_indices", [spec(2, 8, 8, 8)], [spec(2, 8, 4, 4)], kernel_size=(2, 2)), "pooling"),
        (op("upsample_bilinear2d", [spec(2, 8, 8, 8)], [spec(2, 8, 16, 16)]), "resampling"),
        (op("index_put_", [spec(8, 8), spec(4, dtype="i64"), spec(4, 8)], [spec(8, 8)], accumulate=True), "scatter"),
        (op("sort", [spec(8, 8)], [spec(8, 8), spec(8, 8, dtype="i64")]), "sort"),
        (op("cumsum", [spec(8, 8)], [spec(8, 8)], dim=1), "scan"),
        (op("_fft_r2c", [spec(8, 8)], [spec(8, 5)], flop=1e3, dim=(1,)), "fourier"),
        (op("_foreach_add_", [spec(8), spec(8)], []), "optimizer"),
        (op("_fused_adamw_", [spec(8)] * 4, [], kind=Kind.OPTIMIZER), "optimizer"),
        (op("native_dropout", [spec(8)], [spec(8), spec(8, dtype="bool")]), "dropout"),
        (op("dropout", [spec(8)], [spec(8)], p=0.5, train=False), "host"),
        (op("embedding", [spec(8, 8), spec(4, dtype="i64")], [spec(4, 8)], kind=Kind.EMBEDDING), "embedding"),
        (op("_to_copy", [spec(8)], [spec(8)], kind=Kind.COPY, direction="host-to-device"), "transfer"),
        (op("view", [spec(8)], [spec(8)], kind=Kind.HOST, kernels=0), "host"),
        (op("gelu", [spec(8)], [spec(8)]), "elementwise"),
    ],
)
def test_family_and_finite_time(signature, family):
    assert family_of(signature) == family
    time = one(signature)
    assert time == 0.0 if family == "host" else 1e-6 < time < 1e-3


@pytest.mark.parametrize("name", ["gelu", "sum", "native_layer_norm", "_softmax", "sort", "cumsum", "index_select", "clone"])
def test_nothing_to_do_is_as_long_as_a_launch(name):
    tiny = op(name, [spec(1, 1)], [spec(1, 1)], normalized_shape=(1,), dim=-1)
    assert one(tiny) < 1e-5
    assert captured_time(capture([(tiny, F)]), A100).bound[0] in (Bound.LAUNCH, Bound.HOST)


@given(st.integers(10, 29), st.sampled_from(["gelu", "native_dropout", "sum", "_softmax", "cumsum", "sort"]))
@settings(max_examples=2 * settings().max_examples, deadline=None)
def test_more_elements_take_longer_and_no_faster_than_memory(power, name):
    small, large = (op(name, [spec(2**p // 512, 512)], [spec(2**p // 512, 512)], dim=-1) for p in (power, power + 1))
    assert one(large) >= one(small)
    cached = A100.l2_bytes or 0.0
    if large.bytes_read + large.bytes_written > 4 * cached:
        assert one(large) > (large.bytes_read + large.bytes_written) / A100.memory_bandwidth_bytes_per_s


SIZES = st.sampled_from([8, 64, 200, 512, 1024])


@given(m=SIZES, n=SIZES, k=SIZES, scale=st.sampled_from([1.3, 2.0, 4.0]))
@settings(max_examples=settings().max_examples, deadline=None)
def test_a_bigger_device_is_never_slower(m, n, k, scale):
    program = [
        (matmul(8 * m, n, k), F),
        (pointwise(m * n), F),
        (convolution(8, n, k, 28), F),
        (convolution(8, n, k, 28, backward=True), B),
        (op("native_layer_norm", [spec(m, n)], [spec(m, n)], normalized_shape=(n,)), F),
    ]
    bigger = replace(
        A100,
        memory_bandwidth_bytes_per_s=A100.memory_bandwidth_bytes_per_s * scale,
        l2_bytes=(A100.l2_bytes or 0) * scale,
        peak_flop_per_s={d: r * scale for d, r in A100.peak_flop_per_s.items()},
        boost_hz=(A100.boost_hz or 0) * scale,
        tdp_w=(A100.tdp_w or 0) * scale**2,
    )
    taken = capture(program)
    small, large = (captured_time(taken, a) for a in (A100, bigger))
    assert (large.device_s <= small.device_s * 1.001).all()
    assert large.step_time_s.expected <= small.step_time_s.expected * 1.001


def test_flop_are_those_of_the_capture():
    taken = capture([(matmul(512, 512, 512), F), (convolution(4, 32, 64, 28), F), (pointwise(1000), F)] * 3)
    time = captured_time(taken, A100)
    assert time.flop == taken.flop()
    assert sum(o.flop_per_s * o.time_s for o in time.top) == pytest.approx(taken.flop())
    assert sum(time.family_s.values()) == pytest.approx(time.device_total_s) == pytest.approx(sum(time.phase_s.values()))


# --- formats ---


def test_tf32_where_the_step_allows_it_and_the_device_has_it():
    product = matmul(4096, 4096, 4096, "fp32")
    assert one(product, matmul_tf32=True) < 0.35 * one(product)
    assert one(product, T4, matmul_tf32=True) == one(product, T4)
    image = convolution(32, 256, 256, 28, dtype="fp32")
    assert one(image) < 0.8 * one(image, cudnn_tf32=False)


def test_formats_a_device_lacks_run_as_fp32():
    assert one(matmul(2048, 2048, 2048, "bf16"), T4) == one(matmul(2048, 2048, 2048, "fp32"), T4)
    assert one(matmul(2048, 2048, 2048, "fp16"), T4) < 0.5 * one(matmul(2048, 2048, 2048, "fp32"), T4)
    assert one(matmul(2048, 2048, 2048, "fp16"), P100) == one(matmul(2048, 2048, 2048, "fp32"), P100)


def test_double_precision_costs_its_rate():
    assert one(matmul(2048, 2048, 2048, "fp64"), T4) > 10 * one(matmul(2048, 2048, 2048, "fp32"), T4)


# --- convolutions ---


def test_channels_last_saves_the_copies_between_layouts():
    contiguous, last = (convolution(32, 256, 256, 28, last=x) for x in (False, True))
    taken = capture([(contiguous, F)])
    assert one(last) < one(contiguous)
    assert captured_time(taken, A100, channels_last=True).device_s[0] == one(last)


def test_gradients_of_a_convolution_cost_about_two_forwards():
    forward = one(convolution(64, 256, 256, 28, last=True))
    both = one(convolution(64, 256, 256, 28, last=True, backward=True))
    image = one(convolution(64, 256, 256, 28, last=True, backward=True, mask=(True, False, False)))
    weights = one(convolution(64, 256, 256, 28, last=True, backward=True, mask=(False, True, False)))
    assert both == pytest.approx(image + weights, rel=0.05)
    assert 1.5 * forward < both < 4 * forward


def test_depthwise_waits_for_memory_and_transposed_mirrors():
    depthwise = captured_time(capture([(convolution(64, 256, 256, 56, groups=256, last=True), F)]), A100)
    assert depthwise.bound[0] == Bound.BANDWIDTH
    up = convolution(8, 256, 128, 28, 2, stride=2, last=True, transposed=True)
    mirrored = convolution(8, 128, 256, 56, 2, stride=2, last=True, backward=True, mask=(True, False, False))
    assert up.flop == mirrored.flop
    assert 0.4 * one(mirrored) < one(up) < 2.5 * one(mirrored)


@pytest.mark.parametrize("dims", [1, 3])
def test_convolutions_of_one_and_three_dimensions(dims):
    shape = (16,) * dims
    image, weight = spec(4, 32, *shape, dtype="fp16"), spec(64, 32, *(3,) * dims, dtype="fp16")
    out = spec(4, 64, *shape, dtype="fp16")
    flop = 2.0 * 4 * 64 * 16**dims * 32 * 3**dims
    made = op("convolution", [image, weight], [out], kind=Kind.CONVOLUTION, flop=flop, stride=(1,) * dims, groups=1)
    assert flop / A100.peak("fp16") < one(made) < 1e-2


# --- recurrent layers ---


def _lstm(steps: int, layers: int = 1, hidden: int = 256, dtype: str = "fp16"):
    weights = [spec(4 * hidden, hidden, dtype=dtype)] * (2 * layers)
    flop = 2.0 * steps * 32 * 4 * hidden * hidden * 2 * layers
    return op(
        "_cudnn_rnn",
        [spec(steps, 32, hidden, dtype=dtype), *weights],
        [spec(steps, 32, hidden, dtype=dtype)],
        kind=Kind.MATMUL,
        flop=flop,
        kernels=steps * 2 * layers,
        hidden_size=hidden,
        batch_first=False,
    )


def test_recurrent_steps_wait_for_one_another():
    assert one(_lstm(200)) > 1.8 * one(_lstm(100))
    assert one(_lstm(100)) > 100 * 2e-6
    assert one(_lstm(100)) > 3 * one(matmul(3200, 1024, 512, "fp16"))
    assert one(_lstm(100, layers=2)) < 2 * one(_lstm(100))


def test_recurrent_gates_move_their_bytes_behind_each_product():
    steps, batch, hidden = 30, 464, 1024
    weights = [spec(4 * hidden, hidden, dtype="fp16")] * 2
    flop = 2.0 * steps * batch * 4 * hidden * hidden * 2
    tokens = spec(steps, batch, hidden, dtype="fp16")
    lstm = op("_cudnn_rnn", [tokens, *weights], [tokens], kind=Kind.MATMUL, flop=flop, hidden_size=hidden, batch_first=False)
    moved = 2.0 * steps * batch * 6 * hidden * 2  # gates and two states, read and written, in 2 bytes
    assert one(lstm) > flop / A100.peak("fp16") + moved / A100.memory_bandwidth_bytes_per_s


def test_recurrent_layers_take_as_long_as_their_chain_of_kernels():
    """Two layers of 1024, 64 sequences of 256, TF32, on an H100 (traced 2026-11-26): 8.2 ms from first kernel to last."""
    weights = [spec(4096, 512), spec(4096, 1024), spec(4096, 1024), spec(4096, 1024)]
    flop = 2.0 * 256 * 64 * 4096 * (512 + 3 * 1024)
    tokens, states = spec(256, 64, 512), spec(256, 64, 1024)
    lstm = op("_cudnn_rnn", [tokens, *weights], [states], kind=Kind.MATMUL, flop=flop, hidden_size=1024, batch_first=False)
    assert one(lstm, find_accelerator("h100-sxm-80gb")) == pytest.approx(8.2e-3, rel=0.35)


# --- fused attention ---


def _attention(name: str, shape: tuple[int, int, int, int], dtype: str, **attributes: object):
    q = spec(*shape, dtype=dtype)
    flop = 4.0 * shape[0] * shape[1] * shape[2] ** 2 * shape[3]
    return op(f"_scaled_dot_product_{name}_attention", [q, q, q], [q], kind=Kind.ATTENTION, flop=flop, **attributes)


@pytest.mark.parametrize(
    ("name", "shape", "dtype", "dropout", "causal", "microseconds"),
    [
        ("efficient", (2, 16, 1024, 64), "fp32", 0.0, True, 216),
        ("efficient", (64, 6, 197, 64), "fp32", 0.0, False, 212),
        ("efficient", (32, 12, 256, 64), "fp32", 0.1, False, 273),
        ("cudnn", (16, 16, 256, 64), "bf16", 0.1, False, 34.6),
        ("cudnn", (4, 16, 1024, 64), "bf16", 0.0, True, 35),
    ],
)
def test_attention_on_an_h100(name, shape, dtype, dropout, causal, microseconds):
    """Forward kernels of steps traced 2026-11-26 (kernels_2026-11-26.csv.gz)."""
    made = _attention(name, shape, dtype, dropout_p=dropout, is_causal=causal)
    assert one(made, find_accelerator("h100-sxm-80gb")) * 1e6 == pytest.approx(microseconds, rel=0.25)


# --- host and timeline ---


def test_tiny_kernels_are_late_and_large_ones_are_not():
    late = captured_time(capture([(pointwise(64), F)] * 200), A100)
    assert late.launch_bound_share > 0.3
    assert late.step_time_s.expected == pytest.approx(late.host_total_s, rel=0.05)
    assert (late.bound == Bound.HOST).sum() > 150
    busy = captured_time(capture([(pointwise(2**26), F)] * 50), A100)
    assert busy.launch_bound_share < 0.01
    assert busy.step_time_s.expected == pytest.approx(busy.device_total_s, rel=0.01)


def test_a_faster_host_shortens_what_waits_for_it():
    taken = capture([(pointwise(64), F)] * 100)
    slow, fast = (captured_time(taken, A100, host=HostSpeed(f)) for f in (1.0, 2.0))
    assert fast.host_total_s == pytest.approx(slow.host_total_s / 2)
    assert fast.step_time_s.expected < 0.7 * slow.step_time_s.expected
    with pytest.raises(InputError):
        HostSpeed(0.0)


def test_the_interval_has_the_step_at_a_slow_and_at_a_fast_host():
    """A host that is slower by its spread makes the step wait; one that is faster changes nothing where kernels are the limit."""
    near = captured_time(capture([(pointwise(2**23), F)] * 100), A100)
    busy = captured_time(capture([(pointwise(2**26), F)] * 20), A100)
    spread = np.exp(1.2816 * host_log_sigma(A100))
    assert near.host_total_s < near.device_total_s < near.host_total_s * spread
    assert near.step_time_s.high >= 0.99 * near.host_total_s * spread
    assert near.step_time_s.high / near.step_time_s.expected > near.step_time_s.expected / near.step_time_s.low
    assert busy.step_time_s.high / busy.step_time_s.expected == pytest.approx(busy.step_time_s.expected / busy.step_time_s.low)


def test_a_host_that_was_measured_is_predicted_so():
    """launch-eager of `gpuwise bench` on an H100's host: 12.2 us, where a usual server takes 8.1."""
    taken = capture([(pointwise(64), F)] * 100)
    correction = fit_constant(LAUNCH_KEY, float(np.log(12.2e-6 / 8.1e-6))).correction
    slow = replace(A100, corrections={LAUNCH_KEY: correction})
    assert host_scale(slow) == pytest.approx(host_scale(A100) * 12.2 / 8.1, rel=0.02)
    usual, measured = captured_time(taken, A100), captured_time(taken, slow)
    assert measured.host_total_s == pytest.approx(usual.host_total_s * 12.2 / 8.1, rel=0.02)
    assert 0.15 <= host_log_sigma(slow) < 0.5 * host_log_sigma(A100)
    assert measured.step_time_s.log_sigma < usual.step_time_s.log_sigma


def test_compiled_launches_slow_down_with_the_host():
    taken = capture([(matmul(64, 64, 64), F), (pointwise(64), F)] * 50)
    correction = fit_constant(LAUNCH_KEY, float(np.log(1.5))).correction
    slow = replace(A100, corrections={LAUNCH_KEY: correction})
    usual, measured = captured_time(taken, A100, compiled=True), captured_time(taken, slow, compiled=True)
    assert measured.host_total_s == pytest.approx(1.5 * usual.host_total_s, rel=0.03)


# --- power ---


def test_power_follows_what_the_step_does():
    """Large products and streams reach the limit of an H100, a step that waits for its host draws little more than nothing."""
    products = captured_time(capture([(matmul(8192, 8192, 8192, dtype="bf16"), F)] * 20), H100).power_w
    streams = captured_time(capture([(pointwise(2**28), F)] * 20), H100).power_w
    waits = captured_time(capture([(pointwise(64), F)] * 200), H100).power_w
    assert products.expected > 0.9 * H100.tdp_w
    assert streams.expected > 0.8 * H100.tdp_w
    assert waits.expected < 0.2 * H100.tdp_w
    for power in (products, streams, waits):
        assert 0 < power.low < power.expected <= power.high <= H100.tdp_w


def test_a_device_nobody_metered_has_no_power_of_its_own():
    assert captured_time(capture([(pointwise(64), F)]), A100).power_w is None


def test_a_sync_makes_the_host_wait():
    work, tiny = (pointwise(2**28), F), (pointwise(64), F)
    program = [work, *[tiny] * 100]
    plain = captured_time(capture(program), A100)
    waiting = captured_time(capture(program, flags=[int(OpFlag.SYNC), *[0] * 100]), A100)
    assert waiting.step_time_s.expected > 1.3 * plain.step_time_s.expected
    assert waiting.step_time_s.expected == pytest.approx(waiting.device_s[0] + waiting.host_total_s, rel=0.05)


@given(
    st.lists(
        st.tuples(st.floats(0, 1e-3), st.floats(1e-6, 1e-3), st.sampled_from([0, SYNC]), st.booleans()), min_size=1, max_size=30
    )
)
@settings(max_examples=3 * settings().max_examples, deadline=None)
def test_timeline_laws(rows):
    device, host = (np.array([r[i] for r in rows]) for i in (0, 1))
    waits, beside = np.array([r[2] for r in rows]), np.array([r[3] for r in rows])
    line = timeline(device, host, waits, beside)
    slack = 1e-9
    assert line.step_s >= max(device[~beside].sum(), device[beside].sum(), host.sum()) - slack
    assert line.step_s <= device.sum() + host.sum() + slack
    main = line.start_s[(device > 0) & ~beside]
    assert (np.diff(main) >= -slack).all()
    assert line.busy_s <= line.step_s + slack


def test_collectives_run_beside_until_waited_for():
    device, host = np.array([1.0, 2.0, 1.0]), np.full(3, 1e-6)
    beside = np.array([False, True, False])
    assert timeline(device, host, np.zeros(3, int), beside).step_s == pytest.approx(2.0, rel=0.01)
    assert timeline(device, host, np.array([0, BLOCKING, 0]), beside).step_s == pytest.approx(4.0, rel=0.01)
    assert timeline(device, host, np.array([0, 0, WAIT]), beside).step_s == pytest.approx(4.0, rel=0.01)


def _all_reduce(payload: int, size: int = 8):
    return op(
        "all_reduce_",
        [spec(payload // 4)],
        [],
        kind=Kind.COLLECTIVE,
        collective="all_reduce",
        payload_bytes=payload,
        group_size=size,
    )


def test_collectives_take_the_time_of_their_group():
    small, large = (one(_all_reduce(n)) for n in (2**20, 2**30))
    assert 1e-6 < small < large
    assert large > 2**30 / 300e9
    assert one(_all_reduce(2**30, 64)) > large
    assert one(_all_reduce(2**20, 1)) == 0.0
    alone = captured_time(capture([(_all_reduce(2**26), B)]), find_accelerator("RTX 2060"))
    assert 0 < alone.device_total_s < 1
    assert alone.bound[0] == Bound.COMMUNICATION


def test_an_empty_step_takes_no_time():
    time = captured_time(capture([]), A100)
    assert time.step_time_s.expected == 0.0
    assert time.top == ()


# --- calibration and refusals ---


def test_calibration_scales_its_family():
    taken = capture([(matmul(2048, 2048, 2048), F), (pointwise(2**26), F)])
    plain = captured_time(taken, A100)
    scaled = captured_time(taken, A100, calibration=Calibration(family={"elementwise": 2.0}, log_sigma=0.05))
    gap_s = plain.gaps_s / plain.kernels
    assert gap_s == pytest.approx(1.1e-6)
    assert scaled.device_s[1] - gap_s == pytest.approx(2 * (plain.device_s[1] - gap_s))
    assert scaled.device_s[0] == plain.device_s[0]
    assert scaled.step_time_s.high / scaled.step_time_s.expected < plain.step_time_s.high / plain.step_time_s.expected
    slower = captured_time(taken, A100, calibration=Calibration(device=3.0))
    assert slower.device_total_s - slower.gaps_s == pytest.approx(3 * (plain.device_total_s - plain.gaps_s))


@pytest.mark.parametrize(
    "wrong", [{"device": 0.0}, {"host": float("nan")}, {"family": {"nosuch": 1.0}}, {"family": {"norm": -1.0}}]
)
def test_calibration_refuses(wrong):
    with pytest.raises(InputError):
        Calibration(**wrong)


def test_an_unknown_step_is_refused():
    with pytest.raises(InputError, match="no step"):
        captured_time(capture([(pointwise(8), F)]), A100, step=3)


def test_interval_holds_the_expected_and_names_its_basis():
    time = captured_time(capture([(matmul(512, 512, 512), F)]), find_accelerator("RTX 2060"))
    assert time.step_time_s.low < time.step_time_s.expected < time.step_time_s.high
    assert time.basis in ("derived", "specified", "extrapolated")
    assert len(set(FAMILIES)) == len(FAMILIES)


def test_the_optimizer_counts_its_launches():
    many = op("_foreach_mul_", [spec(64)] * 200, [], kernels=200)
    few = op("_foreach_mul_", [spec(64)] * 200, [], kernels=2)
    step = [captured_time(capture([(s, U)]), A100) for s in (many, few)]
    assert step[0].kernels == 200
    assert step[0].device_total_s > 20 * step[1].device_total_s


def test_the_phase_that_waits_for_the_host_is_said():
    work = [(matmul(4096, 4096, 4096, "fp16"), F)] * 4 + [(pointwise(64), U)] * 400
    late = captured_time(capture(work), A100)
    assert max(late.waited_s, key=lambda name: late.waited_s[name]) == "optimizer"


def test_a_recurrent_layer_of_short_steps_is_bound_by_their_launches():
    before = matmul(8192, 8192, 8192, "fp16")  # while it runs the host issues the layer
    behind = captured_time(capture([(before, F), (_lstm(400), F)]), A100)
    assert behind.bound.tolist() == [Bound.TENSOR_CORE, Bound.LAUNCH]
