"""Where programs keep models on this machine: the cache of Hugging Face, Ollama's store, LM Studio's folder.

A model that is there is found by the name under which it was fetched. Nothing is fetched here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from gpuwise.errors import InputError
from gpuwise.files import MIB, read_json, read_text

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_OLLAMA_NAME = re.compile(
    r"(?:(hf\.co|huggingface\.co|registry\.ollama\.ai|ollama\.com)/)?(?:([\w.-]+)/)?([\w.-]+)(?::([\w.-]+))?"
)
_OLLAMA = "registry.ollama.ai"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MODEL_LAYER = "application/vnd.ollama.image.model"
_MOST_FILES = 10_000
"""Of LM Studio's folder, looked through by name."""


def find_stored(name: str) -> Path | None:
    """The file or folder of the model called ``name``: ``org/name`` (Hugging Face, LM Studio), ``llama3.1:8b`` (Ollama); None
    where no store has it. Raises FileError for a store's file that is broken."""
    if _HUB_NAME.fullmatch(name):
        for found in (_in_hub_cache(name), _in_lm_studio(name)):
            if found is not None:
                return found
    return _in_ollama(name)


def hub_folder(path: Path) -> Path | None:
    """The newest snapshot in a folder of Hugging Face's cache (``models--org--name``); None where ``path`` is no such folder."""
    snapshots = path / "snapshots"
    if not path.name.startswith("models--") or not snapshots.is_dir():
        return None
    main_ref = path / "refs" / "main"
    named = read_text(main_ref, most=MIB, hint="fetch the model again").strip() if main_ref.is_file() else ""
    main = snapshots / named if re.fullmatch(r"[0-9a-f]{7,64}", named) else None
    if main is not None and main.is_dir():
        return main
    folders = sorted((p for p in snapshots.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime)
    return folders[-1] if folders else None


def _in_hub_cache(name: str) -> Path | None:
    folder = f"models--{name.replace('/', '--')}"
    return next((found for root in _hub_caches() if (found := hub_folder(root / folder)) is not None), None)


def _hub_caches() -> Iterator[Path]:
    """As huggingface_hub looks for its cache (constants.py HF_HUB_CACHE, HF_HOME)."""
    for variable, below in (
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
    ):
        if root := os.environ.get(variable):
            yield Path(root).expanduser() / below
    yield Path("~/.cache/huggingface/hub").expanduser()


def _in_lm_studio(name: str) -> Path | None:
    """``org/name`` is a folder of LM Studio's with the files of one repository."""
    for root in ("~/.lmstudio/models", "~/.cache/lm-studio/models"):
        folder = Path(root).expanduser() / name
        if folder.is_dir() and any(folder.glob("*.gguf")):
            return folder
    return None


def _in_ollama(name: str) -> Path | None:
    """The weights that a manifest of Ollama's store names (manifests/HOST/NAMESPACE/MODEL/TAG, blobs/sha256-...)."""
    found = _OLLAMA_NAME.fullmatch(name)
    root = Path(os.environ.get("OLLAMA_MODELS") or "~/.ollama/models").expanduser()
    if found is None or not root.is_dir():
        return None
    host = _OLLAMA if found[1] in (None, "ollama.com") else found[1]
    manifest = root / "manifests" / host / (found[2] or "library") / found[3] / (found[4] or "latest")
    if not manifest.is_file():
        return None
    layers = _object(read_json(manifest, most=MIB, hint="pull the model again")).get("layers")
    for layer in map(_object, cast("list[object]", layers) if isinstance(layers, list) else []):
        digest = str(layer.get("digest"))
        if layer.get("mediaType") == _MODEL_LAYER and _DIGEST.fullmatch(digest):
            blob = root / "blobs" / digest.replace(":", "-")
            if blob.is_file():
                return blob
    raise InputError(f"Ollama's store has {name[:80]!r} without its weights", hint=f"ollama pull {name[:80]}")


def _object(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}
