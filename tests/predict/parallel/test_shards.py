"""Layers of pipeline stages as Megatron spreads them, by hand, and parameters that are nowhere twice."""

import numpy as np
import pytest

from gpuwise.facts.models.catalogue import find_model
from gpuwise.predict.columns import Columns
from gpuwise.predict.parallel.shards import stages
from gpuwise.workload.strategy import Strategy
from gpuwise.workload.transformer.parameters import count_parameters


def layers(n: int, pp: int, virtual: int = 1, schedule: str = "1f1b") -> tuple[float, ...]:
    c = Columns.from_strategies([Strategy(pp=pp, virtual_stages=virtual, schedule=schedule)])
    return tuple(float(np.max(x)) for x in stages(find_model("llama-3.1-8b"), c, float(n)).layers)


@pytest.mark.parametrize(
    ("n", "pp", "virtual", "spread"),
    [
        (32, 4, 1, (8, 8, 8)),
        (30, 4, 1, (7, 8, 7)),  # account_for_embedding_in_pipeline_split and ..loss..: 32 places
        (30, 2, 2, (15, 16, 15)),
        (31, 4, 1, (8, 8, 7)),  # the last takes what is left
        (126, 16, 1, (7, 8, 7)),  # Llama 3 405B (arXiv 2407.21783, section 3.3.2)
        (9, 4, 1, (2, 3, 1)),  # the ends take what the middle ones leave
        (10, 4, 2, (1, 4, 1)),
    ],
)
def test_layers_of_the_first_a_middle_and_the_last_stage(n: int, pp: int, virtual: int, spread: tuple[int, ...]) -> None:
    assert layers(n, pp, virtual, "interleaved" if virtual > 1 else "1f1b") == spread


@pytest.mark.parametrize("pp", [1, 2, 4, 8])
@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b", "llama-3.2-1b", "bert-large", "deepseek-moe-16b"])
def test_stages_together_hold_every_parameter_once(name: str, pp: int) -> None:
    arch = find_model(name)
    s = stages(arch, Columns.from_strategies([Strategy(pp=pp)]), float(arch.n_layers))
    first, middle, last = (float(np.max(d + e)) for d, e in zip(s.dense, s.expert, strict=True))
    whole = first if pp == 1 else first + (pp - 2) * middle + last
    count = count_parameters(arch)
    tied = count.tied_head if pp > 1 else 0  # a last stage of its own has a copy of the embedding
    assert whole == pytest.approx(count.total + tied, rel=1e-9)


def test_a_prediction_block_is_a_layer_and_a_projection_of_two_states() -> None:
    """DeepSeek-V3 (arXiv 2412.19437, section 2.2): its projection is of 2 h to h."""
    arch, count = find_model("deepseek-v3"), count_parameters(find_model("deepseek-v3"))
    with_it, without = (
        sum(float(np.max(part[0])) for part in (s.dense, s.expert))
        for s in (
            stages(arch, Columns.from_strategies([Strategy(stack=stack)]), float(arch.n_layers))
            for stack in ("megatron-core", "eager-fsdp")
        )
    )
    assert count.moe_layer is not None
    layer = count.moe_layer.total
    assert with_it - without == pytest.approx(layer + 2 * arch.hidden**2, rel=1e-6)
