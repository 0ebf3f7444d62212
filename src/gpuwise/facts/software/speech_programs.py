"""Programs that write speech down: how they cut a recording and batch its windows (``data/software/speech_programs.toml``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from gpuwise.facts.loading import Field
from gpuwise.facts.models.named import named
from gpuwise.facts.sources import cited_tables

FILE = "speech_programs.toml"


@dataclass(frozen=True, slots=True)
class SpeechProgram:
    """One program."""

    id: str
    name: str
    aliases: tuple[str, ...]
    runtime: str
    """A serving engine, or a key of ``coefficients/serving/speech.json``."""
    advance_s: float
    """Seconds of a long recording from one window to the next: shorter than a window where they overlap."""
    beams: int
    """Hypotheses of a window that are followed by default."""
    most: int
    """Windows in a batch; 0: as many as fit."""
    waits: bool
    """A batch ends with its longest transcript; others fill the place of a finished one."""
    searches: bool
    """The host looks for speech in a recording before it cuts it into batches."""
    vendors: tuple[str, ...]
    """Of the GPUs that it runs on; none: any."""
    source_key: str

    def runs_on(self, vendor: str) -> bool:
        """Whether it runs on GPUs of the vendor."""
        return not self.vendors or vendor in self.vendors


SPEECH_PROGRAM_SCHEMA: dict[str, Field] = {
    "name": Field("text"),
    "aliases": Field("names", required=False),
    "runtime": Field("text"),
    "advance_s": Field("number"),
    "beams": Field("integer", maximum=100),
    "most": Field("integer", minimum=0, maximum=1000),
    "waits": Field("flag", required=False),
    "searches": Field("flag", required=False),
    "vendors": Field("names", required=False),
    "source": Field("text"),
    "notes": Field("text", required=False),
}


@cache
def speech_programs() -> Mapping[str, SpeechProgram]:
    """Every program by its id. Raises DataError when the shipped file is broken."""
    return MappingProxyType(
        {
            key: SpeechProgram(
                id=key,
                name=r.text("name"),
                aliases=r.names("aliases"),
                runtime=r.text("runtime"),
                advance_s=r.number("advance_s"),
                beams=r.integer("beams"),
                most=r.integer("most"),
                waits=bool(r.maybe_flag("waits")),
                searches=bool(r.maybe_flag("searches")),
                vendors=r.names("vendors"),
                source_key=r.text("source"),
            )
            for key, r in cited_tables(FILE, SPEECH_PROGRAM_SCHEMA).items()
        }
    )


def find_speech_program(text: str) -> SpeechProgram:
    """The program a person means, by id, name or alias in any case. Raises UnknownNameError."""
    return named(speech_programs(), text, "program for speech")
