"""Cases of ``gpuwise validate --local``: a model, a batch and a setting, read from ``cases.toml``."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from gpuwise.errors import DataError, InputError

PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "bf16-pure")
EXTRAS = ("channels_last", "fused", "foreach_off", "sgd", "checkpoint", "infer", "compile", "clip")


@dataclass(frozen=True, slots=True)
class LocalCase:
    """One run. ``input`` is an image shape without batch, or ``(length,)`` of a token sequence."""

    model: str
    builder: str
    dimensions: tuple[tuple[str, int], ...]
    input: tuple[int, ...]
    tokens: bool
    batch: int
    precision: str
    extras: tuple[str, ...]
    small: bool = True
    """Small enough to be run for real on a processor."""

    @property
    def key(self) -> str:
        """``resnet50 b64 bf16 channels_last``: the same on every machine and day."""
        return " ".join((self.model, f"b{self.batch}", self.precision, *self.extras))

    def as_dict(self) -> dict[str, Any]:
        """JSON values for a subprocess and the record."""
        return asdict(self)

    @staticmethod
    def from_dict(raw: dict[str, Any]) -> LocalCase:
        """The inverse of :meth:`as_dict` after a trip through JSON."""
        return LocalCase(
            raw["model"],
            raw["builder"],
            tuple((str(k), int(v)) for k, v in raw["dimensions"]),
            tuple(raw["input"]),
            raw["tokens"],
            raw["batch"],
            raw["precision"],
            tuple(raw["extras"]),
        )


@cache
def local_cases() -> tuple[LocalCase, ...]:
    """Every case, in the order of the file. Raises DataError for an unknown precision or extra."""
    raw = tomllib.loads(files("gpuwise.machine.bench.local").joinpath("cases.toml").read_text("utf-8"))
    cases: list[LocalCase] = []
    for model in raw["model"]:
        tokens = isinstance(model["input"], int)
        shape = (model["input"],) if tokens else tuple(model["input"])
        for batch, precision, *extras in model["runs"]:
            if precision not in PRECISIONS or not set(extras) <= set(EXTRAS):
                raise DataError(f"cases.toml: {model['name']}: {precision!r} or {extras} is not known")
            cases.append(
                LocalCase(
                    model["name"],
                    model["builder"],
                    tuple(model.get("dimensions", {}).items()),
                    shape,
                    tokens,
                    batch,
                    precision,
                    tuple(extras),
                    model.get("cpu", True),
                )
            )
    if len({c.key for c in cases}) != len(cases):
        raise DataError("cases.toml: two runs are the same")
    return tuple(cases)


def choose(names: str | None, cases: tuple[LocalCase, ...] | None = None) -> tuple[LocalCase, ...]:
    """Cases whose key contains one of ``names`` (commas between them); all without names. Raises InputError."""
    available = local_cases() if cases is None else cases
    if names is None:
        return available
    chosen_names = [n.strip() for n in names.split(",") if n.strip()]
    selection = tuple(c for c in available if any(w in c.key for w in chosen_names))
    if not selection:
        raise InputError(
            f"no local case has {names!r} in its name", hint="one of " + ", ".join(sorted({c.model for c in available}))
        )
    return selection


CPU_BATCH = 2
CPU_PIXELS = 64
TOKENS = 32_000
"""Size of the vocabulary of the networks that need torch alone."""
CPU_TOKENS = 32


def for_cpu(cases: tuple[LocalCase, ...]) -> tuple[LocalCase, ...]:
    """One small fp32 run of each model that a processor can hold: same code, fewer samples, pixels and tokens.

    Raises InputError when none of ``cases`` is small enough.
    """
    selection: dict[str, LocalCase] = {}
    for case in cases:
        if not case.small or case.model in selection:
            continue
        fixed = case.model in ("vit_b_16", "inception_v3") or case.builder.startswith("timm:")  # bound to their image size
        pixels = case.input[-1] if fixed else min(CPU_PIXELS, case.input[-1])
        shape = (min(CPU_TOKENS, case.input[0]),) if case.tokens else (case.input[0], pixels, pixels)
        extras = tuple(e for e in case.extras if e in ("sgd", "clip", "checkpoint"))
        selection[case.model] = replace(case, batch=CPU_BATCH, precision="fp32", extras=extras, input=shape)
    if not selection:
        raise InputError(
            "all of these cases are too large for a CPU",
            hint="on this machine choose among " + ", ".join(sorted({c.model for c in local_cases() if c.small})),
        )
    return tuple(selection.values())
