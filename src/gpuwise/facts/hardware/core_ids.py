"""Cores by the numbers that Linux reports, for cloud machines that hide the model of their processor (``AMD EPYC``, ``AMD EPYC
7R13``, ``Intel(R) Xeon(R) CPU @ 2.20GHz``, an Arm machine without a name)."""

from __future__ import annotations

from dataclasses import replace

from gpuwise.facts.hardware.cpus import Cpu, cpus
from gpuwise.facts.loading import Field, Record, ShippedData, parse_csv, shipped_text
from gpuwise.facts.sources import check_source

FILE = "core_ids.csv"
CORE_ID_SCHEMA: dict[str, Field] = {
    "vendor": Field("text"),
    "family": Field("integer", minimum=1, maximum=255),
    **dict.fromkeys(("model_low", "model_high"), Field("integer", minimum=0, maximum=4095)),
    **dict.fromkeys(("stepping_low", "stepping_high"), Field("integer", required=False, minimum=0, maximum=15)),
    "core": Field("text"),
    "taken_as": Field("text"),
    "source": Field("text"),
}


def processor_of_core(name: str, vendor: str, family: int, model: int, stepping: int | None) -> Cpu | None:
    """A processor of the catalogue with the same cores, which ``assumption`` states; None for cores that are in no server.

    ``name`` is what the system prints. On Arm ``vendor`` is the implementer (``0x41``), ``family`` the architecture and ``model``
    the part. Raises DataError when the shipped file is corrupt.
    """
    for record in core_ids():
        if (record.text("vendor"), record.integer("family")) != (vendor, family):
            continue
        low, high = record.maybe_integer("stepping_low"), record.maybe_integer("stepping_high")
        known = low is None or high is None or (stepping is not None and low <= stepping <= high)
        if known and record.integer("model_low") <= model <= record.integer("model_high"):
            cpu = cpus()[record.text("taken_as")]
            assumption = f"the processor calls itself {name!r}; its cores are {record.text('core')}, taken as {cpu.name}'s"
            return replace(cpu, name=f"{name} ({record.text('core')})", assumption=assumption)
    return None


def core_ids() -> list[Record]:
    """The rows of the file. Raises DataError when it is corrupt."""
    with ShippedData():
        records = list(parse_csv(shipped_text(FILE), CORE_ID_SCHEMA, FILE))
        for record in records:
            check_source(record)
            if record.text("taken_as") not in cpus():
                raise record.error(f"{record.text('taken_as')} is not in cpus.csv", field="taken_as")
        return records
