"""The parameter count of every named model against what was published."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.catalogue import models
from gpuwise.facts.models.dimensions import architecture_from_dimensions
from gpuwise.units import parse_count
from gpuwise.workload.transformer.parameters import count_parameters

ALL = sorted(models())
EXACT = [name for name in ALL if models()[name].published_parameters is not None]
ROUNDED = [name for name in ALL if models()[name].published_rounded is not None]

ACTIVE = {
    # parameters one token uses, as published; rounded to the digits given
    "mixtral-8x7b": ("12.9B", "https://arxiv.org/abs/2401.04088 (13B); 12.9B in the release note"),
    "mixtral-8x22b": ("39B", "https://mistral.ai/news/mixtral-8x22b"),
    "deepseek-v2": ("21B", "https://arxiv.org/abs/2405.04434 abstract"),
    "qwen1.5-moe-a2.7b": ("2.7B", "https://qwenlm.github.io/blog/qwen-moe"),
    "qwen3-235b-a22b": ("22B", "https://arxiv.org/abs/2505.09388 table 2"),
    "dbrx-132b": ("36B", "https://www.databricks.com/blog/introducing-dbrx-new-state-art-open-llm"),
    "llama-4-scout": ("17B", "https://ai.meta.com/blog/llama-4-multimodal-intelligence"),
    "llama-4-maverick": ("17B", "https://ai.meta.com/blog/llama-4-multimodal-intelligence"),
    "olmoe-1b-7b": ("1.3B", "https://arxiv.org/abs/2409.02060 table 10"),
    "phi-3.5-moe": ("6.6B", "https://huggingface.co/microsoft/Phi-3.5-MoE-instruct"),
}
NON_EMBEDDING = {
    # https://arxiv.org/abs/2304.01373 table 1
    "pythia-70m": 18_915_328,
    "pythia-160m": 85_056_000,
    "pythia-410m": 302_311_424,
    "pythia-1b": 805_736_448,
    "pythia-1.4b": 1_208_602_624,
    "pythia-2.8b": 2_517_652_480,
    "pythia-6.9b": 6_444_163_072,
    "pythia-12b": 11_327_027_200,
}
SHARED_PREDICTION = {
    # the same, where the block has no copies
    "mimo-7b": 7_833_409_536,
}
CHECKPOINTS = {
    # elements of the safetensors files on https://huggingface.co: with the prediction block and
    # its own copies of embedding and head
    "glm-4.5": 358_337_791_296,
    "glm-4.5-air": 110_468_824_832,
}


def _within_last_digit(count: int, printed: str) -> bool:
    """Whether ``count`` rounds or truncates to ``printed`` (``~``: is within 5 %)."""
    value = parse_count(printed.lstrip("~"))
    if printed.startswith("~"):
        return math.isclose(count, value, rel_tol=0.05)
    digits = re.fullmatch(r"[0-9]+(?:\.([0-9]+))?([KMBT])", printed)
    assert digits is not None, printed
    unit = parse_count("1" + digits[2]) / 10 ** len(digits[1] or "")
    return abs(count - value) < unit


def test_every_model_has_one_published_figure() -> None:
    assert len(ALL) >= 200
    assert set(EXACT) | set(ROUNDED) == set(ALL)
    assert not set(EXACT) & set(ROUNDED)
    assert len(EXACT) >= 180


@pytest.mark.parametrize("name", EXACT)
def test_exact_count(name: str) -> None:
    arch = models()[name]
    assert count_parameters(arch).total == arch.published_parameters


@pytest.mark.parametrize("name", ROUNDED)
def test_rounded_count(name: str) -> None:
    arch = models()[name]
    assert arch.published_rounded is not None
    assert _within_last_digit(count_parameters(arch).total, arch.published_rounded)
    if arch.published_rounded.startswith("~") and arch.family != "gpt-megatron":
        assert arch.published_note, "a count within 5 % needs the reason"


@pytest.mark.parametrize("name", ACTIVE)
def test_active_count(name: str) -> None:
    """Papers count the embedding or leave it out; one of the two must round to the figure."""
    count = count_parameters(models()[name])
    counts = (count.active, count.active_embedding_free, count.active - count.embedding - count.head)
    assert any(_within_last_digit(round(c), ACTIVE[name][0]) for c in counts), counts


def test_deepseek_v3_active_parameters() -> None:
    """37B activated; 36.6B without the input embedding (README_WEIGHTS.md of deepseek-ai/DeepSeek-V3)."""
    count = count_parameters(models()["deepseek-v3"])
    correction = 58 * 256  # the routers' load-balancing numbers, which recounts of the paper leave out
    assert count.active - correction == 37_552_282_624
    assert round(count.active_embedding_free / 1e9, 1) == 36.6


@pytest.mark.parametrize("name", NON_EMBEDDING)
def test_non_embedding_count(name: str) -> None:
    c = count_parameters(models()[name])
    assert c.total - c.embedding - c.head == NON_EMBEDDING[name]


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_prediction_block(name: str) -> None:
    arch = models()[name]
    count = count_parameters(arch)
    assert count.total + count.prediction + 2 * arch.vocab * arch.hidden == CHECKPOINTS[name]


@pytest.mark.parametrize("name", SHARED_PREDICTION)
def test_prediction_block_without_copies(name: str) -> None:
    count = count_parameters(models()[name])
    assert count.total + count.prediction == SHARED_PREDICTION[name]


def test_llama_4_checkpoints_share_one_vision_tower() -> None:
    """Checkpoint totals minus our text models leave the same vision encoder and projector."""
    scout, maverick = (count_parameters(models()[f"llama-4-{n}"]).total for n in ("scout", "maverick"))
    assert 108_641_793_536 - scout == 401_583_781_376 - maverick == 871_932_416


@pytest.mark.parametrize("name", ALL)
def test_parts_add_up(name: str) -> None:
    arch = models()[name]
    c = count_parameters(arch)
    parts = c.attention + c.mlp + c.norm + c.router + c.experts + c.shared_experts + c.mixer + c.latent
    outside = c.embedding + c.stem + c.stack_tables + c.head + c.extra
    assert parts + outside == c.total
    assert c.n_layers + c.n_moe_layers + sum(n for _, n in c.hybrid_layers) == arch.n_layers
    assert 0 < c.active <= c.total
    assert (c.active == c.total) == (arch.moe is None)
    assert 0 < c.embedding + c.head < c.total
    assert c.embedding_free == c.total - c.lookup + c.tied_head
    assert c.extra == sum(e.parameters for e in arch.extras)


SIZES = st.fixed_dictionaries(
    {
        "layers": st.integers(1, 200),
        "kv_heads": st.integers(1, 16),
        "groups": st.integers(1, 8),
        "head_dim": st.integers(1, 256),
        "ffn": st.integers(1, 100_000),
        "vocab": st.integers(1, 300_000),
        "tied_embeddings": st.booleans(),
        "gated_mlp": st.booleans(),
    }
)


def _sized(size: dict[str, int], **more: int) -> Architecture:
    size = dict(size)
    heads = size["kv_heads"] * size.pop("groups")
    return architecture_from_dimensions(**size, heads=heads, hidden=heads * size["head_dim"], **more)


@given(SIZES)
def test_closed_form_of_a_dense_decoder(size: dict[str, int]) -> None:
    """Rotary, RMSNorm, no biases: V H (2 - tied) + L (2 H A D + 2 H K D + m H F + 2 H) + H."""
    arch = _sized(size)
    h, q, kv = arch.hidden, arch.heads * arch.head_dim, arch.kv_heads * arch.head_dim
    layer = 2 * h * q + 2 * h * kv + (3 if arch.gated_mlp else 2) * h * arch.ffn + 2 * h
    expected = arch.vocab * h * (1 if arch.tied_embeddings else 2) + arch.n_layers * layer + h
    assert count_parameters(arch).total == expected


@given(SIZES, st.integers(1, 64), st.data())
def test_experts_only_add(size: dict[str, int], n_experts: int, data: st.DataObject) -> None:
    active = data.draw(st.integers(1, n_experts))
    c = count_parameters(_sized(size, experts=n_experts, active_experts=active, expert_ffn=64))
    assert c.total - c.active == c.experts // n_experts * (n_experts - active)


@given(SIZES)
def test_layers_are_linear(size: dict[str, int]) -> None:
    one, two = (count_parameters(_sized({**size, "layers": n * size["layers"]})) for n in (1, 2))
    assert two.total - one.total == one.layers
