"""Packages of others that add facts and code: GPUs, processors, models, prices, stacks, engines, doctor's checks.

A plugin is an installed distribution with ``gpuwise`` in its name and an entry point in the group ``gpuwise.plugins`` that names
its package. Folders of the package are read as the shipped ones: ``facts``, ``prices``, ``stacks``. Attributes are loaded where
they are needed: ``doctor_checks``, ``engines``. Only names of folders are looked at before, which takes no time that one notices
(``importlib.metadata`` would take 40 ms of every command).
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from gpuwise.errors import InputError
from gpuwise.files import read_text

GROUP = "gpuwise.plugins"
Folder = Literal["facts", "prices", "stacks"]
Attribute = Literal["doctor_checks", "engines"]


@dataclass(frozen=True, slots=True)
class Plugin:
    """An entry point: its name, and the package that it names."""

    name: str
    package: str

    def folder(self, name: Folder) -> Path | None:
        """A folder of the package, which is not imported; None where it has none. Raises InputError without the package."""
        from importlib.util import find_spec

        spec = find_spec(self.package)
        if spec is None or not spec.submodule_search_locations:
            raise InputError(
                f"the plugin {self.name} names {self.package}, which is not installed",
                hint=f"install it again, or uninstall the distribution that has the entry point {self.name}",
            )
        folder = Path(spec.submodule_search_locations[0]) / name
        return folder if folder.is_dir() else None

    def attribute(self, name: Attribute) -> tuple[Any, ...]:
        """What the package adds under ``name``, in its order; it is imported."""
        from importlib.metadata import EntryPoint

        return tuple(getattr(EntryPoint(self.name, self.package, GROUP).load(), name, ()))


@cache
def plugins() -> tuple[Plugin, ...]:
    """Every plugin on the path, by name. Raises InputError for two of the same name."""
    found: dict[str, Plugin] = {}
    for place in dict.fromkeys(p for p in sys.path if p):
        try:
            names = sorted(n for n in os.listdir(place) if n.endswith(".dist-info") and _may_be_plugin(n.lower()))  # noqa: PTH208
        except OSError:
            continue
        for name in names:
            for plugin in _entries(Path(place) / name / "entry_points.txt"):
                if found.setdefault(plugin.name, plugin) != plugin:
                    packages = f"{found[plugin.name].package} and {plugin.package}"
                    raise InputError(f"two plugins are called {plugin.name}: {packages}", hint="uninstall one of them")
    return tuple(found[name] for name in sorted(found))


def plugin_folders(name: Folder) -> list[Path]:
    """The folders of that name of all plugins."""
    return [folder for plugin in plugins() if (folder := plugin.folder(name)) is not None]


def plugin_attributes(name: Attribute) -> list[Any]:
    """What all plugins add under ``name``."""
    return [one for plugin in plugins() for one in plugin.attribute(name)]


def _may_be_plugin(name: str) -> bool:
    return "gpuwise" in name and not name.startswith("gpuwise-")


def _entries(file: Path) -> list[Plugin]:
    """The entry points of our group in a distribution's file."""
    section, found = "", list[Plugin]()
    for line in map(str.strip, read_text(file).splitlines() if file.is_file() else ()):
        if line.startswith("["):
            section = line.strip("[] ")
        elif section == GROUP and "=" in line:
            name, _, package = line.partition("=")
            found.append(Plugin(name.strip(), package.strip()))
    return found
