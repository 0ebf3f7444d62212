"""What must hold for the dimensions of any model, wherever they came from."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from gpuwise.errors import FieldError
from gpuwise.facts.models.architecture import LETTERS, NEEDED_BY_LETTERS, PARTS, WITHOUT_PATTERN, Architecture

KINDS = ("decoder", "encoder", "encoder-decoder", "vision")
NORMS = ("rms", "layer", "layer-no-bias", "none")
POSITIONS = ("rope", "learned", "alibi", "relative", "sinusoidal", "none")

LIMITS = {
    "n_layers": 10_000,
    "hidden": 2**20,
    "ffn": 2**24,
    "heads": 2**14,
    "kv_heads": 2**14,
    "head_dim": 2**14,
    "vocab": 2**26,
    "max_seq_len": 2**31,
    "norms_per_layer": 8,
    "n_token_types": 2**16,
    "embedding_dim": 2**20,
    "window": 2**31,
    "global_every": 10_000,
    "position_rows": 2**31,
    "relative_buckets": 2**16,
    "n_classes": 2**26,
    "prediction_layers": 100,
    "inner": 2**22,
    "state": 2**16,
    "groups": 2**14,
    "conv": 2**8,
    "chunk": 2**16,
    "dt_rank": 2**20,
    "latent": 2**20,
    "per_layer_embedding": 2**20,
    "n_experts": 2**16,
    "n_active": 2**16,
    "expert_ffn": 2**24,
    "n_shared": 2**10,
    "shared_ffn": 2**24,
    "first_dense": 10_000,
    "every": 10_000,
    "q_lora_rank": 2**20,
    "kv_lora_rank": 2**20,
    "qk_nope_head_dim": 2**14,
    "qk_rope_head_dim": 2**14,
    "v_head_dim": 2**14,
    "seq_len": 2**31,
    "n_mels": 2**12,
    "image_size": 2**16,
    "patch_size": 2**12,
    "channels": 2**12,
}
"""Largest values, far above any model, so that a slip of the keyboard is refused and products stay exact."""
LARGEST = 2**22
"""The same of any other dimension of a part."""
_MAY_BE_ZERO = frozenset(
    {
        "norms_per_layer",
        "n_token_types",
        "n_classes",
        "prediction_layers",
        "n_shared",
        "shared_ffn",
        "first_dense",
        "n_mels",
        "position_rows",
        "relative_buckets",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "dt_rank",
        "latent",
        "per_layer_embedding",
    }
)


_FLAGS = tuple(f.name for f in fields(Architecture) if isinstance(f.default, bool))


def check_architecture(arch: Architecture, *, file: str | None = None, line: int | None = None) -> Architecture:
    """``arch`` itself when its dimensions can be those of a model. Raises FieldError that names the field."""

    def refuse(field: str, message: str, hint: str) -> FieldError:
        return FieldError(message, file=file, line=line, field=field, hint=hint)

    for name, value in _dimensions(arch):
        if value is None:
            continue
        least = 0 if name in _MAY_BE_ZERO or (name == "vocab" and arch.kind == "vision") else 1
        if isinstance(value, bool) or not isinstance(value, int):
            raise refuse(name, f"{name} is {str(value)[:40]!r}, not a whole number", f"give {name} as a whole number")
        most = LIMITS.get(name, LARGEST)
        if not least <= value <= most:
            raise refuse(name, f"{name} is {str(value)[:40]}, outside {least} to {most}", "check the dimensions")
    for name, value, choices in (
        ("kind", arch.kind, KINDS),
        ("norm", arch.norm, NORMS),
        ("position", arch.position, POSITIONS),
    ):
        if value not in choices:
            raise refuse(name, f"{name} is {str(value)[:40]!r}", "one of " + ", ".join(choices))
    for name in _FLAGS:
        if not isinstance(getattr(arch, name), bool):
            raise refuse(name, f"{name} is {str(getattr(arch, name))[:40]!r}, not true or false", "write true or false")
    if arch.heads % arch.kv_heads:
        raise refuse(
            "kv_heads",
            f"{arch.heads} query heads cannot share {arch.kv_heads} key-value heads evenly",
            "kv_heads must divide heads",
        )
    _check_parts(arch, refuse)
    return arch


def _dimensions(arch: Architecture) -> list[tuple[str, Any]]:
    """(field, value) of every dimension of the model and its parts."""
    dimensions: list[tuple[str, Any]] = []
    for part in (arch, *(getattr(arch, name) for name in PARTS)):
        if part is not None:
            optional = getattr(part, "may_be_zero", ())
            numbers = [f.name for f in fields(part) if f.name in LIMITS or (part is not arch and f.type in ("int", "int | None"))]
            dimensions += [(n, getattr(part, n)) for n in numbers if n not in optional or getattr(part, n)]
    return dimensions


def _check_pattern(arch: Architecture, refuse: Any) -> None:
    blocks = arch.layer_blocks
    if not blocks:
        for letter in LETTERS.values():
            if letter.part and letter.part not in WITHOUT_PATTERN and getattr(arch, letter.part) is not None:
                kind = letter.name.replace(" ", "-")
                raise refuse("pattern", f"a {kind} mixer without a pattern of layers", "give pattern, as M-M*-")
        return
    letters = set("".join(blocks))
    if wrong := sorted(letters - set(LETTERS)):
        known = ", ".join(f"{letter} {what.name}" for letter, what in LETTERS.items())
        raise refuse("pattern", f"pattern has {wrong[0]!r}", f"letters: {known}")
    if len(blocks) != arch.n_layers:
        raise refuse("pattern", f"pattern has {len(blocks)} layers, not {arch.n_layers}", "one word, or one letter, is a layer")
    needed = {LETTERS[letter].part for letter in letters}
    for name, (what, hint) in NEEDED_BY_LETTERS.items():
        if (name in needed) != (getattr(arch, name) is not None):
            raise refuse(name, f"pattern and {what} do not fit", hint)
    for name in NEEDED_BY_LETTERS:
        part = getattr(arch, name)
        if part is not None and (found := getattr(part, "wrong", lambda: None)()) is not None:
            raise refuse(*found)


def _check_parts(arch: Architecture, refuse: Any) -> None:
    _check_pattern(arch, refuse)
    moe, encoder, patches = arch.moe, arch.encoder, arch.patches
    if moe is not None:
        if moe.n_active > moe.n_experts:
            raise refuse("n_active", f"{moe.n_active} active of {moe.n_experts} experts", "use fewer active experts")
        if moe.first_dense >= arch.n_layers or not arch.n_moe_layers:
            raise refuse("first_dense", "no layer is left for the experts", "lower first_dense or every")
    wide, shared = arch.global_attention, arch.shared_cache
    if wide is not None and (arch.window is None or arch.global_every is None or wide.heads % wide.kv_heads):
        raise refuse(
            "global_attention", "sizes of global layers without windowed ones, or heads that do not divide", "check them"
        )
    if shared is not None and (arch.pattern or shared.layers >= arch.n_layers):
        raise refuse("shared_cache", f"{shared.layers} of {arch.n_layers} layers without keys and values", "lower layers")
    if encoder is not None and encoder.hidden != arch.hidden:
        raise refuse("hidden", "encoder and decoder differ in hidden size", "no known model does")
    if (encoder is not None) != (arch.kind == "encoder-decoder"):
        raise refuse("kind", f"kind {arch.kind!r} does not fit the encoder given", "use kind encoder-decoder")
    if patches is not None and patches.image_size % patches.patch_size:
        raise refuse("patch_size", "patches do not tile the image", "patch_size must divide image_size")
    if arch.global_every is not None and arch.window is None:
        raise refuse("global_every", "global_every without window", "give the window of the local layers")
