"""Candidates of the tuner: which levers are tried, and the upper bound of what each can gain.

A lever that only touches a share s of the step, and takes it away whole, makes the step 1 / (1 - s) times as fast (Amdahl).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpuwise.train.levers.fp8 import why_not_fp8
from gpuwise.train.levers.table import BY_NAME, LEVERS
from gpuwise.train.levers.workers import Probe, workers_to_try
from gpuwise.train.tune.facts import Facts
from gpuwise.train.tune.stats import LEAST_GAIN
from gpuwise.workload.changes.registry import ChangeKind

TF32_FROM = (8, 0)
"""NVIDIA's Ampere, compute capability 8.0, is the first with TF32 (NVIDIA, A100 Tensor Core GPU Architecture)."""
BF16_FROM = (8, 0)
ASKED_FOR = ("cache_decode", "cache_items")
"""Levers that act from the second epoch on: tried only where ``--only`` names them."""
FP16_FROM = (7, 0)
"""Volta: the first with tensor cores for fp16 (NVIDIA, Tesla V100 GPU Architecture)."""
TOGETHER: Mapping[str, object] = {"channels_last": True}
"""Convolutions in 16 bits that lose by converting the layout of every image gain without it, so both are tried at once too."""
EMPTIED = {"length_groups": ("trim_padding",), "cache_items": ("cache_decode",)}
"""Levers that change nothing once the first is on."""
MODEL = ("forward", "backward")
PART = 1 / 3
"""Share of the model's part of the step that its own levers may save: they make it faster but never remove it. Used for
ordering only; 1.65x under bf16 is the highest record of this project on a processor. Rule of this project."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One value of one lever. ``hopeless`` is the reason for not trying it; ``ceiling`` is its maximum gain, if known."""

    lever: ChangeKind
    value: object
    ceiling: float | None = None
    hopeless: str | None = None
    share: float = 0.0
    """Share of the step that it may save."""
    beside: Mapping[str, object] = field(default_factory=dict[str, object])
    """Levers put on with it, as it pays only together with them."""

    @property
    def label(self) -> str:
        """``workers=2``; the bare name where the value is only on."""
        label = self.lever.name if self.value is True else f"{self.lever.name}={self.value}"
        return label + "".join(f" with {name}" for name in self.beside)


def candidates_of(facts: Facts, only: Sequence[str] = ()) -> list[Candidate]:
    """Every value of every lever (of ``only``, where given): by the share of the step that it may take away, then as in the
    table."""
    found: list[Candidate] = []
    for lever in LEVERS:
        if only and lever.name not in only:
            continue
        chosen_by = _VALUES.get(lever.name)
        values = lever.put_on.values if chosen_by is None else chosen_by(facts)
        for value in values:
            touched = _touched(lever, facts)
            ceiling = None if touched is None else 1.0 / max(1.0 - min(touched, 1.0), 1e-6)
            why = hopeless(lever, value, facts)
            if why is None and ceiling is not None and ceiling < LEAST_GAIN:
                why = f"it can give at most {(ceiling - 1) * 100:.1f} %: {_share_words(lever, facts)}"
            if why is None and lever.name in ASKED_FOR and lever.name not in only:
                why = f"it acts from the second epoch on, and could freeze augmentation: `--only {lever.name}` tries it"
            share = PART * _model(facts) if touched is None else touched
            found.append(Candidate(lever, value, ceiling, why, share))
    if facts.convolutions and (not only or set(TOGETHER) <= set(only)):
        found += [replace(c, beside=TOGETHER) for c in found if c.lever.name == "autocast" and c.hopeless is None]
    return sorted(found, key=lambda candidate: -candidate.share)


def _threads(facts: Facts) -> tuple[object, ...]:
    tried = {max(facts.cores // 2, 1), facts.cores, 1} - {facts.threads}
    return tuple(sorted(tried, reverse=True))


def _worker_numbers(facts: Facts) -> tuple[object, ...]:
    """Worker numbers by the loader probe's prediction, the best first; the table's without a probe."""
    most = 2 * facts.cores
    if not facts.item_s or facts.item_cpu_s is None or facts.free_cores is None:
        return BY_NAME["workers"].put_on.values
    probe = Probe(facts.item_s, facts.item_cpu_s, 1)
    needed = facts.taken_rate if facts.taken_rate is not None else float("inf")
    return workers_to_try(probe, facts.free_cores, most, needed_rate=needed)


def _recomputing(facts: Facts) -> tuple[object, ...]:
    """Blocks that recompute are slower by themselves: only the batch finder tries them."""
    return ("off",)


_VALUES = {"threads": _threads, "workers": _worker_numbers, "checkpointing": _recomputing}


def _model(facts: Facts) -> float:
    return sum(facts.shares.get(n, 0.0) for n in MODEL)


def _touched(lever: ChangeKind, facts: Facts) -> float | None:
    """Share of the step that a lever may remove completely; None if the split does not show it."""
    shares = facts.shares
    if not shares:
        return None
    return {
        "loader": shares.get("data", 0.0) + (shares.get("copy", 0.0) if lever.name == "pin_memory" else 0.0),
        # zeroing gradients is in the loop's own time
        "optimizer": shares.get("optimizer", 0.0) + (shares.get("other", 0.0) if lever.name == "set_to_none" else 0.0),
        # the loss over padded columns is outside the model
        # what is recomputed in the backward pass is the forward again, or a part of it
        "memory": shares.get("forward", 0.0) if lever.name == "checkpointing" else None,
        "padding": (facts.padding or 0.0) * (_model(facts) + shares.get("other", 0.0) + shares.get("copy", 0.0)),
    }.get(lever.group)


def _share_words(lever: ChangeKind, facts: Facts) -> str:
    shares = facts.shares
    if lever.group == "loader":
        return f"waiting for data is {shares.get('data', 0.0):.1%} of the step"
    if lever.group == "padding":
        return f"{facts.padding or 0.0:.1%} of the columns are padding"
    if lever.group == "memory":
        return f"the forward pass is {shares.get('forward', 0.0):.1%} of the step"
    return f"the optimizer is {shares.get('optimizer', 0.0):.1%} of the step"


def hopeless(lever: ChangeKind, value: object, facts: Facts) -> str | None:
    """Why a lever cannot help here; None where it may."""
    if facts.device not in lever.put_on.devices:
        return f"not on a {'GPU' if facts.device == 'cuda' else 'CPU'}"
    check = _CHECKS.get(lever.name)
    return check(value, facts) if check is not None else None


def _padding(value: object, facts: Facts) -> str | None:
    return "the batches hold no rows of ids" if facts.padding is None else None


def _loader(value: object, facts: Facts) -> str | None:
    return "the script has no DataLoader" if facts.n_workers is None else None


def _workers(value: object, facts: Facts) -> str | None:
    if facts.n_workers is None:
        return "the script has no DataLoader"
    if value == facts.n_workers:
        return f"the loader has {value} workers already"
    if int(str(value)) > 2 * facts.cores:
        return f"more than twice the {facts.cores} cores"
    return None


def _prefetch(value: object, facts: Facts) -> str | None:
    return "the loader has no workers" if not facts.n_workers else None


def _autocast(value: object, facts: Facts) -> str | None:
    if facts.autocast is not None or facts.scaler:
        return f"the script casts to {facts.autocast or 'fp16'} itself"
    if facts.dtypes and "float32" not in facts.dtypes:
        return f"the parameters are {', '.join(facts.dtypes)} already"
    if facts.device == "cpu":
        if value == "fp16":
            return "fp16 on a processor is emulated: 13 to 20 times slower where it was measured"
        if facts.bf16_units is False:
            return "this processor has no bf16 units (AMX, AVX512_BF16): 3 times slower where it was measured"
    elif facts.capability is not None:
        if value == "bf16" and facts.capability < BF16_FROM:
            return "this GPU has no bf16 tensor cores"
        if value == "fp16" and (facts.capability < FP16_FROM or facts.capability >= BF16_FROM):
            return "bf16 needs no scaling and is as fast" if facts.capability >= BF16_FROM else "this GPU has no tensor cores"
    return None


def _tf32(value: object, facts: Facts) -> str | None:
    if facts.capability is None or facts.capability < TF32_FROM:
        return "this GPU has no TF32"
    return None


def _fp8(value: object, facts: Facts) -> str | None:
    return why_not_fp8(facts.capability)


def _compile(value: object, facts: Facts) -> str | None:
    if facts.compiled:
        return "the script compiles itself"
    if not facts.compiler:
        return "there is no C++ compiler here" if facts.device == "cpu" else "Triton is not installed"
    if value == "reduce-overhead" and facts.device == "cpu":
        return "CUDA graphs need a GPU"
    return None


def _convolutions(value: object, facts: Facts) -> str | None:
    return None if facts.convolutions else "the model has no convolutions"


def _own_checkpoints(value: object, facts: Facts) -> str | None:
    return None if facts.checkpoints else "the script recomputes no activations"


def _fused(value: object, facts: Facts) -> str | None:
    if facts.fused:
        return "the optimizer is fused already"
    known = {"Adam", "AdamW", "SGD", "Adagrad"}
    return None if known & set(facts.optimizers) else f"no fused form of {', '.join(facts.optimizers) or 'the optimizer'}"


_CHECKS = {
    "trim_padding": _padding,
    "length_groups": _padding,
    "workers": _workers,
    "prefetch": _prefetch,
    "pin_memory": _loader,
    "cache_decode": _loader,
    "cache_items": _loader,
    "autocast": _autocast,
    "tf32": _tf32,
    "compile": _compile,
    "channels_last": _convolutions,
    "cudnn_benchmark": _convolutions,
    "fused_optimizer": _fused,
    "checkpointing": _own_checkpoints,
    "fp8": _fp8,
}
