"""The exact commands that fix a fault on this operating system, for this driver, this interpreter and these cards."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence

from gpuwise.errors import InputError
from gpuwise.facts.software.compatibility import (
    Capability,
    Generation,
    Version,
    Wheel,
    generation_of,
    generation_of_chip,
    parse_version,
    rocm_builds,
    wheels_for,
)
from gpuwise.facts.software.os_commands import OsCommands, os_commands_for
from gpuwise.machine.doctor.finding import Fix
from gpuwise.machine.doctor.observation import DRIVER, NVIDIA, Machine, Package

INDEX = "https://download.pytorch.org/whl"
_COMPANIONS = ("torchvision", "torchaudio")


def os_family(machine: Machine) -> OsCommands | None:
    """The commands of this distribution's family; None where it is unknown."""
    return os_commands_for(machine.system.ids)


def generations_here(machine: Machine) -> tuple[Generation, ...]:
    """The generations of NVIDIA's cards here, from the driver or the chip names on the bus."""
    candidates = [generation_of(c.identity.compute_capability) for c in machine.nvidia_cards if c.identity.compute_capability]
    candidates += [generation_of_chip(c.name) for c in machine.pci_of(NVIDIA) if c.name]
    return tuple(dict.fromkeys(g for g in candidates if g))


def branch_for(machine: Machine) -> int:
    """The driver branch to install: the oldest that any card here needs, so that every card keeps working."""
    from gpuwise.facts.software.compatibility import generations

    known = generations().values()
    branches = [g.install_driver for g in generations_here(machine)]
    if legacy := legacy_branch(machine):
        branches.append(legacy)
    elif refused_by_open_modules(machine):
        branches.append(max(g.install_driver for g in known if g.kernel_modules == "proprietary"))
    return min(branches, default=max(g.install_driver for g in known))


def legacy_branch(machine: Machine) -> int | None:
    """The branch named in the kernel's log for a GPU that the loaded driver ignores, also for an unknown GPU."""
    matches = (re.search(r"supported through the NVIDIA (\d{3})\.", line) for line in machine.kernel_log)
    return next((int(m.group(1)) for m in matches if m is not None), None)


def refused_by_open_modules(machine: Machine) -> bool:
    """Whether the kernel's log reports this for a GPU, also for an unknown one."""
    return any("not supported by open nvidia.ko" in line for line in machine.kernel_log)


def needs_closed_modules(machine: Machine) -> bool:
    """Whether a GPU here runs only with NVIDIA's proprietary modules: all that have become a legacy branch's do."""
    needs = refused_by_open_modules(machine) or legacy_branch(machine) is not None
    return needs or any(g.kernel_modules == "proprietary" for g in generations_here(machine))


def install_driver(machine: Machine, *, what: str = "Install NVIDIA's driver") -> tuple[Fix, ...]:
    """The driver for these cards on this system, then a restart."""
    branch = branch_for(machine)
    if machine.system.wsl:
        return (windows_driver(branch),)
    if machine.system.platform == "win32":
        return (Fix(f"{what}: branch {branch} or newer from https://www.nvidia.com/drivers", where="person", reboot=True),)
    family = os_family(machine)
    if family is None:
        return (Fix(f"{what}: branch {branch} from your distribution, else from https://www.nvidia.com/drivers", where="person"),)
    closed = needs_closed_modules(machine)
    commands = family.driver_closed if closed else family.driver_open
    kind = "NVIDIA's own modules" if closed else "the open modules"
    where = "host" if machine.system.container else "here"
    return (Fix(f"{what}: branch {branch} with {kind}", (*fill_commands(machine, commands, branch), "sudo reboot"), where, True),)


def windows_driver(branch: int) -> Fix:
    """Fixes for the Windows driver, which WSL uses."""
    return Fix(
        f"Install NVIDIA's driver in Windows (branch {branch} or newer, from https://www.nvidia.com/drivers), then in PowerShell",
        ("wsl --update", "wsl --shutdown"),
        "windows",
    )


def fill_commands(machine: Machine, commands: Iterable[str], branch: int) -> tuple[str, ...]:
    """Commands with this system's version and architecture in them."""
    version = machine.system.version.split(".")[0] or "12"
    arch = "sbsa" if machine.system.machine in ("aarch64", "arm64") else "x86_64"
    return tuple(c.replace("{branch}", str(branch)).replace("{version}", version).replace("{arch}", arch) for c in commands)


def pip(machine: Machine) -> str:
    """The pip command of the interpreter that was examined."""
    python = machine.python
    if python is None:
        return "python -m pip"
    return f"{shlex.quote(python.path)} -m pip"


def _bring_pip(machine: Machine) -> str:
    """Commands needed before a pip command if pip is not installed and uv is not available instead."""
    python = machine.python
    return "" if python is None or python.has_pip else f"{shlex.quote(python.path)} -m ensurepip && "


def pip_install(machine: Machine, *words: str) -> str:
    """One install command."""
    python = machine.python
    tail = " ".join(words)
    if python is not None and not python.has_pip and machine.uv:
        return f"uv pip install --python {shlex.quote(python.path)} {tail}"
    return f"{_bring_pip(machine)}{pip(machine)} install {tail}"


def package(name: str, version: str) -> str:
    """``torch==2.13.0`` as the shell has to be given it."""
    return shlex.quote(f"{name}=={version}")


def pip_uninstall(machine: Machine, *names: str) -> str:
    """One uninstall command."""
    python = machine.python
    tail = " ".join(names)
    if python is not None and not python.has_pip and machine.uv:
        return f"uv pip uninstall --python {shlex.quote(python.path)} {tail}"
    return f"{_bring_pip(machine)}{pip(machine)} uninstall -y {tail}"


def new_environment(machine: Machine, python: str, folder: str, *words: str) -> tuple[str, ...]:
    """A new environment with Python ``python`` (``3.12``), and an installation in it: with uv if available."""
    tail = " ".join(words)
    if machine.uv:
        return f"uv venv --python {python} {folder}", f"uv pip install --python {folder}/bin/python {tail}"
    return f"python{python} -m venv {folder}", f"{folder}/bin/python -m pip install {tail}"


def numbers(text: str | None) -> Version | None:
    """(550, 54, 14) of a version; None of anything else."""
    try:
        return parse_version(text or "")
    except InputError:
        return None


def driver_number(machine: Machine) -> Version | None:
    """(550, 54, 14) of the loaded driver; None if unknown."""
    return numbers(machine.driver_version)


def windows_numbers(machine: Machine) -> bool:
    """Whether the driver is numbered as on Windows: there and in WSL."""
    return machine.system.platform == "win32" or machine.system.wsl is not None


def capabilities_here(machine: Machine) -> tuple[Capability, ...]:
    """Compute capabilities of NVIDIA's devices that answer, each once."""
    capabilities = (c.identity.compute_capability for c in machine.nvidia_cards)
    return tuple(dict.fromkeys(c for c in capabilities if c is not None))


def best_wheel(machine: Machine, cards: Sequence[Capability], *, driver: bool = True, newest: bool = False) -> Wheel | None:
    """The wheel to install for ``cards``: of the installed series where one runs and ``newest`` is False, else the newest.
    ``driver`` False leaves the driver's age out of it."""
    python = machine.python.version[:2] if machine.python and machine.python.version else None
    limit = driver_number(machine) if driver else None
    windows = windows_numbers(machine)
    installed = machine.torch_package
    series = (numbers(installed.version) or ())[:2] if installed else ()
    if len(series) == 2 and not newest:
        same = wheels_for(cards, limit, python=python, windows=windows, series=series)
        if same and not same[0].experimental:
            return same[0]
    wheels = wheels_for(cards, limit, python=python, windows=windows)
    return wheels[0] if wheels else None


def install_torch(machine: Machine, wheel: Wheel) -> tuple[str, ...]:
    """The commands that put ``wheel`` in the place of the installed one. What is there is removed first: pip takes 2.13.0+cpu for
    2.13.0 and would change nothing."""
    here = machine.python
    companions = [n for n in _COMPANIONS if here and here.find(n)]
    remove = [n for n in ("torch", *companions) if here and here.find(n)]
    plain = wheel.pypi_default and machine.system.platform == "linux" and machine.system.machine in ("x86_64", "")
    words = [package("torch", wheel.release), *companions]
    if not plain:
        words += ["--index-url", f"{INDEX}/{wheel.build}"]
    away = pip_uninstall(machine, *remove) if remove else ""
    if conda_torch(machine) is not None:
        away = "conda remove -y " + " ".join(["pytorch", *companions])
    return (*((away,) if away else ()), pip_install(machine, *words))


def conda_torch(machine: Machine) -> Package | None:
    """conda's pytorch, if conda installed the torch that is found and pip no other version."""
    here = machine.python
    conda = next((p for p in here.packages if p.name == "pytorch" and p.place == "conda"), None) if here else None
    if here is None or conda is None:
        return None
    return conda if all(p.version == conda.version for p in here.packages if p.name == "torch") else None


def conda_cuda_fix(package: Package) -> Fix:
    """The same version of conda's pytorch, built with CUDA: pip's on top would mix two installations."""
    spec = shlex.quote(f"pytorch={package.version}=*cuda*")
    return Fix(
        "Have conda install its build with CUDA (where it says that __cuda is missing: CONDA_OVERRIDE_CUDA=12.6 in front)",
        (f"conda install -c conda-forge {spec}",),
    )


def torch_fix(machine: Machine, cards: Sequence[Capability], *, driver: bool = True, newest: bool = False) -> tuple[Fix, ...]:
    """Install the PyTorch that runs on ``cards``; words instead where no wheel does. See :func:`best_wheel`."""
    wheel = best_wheel(machine, cards, driver=driver, newest=newest)
    if wheel is None:
        return (no_wheel(machine, cards),)
    what = f"Install PyTorch {wheel.release} built with CUDA {version_text(wheel.cuda)}"
    return (Fix(what, install_torch(machine, wheel)),)


def no_wheel(machine: Machine, cards: Sequence[Capability]) -> Fix:
    """Fix if no known wheel runs: another interpreter, another driver, or a build from source."""
    python = machine.python
    if python and python.version:
        any_python = wheels_for(cards, driver_number(machine))
        if any_python:
            low, high = any_python[0].python_min, any_python[0].python_max
            index = f"--index-url {INDEX}/{any_python[0].build}"
            commands = new_environment(machine, version_text(high), ".venv", package("torch", any_python[0].release), index)
            return Fix(
                f"Make an environment with Python {version_text(low)} to {version_text(high)}: that wheel has no other", commands
            )
    names = ", ".join(version_text(c) for c in cards)
    return Fix(
        f"No published wheel runs on compute capability {names} with this driver: build PyTorch from source", where="person"
    )


def rocm_fix(machine: Machine) -> Fix:
    """Install the PyTorch built for AMD."""
    series, build = rocm_builds()[0]
    here = machine.python
    companions = [n for n in _COMPANIONS if here and here.find(n)]
    remove = [n for n in ("torch", *companions) if here and here.find(n)]
    install = pip_install(machine, package("torch", f"{version_text(series)}.*"), *companions, "--index-url", f"{INDEX}/{build}")
    return Fix(
        f"Install PyTorch {version_text(series)} built for ROCm {build.removeprefix('rocm')}",
        (*((pip_uninstall(machine, *remove),) if remove else ()), install),
    )


def check_torch(machine: Machine) -> str:
    """A command that shows that PyTorch runs a product on the first GPU, or that CUDA starts where its library was asked."""
    python = shlex.quote(machine.python.path) if machine.python else "python"
    if machine.framework(DRIVER):
        return f"{python} -c \"import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))\"  # 0"
    return f"{python} -c \"import torch; x = torch.ones(64, 64, device='cuda'); print((x @ x).sum())\"  # tensor(262144., ...)"


def without_library_folders(machine: Machine, is_wrong: Callable[[str], bool]) -> str:
    """The command that takes the folders ``is_wrong`` names out of LD_LIBRARY_PATH, or unsets it where none is left."""
    folders = [f for f in machine.environment.get("LD_LIBRARY_PATH", "").split(":") if f and not is_wrong(f)]
    return f"export LD_LIBRARY_PATH={shell_quote(':'.join(folders))}" if folders else "unset LD_LIBRARY_PATH"


def shell_quote(text: str) -> str:
    """Text as one word of a shell."""
    return shlex.quote(text)


def version_text(version: Iterable[int]) -> str:
    """``12.6`` of (12, 6)."""
    return ".".join(str(p) for p in version)
