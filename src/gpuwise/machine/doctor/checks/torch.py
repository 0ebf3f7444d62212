"""Checks of PyTorch: the wheel against the driver and against every card, copies of it and libraries before its own."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuwise.facts.software.compatibility import Capability, at_least, family_driver, find_wheel, runs_on, wheels_for
from gpuwise.machine.devices.readings import State
from gpuwise.machine.doctor import fixes
from gpuwise.machine.doctor.checks.driver import SEES_NONE
from gpuwise.machine.doctor.finding import Finding, Fix, Severity
from gpuwise.machine.doctor.observation import Card, Framework, Machine, Package

_SONAMES = {
    "libcudnn": "nvidia-cudnn",
    "libcublas": "nvidia-cublas",
    "libcublasLt": "nvidia-cublas",
    "libnccl": "nvidia-nccl",
    "libcudart": "nvidia-cuda-runtime",
    "libnvJitLink": "nvidia-nvjitlink",
    "libcusparse": "nvidia-cusparse",
    "libcusolver": "nvidia-cusolver",
    "libcufft": "nvidia-cufft",
    "libnvrtc": "nvidia-cuda-nvrtc",
}
"""Library -> how the wheel that brings it begins."""
REINSTALLED = ("torchvision-*", "torchaudio-*", "cuda-libraries-not-as-pinned")
"""Findings fixed by another PyTorch, which is installed with its companions."""


def wheel_kind(m: Machine) -> Iterator[Finding]:
    """A wheel for other hardware than what is here."""
    torch, package = m.framework("torch"), m.torch_package
    if package is None:
        return
    kind = build_of(torch, package)
    torch_version = f"torch {(torch.answer.get('version') if torch else None) or package.version}"
    cards = fixes.capabilities_here(m)
    amd = [c for c in m.cards if c.identity.vendor == "amd" and c.has_own_memory]
    if kind == "cpu" and m.nvidia_cards:
        conda = fixes.conda_torch(m)
        yield Finding(
            "torch-cpu-wheel",
            Severity.BLOCKER,
            "The installed PyTorch is built without CUDA",
            (torch_version, *_card_evidence(m.nvidia_cards)),
            "Whatever the driver, this build computes on the processor only.",
            (*((fixes.conda_cuda_fix(conda),) if conda else ()), *fixes.torch_fix(m, cards)),
            fixes.check_torch(m),
            hides=("torch-sees-no-gpu", *REINSTALLED),
            sources=("pytorch-wheels",),
        )
    elif kind == "rocm" and m.nvidia_cards and not amd:
        yield Finding(
            "torch-rocm-wheel",
            Severity.BLOCKER,
            "The installed PyTorch is built for AMD, and the GPU is NVIDIA's",
            (torch_version, *_card_evidence(m.nvidia_cards)),
            "A ROCm build does not look for CUDA.",
            fixes.torch_fix(m, cards),
            fixes.check_torch(m),
            hides=("torch-sees-no-gpu", *REINSTALLED),
            sources=("pytorch-wheels",),
        )
    elif kind in ("cpu", "cuda") and amd and not m.nvidia_cards and not m.means_nvidia:
        build = "for NVIDIA" if kind == "cuda" else "without ROCm"
        yield Finding(
            "torch-cuda-wheel-on-amd" if kind == "cuda" else "torch-cpu-wheel",
            Severity.BLOCKER,
            f"The installed PyTorch is built {build}, and the GPU is AMD's",
            (torch_version, *_card_evidence(tuple(amd))),
            "Only a ROCm build uses AMD's GPUs.",
            (fixes.rocm_fix(m),),
            fixes.check_torch(m),
            hides=("torch-sees-no-gpu", *REINSTALLED),
            sources=("pytorch-rocm-wheels",),
        )


def driver_age(m: Machine) -> Iterator[Finding]:
    """A wheel of a CUDA family that the driver does not run."""
    torch, package = m.framework("torch"), m.torch_package
    driver, cuda = fixes.driver_number(m), _cuda_of(torch, package)
    if package is None or driver is None or not cuda or not m.nvidia_cards or (torch and torch.available):
        return
    wheel_cuda = fixes.numbers(cuda)
    least = wheel_cuda and family_driver(wheel_cuda, windows=fixes.windows_numbers(m))
    if least is None or at_least(driver, least):
        return
    vendor = m.vendor("nvidia")
    newest = (
        f", which runs CUDA up to {fixes.version_text(vendor.driver.cuda_version)}"
        if vendor and vendor.driver and vendor.driver.cuda_version
        else ""
    )
    cards = fixes.capabilities_here(m)
    wheel = fixes.best_wheel(m, cards)
    # another interpreter may have a wheel where this one has none
    way = fixes.torch_fix(m, cards) if wheel or wheels_for(cards, driver) else ()
    branch = fixes.branch_for(m)
    newer = fixes.install_driver(m, what="Or install a newer driver" if way else "Install a newer driver")
    yield Finding(
        "torch-driver-too-old",
        Severity.BLOCKER,
        f"The driver is too old for this PyTorch: CUDA {cuda} needs driver {fixes.version_text(least)} or newer",
        (
            f"torch {package.version} is built with CUDA {cuda}",
            f"driver {m.driver_version}{newest}",
            *((torch.error,) if torch and torch.error else ()),
        ),
        "A driver runs every CUDA of its own family and older ones, and no newer family.",
        (*way, *(newer if branch > driver[0] or not way else ())),
        fixes.check_torch(m),
        hides=("torch-sees-no-gpu", "uvm-*", *REINSTALLED),
        sources=("cuda-minor-compatibility", "pytorch-wheels"),
    )


OLLAMA_DRIVER, OLLAMA_DRIVER_OLD_CARDS, OLD_CARDS = (550,), (570,), (6, 2)
"""Oldest driver of ollama's own CUDA, and where a card's capability is at most 6.2 (docs.ollama.com/gpu, 30 November 2026)."""


def ollama_driver(m: Machine) -> Iterator[Finding]:
    """A driver that is older than the CUDA which ollama brings: it computes on the processor and says nothing."""
    driver = fixes.driver_number(m)
    if "ollama" not in m.programs or driver is None or not m.nvidia_cards:
        return
    capabilities = [c.identity.compute_capability for c in m.nvidia_cards if c.identity.compute_capability]
    least = OLLAMA_DRIVER_OLD_CARDS if capabilities and min(capabilities) <= OLD_CARDS else OLLAMA_DRIVER
    if at_least(driver, least):
        return
    yield Finding(
        "ollama-driver-too-old",
        Severity.LIMIT,
        f"The driver is too old for ollama: it needs {least[0]} or newer",
        (f"driver {m.driver_version}", *_card_evidence(m.nvidia_cards)),
        "With an older one it computes on the processor, and reports no error.",
        fixes.install_driver(m, what="Install a newer driver"),
        "ollama ps  # PROCESSOR: GPU",
    )


def card_served(m: Machine) -> Iterator[Finding]:
    """Every card against what the wheel was compiled for."""
    torch, package = m.framework("torch"), m.torch_package
    cuda = _cuda_of(torch, package)
    if package is None or not cuda or not m.nvidia_cards:
        return
    wheel_architectures = architectures_of(torch, package)
    failed = _no_kernel_image(torch)
    out: list[Card] = []
    served: list[Card] = []
    for card in m.nvidia_cards:
        capability = card.identity.compute_capability
        if capability is None:
            continue
        ran = _ran(torch, card)
        if ran or (
            ran is None and (not wheel_architectures or runs_on(wheel_architectures, capability)) and capability not in failed
        ):
            served.append(card)
        elif capability in failed or (wheel_architectures and not runs_on(wheel_architectures, capability)):
            out.append(card)
    if not out:
        return
    names = ", ".join(dict.fromkeys(f"{c.identity.name} ({_sm(c)})" for c in out))
    missing = tuple(dict.fromkeys(c.identity.compute_capability for c in out if c.identity.compute_capability))
    yield Finding(
        "torch-lacks-card",
        Severity.LIMIT if served else Severity.BLOCKER,
        f"The installed PyTorch holds no code for {names}",
        (
            f"torch {package.version}: {' '.join(wheel_architectures) or 'architectures not known'}",
            *(f"GPU {c.identity.index}: {c.identity.name}, {_sm(c)}" for c in out),
            *(f"GPU {c.identity.index}: {c.identity.name}, {_sm(c)}: runs" for c in served),
        ),
        "Compiled code runs on its own major version with a minor at least its own; torch.cuda.is_available() says "
        "True all the same, "
        "and the first kernel fails with `no kernel image is available`.",
        _serve(m, missing, served),
        fixes.check_torch(m),
        tuple(c.identity.index for c in out),
        hides=("torch-sees-no-gpu", "torch-run-fails", "toolkit-lacks-card", *REINSTALLED),
        sources=("pytorch-wheels", "cuda-guide"),
    )


def _serve(m: Machine, missing: tuple[Capability, ...], served: list[Card]) -> tuple[Fix, ...]:
    """One wheel for all cards if available, else one for the remaining cards, or the hidden ones."""
    every = fixes.capabilities_here(m)
    if fixes.best_wheel(m, every) is not None:
        return fixes.torch_fix(m, every)
    if not served:
        if fixes.best_wheel(m, missing) is None and fixes.best_wheel(m, missing, driver=False) is not None:
            # the cards want a CUDA family this driver does not run
            return (*fixes.install_driver(m, what="Install a newer driver"), *fixes.torch_fix(m, missing, driver=False))
        return fixes.torch_fix(m, missing)
    keep = fixes.shell_quote(",".join(c.identity.uuid or str(c.identity.index) for c in served))
    hide = Fix("No wheel runs on all of them. Show programs only those it runs on", (f"export CUDA_VISIBLE_DEVICES={keep}",))
    wheel = fixes.best_wheel(m, missing)
    if wheel is None:
        return (hide,)
    python = fixes.version_text(wheel.python_max if m.python is None or not m.python.version else m.python.version[:2])
    index = f"--index-url {fixes.INDEX}/{wheel.build}"
    other = fixes.new_environment(m, python, ".venv-old", fixes.package("torch", wheel.release), index)
    return (hide, Fix("Or an environment of its own for the others", other))


def duplicate_torch(m: Machine) -> Iterator[Finding]:
    """More than one torch that the interpreter could find, and a core compiled for another Python."""
    if m.python is None:
        return
    copies = [p for p in m.python.packages if p.name == "torch"]
    conda = next((p for p in m.python.packages if p.name == "pytorch" and p.place == "conda"), None)
    versions = {p.version.partition("+")[0] for p in copies} | ({conda.version} if conda else set[str]())
    if len(copies) > 1 or (conda and len(versions) > 1):
        # with one CUDA copy and one without, the former was intended
        kept = max(copies, key=lambda p: not p.version.endswith("+cpu"))
        where = [f"torch {p.version} in {p.place}" for p in copies] + ([f"pytorch {conda.version} by conda"] if conda else [])
        remove = (f"{fixes.pip(m)} uninstall -y torch",) * len(copies)
        if conda and len(versions) > 1:
            fix = Fix(
                "Keep one: remove pip's and let conda repair its own",
                (*remove, f"conda install --force-reinstall {fixes.shell_quote('pytorch=' + conda.version)}"),
            )
        else:
            wheel = fixes.best_wheel(m, fixes.capabilities_here(m)) if m.nvidia_cards else None
            again = (
                fixes.install_torch(m, wheel)[-1]
                if wheel and kept is copies[0]
                else fixes.pip_install(m, fixes.package("torch", kept.version.partition("+")[0]))
            )
            fix = Fix("Remove every copy, then install one", (*remove, again))
        yield Finding(
            "torch-installed-twice",
            Severity.LIMIT if _works(m) and kept is copies[0] else Severity.BLOCKER,
            "Two PyTorch installations are mixed",
            tuple(where),
            "Which one is loaded depends on the order of the search path, and files of one stay under the other.",
            (fix,),
            f"{fixes.pip(m)} list | grep -i torch",
            hides=("torchvision-mismatch", "torch-import-fails", "torch-crashes", "torch-cpu-wheel"),
        )
    for package in copies[:1]:
        if package.extension_tags and m.python.tag and m.python.tag not in package.extension_tags:
            yield Finding(
                "torch-wrong-python",
                Severity.BLOCKER,
                "The installed PyTorch was compiled for another Python",
                (
                    f"torch {package.version} for {', '.join(package.extension_tags)}",
                    f"this Python is {m.python.tag}",
                    package.place,
                ),
                "Its compiled core is not found: `No module named torch._C`.",
                (
                    Fix(
                        "Install it again with this interpreter",
                        (
                            fixes.pip_uninstall(m, "torch"),
                            fixes.pip_install(m, fixes.package("torch", package.version.partition("+")[0])),
                        ),
                    ),
                ),
                fixes.check_torch(m),
                hides=("torch-import-fails", SEES_NONE),
            )


def shadowed_torch(m: Machine) -> Iterator[Finding]:
    """Older CUDA libraries that LD_LIBRARY_PATH puts before those of a wheel: PyTorch's or JAX's."""
    program = "PyTorch" if m.torch_package else "JAX" if m.python and m.python.find("jaxlib", "jax") else None
    if m.python is None or program is None:
        return
    older: dict[str, str] = {}
    for name, folder in m.shadowing.items():
        stem, _, version = name.partition(".so.")
        begin = _SONAMES.get(stem)
        wheel = next((p for p in m.python.packages if begin and p.name.startswith(begin)), None)
        brought, wheel_version = fixes.numbers(version) or (), fixes.numbers(wheel.version) if wheel else None
        if wheel is None or wheel_version is None or len(brought) < 2 or wheel_version[0] != brought[0]:
            continue
        if brought < wheel_version[: len(brought)]:
            older[f"{folder}/{name}"] = f"{wheel.name} {wheel.version}"
    if not older:
        return
    torch = m.framework("torch")
    broken = torch is not None and torch.outcome != "ok"
    yield Finding(
        "ld-library-path-shadows",
        Severity.BLOCKER if broken else Severity.LIMIT,
        f"LD_LIBRARY_PATH puts older CUDA libraries before {program}'s own",
        (*(f"{path} before {wheel}" for path, wheel in list(older.items())[:3]), *((torch.detail,) if torch and broken else ())),
        "The loader looks there first, and this build was compiled against newer ones: undefined symbols, or errors of "
        "cuDNN and cuBLAS.",
        (Fix("Start without it; a wheel needs no LD_LIBRARY_PATH", ("unset LD_LIBRARY_PATH",)),),
        fixes.check_torch(m) if m.torch_package else f'{m.python.path} -c "import jax; print(jax.devices())"',
        hides=("torch-import-fails", "torch-crashes", "jax-sees-no-gpu"),
    )


_RUNTIME = re.compile(r"(/\S*)/(libstdc\+\+|libgcc_s|libgomp)\.so\S*: version `([\w.]+)' not found")
"""Loader error for a compiler's runtime library older than the one a program was built with."""


def older_runtime(m: Machine) -> Iterator[Finding]:
    """A compiler's run-time library on LD_LIBRARY_PATH that is older than the one PyTorch was built with."""
    torch = m.framework("torch")
    said = _RUNTIME.search(torch.detail) if torch and torch.outcome == "error" else None
    folders = [f.rstrip("/") for f in m.environment.get("LD_LIBRARY_PATH", "").split(":") if f]
    if torch is None or said is None or said[1] not in folders:
        return
    command = fixes.without_library_folders(m, lambda folder: folder.rstrip("/") == said[1])
    yield Finding(
        "ld-library-path-shadows",
        Severity.BLOCKER,
        f"LD_LIBRARY_PATH puts an older {said[2]} before the system's",
        (torch.detail, f"LD_LIBRARY_PATH brings {said[1]}"),
        f"The loader looks there first, and PyTorch was built for a {said[2]} that has {said[3]}.",
        (
            Fix("Start without that folder; no environment of conda needs it there", (command,)),
            Fix("Where a program needs it: bring it up to date", ("conda install -c conda-forge --update-deps libstdcxx-ng",)),
        ),
        fixes.check_torch(m),
        hides=("torch-import-fails", "torch-crashes"),
    )


def build_of(torch: Framework | None, package: Package) -> str:
    """``cuda``, ``rocm``, ``cpu`` or ``xpu``: as reported by the framework, else by its version."""
    if torch and "version" in torch.answer:
        for key, kind in (("cuda", "cuda"), ("hip", "rocm"), ("xpu", "xpu")):
            if torch.answer.get(key):
                return kind
        return "cpu"
    tag = package.version.partition("+")[2]
    for begin, kind in (("cu", "cuda"), ("rocm", "rocm"), ("cpu", "cpu"), ("xpu", "xpu")):
        if tag.startswith(begin):
            return kind
    # what PyPI gives on Linux; elsewhere its wheels have no CUDA
    return "cuda" if find_wheel(package.version) else "cpu"


def architectures_of(torch: Framework | None, package: Package) -> tuple[str, ...]:
    """Architectures that the wheel was compiled for: as reported, else from the table."""
    if torch and torch.architectures:
        return torch.architectures
    row = find_wheel(package.version, package.version.partition("+")[2] or None)
    return row.architectures if row else ()


def _cuda_of(torch: Framework | None, package: Package | None) -> str | None:
    """The CUDA version of the installed PyTorch; None where it is unknown."""
    if torch and "version" in torch.answer:
        return torch.cuda
    if package is None:
        return None
    row = find_wheel(package.version, package.version.partition("+")[2] or None)
    return fixes.version_text(row.cuda) if row else None


def _no_kernel_image(torch: Framework | None) -> set[Capability]:
    """Capabilities of the cards on which a run failed for want of code."""
    if torch is None:
        return set()
    capability_by_index = {d.get("index"): tuple(d.get("capability") or ()) for d in torch.answer.get("devices") or ()}
    bad = (r for r in torch.answer.get("ran") or () if "no kernel image" in str(r.get("error") or "").lower())
    return {c for r in bad if len(c := capability_by_index.get(r.get("index"), ())) == 2}  # type: ignore[misc]


def _ran(torch: Framework | None, card: Card) -> bool | None:
    """Whether a product ran on this card; None if unknown for exactly this card."""
    if torch is None:
        return None
    bare = (card.identity.uuid or "?").removeprefix("GPU-").lower()
    for device in torch.answer.get("devices") or ():
        same = str(device.get("uuid") or "").removeprefix("GPU-").lower() == bare
        if same or (
            len(torch.answer["devices"]) == 1 and tuple(device.get("capability") or ()) == card.identity.compute_capability
        ):
            return next((r.get("ran") for r in torch.answer.get("ran") or () if r.get("index") == device.get("index")), None)
    return None


def _works(m: Machine) -> bool:
    """Whether PyTorch answered without a failure."""
    torch = m.framework("torch")
    return torch is not None and torch.outcome == "ok"


def _card_evidence(cards: tuple[Card, ...]) -> tuple[str, ...]:
    """One line for each distinct name among the GPUs that answer the driver."""
    here = (c for c in cards if c.sample is None or c.sample.state is State.OK)
    return tuple(dict.fromkeys(f"{c.identity.name} answers the driver" for c in here))


def _sm(card: Card) -> str:
    """The architecture as PyTorch writes it, such as ``sm_89``."""
    major, minor = card.identity.compute_capability or (0, 0)
    return f"sm_{major}{minor}"
