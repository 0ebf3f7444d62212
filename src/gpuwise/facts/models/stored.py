"""The format that a model's name (``Qwen3-8B-AWQ``) or its ``config.json`` says its weights are stored in.

Names of formats are those of served weights: ``int4_wo`` (AWQ, GPTQ and others that narrow weights alone to 4 bits), ``int8_wo``,
``fp8`` and ``fp8_block`` (a scale per block), ``nvfp4``, ``mxfp4``, ``nf4`` and ``bnb_8bit`` (bitsandbytes), of llama.cpp
``Q4_K_M`` and its kin, of MLX ``mlx_4bit`` (groups of 64).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpuwise.errors import InputError
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.config_fields import Config
from gpuwise.facts.models.names import FORMAT

_SIXTEEN = frozenset({"bf16", "fp16", "f16"})
_BY_WORD = {"fp8": "fp8", "nvfp4": "nvfp4", "mxfp4": "mxfp4", "bnb": "nf4"}
_BLOCKS = re.compile(r"qwen/|qwen3[^/]*$")
"""Publishers whose 8-bit floats have a scale per block of 128 by 128 (Qwen's model cards: "fine-grained fp8 quantization with
block size of 128"). Others say so in their config."""
_EIGHT = frozenset({"int8", "8bit", "w8a16"})
_FOUR = frozenset({"awq", "gptq", "int4", "4bit", "w4a16"})
_MLX_BITS = (4, 5, 6, 8)
_MLX_ORG = "mlx-community/"
_EXLLAMA = re.compile(r"(?<![a-z0-9])(exl[23])(?![a-z0-9])")
_BITS = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)[-_ ]?bpw")
_GGUF = re.compile(r"(?:ud-)?(i?q[1-8]_.+)")


def format_in_name(text: str) -> str | None:
    """The format that the words of a model's name say; None where they say none, or 16 bits."""
    text = text.strip().lower()
    if (exllama := _EXLLAMA.search(text)) is not None:
        return _exllama(exllama[1], next(iter(_BITS.findall(text)), None))
    words = [
        re.sub(r"(?<=[4568])[-_]bit", "bit", found.strip(" _.:-"))
        for found in FORMAT.findall(text.strip().lower().rpartition("/")[2])
    ]
    for word in words:
        if (gguf := _GGUF.fullmatch(word)) is not None:
            return gguf[1].upper()
    bits = next((int(word[0]) for word in words if word.endswith("bit") and word != "bit"), None)
    if bits is not None and ("mlx" in words or bits in (5, 6) or _MLX_ORG in text.lower()):
        return f"mlx_{bits}bit"
    for word, form in _BY_WORD.items():
        if word in words:
            if form == "fp8":
                return "fp8_block" if _BLOCKS.match(text) else form
            return "bnb_8bit" if form == "nf4" and _EIGHT & {*words} else form
    return "int8_wo" if _EIGHT & {*words} else "int4_wo" if _FOUR & {*words} else None


def _exllama(kind: str, bits: str | float | None) -> str:
    """``exl3-4.0bpw``; without bits where none are known."""
    return kind if bits is None else f"{kind}-{float(bits):g}bpw"


def format_in_config(config: Config) -> str | None:
    """The format that ``quantization_config`` (or ``quantization``, as MLX writes it) says; None where there is none.

    Raises FieldError for one that is not known.
    """
    key = next((k for k in ("quantization", "quantization_config") if config.has(k)), None)  # MLX writes both
    if key is None:
        return None
    part = config.part(key)
    method = part.word("quant_method", "mlx" if key == "quantization" else "").lower()
    if method in ("exl2", "exl3"):
        average = part.values.get("bits")
        return _exllama(method, average if isinstance(average, int | float) and not isinstance(average, bool) else None)
    bits = part.maybe("bits", "w_bit", "wbits")
    if method == "mlx":
        group, mode = part.maybe("group_size") or 64, part.word("mode", "affine")
        if mode in ("mxfp4", "nvfp4"):
            found = f"mlx_{mode}"
        else:
            known = mode == "affine" and group in (32, 64) and bits in (_MLX_BITS if group == 32 else (3, *_MLX_BITS))
            found = f"mlx_{bits}bit{'_g32' * (group == 32)}" if known else None
    elif method in ("awq", "gptq", "auto-round", "autoround", "intel/auto-round"):
        found = _of_bits(4 if bits is None else bits)
    elif method in ("bitsandbytes", "bnb"):
        found = "nf4" if part.flag("load_in_4bit", False) else "bnb_8bit"
    elif method in ("fp8", "fbgemm_fp8"):
        found = "fp8"
    elif method == "modelopt":
        found = {"nvfp4": "nvfp4", "fp8": "fp8"}.get(part.word("quant_algo", "").lower())
    elif method == "compressed-tensors":
        found = _of_groups(part)
    else:
        found = "mxfp4" if method == "mxfp4" else None
    if found is None:
        raise config.error(
            f"{key} has quant_method {method[:40]!r}, whose weights are of no known format",
            field=key,
            hint=f"without {key} the model is read in 16 bits, and --weights asks for another format",
        )
    return found


def _of_bits(bits: int) -> str | None:
    return {4: "int4_wo", 8: "int8_wo"}.get(bits)


def _of_groups(part: Config) -> str | None:
    """Of compressed-tensors, whose groups say kind and bits each; None where they differ."""
    groups = part.part("config_groups")
    found: set[str | None] = set()
    for name in groups.values:
        weights = groups.part(name).part("weights")
        bits, kind = weights.maybe("num_bits"), weights.word("type", "int")
        eight = "fp8_block" if weights.word("strategy", "") == "block" else "fp8"
        found.add({4: "nvfp4", 8: eight}.get(bits or 0) if kind == "float" else _of_bits(bits or 0))
    return found.pop() if len(found) == 1 else None


def check_agrees(arch: Architecture, asked: str, fits: Iterable[str]) -> None:
    """Raises InputError if the model is stored in a format, and ``asked`` has no format that ``fits`` it."""
    if arch.stored_format is not None and arch.stored_format not in fits:
        raise InputError(
            f"the model's name or config has {arch.stored_format} weights, and --weights {asked}",
            hint=f"leave --weights out, or name the model without its format: {arch.id}",
        )


def check_trainable(arch: Architecture, *, base_in_4_bits: bool) -> None:
    """Raises InputError for a checkpoint in a narrow format, which is not what training begins with: QLoRA alone, and of
    bitsandbytes' weights."""
    form = arch.stored_format
    if form is None or (form == "nf4" and base_in_4_bits):
        return
    unnamed = arch.source.endswith(".json") or (arch.stored_bytes is not None and not arch.family)
    without = "give the config.json of the 16-bit model" if unnamed else f"name the 16-bit model: {arch.id}"
    also = ", or add --qlora" if form == "nf4" else ", and add --qlora for a base in 4 bits"
    raise InputError(f"{arch.name} in {form} weights is a checkpoint to serve: it is not trained as it is", hint=without + also)


__all__ = ["check_agrees", "check_trainable", "format_in_config", "format_in_name"]
