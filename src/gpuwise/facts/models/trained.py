"""Networks that are trained by name from a shipped table of operations: what a step of each is made for by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from gpuwise.facts.loading import Field
from gpuwise.facts.models.denoisers import known_denoiser
from gpuwise.facts.models.named import find_shipped
from gpuwise.facts.sources import cited_tables

FILE = "trained.toml"
KINDS = ("image", "video", "vision", "detection", "speech", "vision-language")
METHODS = ("lora", "full")


@dataclass(frozen=True, slots=True)
class Trained:
    """One network of ``data/models/trained.toml``."""

    id: str
    name: str
    aliases: tuple[str, ...]
    kind: str
    """One of :data:`KINDS`."""
    method: str
    """What is usual: ``lora`` or ``full``."""
    batch: int
    """Samples a step on a GPU."""
    size: int
    """Side of the square image in pixels, or tokens, or seconds of sound."""
    smallest: int
    largest: int
    multiple: int
    """Sizes are multiples of this."""
    samples: int
    """Samples of a usual training."""
    samples_are: str
    source_key: str
    methods: tuple[str, ...] = METHODS
    per_size: int = 1
    """Units of the table in one of the size: hundredths in a second."""
    frames: int = 0
    """Of a video; 0: it has none."""
    frames_a_latent: int = 4
    text_encoders: tuple[str, ...] = ()
    autoencoder: str = ""

    @property
    def unit(self) -> str:
        """Word for the size."""
        return {"speech": "seconds", "vision-language": "tokens"}.get(self.kind, "pixels")

    @property
    def option(self) -> str:
        """The option that sets the size."""
        return {"speech": "--seconds", "vision-language": "--seq"}.get(self.kind, "--resolution")


TRAINED_SCHEMA: dict[str, Field] = {
    "name": Field("text"),
    "aliases": Field("names", required=False),
    "kind": Field("text", choices=KINDS),
    "method": Field("text", choices=METHODS),
    "methods": Field("names", required=False),
    "batch": Field("integer", maximum=4096),
    "size": Field("integer", maximum=65536),
    "smallest": Field("integer", maximum=65536),
    "largest": Field("integer", maximum=65536),
    "multiple": Field("integer", maximum=1024),
    "per_size": Field("integer", maximum=1000, required=False),
    "samples": Field("integer"),
    "samples_are": Field("text"),
    "frames": Field("integer", maximum=10000, required=False),
    "text_encoders": Field("names", required=False),
    "autoencoder": Field("text", required=False),
    "source": Field("text"),
}


@cache
def trained() -> Mapping[str, Trained]:
    """Every network by its id. Raises DataError when the shipped file is broken."""
    by_id: dict[str, Trained] = {}
    for key, r in cited_tables(FILE, TRAINED_SCHEMA).items():
        by_id[key] = Trained(
            id=key,
            name=r.text("name"),
            aliases=r.names("aliases"),
            kind=r.text("kind"),
            method=r.text("method"),
            batch=r.integer("batch"),
            size=r.integer("size"),
            smallest=r.integer("smallest"),
            largest=r.integer("largest"),
            multiple=r.integer("multiple"),
            samples=r.integer("samples"),
            samples_are=r.text("samples_are"),
            source_key=r.text("source"),
            methods=r.names("methods") or METHODS,
            per_size=r.maybe_integer("per_size") or 1,
            frames=r.maybe_integer("frames") or 0,
            text_encoders=r.names("text_encoders"),
            autoencoder=r.text("autoencoder"),
        )
    return MappingProxyType(by_id)


def known_trained(text: str) -> Trained | None:
    """The network a person means, by id, name or alias in any case, also as it is named where it makes images; None where it is
    none of these."""
    found = find_shipped(FILE, trained, text)
    if found is None and (drawn := known_denoiser(text)) is not None:
        return trained().get(drawn.id)
    return found
