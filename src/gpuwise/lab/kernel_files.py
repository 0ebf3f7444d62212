"""Resource use of a compiled kernel, from compiler output: a cubin, the log of ``ptxas -v``, Triton's metadata, and kernel
objects of Triton and numba. Nothing is executed or imported.

A cubin is an ELF file. Registers are pairs (symbol, count) in ``.nv.info``; barriers and the largest block are attributes of
``.nv.info.<kernel>``; the size of ``.nv.shared.<kernel>`` is the static shared memory, from 9.0 on with the driver's reserve.
These positions were determined by comparing cubins of CUDA 13.0 for 7.5 to 12.0 with the output of ``ptxas -v`` for the same
code.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from gpuwise.errors import FieldError, InputError, UnknownNameError, UnpredictableError
from gpuwise.facts.hardware.sm_limits import WARP_THREADS, find_sm_limits
from gpuwise.files import decode, parse_json, read_bytes

LARGEST_FILE = 256 * 2**20
"""Bytes; no compiled kernel is near it."""
_CUDA_MACHINE = 190
"""ELF's number for NVIDIA (EM_CUDA)."""
_REGISTER_COUNT, _BLOCK_BOUND, _BARRIERS = 0x2F, 0x05, 0x4C
_COMPILED = re.compile(r"Compiling entry function '([^']+)' for '(sm_\w+)'")
_USED = re.compile(r"(\d+) (registers|barriers|bytes smem)")


@dataclass(frozen=True, slots=True)
class KernelUse:
    """Resources of a thread and a block of one kernel; None if the file does not contain them."""

    name: str
    compute_capability: str | None
    regs_per_thread: int | None
    static_smem: int = 0
    dynamic_smem: int = 0
    block_barriers: int = 1
    block_threads: int | None = None
    """Threads of a block where the file fixes them (Triton)."""
    most_threads: int | None = None
    """Largest block it was compiled for (``__launch_bounds__``)."""


def read_kernels(path: str | Path) -> tuple[KernelUse, ...]:
    """The kernels of a cubin, of a log of ``ptxas -v``, or of Triton's metadata (its cubin is searched beside it).

    Raises FieldError for another or a damaged file, InputError when it cannot be read.
    """
    file = Path(path)
    content = read_bytes(file, most=LARGEST_FILE, hint="give a cubin or its log")
    if content[:4] == b"\x7fELF":
        uses = _damaged_or(file, content)
    elif file.suffix == ".json":
        uses = (_read_triton(file, content),)
    else:
        uses = read_ptxas_log(decode(content, str(file)))
    if len(uses) == 0:
        hint = "give a cubin, the output of `nvcc -Xptxas -v`, or a .json of Triton's cache"
        raise FieldError("names no kernel", file=str(file), hint=hint)
    return uses


def choose_kernel(kernels: tuple[KernelUse, ...], name: str | None, file: str) -> KernelUse:
    """The kernel called ``name``, or the only one. Raises UnknownNameError, InputError where several could be meant."""
    if name is None:
        only, *others = kernels
        if others:
            raise InputError(f"{file} holds {len(kernels)} kernels", hint="--kernel " + ", ".join(k.name for k in kernels[:8]))
        return only
    fitting = [k for k in kernels if k.name == name] or [k for k in kernels if name in k.name]
    if len(fitting) != 1:
        raise UnknownNameError("kernel", name[:100], [k.name for k in kernels])
    return fitting[0]


def read_ptxas_log(text: str) -> tuple[KernelUse, ...]:
    """Every kernel that ``ptxas -v`` (``nvcc -Xptxas -v``) reports."""
    uses: list[KernelUse] = []
    for line in text.splitlines():
        compiled = _COMPILED.search(line)
        if compiled:
            uses.append(KernelUse(compiled[1], _capability(compiled[2]), None))
        elif uses and " Used " in f" {line}":
            used = {what: int(count) for count, what in _USED.findall(line)}
            if "registers" in used and uses[-1].regs_per_thread is None:
                smem, barriers = used.get("bytes smem", 0), used.get("barriers", 1)
                uses[-1] = replace(uses[-1], regs_per_thread=used["registers"], static_smem=smem, block_barriers=barriers)
    return tuple(k for k in uses if k.regs_per_thread is not None)


# --- cubins ---


def _damaged_or(file: Path, content: bytes) -> tuple[KernelUse, ...]:
    try:
        return read_cubin(content)
    except (struct.error, IndexError, ValueError, KeyError) as error:
        raise FieldError("is a damaged or foreign ELF file", file=str(file), hint="compile it with `nvcc -cubin`") from error


def read_cubin(data: bytes) -> tuple[KernelUse, ...]:
    """Every kernel of a 64-bit CUDA ELF file. Raises ValueError, IndexError or struct.error for another or a damaged one."""
    if len(data) < 64 or data[4] != 2 or struct.unpack_from("<H", data, 18)[0] != _CUDA_MACHINE:
        raise ValueError("not a 64-bit CUDA file")
    flags: int = struct.unpack_from("<I", data, 48)[0]
    number = flags >> 8 & 0xFF if data[8] >= 8 else flags & 0xFF  # the eighth ABI moved it by a byte
    capability = _capability(f"sm_{number}")
    sections = dict(_sections(data))
    symbols, reserve = _symbols(data, sections), 0
    if ".nv.shared.reserved.0" in sections:
        reserve = find_sm_limits(capability).reserved_per_block if capability else 0
    uses: list[KernelUse] = []
    for attribute, payload in _attributes(data, sections.get(".nv.info", (0, 0))):
        if attribute != _REGISTER_COUNT:
            continue
        symbol, registers = struct.unpack("<II", payload)
        name = symbols[symbol]
        attributes = dict(_attributes(data, sections.get(f".nv.info.{name}", (0, 0))))
        if f".text.{name}" not in sections or not attributes:
            continue
        shared = sections.get(f".nv.shared.{name}", (0, 0))[1]
        bound = struct.unpack("<III", attributes[_BLOCK_BOUND]) if _BLOCK_BOUND in attributes else None
        uses.append(
            KernelUse(
                name,
                capability,
                registers,
                max(shared - reserve, 0),
                block_barriers=attributes[_BARRIERS][0] if _BARRIERS in attributes else 0,
                most_threads=None if bound is None else bound[0] * bound[1] * bound[2],
            )
        )
    return tuple(uses)


def _sections(data: bytes) -> Iterator[tuple[str, tuple[int, int]]]:
    """Name, and offset and size in the file (a size alone where there are no bytes)."""
    start: int = struct.unpack_from("<Q", data, 40)[0]
    count, names = struct.unpack_from("<HH", data, 60)
    heads = [struct.unpack_from("<IIQQQQIIQQ", data, start + 64 * i) for i in range(count)]
    for head in heads:
        at = heads[names][4] + head[0]
        yield data[at : data.index(b"\0", at)].decode(), (head[4], head[5])


def _symbols(data: bytes, sections: dict[str, tuple[int, int]]) -> list[str]:
    (table, size), (texts, _) = sections[".symtab"], sections[".strtab"]
    starts = [texts + struct.unpack_from("<I", data, table + 24 * i)[0] for i in range(size // 24)]
    return [data[at : data.index(b"\0", at)].decode() for at in starts]


def _attributes(data: bytes, section: tuple[int, int]) -> Iterator[tuple[int, bytes]]:
    """Number and value of each attribute: format 4 has a variable length, others two bytes."""
    at, end = section[0], section[0] + section[1]
    while at < end:
        length: int = struct.unpack_from("<H", data, at + 2)[0] if data[at] == 4 else 0
        value = data[at + 4 : at + 4 + length] if data[at] == 4 else data[at + 2 : at + 4]
        yield data[at + 1], value
        at += 4 + length


def _capability(target: str) -> str | None:
    """``"9.0"`` of ``sm_90a``; None for one outside the table."""
    try:
        return find_sm_limits(target).compute_capability
    except InputError:
        return None


# --- Triton and numba ---


def _read_triton(file: Path, content: bytes) -> KernelUse:
    try:
        document = parse_json(decode(content, str(file)), str(file))
        arch = document["target"]["arch"]
        threads, shared = int(document["num_warps"]) * WARP_THREADS, int(document["shared"])
        name = str(document["name"])
    except (ValueError, KeyError, TypeError) as error:
        hint = "Triton keeps one beside each .cubin in ~/.triton/cache"
        raise FieldError("is not the metadata of a Triton kernel", file=str(file), hint=hint) from error
    beside = file.with_suffix(".cubin")
    use = KernelUse(name, _capability(f"sm_{arch}"), None, 0, shared, block_threads=threads)
    if not beside.is_file():
        return use
    compiled = choose_kernel(_damaged_or(beside, read_bytes(beside, most=LARGEST_FILE)), name, str(beside))
    return replace(use, regs_per_thread=compiled.regs_per_thread, block_barriers=compiled.block_barriers)


def kernel_use(kernel: Any) -> KernelUse:
    """Resources of a kernel object: one that Triton compiled (``kernel[grid](...)`` returns it), or numba's, compiled for one
    signature. Raises UnpredictableError for another object, or an uncompiled one."""
    metadata = getattr(kernel, "metadata", None)
    if metadata is not None and hasattr(metadata, "num_warps"):
        regs = getattr(kernel, "n_regs", None)
        threads, shared = int(metadata.num_warps) * WARP_THREADS, int(metadata.shared)
        target = _capability(f"sm_{getattr(getattr(metadata, 'target', None), 'arch', '')}")
        return KernelUse(str(metadata.name), target, None if regs is None else int(regs), 0, shared, block_threads=threads)
    if hasattr(kernel, "get_regs_per_thread") and hasattr(kernel, "get_shared_mem_per_block"):
        regs, shared = (_only(f()) for f in (kernel.get_regs_per_thread, kernel.get_shared_mem_per_block))
        most = _only(kernel.get_max_threads_per_block())
        return KernelUse(str(getattr(kernel, "__name__", "kernel")), None, regs, shared, most_threads=most)
    raise UnpredictableError("no kernel", f"a {type(kernel).__name__} is not a compiled kernel of Triton or Numba")


def _only(value: Any) -> int:
    """numba answers a number, or one for each signature. Raises UnpredictableError unless there is exactly one."""
    values = list(cast("dict[Any, Any]", value).values()) if isinstance(value, dict) else [value]
    if len(values) != 1:
        raise UnpredictableError("several signatures", f"the kernel was compiled for {len(values)} signatures, not for one")
    return int(values[0])
