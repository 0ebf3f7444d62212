"""Fitted coefficients as data files, with where they came from and how wrong they were.

Each family has ``<family>.json`` (provenance and small numbers) in the folder of its subject and, when it needs arrays,
``<family>.npz`` beside it.
``MANIFEST.json`` holds the SHA-256 of every file: a file that does not match gives no number, it raises.
"""

from __future__ import annotations

import hashlib
import io
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import DataError

_HINT = "reinstall gpuwise, or refit the family: its module in gpuwise.calibrate has fit(folder)"


@cache
def _manifest() -> dict[str, str]:
    return json.loads(_raw("MANIFEST.json"))


FOLDER = Path(__file__).parent
_SUBJECTS = ("", "kernels", "comm", "step", "memory", "serving")


def coefficient_path(name: str) -> Path:
    """Where the coefficient file ``name`` lies: names are unique over the folders. A name that none of them has is placed at
    the top."""
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
    return document


@cache
def load_arrays(family: str) -> dict[str, NDArray[Any]]:
    """The arrays of ``family``'s npz. Raises DataError on a corrupt file."""
    with np.load(io.BytesIO(read_verified(f"{family}.npz")), allow_pickle=False) as archive:
        return {key: archive[key] for key in archive.files}
