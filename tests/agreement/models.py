"""Nine models as both front ends know them: a catalogue entry, and the transformers configuration of the same checkpoint.

Layers repeat, so a model of few layers says as much about a layer as the whole one; both sides are cut to the same number.
Experts are held in bf16 (transformers' grouped products take no autocast); everything else is fp32 weights under autocast.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.catalogue import find_model
from gpuwise.predict.step.training import TrainingEstimate, estimate
from gpuwise.workload.capture.captured import Capture
from gpuwise.workload.changes.change import Change
from gpuwise.workload.strategy import Strategy

GPUS = ("A100-SXM-80GB", "H100-SXM", "RTX 4090", "RTX 3090")


@dataclass(frozen=True, slots=True)
class Model:
    """``settings`` of the transformers class ``config``, its layers left out; ``few`` layers stand for all."""

    id: str
    config: str
    settings: dict[str, Any]
    layers: str
    """The setting that counts the layers."""
    few: int
    batch: int
    seq: int
    half: bool = False
    """Weights held in bf16, no autocast."""
    head: str = ""
    """The class to build where it is not a causal language model."""
    limits: dict[str, Any] = field(default_factory=dict[str, Any])
    """Fields of the catalogue's entry that a cut changes."""


LLAMA = {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072}
MODELS: tuple[Model, ...] = (
    Model(
        "gpt2",
        "GPT2Config",
        {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "use_cache": False},
        "n_layer",
        2,
        8,
        1024,
    ),
    Model(
        "llama-3.2-1b",
        "LlamaConfig",
        {
            **LLAMA,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "head_dim": 64,
            "tie_word_embeddings": True,
            "use_cache": False,
        },
        "num_hidden_layers",
        2,
        2,
        2048,
    ),
    Model(
        "llama-3.1-8b",
        "LlamaConfig",
        {**LLAMA, "hidden_size": 4096, "intermediate_size": 14336, "use_cache": False},
        "num_hidden_layers",
        2,
        1,
        2048,
    ),
    Model(
        "gemma-3-1b",
        "Gemma3TextConfig",
        {
            "hidden_size": 1152,
            "intermediate_size": 6912,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "vocab_size": 262144,
            "max_position_embeddings": 32768,
            "sliding_window": 512,
            "tie_word_embeddings": True,
            "use_cache": False,
        },
        "num_hidden_layers",
        6,
        2,
        2048,
    ),
    Model(
        "mixtral-8x7b",
        "MixtralConfig",
        {
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 32000,
            "max_position_embeddings": 32768,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "use_cache": False,
        },
        "num_hidden_layers",
        2,
        1,
        2048,
        half=True,
    ),
    Model(
        "qwen3-30b-a3b",
        "Qwen3MoeConfig",
        {
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "moe_intermediate_size": 768,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "vocab_size": 151936,
            "max_position_embeddings": 40960,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "norm_topk_prob": True,
            "use_cache": False,
        },
        "num_hidden_layers",
        2,
        1,
        2048,
        half=True,
    ),
    Model(
        "qwen1.5-moe-a2.7b",
        "Qwen2MoeConfig",
        {
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "vocab_size": 151936,
            "max_position_embeddings": 8192,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "use_cache": False,
        },
        "num_hidden_layers",
        2,
        1,
        2048,
        half=True,
    ),
    Model(
        "bert-base",
        "BertConfig",
        {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
        "num_hidden_layers",
        2,
        32,
        128,
        head="BertModel",
    ),
    Model("vit-b-16", "ViTConfig", {"num_labels": 1000}, "num_hidden_layers", 2, 32, 197, head="ViTForImageClassification"),
)
BY_ID = {m.id: m for m in MODELS}


def architecture(model: Model, *, full: bool = False) -> Architecture:
    """The catalogue's entry, cut to few layers."""
    arch = find_model(model.id)
    return arch if full else replace(arch, n_layers=model.few)


def strategy(model: Model, **changes: Any) -> Strategy:
    """The plain step of ``model`` on one GPU as a strategy."""
    base: dict[str, Any] = {"precision": "bf16", "micro_batch": model.batch, "stack": "eager"}
    if model.half:
        base |= {"master_weights": False, "gradient_dtype": "bf16"}
    return Strategy(**{**base, **changes})


def analytic(model: Model, gpu: str, *, full: bool = False, **changes: Any) -> TrainingEstimate:
    """The catalogue's estimate of one step."""
    return estimate(architecture(model, full=full), f"1x{gpu}", strategy(model, **changes), seq_len=model.seq)


@lru_cache(maxsize=64)
def captured(model_id: str, *changes: Change, full: bool = False, parts: int = 1) -> Capture:
    """The captured step of ``model_id`` with ``changes``, its batch cut into ``parts``."""
    from gpuwise.workload.capture.rerun import captured_with

    model = BY_ID[model_id]
    autocast = () if model.half else (Change("autocast", "bf16"),)
    sizes = {} if model.head else {"batch": model.batch // parts, "seq": model.seq}
    return captured_with(_subject(model, full), (*autocast, *changes), capability=(8, 0), **sizes)[0]


def _subject(model: Model, full: bool) -> Any:
    """A configuration, or a function that builds module, inputs, optimizer and loss."""
    import torch

    from studies.networks import support as zoo_support

    if importlib.util.find_spec("torchvision") is not None:
        zoo_support.torchvision()  # transformers imports it; some builds lack its binary
    library = zoo_support.transformers()
    layers = find_model(model.id).n_layers if full else model.few
    config = getattr(library, model.config)(**model.settings, **{model.layers: layers})
    if model.half:
        config.dtype = torch.bfloat16
    return config if not model.head else _built(model, getattr(library, model.head), config)


def _built(model: Model, network: Any, config: Any) -> Callable[[], Any]:
    import torch

    def build() -> Any:
        with torch.device("cuda"):
            module = network(config)
            if model.head == "BertModel":
                ids = torch.zeros(model.batch, model.seq, dtype=torch.long)
                return module, {"input_ids": ids}, "adamw", lambda out: out.pooler_output.mean()
            images, labels = torch.zeros(model.batch, 3, 224, 224), torch.zeros(model.batch, dtype=torch.long)
            return module, {"pixel_values": images, "labels": labels}, "adamw"

    return build
