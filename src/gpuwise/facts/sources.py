"""Where facts come from: ``data/sources.csv``, and the check that the rows of the other files cite it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from gpuwise.errors import DataError
from gpuwise.facts.loading import Field, Record, Schema, ShippedData, own_rows, parse_csv, parse_toml, shipped_text

DOUBTFUL_KINDS = ("third-party", "estimate")
"""Kinds of sources whose figures are weak: neither the vendor, nor a reading, nor arithmetic on those."""
SOURCE_SCHEMA: dict[str, Field] = {
    "key": Field("text"),
    "title": Field("text"),
    "url": Field("text", required=False),
    "kind": Field("text", choices=("vendor", "measured", "rule", *DOUBTFUL_KINDS)),
}


@dataclass(frozen=True, slots=True)
class Source:
    """Source of facts. ``kind``: vendor, measured (read off the device), rule (arithmetic on vendor figures), third-party,
    estimate."""

    key: str
    kind: str
    title: str
    url: str

    @property
    def doubtful(self) -> bool:
        """Whether a fact from it alone is weak: its kind is one of :data:`DOUBTFUL_KINDS`."""
        return self.kind in DOUBTFUL_KINDS


@cache
def sources() -> Mapping[str, Source]:
    """The sources the fact files cite, by key, and a person's own. Raises DataError, FieldError for a row of their own."""
    with ShippedData():
        rows = parse_csv(shipped_text("sources.csv"), SOURCE_SCHEMA, "sources.csv")
    rows += own_rows("sources.csv", SOURCE_SCHEMA)
    return MappingProxyType({r.text("key"): Source(r.text("key"), r.text("kind"), r.text("title"), r.text("url")) for r in rows})


def check_source(record: Record, keys: Iterable[str] | None = None, *, field: str = "source") -> None:
    """Reject a row that cites a source missing from ``sources.csv``: any of ``keys``, or the text of ``field`` if they are None.

    Raises FieldError that points at ``field``.
    """
    for key in (record.text(field),) if keys is None else keys:
        if key not in sources():
            raise record.error(f"source {key!r} is not in sources.csv", field=field, hint="add a line to sources.csv")


def cited_rows(file: str, schema: Schema) -> list[Record]:
    """The rows of a shipped CSV file, in order. Raises DataError for a broken file or a source that ``sources.csv`` lacks."""
    with ShippedData():
        records = parse_csv(shipped_text(file), schema, file)
        _check_each(records, schema)
    return records


def cited_tables(file: str, schema: Schema) -> dict[str, Record]:
    """The tables of a shipped TOML file by name. Raises DataError as :func:`cited_rows` does."""
    with ShippedData():
        records = parse_toml(shipped_text(file), schema, file)
        _check_each(records.values(), schema)
    return records


def _check_each(records: Iterable[Record], schema: Schema) -> None:
    several = schema["source"].kind == "names"
    for record in records:
        check_source(record, record.names("source") if several else None)


def check_shipped_sources(file: str, keys: Iterable[str]) -> None:
    """:func:`check_source` for a shipped file whose format a person's file shares, which may cite anything: ``keys`` are those
    of its parsed rows. Raises DataError that names what is missing."""
    missing = set(keys) - sources().keys()
    if missing:
        raise DataError(f"{file} cites {', '.join(sorted(missing))}, not in sources.csv")


RATES = ("_tflops", "_tops")
"""How columns of arithmetic rates end."""


def cell_sources(record: Record, columns: Container[str]) -> dict[str, str]:
    """Source key by column of the cells that do not have the row's: ``"l2_mib,base_mhz=techpowerup;tdp_w=nvidia-smi"``. ``rates``
    are the arithmetic rates that the row has and no other part names.

    Raises FieldError on a column that is not of ``columns`` and on a key that ``sources.csv`` lacks.
    """
    cells: dict[str, str] = {}
    parts = [part for part in record.text("cell_sources").split(";") if part]
    others = {column for part in parts for column in part.partition("=")[0].split(",")}
    for part in parts:
        names, equals, key = part.partition("=")
        rates = [c for c in record.values if c.endswith(RATES) and c not in others]
        for column in rates if names == "rates" else names.split(","):
            if not equals or column not in columns:
                raise record.error(f"cell_sources holds {part!r}", field="cell_sources", hint="write column,column=source-key")
            cells[column] = key
    check_source(record, cells.values())
    return cells
