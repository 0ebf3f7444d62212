"""Named models, local Hugging Face configurations and dimensions given by hand, all as an Architecture.

The catalogue is ``data/models_*.toml``: one family holds what its models share, one line is a model. It is
read on first use.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

from gpuwise.errors import AmbiguousNameError, DataError, FieldError, InputError, UnknownNameError
from gpuwise.facts.loading import own_texts, shipped_text
from gpuwise.facts.models.architecture import PARTS, READ_AS, Architecture, Extra, Mla, spelled_out
from gpuwise.facts.models.checks import check_architecture
from gpuwise.facts.models.names import GGUF_TYPE, NameTable, base_in_name, called_otherwise, resolve_model_name, without_host
from gpuwise.facts.models.stored import format_in_name
from gpuwise.facts.models.unmodelled import refuse_unmodelled

CATALOGUE_FILES = ("models_llama.toml", "models_gpt.toml", "models_moe.toml", "models_encoders.toml", "models_hybrid.toml")
USUAL_FILE = "usual.toml"
"""What most people mean by a name that several models have."""
OWN_FILE = "models.toml"
"""Of a person's own models, in the form of the files of the catalogue."""
_FIELDS = frozenset(f.name for f in fields(Architecture)) - {"id", "family", "extras", "extra_parameters", "stored_format"}
_KEYS = _FIELDS | {"hf", "extra"}
_FAMILY = re.compile(r"^\[(?!.*\.models\]$).*\n(?:(?!\[).*\n|\[.*\.models\]\n)*", re.MULTILINE)
"""A family in a file of the catalogue: a header, and its lines with those under its ``[family.models]``."""
_MODEL = re.compile(r'^"(.+?)" = ', re.MULTILINE)


class _Models(Mapping[str, Architecture]):
    """Models by their id; a family of the shipped files is read when one of it is asked for, a person's own at once."""

    def __init__(self) -> None:
        self._families: dict[str, tuple[str, str]] = {}
        self._read: dict[str, Architecture] = {}
        for file in CATALOGUE_FILES:
            for family in _FAMILY.findall(shipped_text(file)):
                for key in _MODEL.findall(family):
                    if key in self._families:
                        raise DataError(f"{file}: model {key!r} appears twice")
                    self._families[key] = (family, file)
        self._own = _own()

    def __getitem__(self, key: str) -> Architecture:
        if key in self._own:
            return self._own[key]
        if key not in self._read:
            self._read |= {arch.id: arch for arch in read_catalogue(*self._families[key])}
        return self._read[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._families | self._own)

    def __len__(self) -> int:
        return len(self._families | self._own)


@cache
def models() -> Mapping[str, Architecture]:
    """Every named model by its id, with a person's own, which win. Raises DataError when a shipped file is broken, FieldError for
    their own."""
    return _Models()


def _own() -> dict[str, Architecture]:
    """The models of a person's own file. Raises FieldError."""
    found: dict[str, Architecture] = {}
    for text, path in own_texts(OWN_FILE):
        try:
            found |= {arch.id: arch for arch in read_catalogue(text, OWN_FILE)}
        except DataError as error:
            hint = "one line is a model under its family, as in the guide on own facts"
            raise FieldError(error.message, file=str(Path(path).parent), hint=error.hint or hint) from None
    return found


@cache
def _names() -> NameTable:
    """Every known name of every model; ids win over names and aliases."""
    names = {arch.id: arch.id for arch in models().values()}
    for arch in models().values():
        for alias in (arch.name, *arch.aliases):
            names.setdefault(alias, arch.id)
    return NameTable.of(names, {name: row["model"] for name, row in _usual().items()})


@cache
def known_names() -> frozenset[str]:
    """Every spelling in small letters that is a name in full: ids, names, aliases, and what people call a family."""
    return frozenset(_names().exact) | frozenset(_usual())


def usual_models() -> list[str]:
    """Models that people mean by a family's name, those of families with several generations first."""
    rows = [row for row in _usual().values() if row["from"] in COMMON]
    return [row["model"] for row in sorted(rows, key=lambda row: COMMON.index(row["from"]))]


COMMON = ("family", "ollama")
"""Origins of a common name; another is the language model in another one."""


def _usual() -> dict[str, dict[str, str]]:
    return tomllib.loads(shipped_text(USUAL_FILE))


def find_model(text: str) -> Architecture:
    """The model a person means: a catalogue name in any usual spelling, a GGUF file, a Hugging Face ``config.json``, a folder
    with one of them or with safetensors, a name in a store of this machine (Hugging Face's cache, Ollama, LM Studio), a name on
    the Hugging Face Hub where a network is there (``org/name``), or dimensions (``layers=32,hidden=4096,heads=32,...``).

    Raises UnknownNameError, AmbiguousNameError, or FieldError for a file or dimensions that are wrong.
    """
    text = text.strip()
    if "=" in text and not _is_path(text):
        from gpuwise.facts.models.dimensions import parse_dimensions

        return parse_dimensions(text)
    if (arch := _in_files(text)) is not None:
        return arch
    if ("/" in text or ":" in text) and len(text) < 400:
        from gpuwise.facts.models.stores import find_stored

        stored = find_stored(text)
        if stored is not None and (arch := _in_files(str(stored), name=text)) is not None:
            return arch
    text = without_host(text)
    if text and not any(c.isalpha() for c in text):
        # a version without a name: 1,5 is no Phi
        raise UnknownNameError("model", text, (), hint="name one, like llama-3.1-8b; `gpuwise models` lists all")
    arch = models().get(text) or _by_letters(text) or _named(text)
    form = format_in_name(text)
    published = form in (None, arch.published_weights, arch.published_experts)
    return arch if published or text.lower() in _names().exact else replace(arch, stored_format=form)


def find_models(text: str) -> list[Architecture]:
    """All models that a name means: several for that of a family. Raises as :func:`find_model`."""
    try:
        resolve_model_name(text, _names())
    except AmbiguousNameError as error:
        return [models()[name] for name in error.candidates if name in models()]
    except InputError:
        pass
    return [find_model(text)]


def find_model_to_run(text: str) -> Architecture:
    """:func:`find_model` for a question about running it locally, if the size in an unknown name (``Tess-4-27B``) is enough:
    such a name is a decoder of that size, with a note and a wide interval. Raises as :func:`find_model`."""
    try:
        return find_model(text)
    except UnknownNameError:
        refuse_unmodelled(text)
        from gpuwise.facts.models.sized import by_size

        if (arch := by_size(text, models().values())) is None:
            raise
        return replace(arch, stored_format=format_in_name(text))


def _in_files(text: str, *, name: str = "") -> Architecture | None:
    """The model in the file or folder ``text``, called ``name``; None where it is to be read as a name."""
    if "models--" in text:
        from gpuwise.facts.models.stores import hub_folder

        if (snapshot := hub_folder(Path(text).expanduser())) is not None:
            org, _, model = Path(text).name.removeprefix("models--").partition("--")
            return _in_files(str(snapshot), name=f"{org}/{model}")
    gguf = _gguf_path(text, blob=bool(name))
    if gguf is not None:
        from gpuwise.facts.models.gguf_model import architecture_of_gguf

        return architecture_of_gguf(gguf, models().values(), name=name)
    checkpoint = _checkpoint_path(text)
    if checkpoint is not None:
        from gpuwise.facts.models.checkpoint import architecture_of_checkpoint

        if (found := architecture_of_checkpoint(checkpoint, name=name)) is not None:
            return found
    config = _config_path(text)
    if config is None:
        return None
    from gpuwise.facts.models.configs import read_model_config

    arch = read_model_config(config)
    return replace(arch, id=name, name=name) if name else arch


def _named(text: str) -> Architecture:
    """The model that a name means; with a note, the one that most people mean by it, or that a name of a fine-tune has in it.
    Raises UnknownNameError, AmbiguousNameError."""
    try:
        arch = models()[resolve_model_name(text, _names())]
        if not called_otherwise(text, arch.id, arch.name):
            return arch
        return replace(arch, notes=(f"{text.strip()[:80]} {READ_AS} {arch.name}, which has the same layers", *arch.notes))
    except AmbiguousNameError as error:
        if not error.usual:
            raise
        arch = models()[error.candidates[0]]
        return replace(arch, notes=(f"{text.strip()[:80]} {READ_AS} {arch.name}, which most people mean", *arch.notes))
    except UnknownNameError:
        refuse_unmodelled(text)
        base = base_in_name(text, _names()) or _behind_owner(text)
        if base is None:
            if (found := _on_hub(text)) is not None:
                return found
            raise
        arch = models()[base]
        return replace(arch, notes=(f"{text.strip()[:80]} {READ_AS} a fine-tune of {arch.name}", *arch.notes))


def _behind_owner(text: str) -> str | None:
    """The id of the model whose name follows the owner's and an underscore, as files are often called
    (``ibm-granite_granite-4.0-micro-Q4_K_M.gguf``)."""
    owner, _, rest = text.rpartition("/")[2].partition("_")
    if not rest or not owner or any(c.isdigit() for c in owner.partition("-")[0]):
        return None
    try:
        return resolve_model_name(rest, _names())
    except InputError:
        return None


def _on_hub(text: str) -> Architecture | None:
    """The model that the Hugging Face Hub has under ``text``, with a note; None where it is no name of the Hub, or the Hub is not
    to be asked. Raises UnknownNameError where it does not answer, InputError where it does not have or show it."""
    from gpuwise.facts.models import hub

    found = hub.NAME.fullmatch(text)
    if found is None:
        return None
    if found[2] and not GGUF_TYPE.fullmatch(found[2].lower()):
        hint = f"as a model of Ollama it is not on this machine: ollama pull {text[:80]}, or give its .gguf file"
        raise UnknownNameError("model", text[:80], (), hint=hint)
    try:
        found = hub.fetch_model(text)
    except hub.NoAnswerError as error:
        raise UnknownNameError("model", text[:80], (), hint=f"{error.message}; {error.hint}") from None
    if found is None:
        return None
    arch = _in_files(str(found), name=text)
    note = f"{text[:80]} {READ_AS} {hub.endpoint()} has it: config and headers alone, kept in {hub.cache_folder()}"
    return None if arch is None else replace(arch, notes=(note, *arch.notes))


def _by_letters(text: str) -> Architecture | None:
    """The model whose id is ``text`` but for its dashes: granite32b is Granite 3 2B, letter by letter."""
    return next((models()[name] for name in models() if name.replace("-", "") == text.lower()), None)


def _is_path(text: str) -> bool:
    """Whether ``text`` can only be a path."""
    return text.endswith(".json") or text.startswith((".", "/", "~"))


def _gguf_path(text: str, *, blob: bool = False) -> Path | None:
    """The GGUF file ``text`` points at: itself (a ``blob`` has no ending), or the only one (or its first part) in a folder; None
    where there is none."""
    if not text or len(text) > 4096 or "\x00" in text:
        return None
    try:
        path = Path(text).expanduser()
        if text.lower().endswith(".gguf") or (blob and path.is_file() and path.suffix != ".json"):
            return path if path.exists() or len(path.parts) > 1 else None
        if not path.is_dir() or (path / "config.json").exists():
            return None
        files = sorted(p for p in path.glob("*.gguf") if not p.name.lower().startswith("mmproj"))
    except (OSError, RuntimeError, ValueError):
        return None
    whole = [p for p in files if re.search(r"-0*[1-9]\d*-of-\d+\.gguf$", p.name) is None or "-00001-of-" in p.name]
    if len(whole) > 1:
        names = ", ".join(p.name for p in whole[:4])
        raise FieldError(f"holds {len(whole)} models: {names}", file=text, hint="name one of the files")
    return whole[0] if whole else None


def _checkpoint_path(text: str) -> Path | None:
    """The safetensors file, or the folder with some, ``text`` points at; None where there is none."""
    if not text or len(text) > 4096 or "\x00" in text:
        return None
    try:
        path = Path(text).expanduser()
        if text.lower().endswith(".safetensors"):
            return path if path.exists() or len(path.parts) > 1 else None
        return path if path.is_dir() and any(path.glob("*.safetensors*")) else None
    except (OSError, RuntimeError, ValueError):
        return None


def _config_path(text: str) -> Path | None:
    """The config file ``text`` points at; None when it is to be read as a name."""
    if not text or len(text) > 4096 or "\x00" in text:
        return None
    explicit = _is_path(text)
    try:
        path = Path(text).expanduser()
        if path.is_dir():
            inside = path / "config.json"
            if inside.exists():
                return inside
            if explicit:
                raise FieldError(
                    "holds no config.json",
                    file=text,
                    hint="give a Hugging Face model folder or its config.json",
                )
            return None
        if path.exists() and (explicit or len(path.parts) > 1):
            return path
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"{text[:80]!r} is not a usable path: {error}", hint="give a name or a config.json") from error
    if explicit:
        raise FieldError("does not exist", file=text, hint="give a catalogue name or the path of a config.json")
    return None


def read_catalogue(text: str, file: str) -> list[Architecture]:
    """The models of one catalogue file. Raises DataError that names the model and the field."""
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file} is not TOML: {error}") from error
    architectures: list[Architecture] = []
    for family, table in document.items():
        if not isinstance(table, dict) or "models" not in table:
            raise DataError(f"{file}: family {family!r} has no [{family}.models] table")
        shared = cast("dict[str, Any]", table)
        rows = shared.pop("models")
        if not isinstance(rows, dict):
            raise DataError(f"{file}: {family}.models is not a table")
        for key, row in cast("dict[str, Any]", rows).items():
            try:
                arch = _catalogue_entry(key, family, {**shared, **row})
                architectures.append(check_architecture(arch, file=file))
            except (FieldError, TypeError, ValueError, KeyError, ArithmeticError) as error:
                raise DataError(f"{file}: model {key!r}: {error}") from error
    return architectures


def _catalogue_entry(key: str, family: str, row: dict[str, Any]) -> Architecture:
    unknown = sorted(set(row) - _KEYS)
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r}")
    if isinstance(row.get("mamba"), dict) and "heads" not in row:  # no attention: the sizes that a split divides are the mixer's
        row = {"heads": row["mamba"].get("heads") or 1, "head_dim": 1, "ffn": row["mamba"]["inner"], **row}
    values: dict[str, Any] = {"kind": "decoder", "kv_heads": row["heads"], **row}
    values.setdefault("head_dim", row["hidden"] // row["heads"])
    hub = tuple(values.pop("hf", ()))
    if hub and "source" not in values:
        values["source"] = f"https://huggingface.co/{hub[0]}"
    if "pattern" in values:
        values["pattern"] = spelled_out(values["pattern"])
    for name, part in PARTS.items():
        if name in values:
            values[name] = part(**({"q_lora_rank": None} if part is Mla else {}) | values[name])
    extras = tuple(Extra(**item) for item in values.pop("extra", ()))
    values["aliases"] = (*hub, *values.get("aliases", ()))
    values["notes"] = tuple(values.get("notes", ()))
    return Architecture(id=key, family=family, extras=extras, extra_parameters=sum(e.parameters for e in extras), **values)
