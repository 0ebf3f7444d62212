"""Verification of checkpoint folders: a manifest with the hash of every file, written last.

DCP silently loads a file with flipped bytes (torch 2.13); here a folder is valid only if every file matches its manifest.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from gpuwise.errors import FileError
from gpuwise.files import read_json, sync_folder, write_whole

MANIFEST = "manifest.json"
PARTIAL, DAMAGED = ".partial", ".damaged"
CHUNK = 1 << 22
Entry = dict[str, Any]


def folder_of(root: Path, step: int) -> Path:
    """Folder of the checkpoint of ``step`` under ``root``."""
    return root / f"step-{step:09d}"


def saves(root: Path) -> list[Path]:
    """Finished checkpoints, the newest first, whole or not."""
    if not root.is_dir():
        return []
    return sorted((p for p in root.glob("step-*") if p.name.removeprefix("step-").isdigit()), reverse=True)


def entry(path: Path) -> Entry:
    """Size and hash of a file, and its bytes on the disk for certain."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(CHUNK):
            digest.update(block)
        os.fsync(file.fileno())
    return {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def seal(partial: Path, final: Path, entries: Mapping[str, Entry], about: Mapping[str, Any]) -> None:
    """The manifest, then the folder's name: from here on it counts."""
    document = {"about": dict(about), "files": dict(sorted(entries.items()))}
    write_whole(partial / MANIFEST, json.dumps({**document, "seal": _seal(document)}))
    sync_folder(partial)
    if final.exists():
        # it was damaged, otherwise this step would not have been repeated
        n = sum(1 for _ in final.parent.glob(f"{final.name}{DAMAGED}*"))
        final.rename(final.with_name(f"{final.name}{DAMAGED}{n or ''}"))
    partial.rename(final)
    sync_folder(final.parent)


def _seal(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def read(folder: Path) -> tuple[dict[str, Any] | None, str | None]:
    """The manifest, or what is wrong with it."""
    try:
        document = cast("dict[str, Any]", read_json(folder / MANIFEST))
        told = document.pop("seal")
    except (FileError, KeyError, TypeError, AttributeError) as error:
        if not (folder / MANIFEST).exists():
            return None, f"{folder.name} has no {MANIFEST}"
        return None, f"{folder.name}/{MANIFEST} cannot be read: {type(error).__name__}"
    if told != _seal(document):
        return None, f"{folder.name}/{MANIFEST} was changed"
    return document, None


def faults(folder: Path, files: Mapping[str, Entry], names: Iterable[str]) -> list[str]:
    """Errors in the files of these names."""
    found: list[str] = []
    for name in names:
        path, told = folder / name, files[name]
        try:
            size = path.stat().st_size
            if size != told["bytes"]:
                found.append(f"{folder.name}/{name} has {size:,} bytes of {told['bytes']:,}")
            elif entry(path)["sha256"] != told["sha256"]:
                found.append(f"{folder.name}/{name} has other bytes than were written")
        except OSError as error:
            found.append(f"{folder.name}/{name}: {error.strerror}")
    return found


def prune(root: Path, keep: int) -> None:
    """Leave the newest ``keep``."""
    for old in saves(root)[keep:]:
        gone = old.with_name(f"{old.name}.old")
        old.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
