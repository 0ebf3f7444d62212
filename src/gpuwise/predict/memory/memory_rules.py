"""How a software stack holds memory: facts read from its source, in ``memory_rules.toml`` beside this
file."""

from __future__ import annotations

import tomllib
from dataclasses import MISSING, dataclass, fields
from functools import cache
from pathlib import Path

from gpuwise.errors import DataError, UnknownNameError


@dataclass(frozen=True, slots=True)
class MemoryRules:
    """One stack's rules; the file says what each field's words mean."""

    source: str
    weight_gradient: str
    gradients: str
    half_gradients: str
    bucket_copy: bool
    update_fp32: float
    loss_half: float
    loss_fp32: float
    master_is_weight: bool
    eager_modules: bool
    live_elements: float = 0.0
    """Parameters that stay gathered under full sharding, where more than two layers are; 0: two layers."""
    bucket_elements: float = 0.0
    """Elements of each buffer that gradients wait in to be reduced; it is made whole, however small the model."""
    buckets_replicas: bool = False
    """ZeRO-1 and 2 have such buffers too, two where the reduction overlaps, and run on one rank where its optimizer is on the
    host or its gradients are wider than its weights."""
    offloads_gradients: bool = False
    """Sharded gradients are on the host with the optimizer's states."""
    chunked_half: float = 0.0
    """``loss_half`` of a loss in chunks."""
    keeps_gathered: bool = False
    """Gathered weights stay from the forward to the backward of what is not recomputed: torch's own linear saves them."""
    loads_whole: bool = False
    """The whole model lies on the device before it is sharded: what was reserved for it stays so."""

    def __post_init__(self) -> None:
        for field, words in _WORDS.items():
            if getattr(self, field) not in words:
                raise DataError(f"memory_rules.toml: {field} must be one of {', '.join(words)}")


_WORDS = {
    "weight_gradient": ("cached", "transient", "kept"),
    "gradients": ("buffer", "backward"),
    "half_gradients": ("no", "end", "always"),
}


@cache
def memory_rules() -> dict[str, MemoryRules]:
    """Rules of every stack by name. Raises DataError when the table is malformed."""
    document = tomllib.loads(Path(__file__).with_name("memory_rules.toml").read_text(encoding="utf-8"))
    names = {f.name for f in fields(MemoryRules)}
    required = {f.name for f in fields(MemoryRules) if f.default is MISSING}
    for name, section in document.items():
        like = section.pop("like", None)
        if like is not None:
            section |= {k: v for k, v in document[like].items() if k not in section}
        if not required <= set(section) <= names:
            wrong = ", ".join(sorted((required - set(section)) | (set(section) - names)))
            raise DataError(f"memory_rules.toml: [{name}]: missing or unknown {wrong}")
    return {name: MemoryRules(**section) for name, section in document.items()}


def find_memory_rules(stack: str) -> MemoryRules:
    """The rules of ``stack``. Raises UnknownNameError with the nearest names."""
    try:
        return memory_rules()[stack]
    except KeyError:
        raise UnknownNameError("stack", stack, memory_rules()) from None
