"""Identification of a feed's accelerators, without guessing.

``H100`` is four devices that differ by a third in price and speed. A name is taken apart into the product, its form (SXM,
PCIe, NVL) and its memory; the form may also be stated by the instance type (``gpu_8x_h100_sxm5``) and the memory by the feed's
memory column. If several devices remain, only the instance table (``instance_accelerators.csv``, from the providers' own
documents) decides; otherwise the offer is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from types import MappingProxyType

from gpuwise.errors import DataError
from gpuwise.facts.hardware.accelerators import Accelerator, accelerators
from gpuwise.facts.hardware.instances import Instance, instances
from gpuwise.facts.loading import Field, Record
from gpuwise.facts.sources import cited_rows
from gpuwise.units import GIB

MEMORY_TOLERANCE = 0.08
"""Drivers, error correction and rounding: an L40S of 48 GB reports 46,068 MiB (6.3 % less)."""
_WORD = re.compile(r"[a-z]+|[0-9]+[a-z]*")
_FORM = re.compile(r"(sxm|pcie|pci|nvl)[0-9]?(?![a-z0-9])|(?<=\d)(nvl)(?![a-z])")
_MEMORY = re.compile(r"(?<![a-z0-9.])([0-9]{1,3})\s*-?g(?:i?b)?(?![a-z0-9])")
_HBM = re.compile(r"hbm[0-9]e?(?![a-z0-9])")
_NOISE = frozenset({"nvidia", "amd", "intel", "geforce", "tesla", "instinct", "radeon", "nvlink", "gpu", "edition", "generation"})

_text = Field("text")
PROVIDER_SCHEMA: dict[str, Field] = {
    "feed": _text,
    "name": _text,
    "provider": _text,
    "kind": Field("text", choices=("list", "marketplace")),
    "spot_kind": Field("text", required=False, choices=("market", "policy")),
    "memory": Field("text", choices=("card", "total", "none")),
    "regions": Field("text", choices=("listed", "open")),
    "placeholder_usd": Field("number", required=False),
    "source": _text,
}
NAME_SCHEMA: dict[str, Field] = {"name": _text, "accelerators": Field("names"), "source": _text}


@dataclass(frozen=True, slots=True)
class FeedProvider:
    """How a feed's figures of one provider are meant."""

    provider: str
    kind: str
    spot_kind: str
    """Empty: no spot price is to be believed."""
    memory: str
    regions: str
    placeholder_usd: float | None


class UnclearName(Exception):
    """A feed's name that does not mean one device; ``str()`` is the reason for people."""


def provider_of(feed: str, name: str) -> FeedProvider:
    """Facts on a feed's provider; an unlisted one keeps its name and has no spot price."""
    table = _providers()
    feed_provider = table.get((feed, name.lower())) or table.get(("*", name.lower()))
    return feed_provider or FeedProvider(name.lower(), "list", "", "card", "listed", None)


def instance_rule(provider: str, instance: str) -> Instance | None:
    """The rule for an instance type of a provider, if there is one."""
    for rule in _rules().get(provider, ()):
        if fnmatchcase(instance, rule.name):
            return rule
    return None


def rules_of(provider: str) -> tuple[Instance, ...]:
    """Every rule of a provider."""
    return _rules().get(provider, ())


def resolve(name: str, *, memory_bytes: Iterable[float] = (), hints: Iterable[str] = ()) -> Accelerator:
    """The one device ``name`` means.

    ``memory_bytes`` are the readings the feed's memory column allows; ``hints`` are further texts that may
    state a form (the instance type). Raises UnclearName with the reason when none or several remain.
    """
    product, forms, memory_gb = _parts(name)
    candidates = _products().get(product, ())
    if not candidates:
        raise UnclearName("accelerator that is not in the catalogue")
    stated = forms.union(*(_forms(hint) for hint in hints))
    if len(stated) > 1:
        raise UnclearName("forms that contradict each other")
    if stated:
        candidates = [a for a in candidates if _has_form(a, next(iter(stated)))]
    hbm = {match[0] for text in (name, *hints) for match in _HBM.finditer(text.lower())}
    if hbm:
        candidates = [a for a in candidates if a.memory_type.lower() in hbm] or candidates
    if memory_gb is not None:
        candidates = [a for a in candidates if _has_memory(a, (memory_gb * GIB,))]
    readings = [m for m in memory_bytes if m > 0]
    if readings:
        candidates = [a for a in candidates if _has_memory(a, readings)]
    if not candidates:
        raise UnclearName("memory or form that no such accelerator has")
    if len(candidates) > 1:
        raise UnclearName("form or memory not stated")
    return candidates[0]


def may_be(name: str, accelerator_id: str) -> bool:
    """Whether ``name`` can mean the device; an unknown product can mean any."""
    candidates = _products().get(_parts(name)[0], ())
    return not candidates or any(a.id == accelerator_id for a in candidates)


def _parts(name: str) -> tuple[str, frozenset[str], float | None]:
    """Product, forms and memory in GB that a name states: ``A100-80GB-SXM`` is a100, SXM, 80."""
    text = name.lower().replace("_", " ")
    forms = _forms(text)
    memory = _MEMORY.search(text)
    for pattern in (_MEMORY, _HBM, _FORM):
        text = pattern.sub(" ", text)
    product = "".join(word for word in _WORD.findall(text) if word not in _NOISE)
    return product, forms, float(memory[1]) if memory else None


def _forms(text: str) -> frozenset[str]:
    forms = (match[1] or match[2] for match in _FORM.finditer(text.lower().replace("_", " ")))
    return frozenset("pcie" if form == "pci" else form for form in forms)


def _has_form(accelerator: Accelerator, form: str) -> bool:
    """Whether the form matches: NVL cards are PCIe cards too, but a feed names them NVL."""
    nvl = "-nvl" in accelerator.id
    if form == "nvl":
        return nvl
    return accelerator.form.lower() == form and not nvl


def _has_memory(accelerator: Accelerator, readings: Iterable[float]) -> bool:
    sizes = [accelerator.memory_bytes]
    if accelerator.memory_nominal_gb is not None:
        sizes.append(accelerator.memory_nominal_gb * GIB)
    return any(abs(m / size - 1) <= MEMORY_TOLERANCE for m in readings for size in sizes)


@cache
def _products() -> Mapping[str, list[Accelerator]]:
    """Devices by product: every way the catalogue or ``feed_gpu_names.csv`` writes one, without form and
    memory."""
    by_product: dict[str, list[Accelerator]] = {}
    for accelerator in accelerators().values():
        for spelling in (accelerator.id, accelerator.name, *accelerator.aliases):
            listed = by_product.setdefault(_parts(spelling)[0], [])
            if accelerator not in listed:
                listed.append(accelerator)
    for record in cited_rows("feed_gpu_names.csv", NAME_SCHEMA):
        for accelerator_id in record.names("accelerators"):
            listed = by_product.setdefault(_parts(record.text("name"))[0], [])
            if accelerators()[catalogue_id(record, accelerator_id)] not in listed:
                listed.append(accelerators()[accelerator_id])
    by_product.pop("", None)
    return MappingProxyType(by_product)


@cache
def _providers() -> Mapping[tuple[str, str], FeedProvider]:
    return MappingProxyType(
        {
            (r.text("feed"), r.text("name")): FeedProvider(
                r.text("provider"),
                r.text("kind"),
                r.text("spot_kind"),
                r.text("memory"),
                r.text("regions"),
                r.maybe("placeholder_usd"),
            )
            for r in cited_rows("feed_providers.csv", PROVIDER_SCHEMA)
        }
    )


@cache
def _rules() -> Mapping[str, tuple[Instance, ...]]:
    by_provider: dict[str, list[Instance]] = {}
    for rule in instances():
        by_provider.setdefault(rule.provider, []).append(rule)
    return MappingProxyType({provider: tuple(rules) for provider, rules in by_provider.items()})


def catalogue_id(record: Record, accelerator_id: str) -> str:
    """The id itself. Raises DataError when the catalogue has no such device."""
    if accelerator_id not in accelerators():
        raise DataError(f"{record.file}:{record.line}: {accelerator_id!r} is not an id of the catalogue")
    return accelerator_id
