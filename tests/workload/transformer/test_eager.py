"""A plain PyTorch step from dimensions: what the tape writes. That captures record the same: tests/agreement."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.catalogue import find_model
from gpuwise.workload.blocks.point import Point
from gpuwise.workload.eager.tape import Tape, add, cast, mul, power, spec
from gpuwise.workload.row_codes import Phase
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.transformer.eager import describes
from gpuwise.workload.transformer.eager_step import EMBEDDING, FIRST_KIND, HEAD, EagerStep, eager_step
from gpuwise.workload.transformer.tables import model_flop_per_token


def point(micro_batch: int = 2, seq_len: int = 256, **changes: object) -> Point:
    base = Point(
        micro_batch=micro_batch,
        seq_len=seq_len,
        precision="bf16",
        stack=find_stack("eager"),
        fused_attention=True,
        fused_loss=False,
        autocast=True,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def layers(step: EagerStep) -> int:
    return sum(step.counts.values())


def total_flop(step: EagerStep) -> float:
    """Of the whole model, recomputation left out."""
    weights = {EMBEDDING: 1.0, HEAD: 1.0} | {FIRST_KIND + i: float(n) for i, n in enumerate(step.counts.values())}
    flop = np.array([s.flop for s in step.capture.signatures])[step.capture.op_signature]
    return float(sum(weights.get(int(part), 0.0) * f for part, f in zip(step.part, flop, strict=True)))


def names(step: EagerStep, part: int, phase: Phase) -> Counter[str]:
    mine = np.flatnonzero((step.part == part) & (step.capture.op_phase == phase))
    return Counter(step.capture.signatures[int(step.capture.op_signature[i])].op.split(".")[1] for i in mine)


@pytest.mark.parametrize("model", ["gpt2", "llama-3.2-1b", "qwen2.5-7b", "opt-1.3b", "llama-3.1-8b"])
@pytest.mark.parametrize("autocast", [True, False])
def test_flop_are_those_the_model_needs(model: str, autocast: bool) -> None:
    arch, p = find_model(model), point(autocast=autocast)
    assert total_flop(eager_step(arch, p)) == pytest.approx(model_flop_per_token(arch, p.seq_len) * p.tokens, rel=1e-12)


def test_every_product_of_the_forward_has_two_in_the_backward() -> None:
    step = eager_step(find_model("llama-3.2-1b"), point())
    assert names(step, FIRST_KIND, Phase.FORWARD)["mm"] == 7
    assert names(step, FIRST_KIND, Phase.BACKWARD)["mm"] == 14


def test_autocast_casts_weights_and_half_weights_are_not_cast() -> None:
    arch = find_model("llama-3.2-1b")
    cast_ones = names(eager_step(arch, point()), FIRST_KIND, Phase.FORWARD)["_to_copy"]
    assert cast_ones >= 7
    assert names(eager_step(arch, point(autocast=False)), FIRST_KIND, Phase.FORWARD)["_to_copy"] < cast_ones


def test_a_checkpoint_stops_at_the_last_tensor_that_is_saved() -> None:
    """The last product of a Llama layer saves its input and is not run again; Gemma's norm behind it needs its result."""
    for model, products in (("llama-3.2-1b", 6), ("gemma-3-1b", 7)):
        step = eager_step(find_model(model), point())
        again = [step.capture.signatures[int(step.capture.op_signature[i])] for i in np.flatnonzero(step.again)]
        mine = np.flatnonzero(step.again & (step.part == FIRST_KIND))
        ops = [step.capture.signatures[int(step.capture.op_signature[i])].op for i in mine]
        assert ops.count("aten.mm.default") == products
        assert again


def test_a_loss_in_chunks_has_both_gradients_in_the_forward_and_no_whole_logits() -> None:
    """Liger's: three products a chunk in the forward, none of the head in the backward, the same FLOP; the logits of a chunk are
    as large as its input."""
    arch = find_model("llama-3.2-1b")
    whole, chunks = (eager_step(arch, point(seq_len=1024, fused_loss=fused)) for fused in (False, True))
    assert total_flop(chunks) == pytest.approx(total_flop(whole), rel=1e-12)
    forward = names(chunks, HEAD, Phase.FORWARD)
    tokens = 1024 * point().micro_batch
    assert forward["mm"] == 3 * -(-tokens // (1 << (-(-tokens // -(-arch.vocab // arch.hidden)) - 1).bit_length()))
    assert "mm" not in names(chunks, HEAD, Phase.BACKWARD)
    logits = [one.outputs[0].shape for one in chunks.capture.signatures if one.op == "aten._log_softmax.default"]
    assert logits and all(rows * vocab <= 2 * tokens * arch.hidden for rows, vocab in logits)


def test_more_sequences_are_more_work_and_never_less() -> None:
    arch = find_model("gpt2")
    small, large = (eager_step(arch, point(micro_batch=b)) for b in (2, 4))
    assert total_flop(large) == pytest.approx(2 * total_flop(small), rel=1e-12)
    assert len(small.part) == len(large.part)


def test_layers_of_every_kind_are_counted_once_each() -> None:
    arch = find_model("gemma-3-1b")
    step = eager_step(arch, point(seq_len=1024))
    assert layers(step) == arch.n_layers
    assert set(step.counts) == {"dense", "dense.local"}
    local = list(step.counts).index("dense.local")
    assert names(step, FIRST_KIND + local, Phase.FORWARD)["_scaled_dot_product_efficient_attention"] == 1
    assert names(step, FIRST_KIND + 1 - local, Phase.FORWARD)["_scaled_dot_product_flash_attention"] == 1


@pytest.mark.parametrize(("arch", "masks"), [("gpt2", 1), ("bert-base", 0)])
def test_attention_without_a_fused_kernel_is_two_products_and_a_softmax(arch: str, masks: int) -> None:
    step = eager_step(find_model(arch), point(fused_attention=False))
    forward, backward = names(step, FIRST_KIND, Phase.FORWARD), names(step, FIRST_KIND, Phase.BACKWARD)
    assert (forward["bmm"], forward["_softmax"], forward["native_dropout"]) == (2, 1, 0)
    assert (backward["bmm"], backward["_softmax_backward_data"]) == (4, 1)
    assert names(step, 0, Phase.FORWARD)["where"] == masks
    assert not any("scaled_dot_product" in name for name in forward)


def test_dropout_is_written_where_bert_has_it() -> None:
    step = eager_step(find_model("bert-base"), point(stack=find_stack("apex"), fused_attention=False))
    assert names(step, FIRST_KIND, Phase.FORWARD)["native_dropout"] == 3
    assert names(step, FIRST_KIND, Phase.BACKWARD)["native_dropout_backward"] == 3
    assert names(step, 0, Phase.FORWARD)["native_dropout"] == 1


@pytest.mark.parametrize(
    ("arch", "changes"),
    [
        ("deepseek-v3", {}),
        ("t5-base", {}),
        ("gpt2", {"tp": 2}),
        ("mixtral-8x7b", {"lora_rank": 8, "quantized_base": True}),
        ("gpt2", {"packed_document_len": 128}),
    ],
)
def test_what_is_not_written_here_says_so(arch: str, changes: dict[str, object]) -> None:
    assert not describes(find_model(arch), point(**changes))


def test_the_catalogue_says_how_a_module_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    arch: Architecture = find_model("gpt2")
    assert names(eager_step(arch, point()), FIRST_KIND, Phase.FORWARD)["tanh"] == 1
    plain = replace(arch, activation="gelu")
    assert names(eager_step(plain, point()), FIRST_KIND, Phase.FORWARD)["gelu"] == 1


def test_adapters_train_two_factors_and_no_weight() -> None:
    """Llama at rank 8: the products of a layer are its seven, and two more for each; a frozen weight has no gradient."""
    arch = find_model("llama-3.2-1b")
    step = eager_step(arch, point(lora_rank=8))
    forward, backward = (names(step, FIRST_KIND, phase) for phase in (Phase.FORWARD, Phase.BACKWARD))
    assert forward["mm"] == 7 * 3
    assert backward["mm"] == 7 + 7 * 4
    assert step.weights == 2 * 7 * arch.n_layers
    some = eager_step(arch, point(lora_rank=8, lora_targets=("q_proj", "v_proj")))
    assert names(some, FIRST_KIND, Phase.FORWARD)["mm"] == 7 + 2 * 2
    assert some.weights == 2 * 2 * arch.n_layers


def test_four_bit_weights_are_written_out_for_each_product() -> None:
    """Once forward and once for the gradient of the input; the adapters' input needs no copy in fp32."""
    arch = find_model("llama-3.2-1b")
    step, plain = (eager_step(arch, point(lora_rank=8, quantized_base=q)) for q in (True, False))
    forward, backward = (names(step, FIRST_KIND, phase) for phase in (Phase.FORWARD, Phase.BACKWARD))
    assert forward["dequantize_4bit"] == backward["dequantize_4bit"] == 7
    assert (forward["mm"], backward["mm"]) == (7 * 3, 7 + 7 * 4)
    assert forward["clone"] == 7
    assert forward["_to_copy"] < names(plain, FIRST_KIND, Phase.FORWARD)["_to_copy"]
    assert step.weights == plain.weights


def test_a_frozen_layer_norm_has_one_gradient() -> None:
    arch = find_model("gpt2")
    whole, frozen = (eager_step(arch, point(lora_rank=r)).capture for r in (0, 8))
    made = [{len(s.outputs) for s in c.signatures if "native_layer_norm_backward" in s.op} for c in (whole, frozen)]
    assert made == [{3}, {1}]


def test_a_gated_shared_expert_is_a_dense_one_beside_the_others() -> None:
    """Qwen1.5 MoE: router, gate, up, down and the sigmoid's product; its shares are not scaled to sum to 1."""
    step = eager_step(find_model("qwen1.5-moe-a2.7b"), point(autocast=False))
    moe = names(step, FIRST_KIND, Phase.FORWARD)
    assert moe["mm"] + moe["addmm"] == 4 + 5
    assert moe["_grouped_mm"] == 2 and moe["sigmoid"] == 1 and moe["div"] == 0


# --- the tape ---


def test_gradients_that_meet_are_added() -> None:
    t = Tape()
    x = t.leaf((4, 4), "fp32", trained=True)
    t.backward(add(t, mul(t, x, x), x))
    ops = [s.op for s in t.capture("", eager_step(find_model("gpt2"), point()).capture.settings).signatures]
    assert "aten.add.Tensor" in ops


def test_a_gradient_comes_back_in_the_format_of_its_tensor() -> None:
    t = Tape()
    x = t.leaf((8, 8), "fp32", trained=True)
    made = power(t, cast(t, x, "bf16"))
    assert made.dtype == "bf16"
    t.backward(made)
    capture = t.capture("", eager_step(find_model("gpt2"), point()).capture.settings)
    last = capture.signatures[int(capture.op_signature[-2])]
    assert last.op == "aten._to_copy.default"
    assert last.outputs == (spec((8, 8), "fp32"),)


def test_nothing_is_written_for_what_needs_no_gradient() -> None:
    t = Tape()
    x, w = t.leaf((4, 4), "fp32"), t.leaf((4, 4), "fp32", trained=True)
    made = mul(t, x, w)
    before = len(t)
    t.backward(made)
    assert len(t) - before == 3  # ones, one product, the parameter's gradient handed over


def test_norms_in_fp32_beside_four_bit_weights_widen_the_residual_stream() -> None:
    """Transformers' RMSNorm gives the format of its weight, bitsandbytes' linear that of its input (PEFT's preparation)."""
    arch = find_model("llama-3.2-1b")

    def formats(stack: str, quantized: bool) -> set[str]:
        given = replace(point(lora_rank=8, quantized_base=quantized, autocast=False), stack=find_stack(stack))
        return {s.outputs[0].dtype for s in eager_step(arch, given).capture.signatures if "silu" in s.op}

    assert formats("trainer", True) == {"fp32"}
    assert formats("trainer", False) == formats("litgpt", True) == {"bf16"}
