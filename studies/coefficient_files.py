"""Writes coefficient files and keeps their manifest (used when a family is refitted, never at prediction time)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, cast
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import numpy as np

from gpuwise.errors import DataError
from gpuwise.predict.coefficients import FOLDER, coefficient_path

RECORDS = Path(__file__).parents[1] / "benchmarks" / "records" / "validate"
ERRORS = ("check", "left_out")
"""Of a provenance: tables of errors, which stay in the checkout."""


def write(family: str, document: dict[str, Any], arrays: dict[str, Any] | None = None) -> None:
    """Write ``<family>.json`` (and ``.npz``), then refresh the manifest. ``document`` needs ``provenance``, whose tables of
    errors go to ``benchmarks/records/validate/fit_errors_<family>.json``: no installation needs them."""
    if "provenance" not in document:
        raise DataError(f"coefficients of {family} have no provenance")
    errors = {name: table for name in ERRORS if (table := document["provenance"].pop(name, None)) is not None}
    if errors:
        (RECORDS / f"fit_errors_{family}.json").write_text(document_text(errors))
    coefficient_path(f"{family}.json").write_text(document_text(document))
    if arrays is not None:
        write_arrays(coefficient_path(f"{family}.npz"), arrays)
    refresh_manifest()


def write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """As ``np.savez_compressed``, deflated as far as it goes (every installation has the files) and with no time of writing: the
    same arrays are the same bytes."""
    with ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            info = ZipInfo(f"{name}.npy")
            info.compress_type = ZIP_DEFLATED
            with archive.open(info, "w") as entry:
                vars(entry)["_compressor"] = _ShortestDeflate()
                np.lib.format.write_array(entry, np.asanyarray(array), allow_pickle=False)


class _ShortestDeflate:
    """In place of zlib's compressor: an eighth smaller, and a thousand times slower."""

    def __init__(self) -> None:
        self._plain = bytearray()

    def compress(self, data: bytes) -> bytes:
        self._plain += data
        return b""

    def flush(self) -> bytes:
        """The stream alone: what zlib puts before it and behind it is no part of an archive."""
        zlib: Any = import_module("zopfli.zlib")
        stream: bytes = zlib.compress(bytes(self._plain), numiterations=15)
        return stream[2:-4]


def document_text(document: dict[str, Any]) -> str:
    """``document`` as JSON, a line for each value down to its third level: small, and a refit shows as the lines it moved. What
    many kernels have by the same names are lists, and the names are written once."""
    if document.get("physics"):
        names = sorted({name for table in _tables(document["physics"]) for name in table})
        document = {**document, "physics": _places(document["physics"], names), "physics_names": names}
    return _lines(document, 3) + "\n"


def _is_table(value: dict[str, Any]) -> bool:
    return any(not isinstance(v, dict) for v in value.values())


def _tables(value: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The innermost dictionaries of ``value``."""
    if _is_table(value):
        yield value
    else:
        for inner in value.values():
            yield from _tables(inner)


def _places(value: dict[str, Any], names: list[str]) -> Any:
    """``value`` with the values of each innermost dictionary in the order of ``names``, None for what it has not."""
    if _is_table(value):
        return [value.get(name) for name in names]
    return {k: _places(v, names) for k, v in value.items()}


def _lines(value: Any, levels: int) -> str:
    if not (levels and isinstance(value, dict) and value):
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    entries = cast("dict[str, Any]", value)
    return "{\n" + ",\n".join(f"{json.dumps(k)}:{_lines(v, levels - 1)}" for k, v in sorted(entries.items())) + "}"


def refresh_manifest() -> None:
    """Recompute ``MANIFEST.json`` from the files present."""
    names = sorted(p.name for p in FOLDER.rglob("*") if p.suffix in (".json", ".npz") and p.name != "MANIFEST.json")
    sums = {n: hashlib.sha256(coefficient_path(n).read_bytes()).hexdigest() for n in names}
    (FOLDER / "MANIFEST.json").write_text(json.dumps(sums, indent=1) + "\n")
