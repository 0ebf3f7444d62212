"""What compiled kernels use: real ones of ``nvcc`` where it is here, and files made by hand."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuwise.errors import FieldError, InputError, UnknownNameError, UnpredictableError
from gpuwise.lab.kernel_files import KernelUse, choose_kernel, kernel_use, read_cubin, read_kernels, read_ptxas_log

CODE = """
extern "C" __global__ void saxpy(float *x, float *y, float a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] += a * x[i]; }
extern "C" __global__ void __launch_bounds__(512, 2) tile(float *x, float *y) {
  __shared__ float s[33 * 32]; int i = threadIdx.y * 33 + threadIdx.x;
  s[i] = x[i]; __syncthreads(); y[i] = s[threadIdx.x * 33 + threadIdx.y]; }
"""
LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z4tilePfS_' for 'sm_90'
ptxas info    : Function properties for _Z4tilePfS_
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 37 registers, used 2 barriers, 4224 bytes smem, 380 bytes cmem[0]
ptxas info    : Compiling entry function 'old' for 'sm_70'
ptxas info    : Used 12 registers, 364 bytes cmem[0]
"""


def elf(registers: int = 40, shared: int = 5248, barriers: int = 2, sm: int = 90) -> bytes:
    """A cubin with one kernel ``k`` and nothing else in it."""
    names = ["", ".symtab", ".strtab", ".nv.info", ".nv.info.k", ".text.k", ".nv.shared.k", ".nv.shared.reserved.0"]
    texts = b"\0".join(n.encode() for n in names) + b"\0"
    at = {n: texts.index(n.encode() + b"\0") for n in names[1:]} | {"": 0}
    symbols = bytes(24) + struct.pack("<IBBHQQ", 1, 0, 0, 0, 0, 0)
    bodies = {
        ".symtab": symbols,
        ".strtab": texts,
        ".nv.info": struct.pack("<BBHII", 4, 0x2F, 8, 1, registers),
        ".nv.info.k": struct.pack("<BBBB", 2, 0x4C, barriers, 0) + struct.pack("<BBHIII", 4, 0x05, 12, 16, 16, 1),
        ".text.k": b"\0" * 16,
    }
    # the symbol of the kernel is called k: the last letter of ".text.k"
    symbols = bytes(24) + struct.pack("<IBBHQQ", at[".text.k"] + 6, 0, 0, 0, 0, 0)
    bodies[".symtab"] = symbols
    sizes = {".nv.shared.k": shared, ".nv.shared.reserved.0": 0}
    data, heads = b"", []
    for name in names:
        body = bodies.get(name, b"")
        size = sizes.get(name, len(body))
        heads.append(struct.pack("<IIQQQQIIQQ", at[name], 1, 0, 0, 64 + len(data), size, 0, 0, 0, 0))
        data += body
    ident = b"\x7fELF\x02\x01\x01\x41\x08" + bytes(7)
    head = ident + struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 64 + len(data), sm << 8 | 4, 64, 0, 0, 64, len(names), 2)
    return head + data + b"".join(heads)


def test_a_cubin_says_what_ptxas_said(tmp_path: Path) -> None:
    compiler = shutil.which("nvcc")
    if compiler is None:
        pytest.skip("needs nvcc")
    (tmp_path / "k.cu").write_text(CODE)
    command = [compiler, "-arch=sm_90", "-Xptxas", "-v", "-cubin", "k.cu", "-o", "k.cubin"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    (tmp_path / "k.log").write_text(ran.stderr)

    def said(name: str) -> set[tuple[object, ...]]:
        used = read_kernels(tmp_path / name)
        return {(k.name, k.compute_capability, k.regs_per_thread, k.static_smem, k.block_barriers) for k in used}

    assert said("k.cubin") == said("k.log") and len(said("k.log")) == 2
    tile = choose_kernel(read_kernels(tmp_path / "k.cubin"), "tile", "k.cubin")
    assert (tile.most_threads, tile.static_smem) == (512, 4224)


def test_a_cubin_made_by_hand() -> None:
    assert read_cubin(elf()) == (KernelUse("k", "9.0", 40, 4224, 0, 2, None, 256),)
    assert read_cubin(elf(sm=80, shared=1000))[0].static_smem == 0  # a reserve is in no section before 9.0


def test_a_log_of_ptxas() -> None:
    tile, old = read_ptxas_log(LOG)
    assert tile == KernelUse("_Z4tilePfS_", "9.0", 37, 4224, block_barriers=2)
    assert (old.compute_capability, old.regs_per_thread, old.block_barriers) == ("7.0", 12, 1)


def test_damaged_and_foreign_files_are_refused(tmp_path: Path) -> None:
    whole = elf()
    for n in (5, 40, 63, 70, len(whole) // 2, len(whole) - 3):
        (tmp_path / "k.cubin").write_bytes(whole[:n])
        with pytest.raises(FieldError):
            read_kernels(tmp_path / "k.cubin")
    (tmp_path / "k.cubin").write_bytes(Path("/bin/sh").resolve().read_bytes())
    with pytest.raises(FieldError, match="foreign"):
        read_kernels(tmp_path / "k.cubin")
    (tmp_path / "k.log").write_text("nothing here")
    with pytest.raises(FieldError, match="no kernel"):
        read_kernels(tmp_path / "k.log")
    with pytest.raises(FieldError, match="cannot be read"):
        read_kernels(tmp_path / "none")


def test_which_kernel_is_meant() -> None:
    kernels = read_ptxas_log(LOG)
    assert choose_kernel(kernels, "old", "x").name == "old"
    assert choose_kernel(kernels, "tile", "x").name == "_Z4tilePfS_"
    with pytest.raises(InputError, match="2 kernels"):
        choose_kernel(kernels, None, "x")
    with pytest.raises(UnknownNameError):
        choose_kernel(kernels, "nothing", "x")


def test_tritons_metadata_with_its_cubin(tmp_path: Path) -> None:
    made = {"name": "k", "num_warps": 8, "shared": 49152, "target": {"backend": "cuda", "arch": 90, "warp_size": 32}}
    (tmp_path / "k.json").write_text(json.dumps(made))
    (use,) = read_kernels(tmp_path / "k.json")
    assert use == KernelUse("k", "9.0", None, 0, 49152, block_threads=256)
    (tmp_path / "k.cubin").write_bytes(elf())
    (use,) = read_kernels(tmp_path / "k.json")
    assert (use.regs_per_thread, use.block_barriers) == (40, 2)
    (tmp_path / "k.json").write_text("{}")
    with pytest.raises(FieldError, match="Triton"):
        read_kernels(tmp_path / "k.json")


def test_objects_of_triton_and_numba() -> None:
    target = SimpleNamespace(arch=80)
    triton = SimpleNamespace(metadata=SimpleNamespace(name="k", num_warps=4, shared=1024, target=target), n_regs=64)
    assert kernel_use(triton) == KernelUse("k", "8.0", 64, 0, 1024, block_threads=128)
    numba = SimpleNamespace(
        __name__="k",
        get_regs_per_thread=lambda: {"(float32,)": 24},
        get_shared_mem_per_block=lambda: {"(float32,)": 4096},
        get_max_threads_per_block=lambda: {"(float32,)": 1024},
    )
    assert kernel_use(numba) == KernelUse("k", None, 24, 4096, most_threads=1024)
    numba.get_regs_per_thread = dict
    with pytest.raises(UnpredictableError):
        kernel_use(numba)
    with pytest.raises(UnpredictableError):
        kernel_use(print)
