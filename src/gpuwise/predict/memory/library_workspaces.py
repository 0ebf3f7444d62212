"""Workspaces that libraries keep for as long as their handles live, by device and version of torch."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from gpuwise.errors import InputError
from gpuwise.facts.hardware.accelerators import Accelerator

Version = tuple[int, int]
NEWEST: Version = (99, 0)
"""A version of torch later than any table's."""


def version_of(text: str) -> Version:
    """``2.7.1+cu126`` -> (2, 7). Raises InputError."""
    match = re.match(r"(\d{1,3})\.(\d{1,3})", text)
    if match is None:
        raise InputError(f"{text!r} is not a version of torch", hint="write it like 2.7.1")
    return int(match[1]), int(match[2])


@cache
def workspace_tables() -> dict[str, dict[str, Any]]:
    """``workspaces.toml``: sizes of workspaces and the versions they changed in."""
    return tomllib.loads(Path(__file__).with_name("workspaces.toml").read_text(encoding="utf-8"))


def library_workspace_bytes(accelerator: Accelerator) -> int:
    """The workspace of one cuBLAS handle under the newest torch, from the caching allocator: what a training process
    whose software is not named keeps."""
    major, minor = (int(p) for p in (accelerator.compute_capability or "0.0").split("."))
    return cublas_workspace_bytes((major, minor), NEWEST)


def cublas_workspace_bytes(capability: tuple[int, int], torch: Version) -> int:
    """Bytes of a cuBLAS handle's workspace on a stream, by compute capability and version of torch; 0 where cuBLAS allocates
    it outside the caching allocator."""
    table = workspace_tables()["cublas"]
    if torch < version_of(table["in_allocator_since"]):
        return 0
    for major, minor, since in table["large_capabilities"]:
        if (major, minor) == capability and torch >= version_of(since):
            return int(table["large_bytes"])
    return int(table["default_bytes"])
