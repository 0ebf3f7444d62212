"""What one change of a configuration would bring: requests a second within the targets, beside those of the best one.

A change is simulated as shortly as the search does. Its gain is that over the configuration's own rate in as short a simulation,
and its rate that gain on what the configuration is said to carry.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.serve.capacity.configurations import Configuration, copies_apart
from gpuwise.serve.capacity.rate import SEARCH_REQUESTS, Limit, full_rate, largest_rate
from gpuwise.serve.engine import LLAMA_CPP
from gpuwise.serve.formats import FORMATS
from gpuwise.serve.load.load import Load
from gpuwise.serve.load.targets import Target
from gpuwise.serve.replica import most_ranks
from gpuwise.serve.simulate.drafts import Drafts, kept_on_code

OTHERS = ("h100-sxm", "h200", "b200", "mi300x", "l40s", "a100-sxm-80gb")
"""Accelerators that engines are mostly served on: what another one would bring."""
GUESSED = 3
"""Tokens of a draft that engines' examples guess (docs.vllm.ai, speculative decoding)."""
FEW_APART = 4
"""Replicas that a change reads and writes with."""
SAME, MODEL = "same answers", "the model answers otherwise"


@dataclass(frozen=True, slots=True)
class Change:
    """``rate_per_s`` of the same number of accelerators; None where it cannot run, and ``why``."""

    name: str
    kind: str
    """Whether answers stay: :data:`SAME` or :data:`MODEL`."""
    rate_per_s: float | None
    gain: float | None
    """Of the rate; None where the configuration itself carries nothing."""
    ttft_s: float | None
    """Of the target's percentile, for a request that meets nobody."""
    why: str = ""


def changes(
    configuration: Configuration,
    load: Load,
    targets: Sequence[Target],
    rate_per_s: float,
    *,
    carried_per_s: float | None = None,
    n: int = SEARCH_REQUESTS,
    elsewhere: bool = True,
) -> tuple[Change, ...]:
    """Each change by itself, the best first; ``rate_per_s`` is the configuration's own in a simulation of ``n`` requests,
    ``carried_per_s`` what it is said to carry where that was simulated at more length."""
    share_of_full = rate_per_s / full_rate(configuration, load, n)  # of others about the same
    found = [
        _change(name, kind, other, configuration.ranks, load, targets, rate_per_s, share_of_full, n)
        for name, kind, other in _others(configuration, load, elsewhere)
    ]
    if carried_per_s is not None:
        found = [c if c.gain is None else replace(c, rate_per_s=carried_per_s * (1.0 + c.gain)) for c in found]
    return tuple(sorted(found, key=lambda c: (-(c.rate_per_s or 0.0), c.ttft_s or float("inf"), c.name)))


def _others(configuration: Configuration, load: Load, elsewhere: bool) -> Iterator[tuple[str, str, Configuration]]:
    c, s = configuration.config, configuration.settings
    options = configuration.server.options
    if c.engine == LLAMA_CPP:
        yield from _of_slots(configuration, elsewhere)
        return
    for weights, kind in (("fp8", SAME), ("int4_wo", MODEL), ("nvfp4", MODEL)):
        if (c.weights in ("bf16", "fp16") and c.expert_weights is None) or (kind == MODEL and c.weights.startswith("fp8")):
            yield f"{weights} weights", kind, replace(configuration, config=replace(c, weights=weights))
    if c.kv_dtype == "bf16":
        yield "cache in fp8", SAME, replace(configuration, config=replace(c, kv_dtype="fp8"))
    wide = c.tp * 2
    if wide <= most_ranks(configuration.system) and configuration.arch.heads % wide == 0 and c.attention_dp == 1:
        experts = {"moe_tp": wide} if c.moe_ep == 1 and configuration.arch.moe is not None else {}
        experts |= {"moe_ep": wide} if c.moe_ep > 1 else {}
        stages = "" if c.pp == 1 else f" in each of {c.pp} stages"
        yield f"tensor parallel {wide}{stages}", SAME, replace(configuration, config=replace(c, tp=wide, **experts))
    if options.prefix_caching and load.at(1.0, 100).text is not None:
        yield "no prefix cache", SAME, replace(configuration, settings=replace(s, prefix_caching=False))
    if s.adapters is not None and s.adapters.at_once < s.adapters.count:
        more = replace(s.adapters, resident=min(2 * s.adapters.at_once, s.adapters.count))
        yield f"{more.at_once} adapters at once", SAME, replace(configuration, settings=replace(s, adapters=more))
    if s.drafts is None and s.adapters is None and c.pp == 1:
        guesses = Drafts(GUESSED, kept_on_code(GUESSED))
        words = f"speculative decoding of {GUESSED} tokens, kept as on code"
        yield words, SAME, replace(configuration, settings=replace(s, drafts=guesses))
    tokens = options.max_num_batched_tokens or 0
    for count in (tokens // 2, tokens * 2):
        fewer = None if s.max_num_seqs is None else min(s.max_num_seqs, count)
        changed = replace(s, max_num_batched_tokens=count, max_num_seqs=fewer)
        yield f"{count:,} tokens a step", SAME, replace(configuration, settings=changed)
    if configuration.apart is None:
        apart = copies_apart(configuration, load, min(configuration.system.count // configuration.ranks, FEW_APART))
        if apart is not None:
            yield f"disaggregated, {apart[0]} prefill to {apart[1]} decode", SAME, replace(configuration, apart=apart)
    if elsewhere:
        yield from _on_others(configuration)


def _on_others(configuration: Configuration) -> Iterator[tuple[str, str, Configuration]]:
    for name in OTHERS:
        system = find_cluster(f"{configuration.system.count}x{name}").system
        if system.accelerator.id != configuration.system.accelerator.id:
            yield system.accelerator.name, SAME, replace(configuration, system=system)


def _of_slots(configuration: Configuration, elsewhere: bool) -> Iterator[tuple[str, str, Configuration]]:
    """llama.cpp's: narrower files, twice and half the slots, other devices."""
    c, s = configuration.config, configuration.settings
    for weights, kind in (("Q8_0", SAME), ("Q4_K_M", MODEL)):
        if FORMATS[weights].bytes_per_weight < FORMATS[c.weights].bytes_per_weight:
            yield f"{weights} weights", kind, replace(configuration, config=replace(c, weights=weights))
    slots = configuration.server.options.max_num_seqs or 1
    for count in (slots // 2, slots * 2):
        if count:
            yield f"{count} slots", SAME, replace(configuration, settings=replace(s, max_num_seqs=count))
    if elsewhere:
        yield from _on_others(configuration)


def _change(
    name: str,
    kind: str,
    other: Configuration,
    ranks: int,
    load: Load,
    targets: Sequence[Target],
    rate_per_s: float,
    share_of_full: float,
    n: int,
) -> Change:
    try:
        full = full_rate(other, load, n)
        guess = share_of_full * full if share_of_full else None
        limit: Limit = largest_rate(other, load, targets, n=n, full_per_s=full, guess_per_s=guess, with_missed=False)
    except (InputError, UnpredictableError) as error:
        return Change(name, kind, None, None, None, error.message)
    rate = limit.rate_per_s * ranks / other.ranks
    ttft = next((t.percentile for t in targets if t.metric == "ttft"), 95.0)
    return Change(name, kind, rate, rate / rate_per_s - 1.0 if rate_per_s else None, limit.alone.latency("ttft", ttft))
