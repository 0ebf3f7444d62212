"""Does a changed run train the same? Losses of the first steps and every parameter's first gradient against the untouched script.

Both runs start from the same seed and are given the same recorded batches, and nothing is dropped out in either, so that all they
differ in is the lever. How far apart they may be is measured, not guessed: the untouched script is run once more with every
module's result moved by a random share of up to the format's unit of rounding (Monte Carlo arithmetic; Parker 1997), which is
what rounding alone does to this model and this data. A lever may move losses and gradients by ``FACTOR`` times that, and by
the untouched script's own spread where it is not deterministic.

Units of rounding u = 2^-p for p significant bits: fp32 2^-24, TF32 and fp16 2^-11, bf16 2^-8 (IEEE 754; half of the spacing at
1), fp8 2^-4 (e4m3 has 3 bits of mantissa: Open Compute Project, 8-bit Floating Point Specification, 2023). A lever that only
reorders sums rounds n partial sums instead of one result, which errs by about u sqrt(n) (Higham and Mary, SIAM J. Sci.
Comput. 2019): with sums of 2^12 terms, 2^-18.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpuwise.train.levers.table import BY_NAME

FACTOR = 5.0
"""Allowed factor on measured rounding: it occurs at a module's inputs, weights and inner operations as well as at its result,
where it was measured: four places, whose random errors add to twice as much; the rest covers extremes of one draw. Rule of
this project."""
SPREAD_FACTOR = 3.0
"""Times the difference between two runs of the untouched script."""
UNITS = {"fp32": 2.0**-24, "fp32 reordered": 2.0**-18, "tf32": 2.0**-11, "fp16": 2.0**-11, "bf16": 2.0**-8, "fp8": 2.0**-4}
STEPS = 5
NEGLIGIBLE = 1e-6
"""A parameter whose gradient is smaller than this share of the largest is compared with that share: its own value is rounding."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Losses in order, and the files of gradients by parameter, of one run."""

    losses: tuple[float, ...]
    norms: tuple[float, ...]
    """Norms of the gradients of all parameters, step by step."""
    gradients: tuple[str, ...]
    """Files, one for each optimizer."""


@dataclass(frozen=True, slots=True)
class Distance:
    """Relative differences of two curves."""

    losses: tuple[float, ...]
    norms: tuple[float, ...]
    gradients: Mapping[str, float]
    missing: tuple[str, ...] = ()
    """Parameters with a gradient in one run only."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a lever trains the same, and the evidence: the place nearest to its tolerance, or furthest over it."""

    passed: bool
    changes: str
    precision: str
    what: str
    """``loss of step 3``, ``gradient of blocks.0.out.weight``."""
    difference: float
    tolerance: float
    over: int = 0
    """Places beyond their tolerance."""
    places: int = 0
    why: str | None = None
    """In place of a comparison: the run failed, or its batches differ."""

    @property
    def words(self) -> str:
        """The verdict in one line."""
        if self.why is not None:
            return self.why
        draws = (
            "; it draws other random numbers: dropout, and shuffling from the next epoch on" if self.changes == "order" else ""
        )
        share = f"{self.what} is {self.difference:.2g} off; {self.precision} rounding alone allows {self.tolerance:.2g}{draws}"
        return share if self.passed else f"{share} ({self.over} of {self.places} places beyond)"

    def keep(self) -> dict[str, Any]:
        """The verdict as JSON."""
        return asdict(self)


def precision_of(levers: Mapping[str, object], own: str | None = None) -> str:
    """The coarsest format among the levers and the script's ``own`` autocast."""
    words = ["fp32 reordered"]
    if "tf32" in levers:
        words.append("tf32")
    if "fp8" in levers:
        words.append("fp8")
    if "autocast" in levers:
        words.append(str(levers["autocast"]))
    names = {"bfloat16": "bf16", "float16": "fp16"}
    if own is not None:
        words.append(names.get(own, own))
    return max(words, key=lambda name: UNITS.get(name, 0.0))


def changes_of(levers: Mapping[str, object]) -> str:
    """Effect of the levers on the training: the strongest one."""
    order = ("exact", "order", "precision", "maths")
    return max((BY_NAME[name].training for name in levers), key=order.index, default="exact")


def curve_of(journal: Any, steps: int = STEPS) -> Curve:
    """From a run's journal (a parity run's)."""
    losses = tuple(v for _, v in sorted(journal.losses.items()))
    norms = tuple(float(e["gradient_norm"]) for e in journal.of("norm"))
    per_step = max(len(losses) // max(len(norms), 1), 1)
    return Curve(
        losses[: steps * per_step],
        norms[:steps],
        tuple(str(e["file"]) for e in sorted(journal.of("gradients"), key=lambda e: int(e["optimizer"]))),
    )


def distance(a: Curve, b: Curve) -> Distance:
    """Distance of ``b`` from ``a``. Needs torch, in which the gradients are stored."""
    return Distance(_relative(a.losses, b.losses), _relative(a.norms, b.norms), *_gradient_distances(a.gradients, b.gradients))


def _relative(a: Sequence[float], b: Sequence[float]) -> tuple[float, ...]:
    """Infinite where one has more than the other, or one is no number."""
    level = max((abs(v) for v in a if v == v), default=1.0) or 1.0
    n = max(len(a), len(b))
    both = [(a[k], b[k]) if k < len(a) and k < len(b) else (0.0, float("nan")) for k in range(n)]
    return tuple(_off(x, y, level) for x, y in both)


def _off(x: float, y: float, level: float) -> float:
    if x != x and y != y:
        return 0.0
    value = abs(x - y) / level
    return value if value == value else float("inf")


def _gradient_distances(a: Sequence[str], b: Sequence[str]) -> tuple[dict[str, float], tuple[str, ...]]:
    import torch

    distances: dict[str, float] = {}
    missing: list[str] = []
    for at, (file_a, file_b) in enumerate(zip(a, b, strict=False)):
        one, other = (torch.load(f, map_location="cpu", weights_only=True)["gradients"] for f in (file_a, file_b))
        largest = max((float(g.norm()) for g in one.values()), default=0.0) or 1.0
        mark = "" if at == 0 else f"optimizer {at}: "
        missing += [mark + name for name in sorted(set(one) ^ set(other))]
        for name in sorted(set(one) & set(other)):
            if one[name].shape != other[name].shape:
                missing.append(mark + name)
                continue
            off = float((one[name].double() - other[name].double()).norm())
            value = off / max(float(one[name].double().norm()), NEGLIGIBLE * largest)
            distances[mark + name] = value if value == value else float("inf")
    missing += [f"all of optimizer {n}" for n in range(min(len(a), len(b)), max(len(a), len(b)))]
    return distances, tuple(missing)


def judge(candidate: Distance, rounding: Distance, spread: Distance, *, changes: str, precision: str) -> Verdict:
    """``candidate``, ``rounding`` and ``spread``: distances from the untouched script of the changed run, of the run with
    rounding noise, and of the untouched script repeated."""
    unit = UNITS[precision]
    if candidate.missing:
        return Verdict(
            False,
            changes,
            precision,
            f"gradient of {candidate.missing[0]}",
            float("inf"),
            0.0,
            len(candidate.missing),
            len(candidate.gradients) + len(candidate.missing),
            why=f"{len(candidate.missing)} gradients are there in one run only: {', '.join(candidate.missing[:3])}",
        )
    checks = _curve("loss of step {}", candidate.losses, rounding.losses, spread.losses, unit)
    checks += _curve("gradient norm of step {}", candidate.norms, rounding.norms, spread.norms, unit)
    middle = _middle(list(rounding.gradients.values()))
    for name, off in candidate.gradients.items():
        noise = max(rounding.gradients.get(name, 0.0), middle, unit)
        checks.append((f"gradient of {name}", off, FACTOR * noise + SPREAD_FACTOR * spread.gradients.get(name, 0.0)))
    if not checks:
        return Verdict(False, changes, precision, "", 0.0, 0.0, why="neither losses nor gradients were seen")
    over = [c for c in checks if not c[1] <= c[2]]
    worst = max(over or checks, key=lambda c: c[1] / c[2])
    return Verdict(not over, changes, precision, *worst, len(over), len(checks))


def _curve(
    words: str, off: Sequence[float], noise: Sequence[float], spread: Sequence[float], unit: float
) -> list[tuple[str, float, float]]:
    """One check for each value. What rounding did up to a step bounds what it may do at that step: a single draw may cross
    the untouched curve there by chance."""
    checks: list[tuple[str, float, float]] = []
    level = own = 0.0
    for k, value in enumerate(off):
        level = max(level, noise[k] if k < len(noise) else 0.0)
        own = max(own, spread[k] if k < len(spread) else 0.0)
        checks.append((words.format(k + 1), value, FACTOR * max(level, unit) + SPREAD_FACTOR * own))
    return checks


def _middle(values: list[float]) -> float:
    ordered = sorted(v for v in values if v != float("inf"))
    return ordered[len(ordered) // 2] if ordered else 0.0


def batches_differ(a: Path, b: Path, *, augmented: bool) -> str | None:
    """Why the recorded batches of two runs are not the same; None where they are.

    To the last bit; where ``augmented`` (workers draw other random numbers) whole numbers still have to be the same, and
    others of the same shape, with means within ``MEANS_APART`` of their standard deviation.
    """
    import torch

    from gpuwise.workload.capture.ops.nested import tensors_in

    for file in sorted(a.glob("*.pt")):
        other = b / file.name
        if not other.exists():
            return f"batch {int(file.stem)} is not there"
        one, two = (list(tensors_in(torch.load(f, map_location="cpu", weights_only=False))) for f in (file, other))
        if [(t.shape, t.dtype) for t in one] != [(t.shape, t.dtype) for t in two]:
            return f"batch {int(file.stem)} has other shapes or types"
        for x, y in zip(one, two, strict=True):
            if torch.equal(x, y):
                continue
            if not augmented or not x.is_floating_point():
                return f"batch {int(file.stem)} holds other values"
            apart = float((x.double().mean() - y.double().mean()).abs() / x.double().std().clamp(min=1e-12))
            if apart > MEANS_APART:
                return f"the values of batch {int(file.stem)} lie {apart:.2f} standard deviations elsewhere"
    return None


def notes_differ(a: Path, b: Path, *, augmented: bool) -> str | None:
    """Why the batches that two runs noted are not the same, or their random numbers; None where they are.

    To the last bit, with the states of the generators at every batch; where ``augmented`` as :func:`batches_differ`, and the
    generators may have drawn otherwise.
    """
    one, two = ([json.loads(line) for line in f.read_text().splitlines()] for f in (a, b))
    epoch, n = 1, 0
    for k, first in enumerate(one):
        where = f"batch {n} of epoch {epoch}"
        if k >= len(two):
            return None if k + 1 == len(one) else f"{where} is not there"
        second = two[k]
        if first.get("end") != second.get("end"):
            return f"epoch {epoch} has another number of batches"
        for x, y in zip(first.get("tensors", ()), second.get("tensors", ()), strict=True):
            if x[:2] != y[:2]:
                return f"{where} has other shapes or types"
            if x[2] != y[2] and (not augmented or len(x) == 3):
                return f"{where} holds other values"
            if x[2] != y[2] and abs(x[3] - y[3]) > MEANS_APART * max(x[4], 1e-12):
                return f"the values of {where} lie elsewhere"
        if not augmented and first["random"] != second["random"]:
            return f"other random numbers have been drawn by {where}: dropout and shuffling are others from there on"
        epoch, n = (epoch + 1, 0) if first.get("end") else (epoch, n + 1)
    return None


MEANS_APART = 0.25
"""Augmentation moves the mean of a whole batch by far less than its spread. Rule of this project."""
