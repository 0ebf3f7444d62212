"""Fitted coefficients as data files, with where they came from and how wrong they were.

Each family has ``<family>.json`` (provenance and small numbers) in the folder of its subject and, when it needs arrays,
``<family>.npz`` beside it.
``MANIFEST.json`` holds the SHA-256 of every file: a file that does not match gives no number, it raises.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import DataError

_HINT = "reinstall gpuwise, or refit the family in a checkout: its module in studies has fit(folder)"


@cache
def _manifest() -> dict[str, str]:
    return json.loads(_raw("MANIFEST.json"))


FOLDER = Path(__file__).parent
_SUBJECTS = ("", "kernels", "comm", "step", "memory", "serving")


def coefficient_path(name: str) -> Path:
    """Path of the coefficient file ``name``; names are unique over the folders. An unknown name is placed at the top."""
    return next((path for subject in _SUBJECTS if (path := FOLDER / subject / name).is_file()), FOLDER / name)


def _raw(name: str) -> bytes:
    try:
        return coefficient_path(name).read_bytes()
    except FileNotFoundError:
        raise DataError(f"coefficient file {name} is missing", hint=_HINT) from None


def read_verified(name: str) -> bytes:
    """The bytes of a coefficient file. Raises DataError when it is missing, unlisted or does not match the manifest."""
    raw = _raw(name)
    if _manifest().get(name) != hashlib.sha256(raw).hexdigest():
        raise DataError(f"coefficient file {name} does not match its checksum", hint=_HINT)
    return raw


@cache
def load_json(family: str) -> dict[str, Any]:
    """The JSON document of ``family``. It always has ``provenance``: sources, rows, date, errors of the fit.

    Raises DataError on a corrupt file or one without provenance.
    """
    try:
        document = json.loads(read_verified(f"{family}.json"))
    except ValueError as error:
        raise DataError(f"coefficient file {family}.json is not JSON: {error}", hint=_HINT) from None
    if "provenance" not in document:
        raise DataError(f"coefficient file {family}.json has no provenance", hint=_HINT)
    if "physics_names" in document:
        document["physics"] = _named(document["physics"], document.pop("physics_names"))
    return document


def _named(value: Any, names: list[str]) -> Any:
    """``value`` with each list turned into a mapping by the ``names`` of its places; None entries are dropped."""
    if isinstance(value, list):
        return {n: v for n, v in zip(names, cast("list[Any]", value), strict=True) if v is not None}
    return {k: _named(v, names) for k, v in value.items()}


class Arrays(Mapping[str, NDArray[Any]]):
    """Arrays of one npz, each read on first use: a step needs few of the arrays of a family."""

    def __init__(self, archive: bytes) -> None:
        self._archive = np.load(io.BytesIO(archive), allow_pickle=False)
        self._arrays: dict[str, NDArray[Any]] = {}
        self._lock = Lock()

    def __getitem__(self, key: str) -> NDArray[Any]:
        array = self._arrays.get(key)
        if array is None:
            with self._lock:  # the archive has one position for all readers
                array = self._arrays[key] = self._archive[key]
        return array

    def __contains__(self, key: object) -> bool:
        return key in self._archive.files

    def __iter__(self) -> Iterator[str]:
        return iter(self._archive.files)

    def __len__(self) -> int:
        return len(self._archive.files)


@cache
def load_arrays(family: str) -> Arrays:
    """The arrays of ``family``'s npz. Raises DataError on a corrupt file."""
    return Arrays(read_verified(f"{family}.npz"))


def forget_files() -> None:
    """Drop the cached documents and manifest, after a fit has written new ones."""
    load_json.cache_clear()
    _manifest.cache_clear()
