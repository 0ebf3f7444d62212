"""The formats of the fact files behind prices: purchases, history, and what price feeds call things."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuwise.facts.hardware.instances import INSTANCE_SCHEMA
from gpuwise.facts.loading import Field
from gpuwise.facts.offers.feeds.names import NAME_SCHEMA, PROVIDER_SCHEMA
from gpuwise.facts.offers.feeds.tpu import SLICE_SCHEMA
from gpuwise.facts.offers.price_history import PRICE_HISTORY_SCHEMA
from gpuwise.facts.offers.purchases import PURCHASE_SCHEMA


def price_formats() -> Iterable[tuple[str, str, Mapping[str, Field]]]:
    """Title, meaning and schema of each file."""
    yield (
        "purchases.csv",
        "One line is what an accelerator, or a machine with some, was sold or asked for on a day, in US dollars. Sealed: after "
        "an edit run `python -m gpuwise.facts.offers.seal`.",
        PURCHASE_SCHEMA,
    )
    yield (
        "price_history.csv",
        "One line is the rental price of an accelerator in one month of one series (`median`: over providers), in US dollars an "
        "hour. Sealed: after an edit run `python -m gpuwise.facts.offers.seal`.",
        PRICE_HISTORY_SCHEMA,
    )
    yield (
        "feed_providers.csv",
        "One line is how a price feed names a provider, and what its figures mean.",
        PROVIDER_SCHEMA,
    )
    yield (
        "feed_gpu_names.csv",
        "One line is a name in price feeds that the catalogue spells otherwise; with several ids the name alone leaves it open.",
        NAME_SCHEMA,
    )
    yield (
        "instance_accelerators.csv",
        "One line is which accelerator stands in an instance type, where the feed's own name leaves the form open.",
        INSTANCE_SCHEMA,
    )
    yield (
        "tpu_slices.csv",
        "One line is what one chip counts for in the name of a TPU slice.",
        SLICE_SCHEMA,
    )
