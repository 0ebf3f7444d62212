"""PyTorch wheels by driver and card, and the driver required by a card.

Three CUDA numbers live on one machine and only their families may be compared: the one a wheel was built with, the newest
one the driver runs, and the toolkit's. A wheel runs when the driver is at least that of its CUDA family (minor version
compatibility) and something compiled in it runs on the card (:func:`runs_on`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from gpuwise.errors import InputError
from gpuwise.facts.loading import Field, Record, ShippedData, parse_csv, shipped_text
from gpuwise.facts.offers.seal import check_seal
from gpuwise.facts.sources import check_source, cited_rows

Version = tuple[int, ...]
Capability = tuple[int, int]

_VERSION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){0,4}", re.ASCII)
_ARCHITECTURE = re.compile(r"(sm|compute)_([0-9]{1,3})([0-9])([af]?)", re.ASCII)

WHEEL_SCHEMA: dict[str, Field] = {
    "release": Field("text"),
    "build": Field("text"),
    "pypi_default": Field("flag"),
    "experimental": Field("flag"),
    "cuda": Field("text"),
    "cuda_runtime": Field("text", required=False),
    "driver_linux": Field("text"),
    "driver_windows": Field("text"),
    "paired_driver_linux": Field("text", required=False),
    "paired_driver_windows": Field("text", required=False),
    "cudnn": Field("text"),
    "nccl": Field("text", required=False),
    "triton": Field("text", required=False),
    "python_min": Field("text"),
    "python_max": Field("text"),
    "architectures": Field("names", required=False),
    "source": Field("text"),
}
GENERATION_SCHEMA: dict[str, Field] = {
    "generation": Field("text"),
    "chips": Field("names"),
    "capabilities": Field("names"),
    "first_driver": Field("integer", required=False),
    "last_driver": Field("integer", required=False),
    "install_driver": Field("integer"),
    "kernel_modules": Field("text", choices=("open", "proprietary", "either")),
    "source": Field("text"),
}
CUDA_ERROR_SCHEMA: dict[str, Field] = {
    "code": Field("integer"),
    "name": Field("text"),
    "phrase": Field("text"),
    "source": Field("text"),
}
IMAGE_SCHEMA: dict[str, Field] = {
    "image": Field("text"),
    "kind": Field("text", choices=("cuda", "ngc")),
    "cuda": Field("text"),
    "python": Field("text"),
    "source": Field("text"),
}
DRIVER_SCHEMA: dict[str, Field] = {
    "branch": Field("integer"),
    "cuda": Field("text"),
    "source": Field("text"),
}
ROCM_SCHEMA: dict[str, Field] = {
    "series": Field("text"),
    "build": Field("text"),
    "source": Field("text"),
}


@dataclass(frozen=True, slots=True)
class Wheel:
    """One build of PyTorch for Linux x86_64."""

    release: str
    """``2.13.0``, or ``2.13.*`` for every patch of it."""
    build: str
    """``cu126``: also the end of its index's address."""
    pypi_default: bool
    """Whether ``pip install torch`` takes it for its release."""
    experimental: bool
    cuda: Version
    cuda_runtime: str | None
    driver_linux: Version
    """The oldest driver of its CUDA family."""
    driver_windows: Version
    paired_driver_linux: Version | None
    """The driver released with its CUDA: older ones of the family lack that CUDA's newest features."""
    paired_driver_windows: Version | None
    cudnn: str
    nccl: str | None
    triton: str | None
    python_min: Version
    python_max: Version
    architectures: tuple[str, ...]
    """Compiled architectures, ``sm_90``; empty if unpublished."""
    source_key: str

    @property
    def series(self) -> Version:
        """(2, 13): what other packages are built against."""
        return parse_version(self.release.removesuffix(".*"))[:2]

    @property
    def order(self) -> tuple[Version, bool, Version]:
        """Newest release first when sorted downwards; among its builds the default, then the newest CUDA."""
        return self.series, self.pypi_default, self.cuda


@dataclass(frozen=True, slots=True)
class Generation:
    """Driver requirements of a generation of NVIDIA GPUs."""

    name: str
    chips: tuple[str, ...]
    """How its chips begin in pci.ids: ``AD`` of AD102."""
    capabilities: tuple[Capability, ...]
    first_driver: int | None
    """Branch; None where no driver in use is too old."""
    last_driver: int | None
    """The last branch that runs it; None while it is served."""
    install_driver: int
    """The long-term support branch to install for it."""
    kernel_modules: str
    """``open`` (only those), ``proprietary`` (only those) or ``either``."""
    source_key: str


@dataclass(frozen=True, slots=True)
class CudaError:
    """An error of the CUDA driver that indicates a fault of the machine."""

    code: int
    name: str
    phrase: str
    """Lower case, part of what frameworks print."""
    source_key: str


@dataclass(frozen=True, slots=True)
class Image:
    """A container image to start from."""

    name: str
    kind: str
    """``cuda`` or ``ngc``."""
    cuda: Version
    python: Version
    """Python version of its distribution."""
    source_key: str


def parse_version(text: str) -> Version:
    """(580, 95, 5) of ``580.95.05``; the part after a ``+`` or a letter is ignored. Raises InputError."""
    match = _VERSION.match(text.strip())
    if match is None:
        raise InputError(f"{text!r} is not a version", hint="write it like 580.95.05")
    return tuple(int(part) for part in match[0].split("."))


def at_least(version: Version, minimum: Version) -> bool:
    """``version`` is ``minimum`` or newer: (580,) is at least (580, 0)."""
    n = max(len(version), len(minimum))
    return version + (0,) * (n - len(version)) >= minimum + (0,) * (n - len(minimum))


def parse_capability(text: str) -> Capability:
    """(8, 9) of ``8.9``. Raises InputError."""
    major, dot, minor = text.strip().partition(".")
    if not (dot and major.isascii() and major.isdigit() and minor.isascii() and minor.isdigit()):
        raise InputError(f"{text!r} is not a compute capability", hint="write it like 8.9")
    return int(major[:3]), int(minor[:3])


def runs_on(architectures: Iterable[str], capability: Capability) -> bool:
    """Whether code compiled for ``architectures`` runs on a card.

    A cubin (``sm_86``) runs on its own major version with a minor at least its own; ``sm_90a`` on exactly that card;
    ``sm_100f`` on its family, which is taken as a cubin. PTX (``compute_80``) is compiled by the driver for anything at least
    as new. Source: CUDA programming guide, binary and PTX compatibility.
    """
    return any(_one_runs_on(name, capability) for name in architectures)


def _one_runs_on(name: str, capability: Capability) -> bool:
    match = _ARCHITECTURE.fullmatch(name.strip().lower())
    if match is None:
        return False
    built = int(match[2]), int(match[3])
    if match[4] == "a":
        return capability == built
    if match[1] == "compute":
        return capability >= built
    return capability[0] == built[0] and capability[1] >= built[1]


@cache
def wheels() -> tuple[Wheel, ...]:
    """Every build in the table, newest first. Raises DataError when the file is corrupt."""
    text = check_seal(shipped_text("compatibility.csv"), "compatibility.csv")
    with ShippedData():
        parsed = parse_wheels(text, "compatibility.csv")
    return tuple(sorted(parsed, key=lambda w: w.order, reverse=True))


def wheels_for(
    capabilities: Iterable[Capability],
    driver: Version | None,
    *,
    python: Version | None = None,
    windows: bool = False,
    series: Version | None = None,
) -> tuple[Wheel, ...]:
    """The wheels that run on every one of ``capabilities`` with ``driver``, best first: no experimental build before a finished
    one, then the newest.

    ``driver`` None ignores the driver; ``python`` (3, 12) and ``series`` (2, 13) narrow it. A wheel with unpublished
    architectures is excluded.
    """
    required = tuple(capabilities)
    matches = [
        w
        for w in wheels()
        if w.architectures
        and all(runs_on(w.architectures, c) for c in required)
        and (driver is None or at_least(driver, w.driver_windows if windows else w.driver_linux))
        and (python is None or w.python_min <= python[:2] <= w.python_max)
        and (series is None or w.series == series)
    ]
    return tuple(sorted(matches, key=lambda w: w.experimental))


def find_wheel(version: str, build: str | None = None) -> Wheel | None:
    """The row of an installed wheel, ``2.13.0`` and ``cu130``; without a build, PyPI's default. None if unknown."""
    try:
        numbers = parse_version(version)
    except InputError:
        return None
    for wheel in wheels():
        same = parse_version(wheel.release.removesuffix(".*"))
        if numbers[: len(same)] != same and wheel.series != numbers[:2]:
            continue
        if wheel.build == build or (build is None and wheel.pypi_default):
            return wheel
    return None


def family_driver(cuda: Version, *, windows: bool = False) -> Version | None:
    """The oldest driver that runs software of this CUDA's family; None for a family the table does not know."""
    drivers = [w.driver_windows if windows else w.driver_linux for w in wheels() if w.cuda[0] == cuda[0]]
    return min(drivers, default=None)


def newest_cuda(driver: Version) -> Version | None:
    """The newest CUDA that a driver supports, by its branch; None if it is older than the table."""
    return max((cuda for branch, cuda in _driver_branches() if driver[0] >= branch), default=None)


@cache
def _driver_branches() -> tuple[tuple[int, Version], ...]:
    rows = cited_rows("driver_cuda.csv", DRIVER_SCHEMA)
    return tuple((r.integer("branch"), _version(r, "cuda")) for r in rows)


@cache
def generations() -> Mapping[str, Generation]:
    """NVIDIA's generations by name, oldest first. Raises DataError."""
    return MappingProxyType({g.name: g for g in map(_generation, cited_rows("nvidia_generations.csv", GENERATION_SCHEMA))})


def generation_of(capability: Capability) -> Generation | None:
    """The generation of a compute capability; None if unknown."""
    return next((g for g in generations().values() if capability in g.capabilities), None)


def generation_of_chip(chip: str) -> Generation | None:
    """The generation of a chip by its name in pci.ids: ``AD102`` is Ada; None if unknown."""
    name = chip.strip().upper()
    return next((g for g in generations().values() if name.startswith(g.chips) and name[2:3].isdigit()), None)


@cache
def cuda_errors() -> tuple[CudaError, ...]:
    """Errors of the CUDA driver, by code. Raises DataError."""
    rows = cited_rows("cuda_errors.csv", CUDA_ERROR_SCHEMA)
    return tuple(CudaError(r.integer("code"), r.text("name"), r.text("phrase"), r.text("source")) for r in rows)


def cuda_error_in(text: str) -> CudaError | None:
    """The error a framework's message speaks of: by ``Error 804`` or by its phrase; None when it names none."""
    lower = text.lower()
    for error in cuda_errors():
        if re.search(rf"\b(error|code)[ :=(]{{1,3}}{error.code}\b", lower) or error.phrase in lower:
            return error
    return None


@cache
def rocm_builds() -> tuple[tuple[Version, str], ...]:
    """PyTorch's series and the build of it for AMD, newest first. Raises DataError."""
    return tuple((parse_version(r.text("series")), r.text("build")) for r in cited_rows("rocm_wheels.csv", ROCM_SCHEMA))


@cache
def images() -> tuple[Image, ...]:
    """Container images, newest CUDA first in each kind. Raises DataError."""
    parsed = [
        Image(r.text("image"), r.text("kind"), _version(r, "cuda"), _version(r, "python"), r.text("source"))
        for r in cited_rows("container_images.csv", IMAGE_SCHEMA)
    ]
    return tuple(sorted(parsed, key=lambda i: (i.kind, i.cuda), reverse=True))


def ngc_image(capabilities: Iterable[Capability], driver: Version | None, newest: Version | None = None) -> Image | None:
    """NVIDIA's newest build of PyTorch whose CUDA family runs on ``driver`` (None: on the newest there is) and on these cards; it
    checks no more than the family on data-centre cards, so for others ``newest`` is the driver's own CUDA. None without any.

    CUDA 13 has no code for what is older than 7.5, CUDA before 12.8 none for Blackwell (release notes of CUDA), and none of the
    images any for what is older than 6.0 (release notes of the images).
    """
    required = tuple(capabilities)
    if driver is not None and newest is None:
        newest = newest_cuda(driver)
    for image in images():
        least = family_driver(image.cuda)
        old = driver is not None and (least is None or newest is None or not at_least(driver, least) or image.cuda > newest)
        oldest_card = (7, 5) if image.cuda >= (13,) else (6, 0)
        fits = all(c >= oldest_card and (c < (10, 0) or image.cuda >= (12, 8)) for c in required)
        if image.kind == "ngc" and fits and not old:
            return image
    return None


def parse_wheels(text: str, file: str) -> tuple[Wheel, ...]:
    """Wheels from CSV text. Raises FieldError."""
    by_build: dict[tuple[str, str], Wheel] = {}
    for record in parse_csv(text, WHEEL_SCHEMA, file):
        wheel = _wheel(record)
        if (wheel.release, wheel.build) in by_build:
            raise record.error(f"{wheel.release} {wheel.build} appears twice", field="release", hint="remove one line")
        by_build[wheel.release, wheel.build] = wheel
    return tuple(by_build.values())


def _wheel(record: Record) -> Wheel:
    check_source(record)
    for name in record.names("architectures"):
        if _ARCHITECTURE.fullmatch(name) is None:
            raise record.error(f"architecture {name!r} is not one", field="architectures", hint="write it like sm_90")
    return Wheel(
        release=record.text("release"),
        build=record.text("build"),
        pypi_default=bool(record.maybe_flag("pypi_default")),
        experimental=bool(record.maybe_flag("experimental")),
        cuda=_version(record, "cuda"),
        cuda_runtime=record.text("cuda_runtime") or None,
        driver_linux=_version(record, "driver_linux"),
        driver_windows=_version(record, "driver_windows"),
        paired_driver_linux=_maybe_version(record, "paired_driver_linux"),
        paired_driver_windows=_maybe_version(record, "paired_driver_windows"),
        cudnn=record.text("cudnn"),
        nccl=record.text("nccl") or None,
        triton=record.text("triton") or None,
        python_min=_version(record, "python_min"),
        python_max=_version(record, "python_max"),
        architectures=record.names("architectures"),
        source_key=record.text("source"),
    )


def _generation(record: Record) -> Generation:
    return Generation(
        name=record.text("generation"),
        chips=record.names("chips"),
        capabilities=tuple(parse_capability(c) for c in record.names("capabilities")),
        first_driver=record.maybe_integer("first_driver"),
        last_driver=record.maybe_integer("last_driver"),
        install_driver=record.integer("install_driver"),
        kernel_modules=record.text("kernel_modules"),
        source_key=record.text("source"),
    )


def _version(record: Record, field: str) -> Version:
    try:
        return parse_version(record.text(field).removesuffix(".*"))
    except InputError as error:
        raise record.error(error.message, field=field, hint=error.hint) from error


def _maybe_version(record: Record, field: str) -> Version | None:
    return _version(record, field) if record.text(field) else None
