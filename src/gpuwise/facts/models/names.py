"""How people spell model names, and which catalogue entries they can mean.

A name is cut into tokens (``Meta-Llama-3.1-8B-Instruct`` -> llama, 3.1, 8b, instruct) so that separators,
case, the organisation before ``/`` and words that change no dimension do not matter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from gpuwise.errors import AmbiguousNameError, InputError, UnknownNameError, nearest_names
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.unmodelled import refuse_unmodelled, refuse_vision_language

_TOKEN = re.compile(r"\d+x\d+[a-z]?|\d+(?:\.\d+)*[a-z](?:\d+)?(?![a-z])|\d+(?:\.\d+)*|[a-z]+")
_SIZE = re.compile(r"\d+(?:\.\d+)?[mbt]\d*|\d+x\d+b")
_DOTTED = re.compile(r"(?<=\d)_(?=\d)")
"""``phi-1_5`` and ``stablelm-2-1_6b`` write a point as an underscore; ``llama3_8b`` does not."""
FORMAT = re.compile(
    r"[\s_.:-](?:exl[23]|\d+(?:\.\d+)?[-_]?bpw|fp8|fp16|f16|bf16|nvfp4|mxfp4|int[48]|[4568][-_]?bit|mlx|w[48]a16|awq|gptq|gguf|bnb|(?:ud-)?i?q[1-8]_(?:k(?:_(?:xl|[sml]))?|[01]|x?xs|nl|[sm]))"
    r"(?=[\s_.-]|$)"
)
"""Stored formats of the same weights, llama.cpp's in a file's name (Q4_K_M.gguf) too."""
GGUF_TYPE = re.compile(r"(?:ud-)?(?:i?q\d\w*|tq\d\w*|bf16|f16|f32|mxfp4\w*)")
"""A type of llama.cpp's files in small letters, as a file's name ends with it and a name on the Hub has it behind a colon."""
OLLAMA_TAG = re.compile(
    r"(?:latest|instruct|chat|text|code|base|cloud|[ae]?\d+(?:\.\d+)?[bm]|\d+x\d+b)(?:[-_.].*)?", re.IGNORECASE
)
"""What stands behind the colon of a name of Ollama's."""
_HOST = re.compile(r"(?:https?://)?(?:(?:www\.)?ollama\.com|registry\.ollama\.ai|hf\.co|huggingface\.co)/", re.IGNORECASE)
_SPELLINGS = (("codellama", "code llama"), ("tinyllama", "tiny llama"), ("command-r+", "command r plus"))
_DECORATION = frozenset(
    {
        "instruct",
        "chat",
        "hf",
        "it",
        "pt",
        "meta",
        "sft",
        "dpo",
        "preview",
        "uncased",
        "quantized",
        "latest",
        "model",
    }
)
_RELEASE = re.compile(r"\d(?:\.\d)?|2[3-6](?:0[1-9]|1[0-2])|(?:0[1-9]|1[0-2])[0-3]\d")
"""The number of a version (v0.1), or a date: yymm (2407) or mmdd (0528)."""
_LONGEST_NAME = 200
_HINT = (
    "give a name like llama-3.1-8b, the path of a Hugging Face config.json, or dimensions like "
    "layers=32,hidden=4096,heads=32,ffn=14336,vocab=128256"
)

Tokens = tuple[str, ...]


def is_tagged(name: str) -> bool:
    """Whether what is behind the colon is a tag of Ollama's (``llama3.1:8b``) or a type of a file (``org/name:Q4_K_M``)."""
    tail = name.rpartition(":")[2]
    return bool(GGUF_TYPE.fullmatch(tail.lower()) or OLLAMA_TAG.fullmatch(tail)) and name.count(":") == 1


def without_host(name: str) -> str:
    """``name`` without the address of Ollama's library or of the Hub, and without Ollama's own namespace."""
    return _HOST.sub("", name.strip(), count=1).removeprefix("library/")


def name_tokens(name: str, *, dotted: bool = False) -> Tokens:
    """The comparable parts of a model name without its organisation. ``dotted`` reads ``1_5`` as 1.5."""
    text = name.strip().lower()
    if text.count("/") == 1:
        text = text.split("/")[1]
    text = FORMAT.sub("", text)
    for spelling, plain in _SPELLINGS:
        text = text.replace(spelling, plain)
    if dotted:
        text = _DOTTED.sub(".", text)
    return tuple(_TOKEN.findall(text))


def _plain(tokens: Tokens) -> Tokens:
    """Without decoration. ``base`` is decoration beside a size (Qwen3-8B-Base), a size otherwise
    (bert-base)."""
    sized = any(_SIZE.fullmatch(t) for t in tokens)
    return tuple(t for t in tokens if t not in _DECORATION and not (sized and t == "base"))


def _unversioned(tokens: Tokens) -> Tokens:
    """Without decoration and a trailing ``v 0.1`` or ``2407``; two tokens always stay."""
    stem = list(_plain(tokens))
    while len(stem) > 2 and _RELEASE.fullmatch(stem[-1]) and (len(stem[-1]) == 4 or (len(stem) > 3 and stem[-2] == "v")):
        stem.pop()
        if stem[-1] == "v":
            stem.pop()
    return tuple(stem)


def _contains(tokens: Tokens, part: Tokens) -> bool:
    """Whether all of ``part`` occurs in ``tokens``, in order."""
    rest = iter(tokens)
    return bool(part) and all(p in rest for p in part)


_SIMPLER: tuple[Callable[[Tokens], Tokens], ...] = (tuple, _plain, _unversioned)


_VERSION = re.compile(r"\d+\.\d+")


def called_otherwise(text: str, *own: str) -> bool:
    """Whether ``text`` names another family or version than the names in ``own``, so that a reader of these would not know it
    again (codestral-22b, kimi-k2.6)."""
    known = {part for name in own for token in name_tokens(name) for part in (token, *_VERSION.findall(token))}
    unknown = [token for token in _unversioned(name_tokens(text)) if token not in known]
    return any((len(token) > 2 and token.isalpha()) or _VERSION.fullmatch(token) for token in unknown)


@dataclass(frozen=True, slots=True)
class NameTable:
    """Every spelling of the catalogue, prepared for :func:`resolve_model_name`."""

    ids: tuple[str, ...]
    exact: Mapping[str, str]
    """Lower-case spelling to id."""
    levels: tuple[Mapping[Tokens, frozenset[str]], ...]
    """Tokens to ids, one table for each step of simplification."""
    usual: Mapping[Tokens, str]
    """Tokens to the id that most people mean, of names that several models have or none has."""

    @classmethod
    def of(cls, names: Mapping[str, str], usual: Mapping[str, str]) -> NameTable:
        """The table of ``names``, which maps spellings to ids, with what is ``usual``."""
        exact: dict[str, str] = {}
        levels: list[dict[Tokens, frozenset[str]]] = [{} for _ in _SIMPLER]
        for name, model in names.items():
            exact.setdefault(name.lower(), model)
            for tokens in {name_tokens(name, dotted=dotted) for dotted in (False, True)}:
                for level, simpler in zip(levels, _SIMPLER, strict=True):
                    key = simpler(tokens)
                    level[key] = level.get(key, frozenset()) | {model}
        ids = tuple(dict.fromkeys(names.values()))
        return cls(ids, exact, tuple(levels), {_plain(name_tokens(name)): model for name, model in usual.items()})


def resolve_model_name(name: str, table: NameTable) -> str:
    """The catalogue id that ``name`` means.

    The exact spelling first, then the same tokens, then the same without decoration, then the one entry that
    contains all of them in order. Raises AmbiguousNameError, UnknownNameError or InputError.
    """
    if not name.strip() or len(name) > _LONGEST_NAME:
        raise InputError("a model name is expected", hint=_HINT)
    exact = table.exact.get(name.strip().lower())
    if exact is not None:
        return exact
    queries = dict.fromkeys(name_tokens(name, dotted=dotted) for dotted in (True, False))
    usual = next((table.usual[_plain(query)] for query in queries if _plain(query) in table.usual), None)
    for level, simpler in zip(table.levels, _SIMPLER, strict=True):
        for query in queries:
            candidates = level.get(simpler(query)) if query else None
            if candidates:
                return _only(name, candidates, usual)
    refuse_unmodelled(name)
    plain = [_plain(query) for query in queries]
    candidates = frozenset[str]().union(
        *(ids for tokens, ids in table.levels[1].items() if any(_contains(tokens, query) for query in plain))
    )
    if candidates:
        return _only(name, candidates, usual)
    if usual is not None:
        raise UnknownNameError("model", name[:80], (), hint=f"the usual one has the language model {usual!r}: name that")
    refuse_vision_language(name)
    _refuse_hardware(name)
    meant = _misspelt(name, table)
    known = nearest_names(name, table.ids)
    if meant is None or meant in known[:1]:
        raise UnknownNameError("model", name[:80], known, hint=None if known else _HINT)
    others = [one for one in known if one != meant][:2]
    raise UnknownNameError("model", name[:80], (), hint="did you mean " + " or ".join(map(repr, (meant, *others))) + "?")


ALIKE = 0.75
"""How alike a misspelt name and the name of a family are at least (0 to 1)."""


def _misspelt(name: str, table: NameTable) -> str | None:
    """The model that most people mean by a name without a size that is spelt like ``name``: lama, gema3."""
    spelt = "".join(name_tokens(name, dotted=True))
    usual = {"".join(tokens): model for tokens, model in table.usual.items()}
    of_version = {family: model for family, model in usual.items() if _digits(family) == _digits(spelt)}
    found = nearest_names(spelt, of_version, n=1, cutoff=ALIKE)
    return usual[found[0]] if found else None


def _digits(text: str) -> str:
    return "".join(c for c in text if c.isdigit())


_OTHER = frozenset(
    {
        "asr",
        "audio",
        "depth",
        "distill",
        "draft",
        "eagle",
        "embed",
        "embedding",
        "frankenmerge",
        "layers",
        "lite",
        "llava",
        "medusa",
        "merged",
        "mini",
        "moe",
        "multimodal",
        "nano",
        "ocr",
        "omni",
        "prune",
        "pruned",
        "reap",
        "rerank",
        "reranker",
        "reward",
        "sparse",
        "tiny",
        "tts",
        "upscaled",
        "vision",
        "vl",
    }
)
"""Words of a name whose model has other sizes than the model it is made of."""


def base_in_name(name: str, table: NameTable) -> str | None:
    """The one catalogue model whose name with a size stands in ``name`` among other words, as that of a fine-tune does
    (``Llama-3.1-8B-Lexi-Uncensored``); None where there is none, or where a word says that sizes differ."""
    best: dict[str, int] = {}
    for query in {_plain(name_tokens(name, dotted=dotted)) for dotted in (True, False)}:
        for tokens, ids in table.levels[1].items():
            n = len(tokens)
            at = next((i for i in range(len(query) - n + 1) if query[i : i + n] == tokens), None)
            if at is None or len(ids) != 1 or n < 2 or not any(_SIZE.fullmatch(t) for t in tokens):
                continue
            rest = (*query[:at], *query[at + n :])
            if _OTHER.isdisjoint(rest) and not any(_SIZE.fullmatch(t) for t in rest):
                (one,) = ids
                best[one] = max(best.get(one, 0), n)
    longest = [one for one, n in best.items() if n == max(best.values())]
    return longest[0] if len(longest) == 1 else None


def _refuse_hardware(name: str) -> None:
    """Raises InputError where a GPU or a system stands in the place of a model."""
    try:
        gpu = find_cluster(name).accelerator.id
    except AmbiguousNameError as error:
        gpu = error.candidates[0]
    except InputError:
        return
    raise InputError(
        f"{name[:80]!r} is a GPU, and a model is expected here",
        hint=f"name the model first, for example: llama-3.1-8b --on {gpu}",
    )


def _by_size(model: str) -> list[tuple[bool, float, str]]:
    """Sorts ids part by part, words (base) before sizes and sizes as numbers: 8b before 70b."""
    parts = [(re.match(r"\d+(?:\.\d+)?", part), part) for part in model.split("-")]
    return [(number is not None, float(number[0]) if number else 0.0, part) for number, part in parts]


def _only(name: str, ids: Iterable[str], usual: str | None) -> str:
    """The one of ``ids``; else raises AmbiguousNameError, with the ``usual`` one first."""
    candidates = sorted(ids, key=lambda one: (one != usual, _by_size(one)))
    if len(candidates) == 1:
        return candidates[0]
    raise AmbiguousNameError("model", name[:80], candidates, usual=candidates[0] == usual)
