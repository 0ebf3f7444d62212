"""Checks of what is installed beside PyTorch: libraries that training imports, and the CUDA libraries a wheel pins."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuwise.facts.software.compatibility import at_least
from gpuwise.machine.doctor import fixes
from gpuwise.machine.doctor.checks.import_errors import import_fix
from gpuwise.machine.doctor.finding import Finding, Fix, Severity
from gpuwise.machine.doctor.observation import LibraryImport, Machine, Package
from gpuwise.machine.doctor.probes.python import LIBRARIES

OF_TORCH = ("torchvision", "torchaudio")
"""Built for one release of torch each."""
_OTHER_BUILD = re.compile(
    r"undefined symbol|torchvision::|torchaudio::|cannot open shared object|Could not load this library|"
    r"compiled with different CUDA|has no attribute 'extension'|has CUDA Version=|does not exist|DLL load failed|version `[A-Z]",
    re.IGNORECASE,
)
"""Error of a compiled library beside a torch that it was not built for."""
_DISTRIBUTIONS = {module: name for name, module in LIBRARIES.items()}
_OF_GEOMETRIC = ("torch_scatter", "torch_sparse")
"""Compiled for one release of torch and one CUDA each; their index has a page for every pair (data.pyg.org)."""


def onnxruntimes(m: Machine) -> Iterator[Finding]:
    """ONNX Runtime for the processor beside the one for GPUs: both write the package ``onnxruntime``."""
    twins = [p for name in ("onnxruntime", "onnxruntime-gpu") if m.python and (p := m.python.find(name))]
    if len(twins) < 2 or not m.nvidia_cards:
        return
    names = [p.name for p in twins]
    python = m.python.path if m.python else "python"
    yield Finding(
        "onnxruntime-installed-twice",
        Severity.LIMIT,
        "ONNX Runtime for the processor and for GPUs write the same files",
        tuple(f"{p.name} {p.version}" for p in twins),
        "Whichever was installed last is imported: without CUDAExecutionProvider it computes on the processor and says nothing.",
        (
            Fix(
                "Remove both, install the one for GPUs", (fixes.pip_uninstall(m, *names), fixes.pip_install(m, "onnxruntime-gpu"))
            ),
        ),
        f'{python} -c "import onnxruntime as o; print(o.get_available_providers())"  # CUDAExecutionProvider among them',
    )


_ONNXRUNTIME_OF_CUDA_12 = (1, 19)
"""The first release on the package index for CUDA 12; those before are for 11.8 (onnxruntime.ai, CUDA execution provider)."""


def onnxruntime_cuda(m: Machine) -> Iterator[Finding]:
    """ONNX Runtime for another CUDA than the libraries that are installed: its first session goes on with the processor."""
    package = m.python.find("onnxruntime-gpu") if m.python else None
    installed = fixes.numbers(package and package.version)
    torch = m.framework("torch")
    library = next((p for p in m.python.packages if re.fullmatch(r"nvidia-cublas(-cu\d+)?", p.name)), None) if m.python else None
    if package is None or not installed or not m.nvidia_cards or m.python is None:
        return
    here = (fixes.numbers(torch and torch.cuda) or fixes.numbers(library and library.version) or (0,))[0]
    wants = 12 if at_least(installed, _ONNXRUNTIME_OF_CUDA_12) else 11
    # newer releases for CUDA 13 have the same name
    if not here or (wants == 11) == (here == 11) or any(t.version[0] == wants for t in m.toolkits):
        return
    release = "'onnxruntime-gpu<1.19'" if here == 11 else "'onnxruntime-gpu>=1.19'"
    yield Finding(
        "onnxruntime-other-cuda",
        Severity.LIMIT,
        f"ONNX Runtime {package.version} is for CUDA {wants}, and the libraries here are of CUDA {here}",
        (f"onnxruntime-gpu {package.version}", f"{library.name} {library.version}" if library else f"PyTorch for CUDA {here}"),
        "`Failed to create CUDAExecutionProvider`: it then computes on the processor.",
        (Fix("Install the release for this CUDA", (fixes.pip_install(m, "-U", release),)),),
        f'{m.python.path} -c "import onnxruntime as o; print(o.get_available_providers())"',
        sources=("onnxruntime-cuda",),
    )


_COMPILED_FOR_ONE = ("xformers", "vllm")
"""Packages whose wheels are compiled against one release of torch, which they require."""


def required_torch(m: Machine) -> Iterator[Finding]:
    """Packages that were compiled for another torch than the installed one, and may say so only in a warning."""
    package = m.torch_package
    if package is None or m.python is None:
        return
    for name in _COMPILED_FOR_ONE:
        other = m.python.find(name)
        wants = other.pins.get("torch", "").partition("+")[0] if other else ""
        if other is None or not wants or wants == package.version.partition("+")[0]:
            continue
        yield Finding(
            f"{name}-other-torch",
            Severity.LIMIT,
            f"{name} {other.version} was built for PyTorch {wants}",
            (f"torch {package.version}", f"{name} {other.version} requires torch {wants}"),
            "Its compiled kernels do not load beside another release: they are missing, or the program ends at the first one.",
            (
                Fix("Install the release of it for this PyTorch", (fixes.pip_install(m, "-U", name),)),
                Fix("Or the PyTorch that it requires", (fixes.pip_install(m, fixes.package("torch", wants)),)),
            ),
            f"{fixes.pip(m)} check",
        )


def ctranslate2(m: Machine) -> Iterator[Finding]:
    """CTranslate2 (faster-whisper) beside another major version of cuDNN: 9 since its release 4.5, 8 before
    (OpenNMT/CTranslate2, pull request 1803). It finds the library at the first convolution, not when it is imported."""
    package = m.python.find("ctranslate2") if m.python else None
    cudnn = m.python.find("nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-cudnn-cu11") if m.python else None
    installed, of_cudnn = fixes.numbers(package and package.version), fixes.numbers(cudnn and cudnn.version)
    if package is None or cudnn is None or not installed or not of_cudnn or not m.nvidia_cards:
        return
    needs, has = 9 if at_least(installed, (4, 5)) else 8, of_cudnn[0]
    if has == needs:
        return
    python = m.python.path if m.python else "python"
    way = "ctranslate2==4.4.0" if has == 8 else "'ctranslate2>=4.5'"
    yield Finding(
        "ctranslate2-cudnn",
        Severity.BLOCKER,
        f"CTranslate2 {package.version} needs cuDNN {needs}, and cuDNN {has} is installed",
        (f"ctranslate2 {package.version}", f"{cudnn.name} {cudnn.version}"),
        f"faster-whisper ends with `libcudnn_ops{'_infer.so.8' if needs == 8 else '.so.9'}` not found at its first convolution.",
        (Fix("Install the release for this cuDNN, which PyTorch needs as it is", (fixes.pip_install(m, way),)),),
        f'{python} -c "import ctranslate2; print(ctranslate2.__version__)"',
    )


def companions(m: Machine) -> Iterator[Finding]:
    """torchvision and torchaudio of another torch, by what they require and by what their import raises."""
    package = m.torch_package
    if package is None or m.python is None:
        return
    numbers = package.version.partition("+")[0]
    for name in OF_TORCH:
        other, imported = m.python.find(name), m.import_of(name)
        if other is None or (imported is not None and imported.error is None):
            continue
        wants = other.pins.get("torch", "").partition("+")[0]
        tags = {p.version.partition("+")[2] for p in (package, other)}
        mixed = "cpu" in tags and len(tags) == 2 and "" not in tags
        apart = other.place != "conda" and (bool(wants and wants != numbers) or mixed)
        raised = imported.error if imported else None
        if not apart and raised is None:
            continue
        broken = raised is None or apart or _OTHER_BUILD.search(raised)
        yield Finding(
            f"{name}-mismatch" if broken else f"{name}-import-fails",
            Severity.BLOCKER if raised else Severity.LIMIT,
            f"{name} {other.version} was built for another PyTorch" if broken else f"{name} is installed and does not import",
            (
                f"torch {package.version}",
                f"{name} {other.version}" + (f" requires torch {wants}" if wants else ""),
                *((raised,) if raised else ()),
            ),
            f"Its compiled operators do not load beside this torch: `import {name}` fails, and so does what imports it."
            if broken
            else "A program that imports it does not start.",
            _companion_fix(m, package, name),
            _import(m, name),
            hides=tuple(f"{_distribution(i.name)}-import-fails" for i in m.imports if i.error and name in i.error),
        )
    yield from _pins(m, package)


def _companion_fix(m: Machine, package: Package, name: str) -> tuple[Fix, ...]:
    """The fixes that install the release of ``name`` made for the installed torch."""
    torch = m.framework("torch")
    version = package.version
    tag = version.partition("+")[2]
    words = [fixes.package("torch", version), name]
    if tag:
        words += ["--index-url", f"{fixes.INDEX}/{tag}"]
    elif torch and torch.answer.get("hip"):
        words += ["--index-url", f"{fixes.INDEX}/rocm{'.'.join(str(torch.answer['hip']).split('.')[:2])}"]
    commands = (fixes.pip_uninstall(m, name), fixes.pip_install(m, *words))
    return (Fix(f"Have pip choose the {name} of the torch that is here", commands),)


def other_imports(m: Machine) -> Iterator[Finding]:
    """Other libraries of training that do not import."""
    if m.python is None or m.torch_package is None:
        return
    for imported in m.imports:
        if imported.error is None or imported.name in OF_TORCH:
            continue
        name = _distribution(imported.name)
        package = m.python.find(name)
        version = package.version if package else ""
        if "." in imported.name and f"No module named '{imported.name}'" in imported.error:
            # a build that has this part under another name, or none
            continue
        yield Finding(
            f"{name}-import-fails",
            Severity.LIMIT,
            f"{name} is installed and does not import",
            (f"{name} {version}".strip(), imported.error),
            "It was compiled for another PyTorch, CUDA or Python: a program that imports it does not start."
            if _OTHER_BUILD.search(imported.error)
            else "A program that imports it does not start.",
            _again(m, imported, name),
            _import(m, imported.name),
        )


def _again(m: Machine, imported: LibraryImport, name: str) -> tuple[Fix, ...]:
    """The fixes for a library whose import raised: what it misses, the release torch pins, or its newest one."""
    told = import_fix(m, imported.error or "", name)
    if told is not None:
        return (told,)
    if imported.name == "flash_attn":
        # it is compiled against the torch that is there
        words = ("--no-build-isolation", "--no-cache-dir", "flash-attn")
        # where its own wheel is for a newer system, its setup would fetch that wheel again
        built = "FLASH_ATTENTION_FORCE_BUILD=TRUE " if "GLIBC_" in (imported.error or "") else ""
        install = built + fixes.pip_install(m, *words)
        return (Fix("Build it for the torch that is here", (fixes.pip_uninstall(m, name), install)),)
    if imported.name in _OF_GEOMETRIC and m.torch_package and (torch := m.framework("torch")):
        release = m.torch_package.version.partition("+")[0]
        build = f"cu{str(torch.answer['cuda']).replace('.', '')}" if torch.answer.get("cuda") else "cpu"
        page = f"https://data.pyg.org/whl/torch-{release}+{build}.html"
        words = ("--force-reinstall", "--no-deps", name, "-f", page)
        return (Fix("Install that of this PyTorch", (fixes.pip_install(m, *words),)),)
    if imported.name == "triton":
        package = m.torch_package
        triton_version = package.pins.get("triton") if package else None
        words = (fixes.package("triton", triton_version),) if triton_version else ("triton",)
        return (Fix("Install that of this PyTorch", (fixes.pip_install(m, "--force-reinstall", "--no-deps", *words),)),)
    words = ("--upgrade", "--force-reinstall", "--no-deps", name)
    return (Fix("Install its newest release again", (fixes.pip_install(m, *words),)),)


def numpy(m: Machine) -> Iterator[Finding]:
    """A NumPy that this PyTorch was not compiled for: tensors cannot become arrays."""
    torch = m.framework("torch")
    package = m.python.find("numpy") if m.python else None
    error = str(torch.answer.get("numpy_error") or "") if torch else ""
    if package is None or torch is None or "numpy" not in error.lower():
        return
    yield Finding(
        "numpy-mismatch",
        Severity.LIMIT,
        f"PyTorch and NumPy {package.version} do not work together",
        (f"torch {torch.answer.get('version') or ''}, numpy {package.version}", error),
        "This PyTorch was compiled against NumPy 1: `.numpy()`, `from_numpy` and data loaders raise.",
        (Fix("Install the last NumPy it was compiled for", (fixes.pip_install(m, "'numpy<2'"),)),),
        f'{fixes.shell_quote(m.python.path if m.python else "python")} -c "import torch; torch.zeros(1).numpy()"',
    )


def _distribution(module: str) -> str:
    """The name on the package index of an importable module."""
    return _DISTRIBUTIONS.get(module, module)


def _import(m: Machine, module: str) -> str:
    """A shell command that imports torch, then ``module``."""
    python = fixes.shell_quote(m.python.path) if m.python else "python"
    return f'{python} -c "import torch, {module}"'


def _pins(m: Machine, package: Package) -> Iterator[Finding]:
    """A finding where installed CUDA libraries or Triton differ from the versions torch pins."""
    wrong: list[str] = []
    right: list[str] = []
    for name, version in package.pins.items():
        installed = m.python.find(name) if m.python else None
        if installed and name.startswith(("nvidia-", "triton")) and installed.version != version:
            wrong.append(f"{name} {installed.version}, torch {package.version} wants {version}")
            right.append(fixes.package(name, version))
    if wrong:
        yield Finding(
            "cuda-libraries-not-as-pinned",
            Severity.LIMIT,
            "CUDA libraries of other versions than this PyTorch was built with",
            tuple(wrong),
            "Another package replaced them; the first convolution or collective may fail, or use slower code.",
            (Fix("Put its own back", (fixes.pip_install(m, *right),)),),
            f"{fixes.pip(m)} check",
        )
