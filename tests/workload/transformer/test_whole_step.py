"""A whole step from dimensions: lifetimes that add up, and sizes that follow from shapes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.catalogue import find_model
from gpuwise.predict.memory.allocator.simulation import simulate_capture
from gpuwise.workload.adapters import DEFAULT_TARGETS
from gpuwise.workload.blocks.point import NF4_BYTES_PER_PARAMETER, Point
from gpuwise.workload.capture.captured import Capture, Category
from gpuwise.workload.eager.tape import Tape, spec
from gpuwise.workload.row_codes import Phase
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.transformer import whole_step as writer
from gpuwise.workload.transformer.parameters import adapter_parameters, count_parameters
from gpuwise.workload.transformer.whole_step import N_STEPS, STATES, whole_step

GPT2 = replace(find_model("gpt2"), n_layers=3)
LLAMA = replace(find_model("llama-3.2-1b"), n_layers=2)
EXPERTS = replace(find_model("qwen3-30b-a3b"), n_layers=2)
BATCH, SEQ = 2, 256


def point(*, autocast: bool = True, batch: int = BATCH) -> Point:
    return Point(
        micro_batch=batch,
        seq_len=SEQ,
        precision="bf16",
        stack=find_stack("eager"),
        fused_attention=True,
        fused_loss=False,
        autocast=autocast,
    )


def step(
    arch: Architecture, recompute: str = "none", optimizer: str = "adamw", *, autocast: bool = True, parts: int = 1
) -> Capture:
    return whole_step(arch, point(autocast=autocast), recompute=recompute, optimizer=optimizer, micro_batches=parts)


def largest(capture: Capture, category: Category) -> int:
    return max(capture.bytes_by_category(e).get(category, 0) for e in range(0, len(capture.event_op), 7))


CASES = [(GPT2, "none"), (GPT2, "full"), (LLAMA, "none"), (LLAMA, "full"), (EXPERTS, "none"), (EXPERTS, "full")]


@pytest.mark.parametrize(("arch", "recompute"), CASES)
def test_every_storage_is_born_once_and_dies_once_at_most(arch: Architecture, recompute: str) -> None:
    made = step(arch, recompute, autocast=arch.moe is None)
    births, deaths = (np.bincount(made.event_storage[made.event_sign == s], minlength=len(made.storage_bytes)) for s in (1, -1))
    assert (births <= 1).all() and (deaths <= births).all()
    assert (np.diff(made.event_op) >= 0).all() and (made.live_bytes() >= 0).all()
    assert len(made.steps) == N_STEPS and made.has_flow
    # what is left in the end: parameters, inputs, states
    left = made.bytes_by_category(len(made.event_op) - 1)
    assert set(left) <= {Category.PARAMETER, Category.INPUT, Category.OPTIMIZER}


@pytest.mark.parametrize("arch", [GPT2, LLAMA, EXPERTS])
@pytest.mark.parametrize("optimizer", sorted(STATES))
def test_parameters_gradients_and_states_are_those_of_the_model(arch: Architecture, optimizer: str) -> None:
    autocast = arch.moe is None
    made, width = step(arch, optimizer=optimizer, autocast=autocast), 4 if autocast else 2
    parameters = width * count_parameters(arch).total
    assert largest(made, Category.PARAMETER) == parameters
    if optimizer == "adamw8bit":  # a byte a number and a scale in fp32 for 256; small tensors stay in fp32
        assert largest(made, Category.OPTIMIZER) == pytest.approx(2 * (1 + 4 / 256) * parameters / width, rel=0.01)
    else:
        assert largest(made, Category.OPTIMIZER) == STATES[optimizer] * parameters
    at_update = made.steps[1].end_op - 2
    event = int(np.searchsorted(made.event_op, at_update, side="right")) - 1
    assert made.bytes_by_category(event)[Category.GRADIENT] == parameters


def test_a_checkpointed_layer_keeps_its_input() -> None:
    kept = [largest(step(GPT2, recompute), Category.ACTIVATION) for recompute in ("none", "full")]
    stream = 4 * BATCH * SEQ * GPT2.hidden
    logits = BATCH * SEQ * GPT2.vocab
    assert kept[1] < kept[0]
    # each layer's input, the head's, one layer made again, and the logits with their log-softmax and the head's cast weight
    assert kept[1] >= (GPT2.n_layers + 1) * stream + (2 + 4) * logits
    phases = step(GPT2, "full").op_phase
    assert (phases == int(Phase.RECOMPUTE)).any() and not (step(GPT2).op_phase == int(Phase.RECOMPUTE)).any()


def test_gradients_stay_between_micro_batches() -> None:
    one, two = step(GPT2), step(GPT2, parts=2)
    assert two.peak_bytes() >= one.peak_bytes() + 4 * count_parameters(GPT2).layers
    # those of the second are added as they come: never two of each at once
    assert two.peak_bytes() <= one.peak_bytes() + 1.2 * 4 * count_parameters(GPT2).total
    assert len(two.op_phase) > 1.9 * len(one.op_phase)


def test_twice_the_batch_keeps_twice_the_activations() -> None:
    small, large = (
        largest(whole_step(LLAMA, point(batch=b), recompute="none", optimizer="sgd"), Category.ACTIVATION) for b in (2, 4)
    )
    casts = 2 * (count_parameters(LLAMA).total - count_parameters(LLAMA).embedding) + 2 * LLAMA.vocab * LLAMA.hidden
    assert large - small == pytest.approx(small - casts, rel=0.02)


def test_states_are_in_the_order_in_which_modules_are_registered() -> None:
    """Qwen's router stands behind its experts and its norms behind both, whichever runs first."""
    made = step(EXPERTS, "none", "momentum", autocast=False)
    first = made.storage_bytes[made.storage_category == int(Category.PARAMETER)]
    moe, h = EXPERTS.moe, EXPERTS.hidden
    assert moe is not None
    sizes = made.storage_bytes[made.storage_category == int(Category.OPTIMIZER)].tolist()
    assert sorted(sizes) == sorted(n for n in first.tolist() if n)
    up, down, router = (
        2 * n for n in (2 * moe.n_experts * moe.expert_ffn * h, moe.n_experts * moe.expert_ffn * h, h * moe.n_experts)
    )
    layer = sizes[1 : 1 + (len(sizes) - 3) // EXPERTS.n_layers]
    assert layer[-5:] == [up, down, router, 2 * h, 2 * h]


def test_what_a_frame_binds_lives_until_it_returns() -> None:
    tape = Tape()
    with tape.frame():
        bound, free = (tape.run("zeros", [], [spec((8,), "fp32")])[0] for _ in range(2))
        tape.bind(bound)
        tape.run("ones", [], [spec((8,), "fp32")])
    ends = {storage: op for storage, op, _ in tape.held}
    assert ends == {bound.storage: 2}
    assert free.storage not in ends


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("arch", [GPT2, LLAMA])
def test_frozen_weights_have_neither_gradient_nor_state(arch: Architecture, recompute: str) -> None:
    made = whole_step(arch, replace(point(), lora_rank=16), recompute=recompute, optimizer="adamw")
    adapters = 4 * adapter_parameters(arch, DEFAULT_TARGETS, 16)
    assert largest(made, Category.PARAMETER) == 4 * count_parameters(arch).total + adapters
    assert largest(made, Category.GRADIENT) == adapters
    assert largest(made, Category.OPTIMIZER) == 2 * adapters
    assert (made.live_bytes() >= 0).all()


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("arch", [GPT2, LLAMA])
def test_one_step_of_adapters_is_as_full_as_the_second_of_two(
    arch: Architecture, recompute: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made() -> Capture:
        there = replace(point(autocast=False), lora_rank=16)
        return whole_step(arch, there, recompute=recompute, optimizer="adamw", micro_batches=2)

    one = made()
    monkeypatch.setattr(writer, "n_steps", lambda *_, **__: N_STEPS)
    two = made()
    assert (len(one.steps), len(two.steps)) == (1, N_STEPS)
    assert one.peak_bytes() == two.peak_bytes()
    first, second = (simulate_capture(c).peak_reserved_bytes for c in (one, two))
    assert first == pytest.approx(second, rel=0.01)


def test_adapters_on_half_precision_weights_stay_in_fp32() -> None:
    made = whole_step(LLAMA, replace(point(autocast=False), lora_rank=16), recompute="none", optimizer="adamw")
    adapters = 4 * adapter_parameters(LLAMA, DEFAULT_TARGETS, 16)
    assert largest(made, Category.PARAMETER) == 2 * count_parameters(LLAMA).total + adapters


@pytest.mark.parametrize("arch", [GPT2, LLAMA])
def test_four_bit_weights_hold_half_a_byte_and_their_scales(arch: Architecture) -> None:
    def parameters(quantized: bool) -> int:
        there = replace(point(autocast=False), lora_rank=16, quantized_base=quantized)
        return largest(whole_step(arch, there, recompute="none", optimizer="adamw"), Category.PARAMETER)

    layer = count_parameters(arch).layer
    assert layer is not None
    biases = 5 * arch.hidden + arch.ffn if arch.mlp_bias else 0  # of GPT-2: 3 H, H; F, H
    matrices = arch.n_layers * (layer.attention + layer.mlp - biases)
    assert parameters(False) - parameters(True) == pytest.approx(matrices * (2 - NF4_BYTES_PER_PARAMETER), rel=2e-3)


def test_parameters_that_share_a_gradient_free_it_once() -> None:
    """Of one image the class token's gradient is a part of the positions'."""
    vit = replace(find_model("vit-b-16"), n_layers=1)
    made = whole_step(vit, replace(point(batch=1), seq_len=197), recompute="none", optimizer="adamw")
    freed = made.event_storage[made.event_sign < 0]
    assert len(freed) == len(np.unique(freed))
