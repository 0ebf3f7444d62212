"""Hugging Face ``config.json`` files as architectures.

Which fields a ``model_type`` has, and what they default to, is in :mod:`gpuwise.facts.models.config_readers`;
here are the strict access to the file and the choice of reader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from gpuwise.errors import FieldError
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.checks import check_architecture
from gpuwise.facts.models.config_fields import Config
from gpuwise.facts.models.config_hybrid import HYBRID_READERS
from gpuwise.facts.models.config_readers import READERS, read_generic
from gpuwise.facts.models.stored import format_in_config
from gpuwise.files import MIB, read_json

_LARGEST_FILE = 4 * MIB
_HYBRID_KEYS = (
    "hybrid_override_pattern",
    "layers_block_type",
    "ssm_cfg",
    "mamba_d_state",
    "mamba_num_heads",
    "ssm_state_size",
    "state_size",
    "linear_attn_config",
    "linear_num_value_heads",
    "attn_layer_indices",
    "rglru_config",
    "lru_width",
    "wkv_version",
    "block_types",
    "conv_L_cache",
)
"""Fields of models whose layers are not all attention and MLP, refused unless their type has a reader of its own."""
_REFUSED = {
    "zamba": "shares the weights of its attention among layers",
    "zamba2": "shares the weights of its attention among layers",
    "albert": "shares one layer's weights among all layers",
    "deepseek_v4": "has compressed sparse attention",
    "deepseek_ref": "has compressed sparse attention",
    "gemma3n_text": "has per-layer embeddings and alternating updates",
    "gemma3n": "has per-layer embeddings and alternating updates",
    "mllama_text_model": "has cross-attention layers to an image",
    "nemotron-nas": "has layers that all differ",
    "openelm": "has layers that all differ",
    "mimo_v2_flash": "has layers of different head counts",
    "umt5": "has a table of positions in every layer",
    "reformer": "has hashed attention",
    "longformer": "has attention to chosen global tokens",
    "big_bird": "has block-sparse attention",
}
"""Types that the dimensions of an Architecture cannot express, and why."""


def read_model_config(path: Path) -> Architecture:
    """The architecture of a Hugging Face ``config.json``. Raises FieldError that names file and field."""
    document = read_json(path, most=_LARGEST_FILE, hint="give the model's config.json", finite=False)
    if not isinstance(document, dict):
        raise FieldError("is not a JSON object", file=str(path), hint="give a Hugging Face config.json")
    name = path.parent.name if path.name == "config.json" else path.stem
    return architecture_from_config(cast("dict[str, Any]", document), file=str(path), name=name)


def _refuse_foreign(config: Config, model_type: str) -> None:
    """Raise FieldError for a model that is no stack of equal attention and MLP layers."""
    name = model_type[:60] or "this model"
    hint = "such layers are not described; give dimensions by hand for an approximation"
    if model_type in HYBRID_READERS:
        return
    if model_type in _REFUSED:
        raise config.error(f"{name} {_REFUSED[model_type]}", field="model_type", hint=hint)
    hybrid = next((key for key in _HYBRID_KEYS if config.has(key)), None)
    kinds = config.values.get("attn_type_list")
    if isinstance(kinds, list) and any(kind != 1 for kind in cast("list[object]", kinds)):
        hybrid = "attn_type_list"
    if hybrid is not None:
        raise config.error(f"{name} is not a pure transformer ({hybrid})", field=hybrid, hint=hint)


def _published_formats(config: Config) -> tuple[str | None, str | None]:
    """Formats of the checkpoint's matrices and of its routed experts where ``quantization_config`` says one that engines load
    as it is: fp8 with a scale a block (DeepSeek, MiniMax), mxfp4 experts (gpt-oss)."""
    if not config.has("quantization_config"):
        return None, None
    part = config.part("quantization_config")
    method = part.word("quant_method", "")
    if method == "fp8" and part.has("weight_block_size"):
        return "fp8_block", None
    return None, "mxfp4" if method == "mxfp4" else None


def architecture_from_config(values: Mapping[str, object], *, file: str = "config", name: str = "") -> Architecture:
    """The architecture of an already parsed config; ``file`` is what errors point at. Raises FieldError."""
    config = Config(values, file)
    model_type = config.word("model_type", "")
    notes: list[str] = []
    quantized = config
    if model_type not in READERS and config.has("text_config", "llm_config", "language_config"):
        key = next(k for k in ("text_config", "llm_config", "language_config") if config.has(k))
        outer, tied = model_type or "model", config.values.get("tie_word_embeddings")
        config = config.part(key)
        quantized = config if config.has("quantization_config", "quantization") else quantized
        config = Config({"tie_word_embeddings": tied, **config.values}, file)
        model_type = config.word("model_type", "") or outer
        notes.append(f"the language model of a {outer}; its other towers are left out")
    _refuse_foreign(config, model_type)
    reader = READERS.get(model_type)
    if reader is None:
        notes.append(
            f"model_type {model_type[:60]!r} is not known here: read as a Llama-form decoder; check biases, norms and gate"
        )
        reader = read_generic
    arch = reader(config)
    shown = name or config.word("_name_or_path", "") or model_type or "config"
    weights, experts = _published_formats(config)
    stored = None if weights or experts else format_in_config(quantized)
    arch = replace(
        arch,
        id=shown[:200],
        name=shown[:200],
        source=file,
        notes=(*notes, *arch.notes),
        published_weights=weights,
        published_experts=experts,
        stored_format=stored,
    )
    return check_architecture(arch, file=file)
