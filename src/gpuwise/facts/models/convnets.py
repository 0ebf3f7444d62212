"""Residual CNNs: the dimensions that describe them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from gpuwise.facts.loading import Field
from gpuwise.facts.models.named import find_shipped
from gpuwise.facts.sources import cited_tables

FILE = "convnets.toml"
BLOCKS = ("basic", "bottleneck")


@dataclass(frozen=True, slots=True)
class ConvNet:
    """One network of ``data/models/convnets.toml``."""

    id: str
    name: str
    aliases: tuple[str, ...]
    block: str
    """One of :data:`BLOCKS`."""
    depths: tuple[int, ...]
    """Blocks of each stage."""
    groups: int
    group_width: int
    """Channels of a group of the 3 x 3 convolution in the first stage; 64 in one group is the plain network."""
    pixels: int
    """Side of the square images it reads."""
    n_classes: int
    published_parameters: int
    source_key: str


CONVNET_SCHEMA: dict[str, Field] = {
    "name": Field("text"),
    "aliases": Field("names", required=False),
    "block": Field("text", choices=BLOCKS),
    "depths": Field("names"),
    "groups": Field("integer", maximum=1024),
    "group_width": Field("integer", maximum=1024),
    "pixels": Field("integer", maximum=8192),
    "n_classes": Field("integer"),
    "published_parameters": Field("integer"),
    "source": Field("text"),
}


@cache
def convnets() -> Mapping[str, ConvNet]:
    """Every network by its id. Raises DataError when the shipped file is broken."""
    by_id: dict[str, ConvNet] = {}
    for key, r in cited_tables(FILE, CONVNET_SCHEMA).items():
        by_id[key] = ConvNet(
            id=key,
            name=r.text("name"),
            aliases=r.names("aliases"),
            block=r.text("block"),
            depths=tuple(int(d) for d in r.names("depths")),
            groups=r.integer("groups"),
            group_width=r.integer("group_width"),
            pixels=r.integer("pixels"),
            n_classes=r.integer("n_classes"),
            published_parameters=r.integer("published_parameters"),
            source_key=r.text("source"),
        )
    return MappingProxyType(by_id)


def known_convnet(text: str) -> ConvNet | None:
    """The network a person means, by id, name or alias in any case; None where it is none of these."""
    return find_shipped(FILE, convnets, text)
