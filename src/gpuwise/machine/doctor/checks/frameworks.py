"""Checks of the report of each framework: it hangs, crashes, does not import, sees no GPU, or computes wrongly."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuwise.facts.software.compatibility import at_least, family_driver
from gpuwise.machine.doctor import fixes
from gpuwise.machine.doctor.checks.import_errors import import_fix, run_fix
from gpuwise.machine.doctor.finding import Finding, Fix, Severity
from gpuwise.machine.doctor.observation import DRIVER, Card, Framework, Machine, Package

LAST_FOR_GLIBC_2_17 = "2.5.1"
"""PyTorch's wheels since 2.6 are manylinux_2_28 (pytorch/pytorch, issue 123649)."""
NAMES = {
    "torch": "PyTorch",
    "tensorflow": "TensorFlow",
    "jax": "JAX",
    "cupy": "CuPy",
    "llama-cpp-python": "llama-cpp-python",
    DRIVER: "The driver's CUDA library",
}


_MODULES = {"llama-cpp-python": "llama_cpp"}
"""Frameworks whose module has another name."""


def broken_frameworks(m: Machine) -> Iterator[Finding]:
    """A framework that hangs, crashes or does not import."""
    for f in m.frameworks:
        if f.outcome not in ("hang", "crash", "error"):
            continue
        name, stage = NAMES[f.name], _stage(f)
        module = _MODULES.get(f.name, f.name)
        again = _again(m, f)
        if f.outcome == "hang":
            yield Finding(
                f"{f.name}-hangs",
                _severity(m, f),
                f"{name} hangs {stage}",
                (f"no end after {f.seconds:.0f} s", *((f.detail,) if f.detail else ())),
                "A program that uses it would wait for ever: often a disk on the network, a GPU that does not answer, or another "
                "process that holds it.",
                (
                    Fix(
                        "See where it waits",
                        (
                            f"{m.python.path if m.python else 'python'} -X faulthandler -X importtime -c 'import {module}'",
                            "sudo dmesg | tail -20",
                        ),
                    ),
                    again,
                ),
                _import(m, f),
                hides=(f"{f.name}-sees-no-gpu",),
            )
        elif f.outcome == "crash":
            yield Finding(
                f"{f.name}-crashes",
                _severity(m, f),
                f"{name} crashes {stage}",
                (f.detail, *_processor(m, f)),
                "It ends the interpreter itself, which no program can catch: files of two versions mixed, or a "
                "processor without the "
                "instructions it was compiled for.",
                (again,),
                _import(m, f),
                hides=(f"{f.name}-sees-no-gpu",),
            )
        elif (glibc := re.search(r"version `GLIBC_(\d+\.\d+)' not found", f.detail)) and f.name == "torch":
            yield _older_system(m, f, glibc[1])
        else:
            yield Finding(
                f"{f.name}-import-fails",
                _severity(m, f),
                f"{name} is installed and fails {stage}",
                (f.detail,),
                "No program that uses it runs.",
                (import_fix(m, f.detail, f.name) or again,),
                _import(m, f),
                hides=(f"{f.name}-sees-no-gpu",),
            )


def _older_system(m: Machine, f: Framework, glibc: str) -> Finding:
    """The finding that PyTorch needs a newer C library than the system has."""
    return Finding(
        "torch-needs-newer-system",
        _severity(m, f),
        f"The installed PyTorch needs a newer system: its C library is older than glibc {glibc}",
        (f.detail, *((m.system.name,) if m.system.name else ())),
        "Wheels since PyTorch 2.6 are built for glibc 2.28, those before for 2.17; the C library comes with the system and is "
        "not replaced by itself.",
        (
            Fix("Run in a container, which brings its own", ("docker run --rm --gpus all pytorch/pytorch python -V",)),
            Fix(
                "Or install the last release for older systems",
                (fixes.pip_uninstall(m, "torch"), fixes.pip_install(m, fixes.package("torch", LAST_FOR_GLIBC_2_17))),
            ),
        ),
        "ldd --version",
        hides=("torch-sees-no-gpu",),
        sources=("pytorch-manylinux",),
    )


def jax_plugin(m: Machine) -> Package | None:
    """JAX's plugin for CUDA, a package of its own."""
    return m.python.find("jax-cuda13-plugin", "jax-cuda12-plugin") if m.python else None


def _cards_for(m: Machine, f: Framework) -> tuple[tuple[Card, ...], str]:
    """The GPUs with memory of their own that the framework was built for, and the name of that build."""
    vendor, build = "nvidia", "CUDA"
    if f.answer.get("hip"):
        vendor, build = "amd", "ROCm"
    elif f.answer.get("xpu"):
        vendor, build = "intel", "XPU"
    elif not (f.cuda or f.name == "cupy" or (f.name == "jax" and jax_plugin(m))):
        return (), ""
    here = m.vendor(vendor)
    return tuple(c for c in here.cards if vendor == "nvidia" or c.has_own_memory) if here else (), build


def sees_none(m: Machine) -> Iterator[Finding]:
    """A framework built for GPUs that finds none although the driver has some, where no other check names the cause."""
    for f in m.frameworks:
        cards, build = _cards_for(m, f)
        if f.outcome != "ok" or f.available is not False or not cards:
            continue
        error = f.cuda_error
        error_text = (f"CUDA error {error.code}: {error.name}",) if error else ()
        fix = Fix(
            "Restart the machine, then look again; the kernel's log may say more", ("sudo reboot", "gpuwise doctor"), reboot=True
        )
        if error and error.code == 46:
            fix = Fix(
                "Let several programs use the GPU, or end the one that has it", ("nvidia-smi", "sudo nvidia-smi -c DEFAULT")
            )
        pipe = "CUDA_MPS_PIPE_DIRECTORY"
        if f.error and "MPS c" in f.error:
            stop = (f"unset {pipe}",) if pipe in m.environment else ()
            fix = Fix("Start the server of MPS, or do without it", ("nvidia-cuda-mps-control -d", *stop))
        if f.name == "jax" and (plugin := jax_plugin(m)):
            cuda = plugin.name.removesuffix("-plugin").removeprefix("jax-")
            again = fixes.pip_install(m, "--force-reinstall", f"'jax[{cuda}]=={f.answer.get('version')}'")
            fix = Fix("Install JAX again with the CUDA libraries of its release", (again,))
        if f.name == "tensorflow":
            fix = Fix("Install TensorFlow with its CUDA libraries", (fixes.pip_install(m, "'tensorflow[and-cuda]'"),))
        yield Finding(
            f"{f.name}-sees-no-gpu",
            _severity(m, f),
            f"{NAMES[f.name]} " + ("starts no GPU" if f.name == DRIVER else f"is built for {build} and sees no GPU"),
            (f.error or "it gives no reason", *error_text, f"{len(cards)} GPUs answer the driver"),
            "It computes on the processor, or not at all.",
            (fix,),
            _import(m, f),
        )


def runs(m: Machine) -> Iterator[Finding]:
    """A product that failed or came out wrong on a device the framework sees."""
    for f in m.frameworks:
        failed = [r for r in f.answer.get("ran") or () if r.get("ran") is False]
        wrong = [r for r in failed if not r.get("error")]
        if wrong:
            yield Finding(
                "gpu-wrong-result",
                Severity.BLOCKER,
                f"{NAMES[f.name]} computes a wrong product on GPU {wrong[0]['index']}",
                (f"64x64 ones times ones on {len(wrong)} of {f.answer.get('count')} GPUs does not give 262144",),
                "A card that computes wrongly spoils every result without a word.",
                (
                    Fix(
                        "Take the card out of use, then test it alone",
                        (f"gpuwise bench --device gpu{wrong[0]['index']} --stress 10m",),
                    ),
                ),
                fixes.check_torch(m),
                tuple(int(r["index"]) for r in wrong),
            )
        errors = [r for r in failed if r.get("error")]
        if errors:
            yield Finding(
                f"{f.name}-run-fails",
                _severity(m, f),
                f"{NAMES[f.name]} sees GPU {errors[0]['index']} and fails on it",
                tuple(str(r["error"]) for r in errors[:2]),
                "The first product on the GPU raises.",
                (run_fix(m, tuple(str(r["error"]) for r in errors)) or _again(m, f),),
                _import(m, f),
                tuple(int(r["index"]) for r in errors),
            )


def jax(m: Machine) -> Iterator[Finding]:
    """JAX without its CUDA plugin, or with one the driver does not run."""
    f = m.framework("jax")
    if f is None or f.outcome != "ok" or f.available or not m.nvidia_cards or m.python is None:
        return
    plugin = jax_plugin(m)
    driver = fixes.driver_number(m)
    family = 13 if driver is None or at_least(driver, family_driver((13, 0)) or (0,)) else 12
    install = fixes.pip_install(m, "--upgrade", f"'jax[cuda{family}]'")
    if plugin is None:
        yield Finding(
            "jax-cpu-only",
            _severity(m, f),
            "JAX is installed without its CUDA plugin",
            (f"jax {f.answer.get('version')}, no jax-cuda plugin",),
            "It computes on the processor.",
            (Fix(f"Install it for CUDA {family}, which this driver runs", (install,)),),
            _import(m, f),
            hides=("jax-sees-no-gpu",),
            sources=("cuda-minor-compatibility",),
        )
    elif driver and plugin.name.startswith("jax-cuda13") and family == 12:
        yield Finding(
            "jax-driver-too-old",
            _severity(m, f),
            "The driver is too old for JAX's CUDA 13 plugin",
            (f"{plugin.name} {plugin.version}", f"driver {m.driver_version}"),
            "CUDA 13 needs driver 580 or newer.",
            (Fix("Install it for CUDA 12", (fixes.pip_uninstall(m, "jax-cuda13-plugin", "jax-cuda13-pjrt"), install)),),
            _import(m, f),
            hides=("jax-sees-no-gpu",),
            sources=("cuda-minor-compatibility",),
        )


def tensorflow(m: Machine) -> Iterator[Finding]:
    """TensorFlow built without CUDA beside an NVIDIA card."""
    f = m.framework("tensorflow")
    if f is None or f.outcome != "ok" or f.cuda or f.answer.get("hip") or not m.nvidia_cards or f.available:
        return
    remove = [p.name for p in m.python.packages if p.name in ("tensorflow", "tensorflow-cpu")] if m.python else []
    install = fixes.pip_install(m, "'tensorflow[and-cuda]'")
    fix = Fix("Install it with CUDA", (*((fixes.pip_uninstall(m, *remove),) if remove else ()), install))
    if m.system.platform == "win32":
        fix = Fix("Use it inside WSL 2: on Windows itself its builds have no CUDA since 2.11", ("wsl --install",), "windows")
    yield Finding(
        "tensorflow-cpu-wheel",
        _severity(m, f),
        "The installed TensorFlow is built without CUDA",
        (f"tensorflow {f.answer.get('version')}",),
        "It computes on the processor.",
        (fix,),
        _import(m, f),
        hides=("tensorflow-sees-no-gpu",),
    )


def cupy(m: Machine) -> Iterator[Finding]:
    """CuPy built for another CUDA family than the driver's, or two of them."""
    if m.python is None:
        return
    copies = [p for p in m.python.packages if re.fullmatch(r"cupy(-cuda\d+x)?", p.name) and p.place != "conda"]
    driver = fixes.driver_number(m)
    family = 13 if driver is None or at_least(driver, family_driver((13, 0)) or (0,)) else 12
    f = m.framework("cupy")
    if len(copies) > 1:
        install = fixes.pip_install(m, f"cupy-cuda{family}x")
        yield Finding(
            "cupy-installed-twice",
            _severity(m, f) if f else Severity.LIMIT,
            "Two CuPy packages write the same files",
            tuple(f"{p.name} {p.version}" for p in copies),
            "Which files are left depends on the order they were installed in.",
            (Fix("Remove both, install one", (fixes.pip_uninstall(m, *(p.name for p in copies)), install)),),
            f"{fixes.pip(m)} list | grep -i cupy",
            hides=("cupy-*",),
        )
    elif copies and driver and m.nvidia_cards and (match := re.fullmatch(r"cupy-cuda(\d+)x", copies[0].name)):
        least = family_driver((int(match[1]), 0))
        if least and not at_least(driver, least):
            yield Finding(
                "cupy-driver-too-old",
                _severity(m, f) if f else Severity.LIMIT,
                f"The driver is too old for {copies[0].name}",
                (f"{copies[0].name} {copies[0].version}", f"driver {m.driver_version}"),
                f"CUDA {match[1]} needs driver {fixes.version_text(least)} or newer.",
                (
                    Fix(
                        "Install the one this driver runs",
                        (fixes.pip_uninstall(m, copies[0].name), fixes.pip_install(m, f"cupy-cuda{family}x")),
                    ),
                ),
                'python -c "import cupy; print(cupy.ones(3).sum())"',
                hides=("cupy-sees-no-gpu",),
                sources=("cuda-minor-compatibility",),
            )


_GGML = {"nvidia": "GGML_CUDA", "amd": "GGML_HIP", "intel": "GGML_VULKAN"}
"""Vendor -> the option of llama.cpp's build for its GPUs (llama-cpp-python, supported backends)."""


def llama_cpp(m: Machine) -> Iterator[Finding]:
    """llama-cpp-python built for the processor alone, as the package index has it."""
    f = m.framework("llama-cpp-python")
    vendor = next((c.identity.vendor for c in m.cards if c.has_own_memory and c.identity.vendor in _GGML), None)
    if f is None or f.outcome != "ok" or f.available is not False or vendor is None:
        return
    install = fixes.pip_install(m, "--force-reinstall", "--no-cache-dir", "llama-cpp-python")
    yield Finding(
        "llama-cpp-python-cpu-only",
        _severity(m, f),
        "The installed llama-cpp-python is built without a GPU",
        (f"llama-cpp-python {f.answer.get('version')}: llama_supports_gpu_offload() is False",),
        "`n_gpu_layers` has no effect, and nothing says so: the package index has a build for the processor.",
        (Fix("Build it for this GPU, which needs the vendor's toolkit", (f'CMAKE_ARGS="-D{_GGML[vendor]}=on" {install}',)),),
        _import(m, f),
        sources=("llama-cpp-python",),
    )


def toolkit(m: Machine) -> Iterator[Finding]:
    """A toolkit in the shell's path of a CUDA family that the driver does not run: affects only code that the user compiles."""
    vendor = m.vendor("nvidia")
    newest = vendor.driver.cuda_version if vendor and vendor.driver else None
    on_path = next((t for t in m.toolkits if t.on_path), None)
    if not newest or on_path is None or on_path.version[0] <= newest[0]:
        return
    older = next((t for t in m.toolkits if t.version[0] <= newest[0]), None)
    ways = (
        [
            Fix(
                f"Use the toolkit {fixes.version_text(older.version[:2])} that is here",
                (f"export CUDA_HOME={older.path} PATH={older.path}/bin:$PATH",),
            )
        ]
        if older
        else []
    )
    yield Finding(
        "toolkit-newer-than-driver",
        Severity.LIMIT,
        f"The CUDA toolkit {fixes.version_text(on_path.version[:2])} is of a newer family than the driver runs",
        (
            f"nvcc of {on_path.path}: CUDA {fixes.version_text(on_path.version[:2])}",
            f"driver {m.driver_version}: CUDA {fixes.version_text(newest)}",
        ),
        "What is compiled with this nvcc does not start here. Wheels bring their own CUDA and do not mind.",
        (*ways, *fixes.install_driver(m, what="Or install a newer driver" if ways else "Install a newer driver")),
        "nvcc --version; nvidia-smi",
        sources=("cuda-minor-compatibility",),
    )


def _severity(m: Machine, f: Framework) -> Severity:
    """A blocker, unless another framework computes on a GPU."""
    others = (o for o in m.frameworks if o.name != f.name and o.outcome == "ok" and o.available)
    return Severity.LIMIT if any(others) else Severity.BLOCKER


def _stage(f: Framework) -> str:
    return {
        "start": "before it starts",
        "import": "when it is imported",
        "build": "after the import",
        "devices": "while it looks for GPUs",
        "run": "on its first product on a GPU",
    }.get(f.stage, f"at the stage {f.stage}")


def _again(m: Machine, f: Framework) -> Fix:
    """Install the framework afresh."""
    if f.name == "torch" and m.nvidia_cards and (wheel := fixes.best_wheel(m, fixes.capabilities_here(m))):
        return Fix(
            f"Install it afresh: PyTorch {wheel.release} with CUDA {fixes.version_text(wheel.cuda)}",
            fixes.install_torch(m, wheel),
        )
    package = m.python.find(f.name) if m.python else None
    version = package.version if package else ""
    words = [fixes.package(f.name, version) if version else f.name]
    if f.name == "torch" and "+" in version:
        words += ["--index-url", f"{fixes.INDEX}/{version.partition('+')[2]}"]
    return Fix("Install it afresh", (fixes.pip_install(m, "--force-reinstall", "--no-cache-dir", *words),))


def _processor(m: Machine, f: Framework) -> tuple[str, ...]:
    if "SIGILL" not in f.detail:
        return ()
    return (f"SIGILL: this processor ({m.system.machine}) lacks an instruction the build uses, AVX2 most often",)


def _import(m: Machine, f: Framework) -> str:
    if f.name in ("torch", DRIVER):
        return fixes.check_torch(m)
    python = m.python.path if m.python else "python"
    what = {
        "tensorflow": "import tensorflow as t; print(t.config.list_physical_devices())",
        "jax": "import jax; print(jax.devices())",
        "cupy": "import cupy; print(cupy.ones(3).sum())",
        "llama-cpp-python": "import llama_cpp; print(llama_cpp.llama_supports_gpu_offload())",
    }[f.name]
    return f'{python} -c "{what}"'
