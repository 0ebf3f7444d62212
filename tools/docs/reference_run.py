"""What the reference says of the fact files behind energy, carbon and the cost of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuwise.facts.grid import ELECTRICITY_SCHEMA, GRID_SCHEMA
from gpuwise.facts.loading import Field
from gpuwise.facts.offers.storage import STORAGE_SCHEMA
from gpuwise.facts.operations import (
    EMBODIED_SCHEMA,
    FAILURE_SCHEMA,
    POWER_SHARE_SCHEMA,
    QUANTITY_SCHEMA,
    SITE_SCHEMA,
)


def run_formats() -> Iterable[tuple[str, str, Mapping[str, Field]]]:
    """Title, words and schema of each file."""
    yield (
        "grid.csv",
        "One line is a country, a state of the USA or a cloud region, with what its electricity emits as it is "
        "generated. A region without a figure has that of its state, else of its country.",
        GRID_SCHEMA,
    )
    yield (
        "electricity.csv",
        "One line is the price of a kilowatt-hour for businesses or households, in the source's currency with the "
        "rate it is converted at.",
        ELECTRICITY_SCHEMA,
    )
    yield (
        "operations.toml",
        "One table is a figure of how runs are operated: `low` and `high` bound its central 80 %.",
        QUANTITY_SCHEMA,
    )
    yield (
        "power_shares.csv",
        "One line is the mean power of an accelerator over its design power at a workload; without a family it "
        "holds for those that have no line.",
        POWER_SHARE_SCHEMA,
    )
    yield "sites.csv", "One line is a kind of place with its power usage effectiveness.", SITE_SCHEMA
    yield "storage.csv", "One line is a provider's price of storing and taking away 1e9 bytes.", STORAGE_SCHEMA
    yield "failures.csv", "One line is how often a large training, or a cluster, was interrupted.", FAILURE_SCHEMA
    yield "embodied.csv", "One line is the carbon of making one accelerator, by family or form.", EMBODIED_SCHEMA
