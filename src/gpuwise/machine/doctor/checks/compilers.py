"""Checks of what compiles at run time: a C compiler and Python's headers for Triton, nvcc, and assemblers that know the card."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwise.facts.software.compatibility import Capability, at_least
from gpuwise.machine.doctor import fixes
from gpuwise.machine.doctor.finding import Finding, Fix, Severity
from gpuwise.machine.doctor.observation import Machine

_FIRST_TOOLKIT: dict[Capability, tuple[int, int]] = {
    (7, 5): (10, 0),
    (8, 0): (11, 0),
    (8, 6): (11, 1),
    (8, 9): (11, 8),
    (9, 0): (11, 8),
    (10, 0): (12, 8),
    (10, 3): (12, 9),
    (11, 0): (13, 0),
    (12, 0): (12, 8),
    (12, 1): (12, 9),
}
"""Capability -> the first CUDA toolkit whose nvcc compiles for it (release notes of the toolkits)."""
_LAST_TOOLKIT: dict[int, tuple[int, int]] = {3: (11, 8), 5: (12, 9), 6: (12, 9), 7: (12, 9)}
"""Major capability -> the last toolkit that compiles for it; 7.5 is still served (release notes of CUDA 12.0 and 13.0)."""
_TRITON_OF_LATER_BLACKWELL = (3, 6)
"""The first Triton whose assembler knows compute capability 10.3 and 12.1 (triton-lang/triton, issue 10331)."""
_LATER_BLACKWELL = ((10, 3), (12, 1))


def compiler(m: Machine) -> Iterator[Finding]:
    """Triton without the C compiler, or without Python's headers, with which it builds the launcher of its first kernel."""
    torch = m.framework("torch")
    if m.python is None or m.system.platform != "linux" or not m.python.find("triton", "pytorch-triton", "pytorch-triton-rocm"):
        return
    if torch is None or not torch.available:
        return
    family = fixes.os_family(m)
    debian = family is not None and family.install.startswith("sudo apt-get")
    inside = "" if m.system.root else "sudo "
    install = (family.install if family else "# install").removeprefix("sudo ")
    why = "`torch.compile`, vLLM and other users of Triton build a small C program with it when their first kernel starts: "
    check = (
        f"{fixes.shell_quote(m.python.path)} -c \"import torch; torch.compile(lambda x: x + 1)(torch.ones(4, device='cuda'))\""
    )
    if not m.compilers:
        name = "build-essential" if debian else "gcc"
        yield Finding(
            "c-compiler-missing",
            Severity.LIMIT,
            "No C compiler is here, and Triton needs one",
            ("cc, gcc and clang are not in PATH, and CC names none",),
            why + "`Failed to find C compiler`.",
            (Fix("Install one", (f"{inside}{install} {name}",)),),
            check,
            sources=("triton-c-compiler",),
        )
    elif m.python.headers is False:
        version = fixes.version_text(m.python.version[:2])
        name = f"python{version}-dev" if debian else "python3-devel"
        yield Finding(
            "python-headers-missing",
            Severity.LIMIT,
            "Python's headers are not here, and Triton needs them",
            (f"Python.h of {m.python.path}: missing",),
            why + "`fatal error: Python.h: No such file or directory`.",
            (Fix("Install them", (f"{inside}{install} {name}",)),),
            check,
            sources=("triton-c-compiler",),
        )


def toolkit_age(m: Machine) -> Iterator[Finding]:
    """A CUDA toolkit in the shell's path that does not compile for a card here: too old for it, or too new."""
    toolkit = next((t for t in m.toolkits if t.on_path), None)
    if toolkit is None:
        return
    version = toolkit.version[:2]
    out: list[tuple[Capability, str]] = []
    for capability in fixes.capabilities_here(m):
        first = _FIRST_TOOLKIT.get(capability)
        last = None if capability == (7, 5) else _LAST_TOOLKIT.get(capability[0])
        if first and version < first:
            out.append((capability, f"CUDA {fixes.version_text(first)} is the first that does"))
        elif last and version > last:
            out.append((capability, f"CUDA {fixes.version_text(last)} was the last that did"))
    if not out:
        return
    capability, why = out[0]
    others = [
        t
        for t in m.toolkits
        if t.version[:2] >= _FIRST_TOOLKIT.get(capability, (0, 0)) and t.version[:2] <= _LAST_TOOLKIT.get(capability[0], (99, 0))
    ]
    fix = (
        Fix("Use the toolkit that does", (f"export CUDA_HOME={others[0].path} PATH={others[0].path}/bin:$PATH",))
        if others
        else Fix("Install a toolkit that does, from https://developer.nvidia.com/cuda-toolkit-archive", where="person")
    )
    yield Finding(
        "toolkit-lacks-card",
        Severity.LIMIT,
        f"The CUDA toolkit {fixes.version_text(version)} does not compile for this card",
        (f"nvcc of {toolkit.path}", f"compute capability {fixes.version_text(capability)}: {why}"),
        "What is built here (llama.cpp, flash-attn, DeepSpeed) fails with `Unsupported gpu architecture`, "
        "or lacks the card's code. Wheels bring their own.",
        (fix,),
        "nvcc --version; nvcc --list-gpu-arch",
        sources=("cuda-guide",),
    )


def assembler(m: Machine) -> Iterator[Finding]:
    """A Triton whose own assembler does not know a card of the later Blackwell chips."""
    triton = m.python.find("triton", "pytorch-triton") if m.python else None
    installed = fixes.numbers(triton and triton.version)
    later = [c for c in fixes.capabilities_here(m) if c in _LATER_BLACKWELL]
    if triton is None or not installed or not later or at_least(installed, _TRITON_OF_LATER_BLACKWELL):
        return
    if "TRITON_PTXAS_PATH" in m.environment:
        return
    newer = next((t for t in m.toolkits if t.version[:2] >= _FIRST_TOOLKIT[later[0]]), None)
    path = f"{newer.path}/bin/ptxas" if newer else "/usr/local/cuda/bin/ptxas"
    yield Finding(
        "triton-lacks-card",
        Severity.LIMIT,
        f"Triton {triton.version} cannot compile for this card",
        (f"compute capability {fixes.version_text(later[0])}", f"{triton.name} {triton.version}"),
        "Its own assembler ends with `Value 'sm_121a' is not defined` at the first kernel of torch.compile or vLLM.",
        (Fix("Use the assembler of a toolkit of CUDA 13", (f"export TRITON_PTXAS_PATH={path}",)),),
        f"{path} --version",
        sources=("triton-10331",),
    )


def flashinfer(m: Machine) -> Iterator[Finding]:
    """FlashInfer, which compiles its kernels when they are first used, without nvcc and without compiled ones."""
    package = m.python.find("flashinfer-python") if m.python else None
    if package is None or m.python is None or not m.nvidia_cards or m.toolkits or m.python.find("flashinfer-jit-cache"):
        return
    yield Finding(
        "flashinfer-without-nvcc",
        Severity.LIMIT,
        "FlashInfer compiles its kernels here, and nvcc is not installed",
        (f"flashinfer-python {package.version}, without flashinfer-jit-cache", "no CUDA toolkit in /usr/local or PATH"),
        "vLLM and SGLang end with `Could not find nvcc` when they first use it.",
        (
            Fix(
                "Install its compiled kernels",
                (fixes.pip_install(m, "flashinfer-jit-cache", "--index-url", f"https://flashinfer.ai/whl/{_build(m)}"),),
            ),
            Fix("Or install the CUDA toolkit of PyTorch's version, with nvcc", where="person"),
        ),
        "flashinfer show-config",
        sources=("flashinfer-install",),
    )


def _build(m: Machine) -> str:
    """The tag of PyTorch's CUDA: ``cu128``."""
    torch = m.framework("torch")
    return f"cu{str(torch.cuda).replace('.', '')}" if torch and torch.cuda else "cu130"
