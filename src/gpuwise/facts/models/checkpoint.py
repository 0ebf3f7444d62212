"""The model in a checkpoint of safetensors: the one that its ``config.json`` describes, else a decoder of the tensors' own sizes.

Bytes of weights are always those of the tensors. Towers for images and sound are left out, as elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import cast

from gpuwise.errors import FieldError, FileError
from gpuwise.facts.models.architecture import Architecture, Moe, StoredBytes
from gpuwise.facts.models.checks import check_architecture
from gpuwise.facts.models.config_fields import Config
from gpuwise.facts.models.configs import read_model_config
from gpuwise.facts.models.safetensors import Tensor, read_folder, read_tensors
from gpuwise.facts.models.sized import SIZED_LOG_SIGMA
from gpuwise.facts.models.stored import format_in_config
from gpuwise.files import MIB, read_json

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)\.(.+)$")
_TOWER = re.compile(r"(?:^|\.)(?:vision|visual|audio|image|vit|siglip|mm_|multi_modal|projector|embed_vision|embed_audio|speech)")
_EMBEDDING = re.compile(
    r"(?:^|\.)(?:embed_tokens|wte|word_embeddings|tok_embeddings|embed_in|embeddings?)\.(?:weight|qweight|scales)"
)
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out|output)\.")
_TABLES = re.compile(r"(?:^|\.)(?:embed_tokens_per_layer|wpe|position_embeddings|embed_positions)\.")
_PREDICTION = re.compile(r"(?:^|\.)(?:mtp|nextn)")
_EXPERT = re.compile(r"(?<!shared_)experts\.(?:(\d+)\.)?")
_SIXTEEN = {"BF16": "bf16", "F16": "fp16", "F32": "F32"}
_HINT = "give the folder with its config.json"


def architecture_of_checkpoint(path: Path, *, name: str = "") -> Architecture | None:
    """The language model in a folder of safetensors, or in one file beside its ``config.json``; None where a folder has no
    tensors. Raises FileError, FieldError."""
    folder = path if path.is_dir() else path.parent
    tensors = read_folder(path) if path.is_dir() else read_tensors(path)
    if not tensors:
        return None
    text = [t for t in tensors if _TOWER.search(t.name) is None]
    config = folder / "config.json"
    shown = name or (path.name if path.is_dir() else path.stem)
    sizes = _Sizes(text, str(path))
    try:
        arch = read_model_config(config) if config.is_file() else None
    except FieldError:
        arch = None  # of an undescribed kind
    described = arch is not None and not any("is not known here" in note for note in arch.notes)
    if arch is None or not described:
        arch = _by_tensors(sizes, _config(config), str(path), arch)
    sizes.check(arch)
    stored = sizes.bytes_by_role(arch.n_layers)
    form = arch.stored_format or arch.published_weights
    if not described and form is None:
        form = sizes.sixteen
    towers = len(text) < len(tensors)
    return replace(
        arch,
        id=shown[:200],
        name=shown[:200],
        source=str(path),
        stored_format=form,
        stored_bytes=None if form is None else stored,
        published_weights=None if form == arch.published_weights else arch.published_weights,
        notes=(*arch.notes, *(["its towers for images or sound are left out"] if towers else [])),
    )


def _config(path: Path) -> Config:
    if not path.is_file():
        return Config({}, str(path))
    values = read_json(path, most=4 * MIB, hint="give the model's config.json", finite=False)
    found = Config(cast("dict[str, object]", values) if isinstance(values, dict) else {}, str(path))
    key = next((k for k in ("text_config", "llm_config", "language_config") if found.has(k)), None)
    return found if key is None else Config({**found.values, **found.part(key).values}, str(path))


class _Sizes:
    """What the names and shapes of tensors say."""

    def __init__(self, tensors: Iterable[Tensor], file: str) -> None:
        self.tensors, self.file = tuple(tensors), file
        self.layers = 1 + max((int(m[1]) for t in self.tensors if (m := _LAYER.search(t.name))), default=-1)
        self.kinds = {t.kind for t in self.tensors}
        embedding = next((t for t in self.tensors if _EMBEDDING.search(t.name) and not _LAYER.search(t.name)), None)
        if embedding is None or len(embedding.shape) != 2 or not self.layers:
            raise FileError("has no token embedding and layers", file=file, hint="give the checkpoint of a language model")
        self.vocab, self.width = embedding.shape
        self.packed = embedding.kind not in _SIXTEEN
        self.tied = not any(_HEAD.search(t.name) and not _LAYER.search(t.name) for t in self.tensors)
        of_experts = (m for t in self.tensors if (m := _EXPERT.search(t.name)) is not None)
        numbered = {int(m[1]) for m in of_experts if m[1]}
        stacked = [t.shape[0] for t in self.tensors if _EXPERT.search(t.name) and len(t.shape) == 3]
        self.experts = len(numbered) or max(stacked, default=0)

    @property
    def sixteen(self) -> str:
        """The format of most bytes, for tensors that are not narrowed."""
        sums: dict[str, int] = {}
        for t in self.tensors:
            sums[t.kind] = sums.get(t.kind, 0) + t.n_bytes
        most = max(sums, key=lambda kind: sums[kind])
        if most.startswith("F8"):
            return "fp8"
        if most not in _SIXTEEN:
            raise FileError(
                f"has most weights in {most}, and no quantization_config that says of which format", file=self.file, hint=_HINT
            )
        return _SIXTEEN[most]

    def shape(self, *words: str) -> tuple[int, ...] | None:
        """Of the first matrix in a layer whose name has one of ``words``."""
        for word in words:
            for t in self.tensors:
                if word in t.name and len(t.shape) == 2 and t.kind in _SIXTEEN and _LAYER.search(t.name):
                    return t.shape
        return None

    def check(self, arch: Architecture) -> None:
        """Raises FileError where the config is not that of the tensors."""
        last = arch.n_layers + arch.prediction_layers
        if not arch.n_layers <= self.layers <= max(last, arch.n_layers + 1):
            why = f"config.json says {arch.n_layers} layers, and the tensors are of {self.layers}"
            raise FileError(why, file=self.file, hint="give the folder of one model, with all its parts")
        if not self.packed and self.width != (arch.embedding_dim or arch.hidden):
            why = f"config.json says a width of {arch.hidden:,}, and the embedding has {self.width:,}"
            raise FileError(why, file=self.file, hint="give the folder of one model")

    def bytes_by_role(self, n_layers: int) -> StoredBytes:
        roles: dict[str, int] = dict.fromkeys(("embedding", "tables", "head", "layers", "experts", "prediction"), 0)
        for t in self.tensors:
            roles[_role(t.name, n_layers)] += t.n_bytes
        return StoredBytes(**roles)


def _role(name: str, n_layers: int) -> str:
    found = _LAYER.search(name)
    if _PREDICTION.search(name) or (found is not None and int(found[1]) >= n_layers):
        return "prediction"
    if found is not None:
        return "experts" if _EXPERT.search(name) else "layers"
    for role, pattern in (("tables", _TABLES), ("embedding", _EMBEDDING), ("head", _HEAD)):
        if pattern.search(name):
            return role
    return "layers"


def _by_tensors(sizes: _Sizes, c: Config, file: str, read: Architecture | None) -> Architecture:
    """A decoder with the sizes of the tensors, and what ``c`` says of its heads; ``read`` where the config has usual keys."""
    kind = c.word("model_type", "") or "this model"
    note = f"read by its tensors: {kind[:60]} is not in the catalogue"
    if read is not None:
        return replace(read, notes=(note, *read.notes), open_log_sigma=SIZED_LOG_SIGMA)
    hidden = c.maybe("hidden_size", "n_embd", "d_model") or sizes.width
    heads = c.maybe("num_attention_heads", "n_head", "n_heads") or max(hidden // 128, 1)
    keys = sizes.shape("k_proj.weight", "key.weight")
    head_dim = c.maybe("head_dim") or max(hidden // heads, 1)
    kv_heads = c.maybe("num_key_value_heads") or (max(keys[0] // head_dim, 1) if keys else heads)
    down = sizes.shape("down_proj.weight", "fc2.weight", "w2.weight")
    ffn = c.maybe("intermediate_size", "ffn_dim", "ffn_hidden_size") or (down[1] if down else 4 * hidden)
    moe = None
    if sizes.experts > 1:
        active = c.maybe("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "top_k_experts")
        if active is None:
            why = f"has {sizes.experts} experts, and no config.json that says how many a token uses"
            raise FileError(why, file=file, hint=_HINT)
        moe = Moe(sizes.experts, min(active, sizes.experts), c.maybe("moe_intermediate_size", "expert_ffn_size") or ffn)
    arch = Architecture(
        id="checkpoint",
        name="checkpoint",
        kind="decoder",
        n_layers=c.maybe("num_hidden_layers", "n_layer", "num_layers") or sizes.layers,
        hidden=hidden,
        ffn=ffn,
        heads=heads,
        kv_heads=kv_heads if heads % kv_heads == 0 else heads,
        head_dim=head_dim,
        vocab=c.maybe("vocab_size") or sizes.vocab,
        max_seq_len=c.maybe("max_position_embeddings", "n_positions", "max_sequence_length") or 4096,
        tied_embeddings=sizes.tied,
        moe=moe,
        stored_format=format_in_config(c) if c.has("quantization_config", "quantization") else None,
        open_log_sigma=SIZED_LOG_SIGMA,
        notes=(note,),
    )
    return check_architecture(arch, file=file)


__all__ = ["architecture_of_checkpoint"]
