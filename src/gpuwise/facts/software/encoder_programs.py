"""Programs that embed and rank texts: how they compute and batch them (``data/software/encoder_programs.toml``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from gpuwise.facts.loading import Field
from gpuwise.facts.models.named import named
from gpuwise.facts.sources import cited_tables

FILE = "encoder_programs.toml"


@dataclass(frozen=True, slots=True)
class EncoderProgram:
    """One program."""

    id: str
    name: str
    aliases: tuple[str, ...]
    eager: bool
    """PyTorch launches each kernel by itself, attention included; others have fused kernels."""
    full_precision: bool
    """It multiplies in 32 bits by default."""
    most: int
    """Passages in a batch; 0: as many as fit."""
    source_key: str


ENCODER_PROGRAM_SCHEMA: dict[str, Field] = {
    "name": Field("text"),
    "aliases": Field("names", required=False),
    "eager": Field("flag", required=False),
    "precision": Field("text", choices=("half", "fp32")),
    "most": Field("integer", minimum=0, maximum=100_000),
    "source": Field("text"),
    "notes": Field("text", required=False),
}


@cache
def encoder_programs() -> Mapping[str, EncoderProgram]:
    """Every program by its id. Raises DataError when the shipped file is broken."""
    return MappingProxyType(
        {
            key: EncoderProgram(
                id=key,
                name=r.text("name"),
                aliases=r.names("aliases"),
                eager=bool(r.maybe_flag("eager")),
                full_precision=r.text("precision") == "fp32",
                most=r.integer("most"),
                source_key=r.text("source"),
            )
            for key, r in cited_tables(FILE, ENCODER_PROGRAM_SCHEMA).items()
        }
    )


def find_encoder_program(text: str) -> EncoderProgram:
    """The program a person means, by id, name or alias in any case. Raises UnknownNameError."""
    return named(encoder_programs(), text, "program for embeddings")
