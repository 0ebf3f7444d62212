"""Formats weights are served in: bytes of a weight with its scales, bytes a model takes, bytes a token reads.

Serving engines (vLLM, SGLang, TensorRT-LLM) narrow the matrices of the layers and keep embeddings, head and norms in 16
bits; a file of a local program (llama.cpp) is narrowed as a whole.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from gpuwise.errors import UnknownNameError
from gpuwise.facts.models.architecture import Architecture
from gpuwise.workload.transformer.parameters import count_parameters

_GGUF = re.compile(
    r"[-._]((?:ud-)?(?:(?:i?q[1-8]|tq[12])_(?:k(?:_(?:xl|[sml]))?|[01]|x?xs|xxs|nl|[sm]))|mxfp4|b?f16|f32)"
    r"(?:-\d{5}-of-\d{5})?\.gguf$",
    re.IGNORECASE,
)
GGUF, MLX = "GGUF", "MLX"
BNB = "nf4"
"""bitsandbytes' 4 bits."""
WIDE_BYTES = 2.0
"""A weight an engine does not narrow."""
ALIKE = 0.7
"""Power of a number of tokens: so many independent ones are sent to as many experts, since the router sends tokens alike
(studies.serving.llama_batches)."""


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """``bytes_per_weight`` with scales. ``llama_cpp`` names the format of llama.cpp nearest in size, a format of
    llama.cpp names itself."""

    name: str
    bytes_per_weight: float
    llama_cpp: str
    file: str = ""
    """The kind of file that holds it, which one local program reads (``GGUF``, ``MLX``); empty: a checkpoint of engines."""
    equivalent: bool = True
    """Equivalent format of llama.cpp: the same bits, rounded to the same kind of number."""
    dense: str | None = None
    """Format of all but the routed experts, where the name means these alone."""
    unpacked: bool = False
    """No serving engine multiplies by it as stored (:mod:`gpuwise.serve.unpacked`)."""

    @property
    def local(self) -> bool:
        """Whether only a local program runs it."""
        return bool(self.file)


_MEAN_BITS = {
    "Q5_K_S": 5.5704,
    "Q5_1": 6.0,
    "Q5_0": 5.5,
    "IQ4_NL": 4.6818,
    "Q4_K_S": 4.6672,
    "Q4_1": 5.0,
    "IQ4_XS": 4.4597,
    "Q3_K_L": 4.2979,
    "Q3_K_S": 3.6429,
    "IQ3_M": 3.7628,
    "IQ3_S": 3.6606,
    "IQ3_XS": 3.4977,
    "IQ3_XXS": 3.2548,
    "Q2_K": 3.1593,
    "Q2_K_S": 2.9697,
    "IQ2_M": 2.9294,
    "IQ2_S": 2.7403,
    "IQ2_XS": 2.5882,
    "IQ2_XXS": 2.3824,
    "IQ1_M": 2.1460,
    "IQ1_S": 2.0042,
    "TQ2_0": 2.0625,
    "TQ1_0": 1.6875,
    "IQ6_K": 6.625,
    "IQ5_K": 5.5,
    "IQ5_KS": 5.25,
    "IQ4_K": 4.5,
    "IQ4_KS": 4.25,
    "IQ4_KT": 4.0,
    "IQ4_KSS": 4.0,
    "IQ3_K": 3.4375,
    "IQ3_KS": 3.1875,
    "IQ3_KT": 3.125,
    "IQ2_K": 2.375,
    "IQ2_KS": 2.1875,
    "IQ2_KT": 2.125,
    "UD-Q8_K_XL": 9.78,
    "UD-Q4_K_XL": 4.63,
    "UD-Q3_K_XL": 4.0,
    "UD-IQ3_XXS": 2.93,
    "UD-IQ2_XXS": 2.56,
}
"""Bits a weight of other files of llama.cpp: means over Llama 3.1 8B (ggml-org/llama.cpp tools/quantize/README.md), and of
types that it leaves out, those of a block (ggml/src/ggml-common.h; IQ4_K and its
kin are of ik_llama.cpp). Unsloth's dynamic files (UD) choose the type of each
tensor by the model: medians of public files (Qwen3 30B, Gemma 4 26B, gpt-oss 20B and others). A GGUF file has the exact value."""
FORMATS: dict[str, WeightFormat] = {
    f.name: f
    for f in (
        WeightFormat("bf16", 2.0, "F16"),
        WeightFormat("fp16", 2.0, "F16"),
        WeightFormat("fp8", 1.0, "Q8_0"),
        WeightFormat("fp8_block", 1.0, "Q8_0", equivalent=False),
        WeightFormat("nvfp4", 0.5625, "Q4_K_M", equivalent=False),
        WeightFormat("mxfp4", 0.53125, "Q4_K_M", equivalent=False),
        WeightFormat("int8_wo", 1.0, "Q8_0"),
        WeightFormat("int4_wo", 0.515625, "Q4_K_M"),
        WeightFormat(BNB, 0.515869, "Q4_K_M", equivalent=False, unpacked=True),
        WeightFormat("F16", 16.0 / 8, "F16", GGUF),
        WeightFormat("BF16", 16.0 / 8, "BF16", GGUF),
        WeightFormat("Q8_0", 8.5 / 8, "Q8_0", GGUF),
        WeightFormat("F32", 32.0 / 8, "F32", GGUF),
        WeightFormat("Q6_K", 6.56 / 8, "Q6_K", GGUF),
        WeightFormat("Q5_K_M", 5.69 / 8, "Q5_K_M", GGUF),
        WeightFormat("Q4_K_M", 4.85 / 8, "Q4_K_M", GGUF),
        WeightFormat("Q4_0", 4.55 / 8, "Q4_0", GGUF),
        WeightFormat("Q3_K_M", 3.91 / 8, "Q3_K_M", GGUF),
        *(WeightFormat(name, bits / 8, name, GGUF) for name, bits in _MEAN_BITS.items()),
        WeightFormat("MXFP4", 0.53125, "MXFP4", GGUF, dense="Q8_0"),
        WeightFormat("mlx_8bit", 8.5 / 8, "Q8_0", MLX),
        WeightFormat("mlx_6bit", 6.5 / 8, "Q6_K", MLX),
        WeightFormat("mlx_5bit", 5.5 / 8, "Q5_K_M", MLX),
        WeightFormat("mlx_4bit", 4.5 / 8, "Q4_0", MLX),
        WeightFormat("mlx_3bit", 3.5 / 8, "Q3_K_M", MLX),
        WeightFormat("mlx_8bit_g32", 9.0 / 8, "Q8_0", MLX),
        WeightFormat("mlx_6bit_g32", 7.0 / 8, "Q6_K", MLX),
        WeightFormat("mlx_5bit_g32", 6.0 / 8, "Q5_K_M", MLX),
        WeightFormat("mlx_4bit_g32", 5.0 / 8, "Q4_K_M", MLX),
        WeightFormat("mlx_nvfp4", 4.5 / 8, "Q4_0", MLX, equivalent=False),
        WeightFormat("mlx_mxfp4", 4.25 / 8, "Q4_0", MLX, equivalent=False),
    )
}
"""Scales of the engines' formats: NVFP4 one E4M3 per 16, MXFP4 one E8M0 per 32, int4 one fp16 per 128, bitsandbytes' 4 bits one
of 8 bits per 64 and one of 32 for 256 of these (arXiv 2305.14314, double quantisation). llama.cpp's: mean over a Llama-3-8B file
(ggml-org/llama.cpp tools/quantize/README.md); MXFP4 files hold experts in it and the rest in Q8_0 (ggml-org/gpt-oss-20b-GGUF:
11.27 GiB). MLX's: a scale and a bias of 16 bits per 64 or 32 (mlx-lm 0.32.0 mlx_lm/utils.py quantize_model, embeddings and
heads too)."""
ENGINE_FORMATS = tuple(f.name for f in FORMATS.values() if not f.local and not f.unpacked)
LLAMA_CPP_FORMATS = tuple(f.name for f in FORMATS.values() if f.file == GGUF)
MLX_FORMATS = tuple(f.name for f in FORMATS.values() if f.file == MLX)
TILED, WIDENED = re.compile(r"(UD-)?Q\d_\w+"), re.compile(r"(UD-)?IQ\d_(XXS|XS|S|M|NL)")
"""Formats of llama.cpp that vLLM multiplies by in tiles, and those whose matrices it widens. It has none for
ik_llama.cpp's."""
FORMAT_OF_BITS = {16: "bf16", 8: "fp8", 4: "int4_wo"}
"""Default format of an engine for a given width of the weights."""
FORMAT_OF_PRECISION = {
    "bf16": "bf16",
    "fp16": "fp16",
    "fp8": "fp8",
    "mxfp8": "fp8",
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
    "int8": "int8_wo",
    "int4": "int4_wo",
}
"""Formats by the names ``--precision`` takes."""


_SPELLINGS = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"(?:mlx[-_ ]?)?([34568])[-_ ]?bits?(?:[-_ ]?g64)?(?:[-_ ]?mlx)?", r"mlx_\1bit"),
        (r"(?:mlx[-_ ]?)?([4568])[-_ ]?bits?[-_ ]?g32(?:[-_ ]?mlx)?", r"mlx_\1bit_g32"),
        (r"(mxfp4|nvfp4)[-_ ]mlx", r"mlx_\1"),
        (r"awq(?:[-_ ]?(?:int)?4)?|gptq(?:[-_ ]?(?:int)?4)?|int4(?:[-_ ]g\d+)?|w4a16|autoround[-_ ]?int4", "int4_wo"),
        (r"compressed-tensors-int4(?:-g\d+)?(?:-a?symmetric)?", "int4_wo"),
        (r"(i?q[2-8]_\w+)_r[48]", r"\1"),
        (r"int8|w8a16|gptq[-_ ]?int8", "int8_wo"),
        (r"fp8[-_ ]?(?:dynamic|static|e4m3)|w8a8[-_ ]?fp8", "fp8"),
        (r"fp8[-_ ]?block(?:s|wise)?", "fp8_block"),
        (r"(?:bnb|bitsandbytes)(?:[-_ ]?(?:4|4[-_ ]?bits?|nf4))?", BNB),
        (r"nvfp4a16", "nvfp4"),
    )
)
"""How people write formats, and the name here. 4 bits alone is what MLX calls its own."""
LLM_INT8 = "bnb_8bit"
"""bitsandbytes' 8 bits, which are not predicted."""
_LLM_INT8 = re.compile(r"(?:bnb|bitsandbytes)[-_ ]?(?:8|8[-_ ]?bits?|int8)|llm[._]int8")
_EXLLAMA = re.compile(r"exl[23](?:[-_ ]*(\d+(?:\.\d+)?)[-_ ]?bpw)?")


def find_format(text: str) -> WeightFormat:
    """The format called ``Q4_K_M`` or ``bf16``, in any case and in the usual spellings. Raises UnknownNameError."""
    if text in FORMATS:
        return FORMATS[text]
    wanted = text.strip().lower()
    for pattern, name in _SPELLINGS:
        if found := pattern.fullmatch(wanted):
            wanted = found.expand(name)
    of = {name.lower(): name for name in (*MLX_FORMATS, *LLAMA_CPP_FORMATS, *ENGINE_FORMATS, BNB)}
    plain = wanted.removeprefix("ud-")
    for name in (wanted, f"ud-{plain}", plain, *(re.sub(r"_(xl|l|m|p)$", end, plain) for end in ("_m", ""))):
        if name in of:
            return FORMATS[of[name]]
    names = (*LLAMA_CPP_FORMATS, *ENGINE_FORMATS, BNB, *MLX_FORMATS)
    if _LLM_INT8.fullmatch(wanted):
        hint = (
            "its kernels wait for the host in every product and are several times slower than 16 bits: take int8_wo (GPTQ) or fp8"
        )
        raise UnknownNameError("weight format", text, (), hint=hint)
    if (exllama := _EXLLAMA.search(wanted)) is not None:
        near = "Q4_K_M or another format of llama.cpp"
        if exllama[1]:
            usual = (name for name in LLAMA_CPP_FORMATS if re.fullmatch(r"Q8_0|Q\d_K(_M)?", name))
            bits = float(exllama[1])
            near = min(usual, key=lambda name: abs(8.0 * FORMATS[name].bytes_per_weight - bits)) + ", the nearest in size"
        hint = f"formats of ExLlama are not predicted: name the model without it, and --weights {near}"
        raise UnknownNameError("weight format", text, (), hint=hint)
    raise UnknownNameError("weight format", text, names, hint="it is one of " + ", ".join(names))


def asked_weights(text: str | None) -> tuple[tuple[int, ...], str | None]:
    """Of ``"16,8"`` the bits of a weight and no format, of a format's name its width and the name; nothing of None. Raises
    UnknownNameError."""
    if text is None:
        return (), None
    parts = [part.strip() for part in text.replace("-bit", "").replace("int", "").replace("bf", "").replace("fp", "").split(",")]
    if all(part in map(str, FORMAT_OF_BITS) for part in parts):
        return tuple(dict.fromkeys(map(int, parts))), None
    form = find_format(text).name
    return (width_of(form),), form


def width_of(form: str) -> int:
    """The width in :data:`FORMAT_OF_BITS` nearest to that of the format ``form``. Raises UnknownNameError."""
    bits = 8.0 * find_format(form).bytes_per_weight
    return min(FORMAT_OF_BITS, key=lambda width: abs(math.log(width / bits)))


def _published(arch: Architecture) -> str | None:
    """The format that most weights have in the published checkpoint; None: 16 bits."""
    return arch.published_experts or arch.published_weights


def served_format(arch: Architecture, bits: int) -> str:
    """The engines' format of weights of ``bits``: the published one where the checkpoint has that width (MXFP4 of gpt-oss)."""
    published = _published(arch)
    return FORMAT_OF_BITS[bits] if published is None or width_of(published) != bits else published


def served_bits(arch: Architecture, bits: Sequence[int]) -> tuple[int, ...]:
    """Those of ``bits`` that are no wider than the published checkpoint; its own width where all are."""
    published = _published(arch)
    most = max(FORMAT_OF_BITS) if published is None else width_of(published)
    return tuple(b for b in bits if b <= most) or (most,)


def same_in_llama_cpp(arch: Architecture, form: str) -> str | None:
    """The format of llama.cpp that ``arch`` has instead of the engines' ``form``; None without an equivalent. Files of a model
    that is published with MXFP4 experts keep these."""
    if form == "mxfp4" == arch.published_experts:
        return "MXFP4"
    return FORMATS[form].llama_cpp if FORMATS[form].equivalent or form == arch.published_weights else None


def local_form(form: str) -> str | None:
    """The format of a local program with the numbers of the engines' ``form`` (``mlx_nvfp4`` of ``nvfp4``); None without one."""
    return next((f.name for f in FORMATS.values() if f.local and f.name.endswith(f"_{form}")), None)


_SAME_WORD = frozenset({("int4_wo", "mlx_4bit"), ("int8_wo", "mlx_8bit")})
"""What ``4bit`` in a model's name may mean."""


def is_stored_as(stored: str, asked: str) -> bool:
    """Whether ``asked`` is the format that a model's name or config says (``AWQ`` of ``int4_wo``), or one that a local program
    makes of its 16 bits. Raises UnknownNameError."""
    has, wants = find_format(stored), find_format(asked)
    made = has.bytes_per_weight >= WIDE_BYTES and wants.local
    return has.name == wants.name or made or (has.name, wants.name) in _SAME_WORD


def gguf_format(model: str) -> str | None:
    """The format of llama.cpp that a file's name ends with (``llama-3.1-8b-Q4_K_M.gguf``); None without one. Raises
    UnknownNameError for a format of unknown size."""
    found = _GGUF.search(model)
    if found is None:
        return None
    form = find_format({"bf16": "BF16", "mxfp4": "MXFP4"}.get(found[1].lower(), found[1]))
    if form.name not in LLAMA_CPP_FORMATS:
        hint = "known are " + ", ".join(LLAMA_CPP_FORMATS)
        raise UnknownNameError("GGUF format", found[1], LLAMA_CPP_FORMATS, hint=hint)
    return form.name


def format_of_precision(precision: str) -> WeightFormat:
    """Storage format of the weights for ``--precision``. Raises UnknownNameError."""
    if precision not in FORMAT_OF_PRECISION:
        raise UnknownNameError(
            "weight format", precision, FORMAT_OF_PRECISION, hint="served weights are " + ", ".join(FORMAT_OF_PRECISION)
        )
    return FORMATS[FORMAT_OF_PRECISION[precision]]


def _formats(arch: Architecture, weights: str, experts: str | None) -> tuple[WeightFormat, WeightFormat]:
    """Formats of dense matrices and of routed experts. Every llama.cpp file of a model published with MXFP4 experts keeps
    these (gpt-oss 20B: 12.8 GiB in F16); a format that its checkpoint has of experts alone is that checkpoint's. Raises
    UnknownNameError."""
    form = find_format(weights)
    if experts is None and arch.published_experts == "mxfp4" and form.file == GGUF:
        experts = "MXFP4"
    if experts is None and form.name == arch.published_experts:
        form, experts = FORMATS[arch.published_weights or "bf16"], form.name
    narrow = find_format(experts or weights)
    return (form if form.dense is None else FORMATS[form.dense]), narrow


@lru_cache(maxsize=1024)
def weight_bytes(arch: Architecture, weights: str, experts: str | None = None) -> float:
    """All weights of ``arch``, routed experts in the format ``experts`` (None: as ``weights``). Raises UnknownNameError."""
    if arch.stored_bytes is not None and (share := _of_stored(arch, weights)):
        return share * arch.stored_bytes.total
    form, narrow = _formats(arch, weights, experts)
    count = count_parameters(arch)
    matrices = (count.layers - count.experts) * form.bytes_per_weight + count.experts * narrow.bytes_per_weight
    return matrices + (count.total - count.layers) * _outer_bytes(form)


@lru_cache(maxsize=1024)
def weight_bytes_read(arch: Architecture, weights: str, experts: str | None = None, tokens: int = 1) -> float:
    """Bytes of weights that ``tokens`` tokens read together: every parameter but the rows of the embedding they do not look up;
    of the experts those that one of them is sent to by the skewed routing of real text. Raises UnknownNameError."""
    form, narrow = _formats(arch, weights, experts)
    count = count_parameters(arch)
    gathered = arch.vocab * ((0 if arch.tied_embeddings else arch.hidden) + arch.n_layers * arch.per_layer_embedding)
    active = count.active - (count.total - count.experts)
    if tokens > 1 and arch.moe is not None:
        active = round(count.experts * _experts_chosen(arch.moe.n_experts, arch.moe.n_active, tokens) / arch.moe.n_experts)
    stored = arch.stored_bytes
    if stored is not None and (narrower := _of_stored(arch, weights)):
        share = active / count.experts if count.experts else 0.0
        return narrower * (stored.layers + (stored.head or stored.embedding) + share * stored.experts)
    matrices = (count.layers - count.experts) * form.bytes_per_weight + active * narrow.bytes_per_weight
    return matrices + (count.total - count.layers - gathered) * _outer_bytes(form)


def _of_stored(arch: Architecture, weights: str) -> float:
    """Bytes in ``weights`` relative to the bytes of the model file: all in its own format; of 16 bits, whose weights a
    local program narrows as a whole, what the format takes of them. 0 where the file does not say."""
    if weights == arch.stored_format or arch.stored_format is None:
        return float(arch.stored_format is not None)
    has, asked = find_format(arch.stored_format), find_format(weights)
    return asked.bytes_per_weight / has.bytes_per_weight if has.bytes_per_weight >= WIDE_BYTES and asked.local else 0.0


@lru_cache(maxsize=1024)
def expert_bytes(arch: Architecture, weights: str) -> float:
    """All routed experts. Raises UnknownNameError."""
    stored = arch.stored_bytes
    if stored is not None and (share := _of_stored(arch, weights)):
        return share * stored.experts
    return count_parameters(arch).experts * _formats(arch, weights, None)[1].bytes_per_weight


def expert_bytes_read(arch: Architecture, weights: str) -> float:
    """Routed experts of one token. Raises UnknownNameError."""
    return 0.0 if arch.moe is None else expert_bytes(arch, weights) * arch.moe.n_active / arch.moe.n_experts


def _experts_chosen(n_experts: int, n_active: int, tokens: int) -> float:
    """Experts that any of ``tokens`` tokens is sent to, as many as independent tokens of a power of their number would be."""
    return n_experts * (1.0 - (1.0 - n_active / n_experts) ** tokens**ALIKE)


def _outer_bytes(form: WeightFormat) -> float:
    """Bytes per weight outside the layers: embedding tables, head, last norm."""
    return form.bytes_per_weight if form.local else max(WIDE_BYTES, form.bytes_per_weight)
