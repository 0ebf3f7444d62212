"""Networks that make images and videos of noise: what one evaluation computes, how many one takes, what they hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from gpuwise.errors import InputError, UnknownNameError
from gpuwise.facts.loading import Field
from gpuwise.facts.models.named import find_shipped
from gpuwise.facts.sources import cited_tables

FILE = "denoisers.toml"
KINDS = ("unet", "transformer")


@dataclass(frozen=True, slots=True)
class Denoiser:
    """One network of ``data/denoisers.toml``."""

    id: str
    name: str
    aliases: tuple[str, ...]
    kind: str
    """One of :data:`KINDS`."""
    parameters: float
    flop: float
    """Of one evaluation for one image or video, a multiply and an add as two."""
    evaluations: int
    """For one image: steps, twice where guidance evaluates with and without the prompt."""
    pixels: int
    """Side of the square image, height of the video, that ``flop`` and ``other_bytes`` are for."""
    bits: tuple[int, ...]
    """Of the weights, as usual first; narrower ones change the image."""
    other_bytes: float
    """On the device beside the weights."""
    source_key: str
    width: int = 0
    """Pixels across a video, ``pixels`` being its height; 0: square images."""
    frames: int = 0
    """Of the video that ``flop`` and ``other_bytes`` are for; 0: it makes images."""
    network: str = ""
    """Its key in ``serve/passes/diffusion`` where its kernels were counted."""
    notes: str = ""

    @property
    def makes(self) -> str:
        """``images`` or ``videos``."""
        return "videos" if self.frames else "images"

    def device_bytes(self, bits: int) -> float:
        """Bytes on the device with weights of ``bits``."""
        return self.parameters * bits / 8 + self.other_bytes


DENOISER_SCHEMA: dict[str, Field] = {
    "name": Field("text"),
    "aliases": Field("names", required=False),
    "kind": Field("text", choices=KINDS),
    "parameters": Field("number"),
    "flop": Field("number"),
    "evaluations": Field("integer", maximum=1000),
    "pixels": Field("integer", maximum=8192),
    "width": Field("integer", maximum=8192, required=False),
    "frames": Field("integer", maximum=10000, required=False),
    "bits": Field("names"),
    "other_bytes": Field("number"),
    "source": Field("text"),
    "network": Field("text", required=False),
    "notes": Field("text", required=False),
}


@cache
def denoisers() -> Mapping[str, Denoiser]:
    """Every denoiser by its id. Raises DataError when the shipped file is broken."""
    by_id: dict[str, Denoiser] = {}
    for key, r in cited_tables(FILE, DENOISER_SCHEMA).items():
        by_id[key] = Denoiser(
            id=key,
            name=r.text("name"),
            aliases=r.names("aliases"),
            kind=r.text("kind"),
            parameters=r.number("parameters"),
            flop=r.number("flop"),
            evaluations=r.integer("evaluations"),
            pixels=r.integer("pixels"),
            bits=tuple(int(b) for b in r.names("bits")),
            other_bytes=r.number("other_bytes"),
            source_key=r.text("source"),
            width=r.maybe_integer("width") or 0,
            frames=r.maybe_integer("frames") or 0,
            network=r.text("network"),
            notes=r.text("notes"),
        )
    return MappingProxyType(by_id)


def known_denoiser(text: str) -> Denoiser | None:
    """The denoiser a person means, by id, name or alias in any case; None where it is none of these."""
    return find_shipped(FILE, denoisers, text)


def find_denoiser(text: str, makes: str = "images") -> Denoiser:
    """The denoiser of ``images`` or ``videos`` that a person means, by id, name or alias in any case. Raises UnknownNameError,
    and InputError for one that makes the other."""
    denoiser = known_denoiser(text)
    if denoiser is None:
        names = [key for key, one in denoisers().items() if one.makes == makes]
        raise UnknownNameError(f"{makes[:-1]} model", text, names, hint="it is one of " + ", ".join(names))
    if denoiser.makes != makes:
        one = denoiser.makes[:-1]
        raise InputError(
            f"{denoiser.name} makes {denoiser.makes}, not {makes}",
            hint=f"`gpuwise pick --for {one}` and `gpuwise capacity --workload {one}` take it",
        )
    return denoiser
