"""Settings of PyTorch's caching allocator for CUDA, as ``PYTORCH_CUDA_ALLOC_CONF`` / ``PYTORCH_ALLOC_CONF`` spells them.

Parsed as torch parses them (c10/core/AllocatorConfig.h, c10/cuda/CUDAAllocatorConfig.h), with two deliberate
differences: what follows a number is refused (torch reads ``30x`` as 30), and so is a negative one (torch wraps it round).
A key or value that torch refuses raises :class:`~gpuwise.errors.FieldError` with a hint.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import FieldError, nearest_names

I64 = NDArray[np.int64]

MIB = 1 << 20
MIN_BLOCK = 512
"""Every size is rounded up to a multiple of this (kMinBlockSize)."""
SMALL_SIZE = 1 * MIB
"""Largest rounded size that goes to the small pool (kSmallSize)."""
SMALL_SEGMENT = 2 * MIB
"""Segment, or page of an expandable segment, of the small pool (kSmallBuffer)."""
MIN_LARGE = 10 * MIB
"""Requests of at least this size get a segment of their own size (kMinLargeAlloc)."""
ROUND_LARGE = 2 * MIB
"""... rounded up to a multiple of this (kRoundLarge)."""
_INTERVALS = 16
"""Powers of two from 1 MiB to 32 GiB, each with its own number of divisions."""
_FALLBACK_VERSION = (2, 13)

_BOOLEAN_KEYS = {
    "release_lock_on_cudamalloc": (2, 1),
    "release_lock_on_hipmalloc": (2, 1),
    "pinned_use_cuda_host_register": (2, 1),
    "pinned_use_hip_host_register": (2, 1),
    "pinned_use_background_threads": (2, 7),
    "graph_capture_record_stream_reuse": (2, 10),
    "pinned_free_catch_all": (2, 13),
    "throw_on_cudamalloc_oom": (2, 13),
}
"""Switches that do not change which block a request gets, and the first version that is sure to have them."""
_COUNT_KEYS = {
    "pinned_num_register_threads": (2, 1),
    "pinned_reserve_segment_size_mb": (2, 11),
    "pinned_max_round_threshold_mb": (2, 13),
    "pinned_max_cached_size_mb": (2, 13),
}
_PLACING_KEYS = {
    "max_split_size_mb": (1, 8),
    "garbage_collection_threshold": (1, 12),
    "roundup_power2_divisions": (1, 12),
    "backend": (2, 0),
    "expandable_segments": (2, 1),
    "max_non_split_rounding_mb": (2, 7),
    "large_segment_size_mb": (2, 11),
    "per_process_memory_fraction": (2, 10),
}
KEYS: dict[str, tuple[int, int]] = {**_PLACING_KEYS, **_BOOLEAN_KEYS, **_COUNT_KEYS}


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """Settings that affect block placement; sizes in bytes, ``None`` for no limit."""

    max_split_size_bytes: int | None = None
    """Blocks of at least this size are never split and serve only requests of at least this size."""
    max_non_split_rounding_bytes: int = 20 * MIB
    """How much larger than the request an unsplittable block may be."""
    roundup_power2_divisions: tuple[int, ...] = (0,) * _INTERVALS
    """Steps between 2**k MiB and 2**(k+1) MiB that sizes are rounded up to; 0 and 1: multiples of 512 B."""
    garbage_collection_threshold: float = 0.0
    """Above this part of the allowed memory, old cached segments are given back; needs ``memory_fraction``."""
    expandable_segments: bool = False
    large_segment_bytes: int = 20 * MIB
    """Segment for requests between 1 and 10 MiB, and page of expandable segments of the large pool."""
    memory_fraction: float | None = None
    """``per_process_memory_fraction`` or ``torch.cuda.set_per_process_memory_fraction``: part of the device's memory allowed."""
    backend: str = "native"
    text: str = ""
    """The settings as given."""

    @classmethod
    def parse(cls, text: str, *, torch_version: str | None = None) -> AllocatorSettings:
        """Settings from ``"expandable_segments:True,max_split_size_mb:128"``; empty text gives the defaults.

        ``torch_version`` (``"2.7.1+cu126"``) refuses keys that version does not have; without it the newest known rules hold.
        Raises FieldError for an unknown key, a bad value, or a backend that is not simulated.
        """
        return _Parser(text, _version(torch_version)).settings()

    @property
    def gc_active(self) -> bool:
        """Garbage collection only runs with a limit on the process's part of the memory."""
        return self.garbage_collection_threshold > 0 and self.memory_fraction is not None

    @property
    def default(self) -> bool:
        """True if the settings place blocks as no settings at all would."""
        return replace(self, text="") == AllocatorSettings()

    def rounded(self, size_bytes: I64) -> I64:
        """[N] block sizes asked of the pools: at least 512 B, multiples of 512 B, or the next power-of-two division.

        For ``d`` divisions (d > 1) and size > 512 d: the next multiple of ``2**floor(log2 size) / d``.
        """
        size = np.asarray(size_bytes, dtype=np.int64)
        out = np.maximum((size + MIN_BLOCK - 1) // MIN_BLOCK, 1) * MIN_BLOCK
        if max(self.roundup_power2_divisions) <= 1:
            return out
        log2 = np.frexp(np.maximum(size, 1).astype(np.float64))[1].astype(np.int64) - 1
        divisions = np.array(self.roundup_power2_divisions, dtype=np.int64)[np.clip(log2 - 20, 0, _INTERVALS - 1)]
        apply = (divisions > 1) & (size > MIN_BLOCK * divisions)
        step = np.maximum((np.int64(1) << log2) // np.maximum(divisions, 1), 1)
        return np.where(apply, -(-size // step) * step, out)

    def segment_bytes(self, rounded_bytes: int) -> int:
        """Bytes that a miss requests from cudaMalloc for a rounded request."""
        if rounded_bytes <= SMALL_SIZE:
            return SMALL_SEGMENT
        if rounded_bytes < MIN_LARGE:
            return self.large_segment_bytes
        return -(-rounded_bytes // ROUND_LARGE) * ROUND_LARGE


def _version(text: str | None) -> tuple[int, int]:
    if text is None:
        return _FALLBACK_VERSION
    match = re.match(r"(\d+)\.(\d+)", text)
    if match is None:
        raise FieldError(f"{text!r} is not a version of torch", field="torch_version", hint="write it like 2.7.1")
    return int(match[1]), int(match[2])


class _Parser:
    """One pass over ``key:value,key:[a:b,c:d]``."""

    def __init__(self, text: str, version: tuple[int, int]) -> None:
        self.text, self.version = text, version
        self.values: dict[str, object] = {"text": text}
        self.large_mb = 20

    def settings(self) -> AllocatorSettings:
        for item in self._items(self.text):
            key, colon, value = item.partition(":")
            key, value = key.strip(), value.strip()
            since = KEYS.get(key)
            if since is None:
                near = nearest_names(key, KEYS)
                raise self._error(
                    f"unknown allocator setting {key!r}",
                    "did you mean " + " or ".join(near) + "?" if near else "settings are written key:value,key:value",
                )
            if since > self.version:
                raise self._error(
                    f"torch {self.version[0]}.{self.version[1]} has no allocator setting {key!r}",
                    f"it came with torch {since[0]}.{since[1]} or a little before; leave it out",
                )
            if not colon or not value:
                raise self._error(f"allocator setting {key!r} has no value", f"write {key}:VALUE")
            self._read(key, value)
        return AllocatorSettings(**self.values)  # type: ignore[arg-type]

    def _error(self, message: str, hint: str) -> FieldError:
        return FieldError(f"{message} in {self.text!r}", field="allocator settings", hint=hint)

    def _items(self, text: str) -> list[str]:
        """Split at commas outside brackets; one comma at the end is allowed, as in torch."""
        body = re.sub(r"\s+", "", text)
        if body.count("[") != body.count("]") or re.search(r"\[[^\]]*\[", body):
            raise self._error("brackets do not match", "write lists like roundup_power2_divisions:[256:1,512:2,>:4]")
        items = re.split(r",(?![^\[]*\])", body.removesuffix(","))
        if items == [""]:
            return []
        if "" in items:
            raise self._error("an empty setting (two commas)", "settings are written key:value,key:value")
        return items

    def _read(self, key: str, value: str) -> None:
        readers: dict[str, Callable[[str, str], None]] = {
            "max_split_size_mb": self._split_size,
            "max_non_split_rounding_mb": self._split_size,
            "large_segment_size_mb": self._large_segment,
            "roundup_power2_divisions": self._divisions,
            "garbage_collection_threshold": self._fraction,
            "per_process_memory_fraction": self._fraction,
            "backend": self._backend,
        }
        if key in readers:
            readers[key](key, value)
        elif key in _COUNT_KEYS:
            self._count(key, value)
        elif value not in ("True", "False"):
            raise self._error(f"{key} is True or False, not {value!r}", f"write {key}:True with a capital letter")
        elif key == "expandable_segments":
            self.values[key] = value == "True"

    def _count(self, key: str, value: str) -> int:
        if not re.fullmatch(r"\d{1,12}", value):
            raise self._error(f"{key} is a whole number, not {value!r}", f"write it like {key}:128")
        return int(value)

    def _split_size(self, key: str, value: str) -> None:
        mb = self._count(key, value)
        strict = self.version < (2, 9)
        if mb < self.large_mb or (strict and mb == self.large_mb):
            least = self.large_mb + strict
            raise self._error(f"{key} is at least {least} MiB, not {mb}", f"write {key}:{max(least, 128)}, or leave it out")
        name = "max_split_size_bytes" if key == "max_split_size_mb" else "max_non_split_rounding_bytes"
        self.values[name] = mb * MIB

    def _large_segment(self, key: str, value: str) -> None:
        mb = self._count(key, value)
        if mb <= MIN_LARGE // MIB:
            raise self._error(f"{key} is more than {MIN_LARGE // MIB} MiB, not {mb}", f"write {key}:20 for the default")
        self.large_mb = mb
        self.values["large_segment_bytes"] = mb * MIB

    def _fraction(self, key: str, value: str) -> None:
        try:
            fraction = float(value)
        except ValueError:
            fraction = -1.0
        whole = key == "per_process_memory_fraction"
        if not (0 < fraction < 1 or (whole and fraction == 1.0)):
            raise self._error(f"{key} is between 0 and 1, not {value!r}", f"write it like {key}:0.8")
        if not whole:
            self.values[key] = fraction
        elif fraction < 1:
            self.values["memory_fraction"] = fraction

    def _backend(self, _key: str, value: str) -> None:
        if value == "cudaMallocAsync":
            raise self._error(
                "the backend cudaMallocAsync places blocks by the driver's own rules, which are not published",
                "simulate backend:native, torch's default",
            )
        if value != "native":
            raise self._error(f"unknown allocator backend {value!r}", "torch has native and cudaMallocAsync")

    def _divisions(self, key: str, value: str) -> None:
        if not value.startswith("["):
            divisions = self._count(key, value)
            if divisions < 1 or divisions & (divisions - 1):
                raise self._error(f"{key} is a power of two, not {value}", f"write {key}:4")
            self.values[key] = (divisions,) * _INTERVALS
            return
        table = [0] * _INTERVALS
        last, first = 0, True
        for pair in value.strip("[]").split(",") if value != "[]" else []:
            bound, colon, count = pair.partition(":")
            if not colon:
                raise self._error(f"{pair!r} in {key} is not SIZE:DIVISIONS", f"write {key}:[256:1,512:2,>:4]")
            divisions = self._count(key, count)
            if divisions & (divisions - 1):
                raise self._error(f"divisions in {key} are powers of two or 0, not {count}", f"write {key}:[256:1,512:2,>:4]")
            if bound == ">":
                start = last if self.version < (2, 9) else last + 1
                table[start:] = [divisions] * (_INTERVALS - start)
                continue
            mb = self._count(key, bound)
            if mb < 1 or mb & (mb - 1):
                raise self._error(f"sizes in {key} are powers of two in MiB, not {bound}", f"write {key}:[256:1,512:2,>:4]")
            index = min(mb.bit_length() - 1, _INTERVALS - 1)
            if first:
                table[:index] = [divisions] * index
                first = False
            table[index] = divisions
            last = index
        self.values[key] = tuple(table)
