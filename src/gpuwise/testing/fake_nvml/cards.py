"""Readings of healthy cards, from ``cards.toml`` and the catalogue of accelerators."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from gpuwise.errors import DataError, FieldError, InputError, UnknownNameError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.facts.loading import Field, Record, parse_toml
from gpuwise.testing.fake_nvml.build import number_names, text_names
from gpuwise.testing.fake_nvml.waves import Wave

_FILE = Path(__file__).parent / "cards.toml"
_GROUPS = ("common", "server", "geforce")
_ALIASES = {"t4": "t4", "v100": "v100-sxm", "a100": "a100-sxm", "h100": "h100-sxm", "h200": "h200-sxm", "b200": "b200-sxm"}
_NAMESPACE = uuid.UUID("6b6f6c1e-6a35-5d8c-9a0c-67707577a5e0")
"""Uuids of fake cards are made from their place, so that they are the same in every run."""
_LANES_PER_CLOCK = 2
"""FLOP of one lane and clock: a fused multiply-add."""

Reading = float | int | bool | str | Wave | None


@dataclass(frozen=True, slots=True)
class Card:
    """A card by the name of its profile (``H100-SXM``, ``RTX 4090``), with changed readings.

    ``readings`` are by the names of ``gpuwise.testing.fake_nvml.READINGS``; None: the card does not support it.
    """

    profile: str
    readings: Mapping[str, Reading] = field(default_factory=dict[str, Reading])


def profile_names() -> tuple[str, ...]:
    """The profiles there are: ``t4``, ``v100-sxm``, ..., ``gb10``."""
    return tuple(name for name in _tables() if name not in _GROUPS)


def profile_sources(name: str) -> tuple[str, ...]:
    """Keys of ``sources.csv`` that a profile's figures come from."""
    return tuple(dict.fromkeys(key for table in _line(profile_key(name)) for key in table.names("source")))


def profile_key(name: str) -> str:
    """The profile of a name: ``H100 SXM`` -> ``h100-sxm``. Raises UnknownNameError."""
    key = "-".join(name.lower().replace("_", " ").replace("-", " ").split())
    key = _ALIASES.get(key, key)
    if key not in profile_names():
        raise UnknownNameError("profile", name, profile_names(), hint="known: " + ", ".join(profile_names()))
    return key


def card_readings(card: Card, index: int) -> dict[str, float | str | Wave]:
    """Initial readings of a card; unsupported ones are absent. Raises UnknownNameError, InputError."""
    key = profile_key(card.profile)
    line = _line(key)
    accelerator = find_accelerator(line[-1].text("accelerator"))
    said: dict[str, float | str | Wave] = {**_place(index), **_specified(accelerator)}
    lacks: set[str] = set()
    for table in line:
        said.update({name: _plain(value) for name, value in table.values.items() if name in known_readings()})
        lacks.update(table.names("lacks"))
    for name in lacks:
        said.pop(name, None)
    said["uuid"] = f"GPU-{uuid.uuid5(_NAMESPACE, f'{key}/{index}')}"
    if "serial" in said:
        said["serial"] = str(int(str(said["serial"])) + index).zfill(13)
    if "n_nvlinks" in said:
        for name in ("nvlink_sent_bytes", "nvlink_received_bytes", "nvlink_crc_errors", "nvlink_replays", "nvlink_recoveries"):
            said[name] = 0.0
        said["nvlinks_active"] = said["n_nvlinks"]
        if "nvlink_bytes_per_s" in said:
            said["nvlink_bytes_per_s"] = float(said["nvlink_bytes_per_s"]) / float(said["n_nvlinks"])  # type: ignore[arg-type]
    for name, value in card.readings.items():
        change_reading(said, name, value)
    return said


def change_reading(said: dict[str, float | str | Wave], name: str, value: Reading) -> None:
    """Set one reading, or take it away (None). Raises UnknownNameError, InputError."""
    if name not in known_readings():
        raise UnknownNameError("reading", name, known_readings())
    if value is None:
        said.pop(name, None)
    elif isinstance(value, str) != (name in text_names()):
        raise InputError(f"{name} is {value!r}, not {'text' if name in text_names() else 'a number or a wave'}")
    elif isinstance(value, str | Wave):
        said[name] = value
    elif not math.isfinite(float(value)):
        raise InputError(f"{name} is {value!r}, not a finite number")
    else:
        said[name] = float(value)


@cache
def known_readings() -> frozenset[str]:
    """Names of the readings that can be set."""
    return frozenset((*number_names(), *text_names()))


def _place(index: int) -> dict[str, float | str | Wave]:
    """Values that follow from the slot: a bus number with gaps, and two NUMA nodes of four cards each."""
    return {
        "minor": float(index),
        "pci_domain": 0.0,
        "pci_bus": float(0x01 + 0x10 * (index % 15) + index // 15),
        "pci_device": 0.0,
        "board_id": float(0x100 * (1 + index)),
        "module_id": float(1 + index),
        "numa_node": float(index // 4),
    }


def _specified(accelerator: Accelerator) -> dict[str, float | str | Wave]:
    """The catalogue's values of the card, under the library's names."""
    said: dict[str, float | str | Wave] = {"memory_total_bytes": float(accelerator.memory_bytes)}
    if accelerator.tdp_w is not None:
        said["power_limit_w"] = said["power_limit_default_w"] = float(accelerator.tdp_w)
    if accelerator.compute_capability is not None:
        major, minor = accelerator.compute_capability.split(".")
        said["compute_capability_major"], said["compute_capability_minor"] = float(major), float(minor)
    if accelerator.memory_bus_bits is not None:
        said["memory_bus_bits"] = float(accelerator.memory_bus_bits)
    if accelerator.compute_units is not None and accelerator.fp32_flop_per_clock_per_unit is not None:
        said["n_cores"] = float(round(accelerator.compute_units * accelerator.fp32_flop_per_clock_per_unit / _LANES_PER_CLOCK))
    if accelerator.link_bytes_per_s is not None and (accelerator.link_kind or "").startswith("nvlink"):
        said["nvlink_bytes_per_s"] = float(accelerator.link_bytes_per_s)
    return said


def _plain(value: object) -> float | str:
    return value if isinstance(value, str) else float(value)  # type: ignore[arg-type]


def _line(key: str) -> tuple[Record, ...]:
    """A table and those it is like, the most general first."""
    tables = _tables()
    line = [tables[key]]
    while line[0].text("like"):
        if line[0].text("like") not in tables or len(line) > len(tables):
            raise DataError(f"cards.toml: {key} is like nothing that is there", hint="reinstall gpuwise")
        line.insert(0, tables[line[0].text("like")])
    return tuple(line)


@cache
def _tables() -> dict[str, Record]:
    number = Field("number", required=False, minimum=0)
    schema = dict.fromkeys(number_names(), number) | {name: Field("text", required=False) for name in text_names()}
    schema |= {
        "like": Field("text", required=False),
        "accelerator": Field("text", required=False),
        "source": Field("names"),
        "lacks": Field("names", required=False, choices=tuple(sorted(known_readings()))),
    }
    try:
        return parse_toml(_FILE.read_text(encoding="utf-8"), schema, "cards.toml")
    except (OSError, FieldError) as error:
        raise DataError(f"the profiles of cards cannot be read: {error}", hint="reinstall gpuwise") from error
