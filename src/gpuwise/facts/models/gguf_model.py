"""The model in a GGUF file: the catalogue's where the file's tensors are those of one of its models (a fine-tune or another
quantisation of it), else a decoder of the file's own dimensions. Bytes of weights are always those of the file's tensors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from gpuwise.errors import FileError
from gpuwise.facts.models.architecture import Architecture, LinearAttention, Mamba, Mla, Moe, ShortConv, StoredBytes
from gpuwise.facts.models.checks import check_architecture
from gpuwise.facts.models.gguf import FILE_TYPES, Header, Tensor, Value, read_header
from gpuwise.facts.models.sized import SIZED_LOG_SIGMA
from gpuwise.units import parse_count

SAME, ROUNDED = 0.005, 0.02
"""Of the parameters of a catalogue model, how far those of a file may be (it leaves out or adds small tensors), and where the
published figure is rounded."""
_LAYER = re.compile(r"blk\.(\d+)\.(.+?)(?:\.weight|\.bias)?$")
_TOWERS = ("v.", "a.", "mm.", "resampler.")
"""How names of tensors of vision and audio towers begin (llama.cpp tools/mtmd), in files that are no language model."""


def architecture_of_gguf(path: Path, known: Iterable[Architecture], *, name: str = "") -> Architecture:
    """The architecture of the language model in ``path``, beside the ``known`` ones, called ``name`` or as the file. Raises
    FileError, FieldError."""
    header = read_header(path)
    kind = str(header.metadata.get("general.architecture", ""))
    if kind in ("clip", "") or all(t.name.startswith(_TOWERS) for t in header.tensors):
        what = "a vision or audio tower" if kind else "no general.architecture"
        raise FileError(f"holds {what}", file=str(path), hint="give the file of the language model")
    read = _Fields(kind, header, str(path))
    first = read.n_layers  # prediction blocks come after the layers
    stored = _bytes_by_role(header.tensors, first)
    own = sum(t.elements for t in header.tensors if _role(t.name, first) not in ("prediction", "constants"))
    alike = [a for a in known if _is(a, read, own)]
    base = min(alike, key=lambda a: (a.max_seq_len != read.most("context_length"), a.vocab != read.vocab), default=None)
    arch = replace(_generic(read, own), open_log_sigma=SIZED_LOG_SIGMA) if base is None else base
    how = f"read by its tensors: {kind} is not in the catalogue" if base is None else f"its tensors are those of {base.name}"
    name = name or path.stem
    return replace(
        arch,
        id=name[:200] if base is None else base.id,
        name=name[:200],
        source=str(path),
        stored_format=_format(header),
        stored_bytes=stored,
        published_parameters=None,
        published_note="",
        aliases=(),
        notes=(how, *arch.notes),
    )


_BY_BITS = (
    (24.0, "F32"),
    (12.0, "F16"),
    (7.5, "Q8_0"),
    (6.1, "Q6_K"),
    (5.2, "Q5_K_M"),
    (4.4, "Q4_K_M"),
    (3.5, "Q3_K_M"),
    (2.8, "Q2_K"),
    (0.0, "IQ2_XXS"),
)
"""Bits a weight from which on a file is named so."""


class _Fields:
    """Typed access to ``<architecture>.<name>`` of a header."""

    def __init__(self, kind: str, header: Header, file: str) -> None:
        self.kind, self.header, self.file = kind, header, file
        self.values: Mapping[str, Value] = header.metadata
        self.layers: dict[int, set[str]] = {}
        for tensor in header.tensors:
            if (found := _LAYER.match(tensor.name)) is not None:
                self.layers.setdefault(int(found[1]), set()).add(found[2])
        self.shapes = {tensor.name: tensor.shape for tensor in header.tensors}

    def numbers(self, name: str) -> list[int]:
        """A number, or one for each layer; empty where the header has none."""
        value = self.values.get(f"{self.kind}.{name}")
        items = cast("list[object]", value) if isinstance(value, list) else [value]
        return [int(v) for v in items if isinstance(v, int) and not isinstance(v, bool)]

    def most(self, name: str, default: int = 0) -> int:
        """The largest of :meth:`numbers`."""
        return max(self.numbers(name), default=default)

    def need(self, name: str) -> int:
        """:meth:`most`, above zero. Raises FileError."""
        value = self.most(name)
        if value < 1:
            raise FileError(f"has no {self.kind}.{name}", file=self.file, hint="its header is not whole: download it again")
        return value

    @property
    def vocab(self) -> int:
        """Rows of the embedding."""
        shape = self.shapes.get("token_embd.weight")
        if shape is None or len(shape) != 2:
            raise FileError("has no token_embd.weight", file=self.file, hint="give the file of a whole language model")
        return shape[1]

    @property
    def n_layers(self) -> int:
        """Layers of the main stack, without prediction blocks."""
        return self.need("block_count") - self.most("nextn_predict_layers")


def _is(arch: Architecture, read: _Fields, elements: int) -> bool:
    """Whether the file has the layers, the width and the parameters of ``arch``."""
    if (arch.kind, arch.n_layers, arch.hidden) != ("decoder", read.n_layers, read.need("embedding_length")):
        return False
    if arch.published_parameters is not None:
        return abs(elements / arch.published_parameters - 1) < SAME
    printed = arch.published_rounded
    return printed is not None and abs(elements / parse_count(printed.lstrip("~")) - 1) < ROUNDED


def _role(name: str, n_layers: int) -> str:
    """Which part of :class:`StoredBytes` a tensor belongs to, or ``constants``."""
    found = _LAYER.match(name)
    if found is None:
        if name.startswith("token_embd."):
            return "embedding"
        if name.startswith(("per_layer_token_embd", "position_embd", "token_types")):
            return "tables"
        return "constants" if name.startswith("rope") else "head" if name.startswith("output.") else "layers"
    if int(found[1]) >= n_layers or found[2].startswith("nextn"):
        return "prediction"
    return "experts" if "_exps" in found[2] else "layers"


def _bytes_by_role(tensors: Iterable[Tensor], n_layers: int) -> StoredBytes:
    roles = ("embedding", "tables", "head", "layers", "experts", "prediction", "constants")
    sums: dict[str, int] = dict.fromkeys(roles, 0)
    for tensor in tensors:
        sums[_role(tensor.name, n_layers)] += tensor.n_bytes
    sums["layers"] += sums.pop("constants")
    return StoredBytes(**sums)


def _format(header: Header) -> str:
    """The name of the file's mixture of types; where it does not say, of the mixture nearest in bits."""
    named = header.metadata.get("general.file_type")
    if isinstance(named, int) and named in FILE_TYPES:
        return FILE_TYPES[named]
    bits = 8.0 * sum(t.n_bytes for t in header.tensors) / max(sum(t.elements for t in header.tensors), 1)
    return next(name for least, name in _BY_BITS if bits >= least)


def _generic(read: _Fields, elements: int) -> Architecture:
    """A decoder with the file's dimensions; what they do not express of its parameters is one number."""
    n, hidden, vocab = read.n_layers, read.need("embedding_length"), read.vocab
    kinds = [read.layers.get(i, set[str]()) for i in range(n)]
    heads = read.most("attention.head_count", 1)
    head_dim = read.most("attention.key_length") or max(hidden // heads, 1)
    kv_heads = read.most("attention.head_count_kv") or heads
    experts, active = read.most("expert_count"), read.most("expert_used_count")
    ffn = read.most("feed_forward_length") or read.most("expert_feed_forward_length", 1)
    moe = None
    if experts > 1:
        width = read.most("expert_feed_forward_length") or ffn
        n_shared = read.most("expert_shared_count")
        shared = read.most("expert_shared_feed_forward_length") or n_shared * width
        moe = Moe(experts, max(1, min(active, experts)), width, n_shared=int(shared > 0), shared_ffn=shared)
    mla = None
    if rank := read.most("attention.kv_lora_rank"):
        rope, whole = read.most("rope.dimension_count", 64), read.most("attention.key_length_mla") or head_dim
        value = read.most("attention.value_length_mla") or read.most("attention.value_length") or head_dim
        mla, kv_heads = Mla(read.most("attention.q_lora_rank") or None, rank, max(whole - rope, 0), rope, value), heads
        head_dim = whole
    words = [_mixer(kind) + ("E" if any("_exps" in word for word in kind) else "-" * ("ffn_down" in kind)) for kind in kinds]
    if moe is not None:
        moe = replace(moe, first_dense=next((i for i, word in enumerate(words) if "E" in word), 0))
    mixed = any(not word.startswith("*") or len(word) == 1 for word in words)
    found = {letter for word in words for letter in word} if mixed else set[str]()
    window, every = read.most("attention.sliding_window"), _period(read)
    arch = Architecture(
        id="file",
        name="file",
        kind="decoder",
        n_layers=n,
        hidden=hidden,
        ffn=ffn,
        heads=heads,
        kv_heads=kv_heads if heads % kv_heads == 0 else heads,
        head_dim=head_dim,
        vocab=vocab,
        max_seq_len=max(read.most("context_length"), 1),
        tied_embeddings="output.weight" not in read.shapes,
        gated_mlp=any(word.startswith("ffn_gate") for kind in kinds for word in kind),
        qk_norm=any("attn_q_norm" in kind for kind in kinds),
        moe=moe if not mixed or "E" in found else None,
        mla=mla,
        window=window if window and every and not mixed else None,
        global_every=every if window and not mixed else None,
        linear_attention=_delta(read) if "L" in found else None,
        mamba=_state_space(read) if "M" in found else None,
        short_conv=ShortConv(read.most("shortconv.l_cache", 3)) if "C" in found else None,
        pattern=" ".join(words) if mixed else "",
        published_parameters=elements,
        published_note="the elements of the file's tensors",
    )
    return check_architecture(arch, file=read.file)


def _mixer(names: set[str]) -> str:
    """The letter of what mixes tokens in a layer with tensors of these names."""
    if any(name.startswith(("attn_k", "attn_q", "attn_v")) and not name.endswith("_norm") for name in names - {"attn_qkv"}):
        return "*"
    if any(name.startswith(("ssm_beta", "ssm_ba", "ssm_alpha", "ssm_g")) for name in names):
        return "L"
    if any(name.startswith("ssm") for name in names):
        return "M"
    if any(name.startswith("shortconv") for name in names):
        return "C"
    return "*" if "attn_qkv" in names else ""


def _delta(read: _Fields) -> LinearAttention:
    """Gated delta rule, by the keys of Qwen3-Next (llama.cpp src/models/qwen3next.cpp)."""
    heads = read.need("ssm.time_step_rank")
    return LinearAttention(
        key_heads=read.most("ssm.group_count") or heads,
        value_heads=heads,
        key_dim=read.need("ssm.state_size"),
        value_dim=max(read.need("ssm.inner_size") // heads, 1),
        conv=read.most("ssm.conv_kernel", 4) or 4,
    )


def _state_space(read: _Fields) -> Mamba:
    """Mamba-2 where there are groups, else Mamba (llama.cpp src/models/graph-context-mamba.cpp)."""
    groups, rank = read.most("ssm.group_count"), read.need("ssm.time_step_rank")
    return Mamba(
        inner=read.need("ssm.inner_size"),
        state=read.need("ssm.state_size"),
        heads=rank if groups else 0,
        groups=groups or 1,
        conv=read.most("ssm.conv_kernel", 4) or 4,
        dt_rank=0 if groups else rank,
    )


def _period(read: _Fields) -> int | None:
    """One layer in how many sees the whole context; None where the header does not say."""
    value = read.values.get(f"{read.kind}.attention.sliding_window_pattern")
    if isinstance(value, list):  # true: a window
        whole = sum(not flag for flag in value)
        return max(len(value) // whole, 1) if whole else None
    return value if isinstance(value, int) and value > 1 else None
