"""A machine's GPUs of other makers in a folder, and the environment in which programs find them there."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from gpuwise.testing.fake_gpus.cards import FakeAmd, FakeApple, FakeIntel, write_files

_COMMANDS = ("system_profiler", "ioreg", "sysctl", "sw_vers", "powermetrics", "rocm-smi", "xpu-smi")
_PACKAGE = Path(__file__).with_name("amdsmi_package.py")


class FakeGpus:
    """The folder: ``root`` with the kernel's files, ``bin`` with commands, ``python`` with AMD's package. A context manager."""

    def __init__(
        self, amd: Sequence[str], intel: Sequence[str], apple: str | None, *, amdsmi: bool = True, folder: Path | None = None
    ) -> None:
        self._own = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="fake-gpus-")) if folder is None else folder
        self.root = self.folder / "root"
        self.root.mkdir(parents=True, exist_ok=True)
        self._amdsmi = amdsmi
        self.amd = tuple(FakeAmd(name, i, i, self._changed) for i, name in enumerate(amd))
        self.intel = tuple(FakeIntel(name, i, len(amd) + i, self._changed) for i, name in enumerate(intel))
        self.apple = None if apple is None else FakeApple(apple, 0, self._changed)
        self._install()
        self._changed()

    def __enter__(self) -> FakeGpus:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Remove what was made."""
        if self._own:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def env(self) -> dict[str, str]:
        """The environment of a process that is to see these cards."""
        return {**os.environ, **self.overrides}

    @property
    def overrides(self) -> dict[str, str]:
        """Only the variables that :attr:`env` changes."""
        first = {"PATH": str(self.folder / "bin"), "PYTHONPATH": str(self.folder / "python")}
        found = {name: f"{own}:{others}" if (others := os.environ.get(name)) else own for name, own in first.items()}
        return found | {"GPUWISE_ROOT": str(self.root)}

    def _install(self) -> None:
        """The commands and the package, which read what the cards write."""
        if self.amd and self._amdsmi:
            package = self.folder / "python" / "amdsmi"
            package.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(_PACKAGE, package / "__init__.py")
        commands = self.folder / "bin"
        commands.mkdir(exist_ok=True)
        for name in _COMMANDS:
            if not self._has(name):
                continue
            path = commands / name
            path.write_text(f'#!/bin/sh\nexec cat "{self.folder / "outputs" / name}"\n', encoding="utf-8")
            path.chmod(0o755)

    def _has(self, command: str) -> bool:
        """Whether the cards bring a command."""
        return {"rocm-smi": bool(self.amd), "xpu-smi": bool(self.intel)}.get(command, self.apple is not None)

    def _changed(self) -> None:
        for card in (*getattr(self, "amd", ()), *getattr(self, "intel", ())):
            card.write(self.root)
        if getattr(self, "apple", None) is not None:
            assert self.apple is not None
            write_files(self.folder, self.apple.files())
        if self.amd:
            here = [card for card in self.amd if not card.gone]
            answers: dict[str, object] = {
                "amdsmi_shut_down": None,
                "amdsmi_get_processor_handles": len(self.amd),
                "amdsmi_get_lib_version": {"major": 26, "minor": 0, "release": 2, "build": "0"},
                "amdsmi_get_gpu_driver_info": {"driver_name": "amdgpu", "driver_version": "6.14.14"},
            }
            for card in here:
                answers |= card.answers()
            shown = {
                f"card{c.index}": {
                    "GPU use (%)": f"{100 * c.readings['utilization']:.0f}",
                    "Temperature (Sensor junction) (C)": f"{c.readings['temperature_c']:.1f}",
                    "Average Graphics Package Power (W)": f"{c.readings['power_w']:.1f}",
                    "VRAM Total Memory (B)": f"{c.readings['memory_total_bytes']:.0f}",
                    "VRAM Total Used Memory (B)": f"{c.readings['memory_used_bytes']:.0f}",
                    "Card Series": c.name,
                }
                for c in here
            }
            files: dict[str, str | bytes] = {"outputs/rocm-smi": json.dumps(shown) + "\n"}
            if self._amdsmi:
                files["python/amdsmi/play.json"] = json.dumps({"answers": answers})
            write_files(self.folder, files)
        if self.intel:
            listed = [
                {"device_id": c.index, "device_name": c.name, "pci_bdf_address": c.slot, "device_type": "GPU"} for c in self.intel
            ]
            write_files(self.folder, {"outputs/xpu-smi": json.dumps({"device_list": listed}) + "\n"})


def fake_gpus(
    *,
    amd: Sequence[str] = (),
    intel: Sequence[str] = (),
    apple: str | None = None,
    amdsmi: bool = True,
    folder: Path | None = None,
) -> FakeGpus:
    """Simulated cards by their names in the catalogue: ``amd=["MI300X"]``, ``intel=["Arc B580"]``, ``apple="M3 Max"``.

    ``amdsmi`` False omits AMD's Python package. Files are created in ``folder``, else in a temporary one that is deleted with
    the context. Raises UnknownNameError.
    """
    return FakeGpus(amd, intel, apple, amdsmi=amdsmi, folder=folder)
