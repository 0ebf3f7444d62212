"""A model without a description, by the size in its name (``Fara1.5-9B``, ``Tess-4-35B-A3B``).

The closest plain decoder of the catalogue stands for it, with as many layers (or, of a mixture, experts) as make its size that
of the name. Bytes of weights follow the name's rounding; caches and the number of kernels are those of the stand-in.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable
from dataclasses import replace

from gpuwise.facts.models.architecture import PARTS, READ_AS, Architecture, Moe
from gpuwise.facts.models.names import FORMAT
from gpuwise.units import parse_count

SIZED_LOG_SIGMA = 0.2
"""Of the time of a token, what a name with a size leaves open: standard deviation of the logarithm over the decoders of the
catalogue, each read by its size alone from those of other families (``tests/facts/models/test_sized.py``)."""
_FARTHEST = math.log(4.0)
"""Between the size in a name and that of the stand-in, beyond which its shape says nothing."""
_SIZES = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)(b|m)(?:[\s_.-]*a(\d+(?:\.\d+)?)(b|m))?(?![a-z0-9])")
_NO_DECODER = re.compile(
    r"(?<![a-z])(?:asr|audio|bitnet|clip|colbert|depth|draft|eagle|embed(?:ding)?s?|encoder|lora|medusa|mmproj|mtp|ocr|rerank(?:er)?"
    r"|reward|ternary|tts|whisper)(?![a-z])"
)
_WORD = re.compile(r"[a-z]{3,}")
_ALIKE = 0.74
"""Of the letters of two words, from which on one is taken for a slip of the other."""
_UNITS = {"b": 1e9, "m": 1e6}


def sizes_in_name(name: str) -> tuple[float, float | None] | None:
    """Parameters that a name says, and how many of them a token uses where it says that; None where it says none or several."""
    text = FORMAT.sub("", name.strip().lower().rpartition("/")[2].replace("_", "-"))
    found = {(float(n) * _UNITS[u], float(a) * _UNITS[w] if a else None) for n, u, a, w in _SIZES.findall(text)}
    if len(found) != 1 or _NO_DECODER.search(text):
        return None
    total, active = found.pop()
    return None if active is not None and active >= total else (total, active)


def by_size(name: str, known: Iterable[Architecture]) -> Architecture | None:
    """A decoder of the size in ``name``, with a note; None where the name says no size, is of a release of the ``known``, or none
    of these is near in size."""
    known = tuple(known)
    sizes = sizes_in_name(name)
    if sizes is None or _is_of_known_release(name, known):
        return None
    total, active = sizes
    alike = [a for a in known if _is_plain(a) and (a.moe is None) == (active is None)]
    best = min(alike, key=lambda a: _distance(a, total, active), default=None)
    if best is None or _distance(best, total, active) > _FARTHEST:
        return None
    arch = _resized(best, total)
    said = f"{total / 1e9:g}B" if total >= 1e9 else f"{total / 1e6:g}M"
    note = f"{name.strip()[:80]} is not known and {READ_AS} a decoder of {said}, of the shape of {best.name}"
    return replace(
        arch,
        id=name.strip()[:80],
        name=name.strip()[:80],
        family="",
        aliases=(),
        source="the size in its name",
        published_parameters=None,
        published_rounded=None,
        published_note="",
        published_weights=None,
        published_experts=None,
        open_log_sigma=SIZED_LOG_SIGMA,
        notes=(f"{note} (its file or config.json says more)",),
    )


def _is_of_known_release(name: str, known: Iterable[Architecture]) -> bool:
    """Whether the words before the size in ``name`` are those of a known model (``llama-3.1-9b``), or nearly the first of them
    (``lama-9b``): a release whose sizes are known has no other."""
    releases = {_release(a.id) for a in known}
    mine = _release(name.strip().rpartition("/")[2])
    begins = {found[0] for release in releases if (found := _WORD.match(release)) is not None}
    first = _WORD.match(mine)
    if first is None or first[0] in begins:
        return mine in releases or not any(c.isdigit() for c in mine)
    return bool(difflib.get_close_matches(first[0], begins, 1, _ALIKE))


def _release(name: str) -> str:
    """What stands before the size in a name, without separators: ``qwen2.5`` of Qwen2.5-8B."""
    text = name.lower().replace("_", "-")
    size = _SIZES.search(text)
    return re.sub(r"[\s_-]+", "", text[: size.start()] if size else text)


def _is_plain(a: Architecture) -> bool:
    odd = a.pattern or a.window or a.per_layer_embedding or any(getattr(a, part) for part in PARTS if part != "moe")
    return a.kind == "decoder" and not odd and _published(a) > 0


def _published(a: Architecture) -> float:
    """Parameters as published; 0 where no figure is."""
    if a.published_parameters is not None:
        return float(a.published_parameters)
    return float(parse_count(a.published_rounded.lstrip("~"))) if a.published_rounded else 0.0


def _layer(a: Architecture) -> float:
    """Weights of the matrices of one dense layer."""
    attention = a.head_dim * (2 * a.heads + 2 * a.kv_heads)
    return float(a.hidden * (attention + (3 if a.gated_mlp else 2) * a.ffn))


def _expert(a: Architecture, moe: Moe) -> float:
    """Weights of one expert of each layer that has experts."""
    return float((a.n_layers - moe.first_dense) * 3 * a.hidden * moe.expert_ffn)


def _used(a: Architecture) -> float:
    """Parameters that a token uses."""
    return _published(a) - (0.0 if a.moe is None else (a.moe.n_experts - a.moe.n_active) * _expert(a, a.moe))


def _resized(a: Architecture, total: float) -> Architecture:
    """``a`` with as many layers, or experts, as make its parameters ``total``."""
    more = total - _published(a)
    if a.moe is None:
        return replace(a, n_layers=max(a.n_layers + round(more / _layer(a)), 1))
    n_experts = a.moe.n_experts + round(more / _expert(a, a.moe))
    return replace(a, moe=replace(a.moe, n_experts=max(n_experts, a.moe.n_active)))


def _distance(a: Architecture, total: float, active: float | None) -> float:
    """Of sizes, in logarithms; models of a short context are older and stand for others less well."""
    apart = abs(math.log(_published(a) / total)) + (0.0 if active is None else 2.0 * abs(math.log(_used(a) / active)))
    return apart + (0.0 if a.max_seq_len >= 32768 else 0.3)


__all__ = ["by_size", "sizes_in_name"]
