"""A model given by its dimensions alone, as on a command line:
``layers=32,hidden=4096,heads=32,vocab=128256``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, cast

from gpuwise.errors import FieldError, nearest_names
from gpuwise.facts.models.architecture import Architecture, Moe
from gpuwise.facts.models.checks import NORMS, POSITIONS, check_architecture

_NAMES: Mapping[str, tuple[str, ...]] = {
    "n_layers": ("layers", "num_layers", "num_hidden_layers", "n_layer"),
    "hidden": ("hidden_size", "d_model", "n_embd"),
    "ffn": ("ffn_hidden_size", "intermediate_size", "d_ff"),
    "heads": ("n_heads", "num_attention_heads", "n_head"),
    "kv_heads": ("n_kv_heads", "num_key_value_heads"),
    "head_dim": (),
    "vocab": ("vocab_size",),
    "max_seq_len": ("seq", "seq_len", "max_position_embeddings"),
    "window": ("sliding_window",),
    "global_every": (),
    "experts": ("n_experts", "num_experts"),
    "active_experts": ("n_active", "top_k", "num_experts_per_tok"),
    "expert_ffn": ("moe_intermediate_size",),
    "shared_ffn": (),
    "first_dense": (),
}
"""Each whole-number dimension with its other spellings."""
_FLAGS: Mapping[str, tuple[str, ...]] = {
    "gated_mlp": ("gated",),
    "tied_embeddings": ("tied",),
    "parallel_block": (),
    "qkv_bias": (),
    "attention_out_bias": (),
    "mlp_bias": (),
    "qk_norm": (),
}
_WORDS: Mapping[str, tuple[str, ...]] = {"norm": NORMS, "position": POSITIONS, "name": ()}
_REQUIRED = ("n_layers", "hidden", "heads", "vocab")
_SPELLED = {other: key for table in (_NAMES, _FLAGS) for key, others in table.items() for other in (key, *others)} | {
    word: word for word in _WORDS
}
_TRUE, _FALSE = frozenset({"true", "yes", "1", "on"}), frozenset({"false", "no", "0", "off"})
_COUNT = re.compile(r"(-?[0-9][0-9_]*)(k?)")
_IN_KIB = frozenset({"max_seq_len", "window"})
"""Where ``128k`` means 131072; elsewhere (vocab=32k) it could mean either."""
_EXAMPLE = "for example layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256"


def parse_dimensions(text: str) -> Architecture:
    """The architecture of ``key=value`` pairs separated by commas. Raises FieldError."""
    dims: dict[str, object] = {}
    for pair in text.split(","):
        key, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not key or not value:
            raise FieldError(f"{pair.strip()[:60]!r} is not key=value", field=key or None, hint=_EXAMPLE)
        if key in dims:
            raise FieldError(f"{key} is given twice", field=key, hint="remove one")
        dims[key] = value
    return architecture_from_dimensions(**dims)


def architecture_from_dimensions(**dims: object) -> Architecture:
    """A decoder-only transformer of the Llama form with the given dimensions.

    Required: ``layers``, ``hidden``, ``heads``, ``vocab``. ``kv_heads`` defaults to ``heads``, ``head_dim``
    to ``hidden / heads``, ``ffn`` to ``4 * hidden`` without a gate (``gated_mlp`` defaults to whether
    ``ffn`` or ``expert_ffn`` was given), ``seq`` to 4096. ``experts`` and ``active_experts`` make it a
    mixture of experts. Values may be numbers or the text a person typed. Raises FieldError.
    """
    by_key: dict[str, Any] = {}
    for spelling, value in dims.items():
        key = _SPELLED.get(spelling.lower().replace("-", "_"))
        if key is None:
            near = nearest_names(spelling, _SPELLED, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "known: " + ", ".join((*_NAMES, *_FLAGS, *_WORDS))
            raise FieldError(f"unknown dimension {spelling[:60]!r}", field=spelling, hint=hint)
        if key in by_key:
            raise FieldError(f"{key} is given twice, once as {spelling}", field=key, hint="remove one")
        by_key[key] = _value(key, value)
    for key in _REQUIRED:
        if key not in by_key:
            raise FieldError(f"{_NAMES[key][0] if key == 'n_layers' else key} is missing", field=key, hint=_EXAMPLE)
    hidden, heads = by_key["hidden"], by_key["heads"]
    if "head_dim" not in by_key and hidden % heads:
        raise FieldError(
            f"hidden {hidden} is not divisible by {heads} heads",
            field="heads",
            hint="change one, or give head_dim",
        )
    moe = _experts(by_key)
    gated = by_key.pop("gated_mlp", "ffn" in by_key or moe is not None)
    name = by_key.pop("name", f"{by_key['n_layers']} layers x {hidden}")
    values: dict[str, Any] = {
        "kv_heads": heads,
        "head_dim": hidden // heads,
        "ffn": 4 * hidden,
        "max_seq_len": 4096,
        **by_key,
    }
    arch = Architecture(
        id="dimensions",
        name=name,
        kind="decoder",
        gated_mlp=gated,
        activation="silu" if gated else "gelu",
        moe=moe,
        source="dimensions given by hand",
        **values,
    )
    return check_architecture(arch)


def _experts(by_key: dict[str, Any]) -> Moe | None:
    """The mixture of experts in ``by_key``, whose keys are taken out."""
    keys = ("experts", "active_experts", "expert_ffn", "shared_ffn", "first_dense")
    part = {key: by_key.pop(key) for key in keys if key in by_key}
    if not part:
        return None
    for key in ("experts", "active_experts"):
        if key not in part:
            raise FieldError(f"{key} is missing", field=key, hint="give experts=8,active_experts=2,expert_ffn=14336")
    expert_ffn = part.get("expert_ffn", by_key.get("ffn"))
    if expert_ffn is None:
        raise FieldError("expert_ffn is missing", field="expert_ffn", hint="the width of one expert")
    by_key.setdefault("ffn", expert_ffn)
    shared = part.get("shared_ffn", 0)
    return Moe(
        part["experts"],
        part["active_experts"],
        expert_ffn,
        n_shared=int(shared > 0),
        shared_ffn=shared,
        first_dense=part.get("first_dense", 0),
    )


def _value(key: str, value: object) -> int | bool | str:
    if key in _WORDS:
        choices = _WORDS[key]
        word = str(value).strip()
        if not word or (choices and word not in choices) or len(word) > 200:
            raise FieldError(f"{key} is {word[:40]!r}", field=key, hint="one of " + ", ".join(choices or ("a name",)))
        return word
    if key in _FLAGS:
        if isinstance(value, bool):
            return value
        word = str(value).strip().lower()
        if word not in _TRUE | _FALSE:
            raise FieldError(f"{key} is {word[:40]!r}, not true or false", field=key, hint=f"write {key}=true")
        return word in _TRUE
    return _whole(key, value)


def _whole(key: str, value: object) -> int:
    """A whole number from an int, an integral float or text like ``4096``, for lengths also ``128k``
    (131072)."""
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, float) and math.isfinite(value) and value.is_integer():
        number = int(value)
    else:
        match = _COUNT.fullmatch(value.strip().lower()) if isinstance(value, str) and len(value) < 40 else None
        if match is None or (match[2] and key not in _IN_KIB):
            raise FieldError(
                f"{key} is {str(cast(object, value))[:40]!r}, not a whole number",
                field=key,
                hint=f"write it like {key}=4096",
            )
        number = int(match[1].replace("_", "")) * (1024 if match[2] else 1)
    may_be_zero = key in ("first_dense", "shared_ffn")
    if number < 0 or (number == 0 and not may_be_zero):
        raise FieldError(f"{key} is {number}, not above zero", field=key, hint=f"write it like {key}=4096")
    return number
