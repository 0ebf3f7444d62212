"""How a software stack holds memory: facts read from its source, in ``memory_rules.toml`` beside this
file."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
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
    known = {f.name for f in fields(MemoryRules)}
    for name, section in document.items():
        like = section.pop("like", None)
        if like is not None:
            section |= {k: v for k, v in document[like].items() if k not in section}
        if known != set(section):
            wrong = ", ".join(sorted(known ^ set(section)))
            raise DataError(f"memory_rules.toml: [{name}]: missing or unknown {wrong}")
    return {name: MemoryRules(**section) for name, section in document.items()}


def find_memory_rules(stack: str) -> MemoryRules:
    """The rules of ``stack``. Raises UnknownNameError with the nearest names."""
    try:
        return memory_rules()[stack]
    except KeyError:
        raise UnknownNameError("stack", stack, memory_rules()) from None
