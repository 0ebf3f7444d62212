"""A stand-in of AMD's Python package ``amdsmi``: its functions, the forms of their answers and its errors, after
amdsmi_interface.py of ROCm 7.0. It is copied to a folder as ``amdsmi/__init__.py``; ``play.json`` beside it defines the
answers: ``answers`` (function, or function and handle number -> value), ``errors`` (function -> status), ``missing``
(functions that this release lacks), ``import`` (an exception's name to raise at once)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any

_PLAY = Path(__file__).parent / "play.json"
calls: list[str] = []


def _play() -> dict[str, Any]:
    return json.loads(_PLAY.read_text(encoding="utf-8")) if _PLAY.exists() else {}


if "import" in _play():
    sys.stdout.write("Unable to find libamd_smi.so library try installing amd-smi-lib from your package manager\n")
    raise {"KeyError": KeyError, "OSError": OSError}[_play()["import"]]("libamd_smi.so")


class AmdSmiException(Exception):
    """The package's base error."""


class AmdSmiLibraryException(AmdSmiException):
    """An error code of the library."""

    def __init__(self, err_code: int) -> None:
        super().__init__(err_code)
        self.err_code = abs(err_code)


class AmdSmiParameterException(AmdSmiException):
    """An argument of another type than the package takes."""

    def __init__(self, received: object, expected: type) -> None:
        super().__init__(f"Invalid parameter: {type(received)}, expected {expected}")
        self.err_code = None


class AmdSmiGpuBlock(IntEnum):
    """Blocks whose memory errors are counted."""

    INVALID = 0
    UMC = 1
    SDMA = 2
    GFX = 4


class AmdSmiLinkType(IntEnum):
    """Kinds of links between GPUs."""

    AMDSMI_LINK_TYPE_INTERNAL = 0
    AMDSMI_LINK_TYPE_PCIE = 1
    AMDSMI_LINK_TYPE_XGMI = 2


class Handle:
    """A GPU by number."""

    def __init__(self, number: int) -> None:
        self.number = number


_started = False


def _library(function: str, *handles: Any) -> Any:
    calls.append(function)
    play = _play()
    for handle in handles:
        if not isinstance(handle, Handle):
            raise AmdSmiParameterException(handle, Handle)
    if not _started:
        raise AmdSmiLibraryException(32)
    if function in play.get("errors", {}):
        raise AmdSmiLibraryException(play["errors"][function])
    of_handle = f"{function} {handles[0].number}" if handles else function
    answers = play["answers"]
    if of_handle not in answers and function not in answers:
        raise AmdSmiLibraryException(2)
    return answers.get(of_handle, answers.get(function))


def amdsmi_init(flag: int = 2) -> None:
    """Start the library. Raises AmdSmiLibraryException where no driver is played."""
    global _started
    _started = True
    if "amdsmi_init" in _play().get("errors", {}):
        _started = False
        raise AmdSmiLibraryException(_play()["errors"]["amdsmi_init"])


def amdsmi_shut_down() -> None:
    """Stop the library."""
    global _started
    _library("amdsmi_shut_down")
    _started = False


def amdsmi_get_processor_handles() -> list[Handle]:
    """A handle of every GPU."""
    return [Handle(n) for n in range(_library("amdsmi_get_processor_handles"))]


def amdsmi_get_gpu_ecc_count(handle: Handle, block: object) -> object:
    """Memory errors of one block. Raises AmdSmiParameterException for anything but a block."""
    if not isinstance(block, AmdSmiGpuBlock):
        raise AmdSmiParameterException(block, AmdSmiGpuBlock)
    return _library("amdsmi_get_gpu_ecc_count", handle)


def amdsmi_get_lib_version() -> object:
    """The library's version."""
    return _library("amdsmi_get_lib_version")


def amdsmi_topo_get_link_type(source: Handle, to: Handle) -> object:
    """Kind and hops of the link between two GPUs."""
    return _library("amdsmi_topo_get_link_type", source, to)


def amdsmi_is_P2P_accessible(source: Handle, to: Handle) -> object:
    """Whether one GPU reads the other's memory."""
    return _library("amdsmi_is_P2P_accessible", source, to)


def _of_one(name: str) -> Callable[[Handle], object]:
    def ask(handle: Handle) -> object:
        return _library(name, handle)

    return ask


for _name in (
    "amdsmi_get_gpu_device_bdf",
    "amdsmi_get_gpu_board_info",
    "amdsmi_get_gpu_asic_info",
    "amdsmi_get_power_cap_info",
    "amdsmi_get_pcie_info",
    "amdsmi_get_gpu_xgmi_link_status",
    "amdsmi_get_energy_count",
    "amdsmi_get_gpu_metrics_info",
    "amdsmi_get_gpu_activity",
    "amdsmi_get_power_info",
    "amdsmi_get_gpu_process_list",
    "amdsmi_get_gpu_bad_page_info",
    "amdsmi_get_link_metrics",
    "amdsmi_get_gpu_driver_info",
):
    if _name not in _play().get("missing", []):
        globals()[_name] = _of_one(_name)
