"""A strategy: in words, as options that ask for it, and what leads from one to another."""

from __future__ import annotations

from typing import Any

from gpuwise.report.answers.values import At
from gpuwise.workload.optimizer import offloaded_states
from gpuwise.workload.strategy import COLUMNS, NEUTRAL, OPTIONS

ASKED = {field: o.name or field for field, o in OPTIONS.items() if o.label}
"""Fields of a strategy that pages ask for, with the option that gives them."""
ALWAYS = {*COLUMNS, "precision", "optimizer", "stack"} - {"shard_group"}
"""Those that are given at their neutral value too: a plan would choose another."""


def option_query(strategy: At) -> dict[str, str]:
    """The options that ask for exactly this strategy."""
    given = {f: v for f in ASKED if (v := strategy[f].value) is not None and (f in ALWAYS or v != getattr(NEUTRAL, f))}
    if given.get("tp", 1) == 1:
        given.pop("sequence_parallel", None)
    adapters = bool(strategy["lora_rank"].value)
    half = "gradient_dtype" in given and strategy["master_weights"].value is False and not adapters
    query = {ASKED[f]: v for f, v in given.items() if not (half and f == "gradient_dtype")}
    if half:
        query["half_weights"] = True
    if adapters and not strategy["quantized_base"].value:
        query["lora"] = True
    return {k: ("yes" if v else "no") if isinstance(v, bool) else str(v) for k, v in query.items()}


def differences(strategy: At, other: At) -> dict[str, str] | None:
    """The options that lead from one strategy to the other, and its sharding in any case: left open it follows what fits. None
    where something differs that no option gives."""
    before: dict[str, Any] = strategy.value or {}
    after: dict[str, Any] = other.value or {}
    handled = {*ASKED, "lora_rank", "global_batch", "master_weights"}
    if any(before.get(k) != after.get(k) for k in {*before, *after} - handled):
        return None
    was, now = option_query(strategy), option_query(other)
    if after.get("dp", 1) > 1:
        now["sharding"] = str(after["sharding"])
        was.pop("sharding", None)
    return {k: v for k, v in now.items() if was.get(k) != v} if set(was) <= set(now) else None


SPLIT = {
    "none": "batch",
    "zero1": "batch and optimizer",
    "zero2": "batch, gradients and optimizer",
    "zero3": "batch, weights, gradients and optimizer",
    "hybrid": "batch, and within a group weights, gradients and optimizer,",
}
"""What data parallelism of each sharding splits over the GPUs."""
OTHERS = (
    ("tp", "each layer over {} GPUs (tp)"),
    ("pp", "the layers over {} stages (pp)"),
    ("cp", "each sequence over {} GPUs (cp)"),
    ("ep", "the experts over {} GPUs (ep)"),
)


def plain_words(s: At) -> str:
    """A strategy for people who do not know its terms, each beside what it means."""
    sharding, dp = str(s["sharding"].value), int(s["dp"].value)
    term = "dp" if sharding == "none" else f"dp, {sharding}"
    split = [f"{SPLIT[sharding]} split over {dp} GPUs ({term})"] if dp > 1 else []
    split += [words.format(s[n].value) for n, words in OTHERS if (s[n].value or 1) > 1]
    each, times = s["micro_batch"].value, s["accumulation"].value
    parts = [
        *(split or ["one GPU"]),
        f"{each} sequence{'s' if each != 1 else ''} at a time (micro-batch), {times} times a step",
        *([f"{s['recompute'].value} recompute of activations"] if s["recompute"].value != "none" else []),
        *_rest(s),
    ]
    return ", ".join(parts) + f"; {s['stack'].value}"


def layout_words(s: At) -> str:
    """A strategy in a line."""
    degrees = [f"{n} {s[n].value}" for n in ("dp", "tp", "pp", "cp", "ep") if (s[n].value or 1) > 1]
    parts = [
        *(degrees or ["one GPU"]),
        f"micro-batch {s['micro_batch'].value} x {s['accumulation'].value}",
        f"{s['sharding'].value} sharding" if s["sharding"].value != "none" else "no sharding",
        f"{s['recompute'].value} recompute" if s["recompute"].value != "none" else "no recompute",
        *_rest(s),
    ]
    return ", ".join(parts) + f"; {s['stack'].value}"


def _rest(s: At) -> list[str]:
    """What both have: formats, optimizer, adapters, what is in host memory."""
    parts = [str(s["precision"].value), str(s["optimizer"].value)]
    parts += [f"{'QLoRA' if s['quantized_base'].value else 'LoRA'} rank {s['lora_rank'].value}"] if s["lora_rank"].value else []
    return parts + [f"{words} in host memory" for words in in_host_memory(s)]


def in_host_memory(s: At) -> list[str]:
    """The parts of a strategy in host memory."""
    optimizer, parameters, activations = (bool(s[f"offload_{part}"].value) for part in ("optimizer", "parameters", "activations"))
    ranks = int(s["dp"].number * s["cp"].number)
    states = offloaded_states(str(s["stack"].value), ranks, optimizer=optimizer, parameters=parameters)
    return [*([states] if states else []), *(["activations"] if activations else [])]
