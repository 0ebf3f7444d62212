"""A step of one micro-batch: what tapes share is what each would have written by itself."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.facts.models.catalogue import find_model
from gpuwise.workload.blocks.point import Point
from gpuwise.workload.eager import tape
from gpuwise.workload.stacks.stack import find_stack
from gpuwise.workload.transformer.eager_step import eager_step

MODELS = [replace(find_model(name), n_layers=2) for name in ("llama-3.2-1b", "gpt2", "bert-base", "gemma-3-1b", "vit-b-16")]
MODELS.append(replace(find_model("qwen3-30b-a3b"), n_layers=2))
PLAIN = Point(
    micro_batch=1,
    seq_len=64,
    precision="bf16",
    stack=find_stack("eager"),
    fused_attention=True,
    fused_loss=False,
    autocast=False,
)


@settings(max_examples=12)
@given(
    model=st.sampled_from(MODELS),
    batches=st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=2, max_size=3, unique=True),
    rank=st.sampled_from([0, 8]),
    half=st.booleans(),
    loss=st.booleans(),
)
def test_signatures_shared_between_tapes_are_those_of_a_tape_alone(
    model: object, batches: list[int], rank: int, half: bool, loss: bool
) -> None:
    points = [
        replace(PLAIN, micro_batch=b, lora_rank=r, autocast=half and not r, fused_loss=loss) for b in batches for r in (rank, 0)
    ]
    shared = [eager_step.__wrapped__(model, p).capture for p in points]  # type: ignore[arg-type]
    for point, found in zip(points, shared, strict=True):
        tape._signatures.clear()
        alone = eager_step.__wrapped__(model, point).capture  # type: ignore[arg-type]
        assert found.signatures == alone.signatures
        assert (found.op_signature == alone.op_signature).all()
