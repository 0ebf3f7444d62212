"""Effect of one change of a configuration: requests per second within the targets, compared with the best one.

A change is simulated as briefly as in the search. Its gain is relative to the configuration's own rate in an equally short
simulation, and its rate is that gain times the configuration's reported rate.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.hardware.systems import System
from gpuwise.serve.capacity.configurations import SPLITS, Configuration, Requirements, copies_apart, holds, splits_of
from gpuwise.serve.capacity.rate import Limit, full_rate, largest_rate
from gpuwise.serve.capacity.search import linked, way_of, ways_of
from gpuwise.serve.engines.engine import engine_runs
from gpuwise.serve.engines.settings import Drafts, kept_on_code
from gpuwise.serve.formats import FORMATS
from gpuwise.serve.load.load import Load
from gpuwise.serve.load.targets import Target
from gpuwise.serve.replica import most_ranks
from gpuwise.serve.splits import why_refused

OTHERS = ("h100-sxm", "h200", "b200", "mi300x", "l40s", "a100-sxm-80gb")
"""Accelerators that engines are mostly served on: what another one would bring."""
CHANGE_REQUESTS, CHANGE_RESOLUTION = 600, 1.05
"""Simulated for each rate, and the ratio of two rates between which a search stops."""
GUESSED = 3
"""Tokens of a draft that engines' examples guess (docs.vllm.ai, speculative decoding)."""
FEW_APART = 4
"""Replicas that a change reads and writes with."""
SAME, MODEL = "same answers", "the model answers otherwise"

MOST_WIDTHS = 3
"""Splits of another accelerator that are compared, from the fewest accelerators on."""


@dataclass(frozen=True, slots=True)
class Change:
    """``rate_per_s`` of the same number of accelerators; None where it cannot run, and ``why``."""

    name: str
    kind: str
    """Whether answers stay: :data:`SAME` or :data:`MODEL`."""
    rate_per_s: float | None
    gain: float | None
    """Relative gain of the rate; None if the configuration itself serves nothing."""
    ttft_s: float | None
    """Time to first token at the target's percentile, for a request without others."""
    why: str = ""


def changes(
    configuration: Configuration,
    load: Load,
    targets: Sequence[Target],
    carried_per_s: float | None = None,
    *,
    n: int = CHANGE_REQUESTS,
    elsewhere: bool = True,
    searched: Limit | None = None,
) -> tuple[Change, ...]:
    """Each change alone, the best first; ``carried_per_s`` is the configuration's reported rate, None if it serves nothing.
    ``searched``, its limit in a search, is the starting point of the search for its own limit."""
    own = None if carried_per_s is None else _limit(configuration, load, targets, n, searched)
    others = _others(configuration, load, targets, n, elsewhere)
    found = [_change(name, kind, other, configuration.ranks, load, targets, own, n) for name, kind, other in others]
    if carried_per_s is not None:
        found = [c if c.gain is None else replace(c, rate_per_s=carried_per_s * (1.0 + c.gain)) for c in found]
    return tuple(sorted(found, key=lambda c: (-(c.rate_per_s or 0.0), c.ttft_s or float("inf"), c.name)))


def _others(
    configuration: Configuration, load: Load, targets: Sequence[Target], n: int, elsewhere: bool
) -> Iterator[tuple[str, str, Configuration]]:
    c, s = configuration.config, configuration.settings
    options = configuration.server.options
    if c.program.in_turn:
        yield from _of_slots(configuration)
        yield from _on_others(configuration, load, targets, n) if elsewhere else ()
        return
    for weights, kind in (("fp8", SAME), ("int4_wo", MODEL), ("nvfp4", MODEL)):
        if (c.weights in ("bf16", "fp16") and c.expert_weights is None) or (kind == MODEL and c.weights.startswith("fp8")):
            yield f"{weights} weights", kind, replace(configuration, config=replace(c, weights=weights))
    if c.kv_dtype == "bf16":
        yield "cache in fp8", SAME, replace(configuration, config=replace(c, kv_dtype="fp8"))
    wide = c.tp * 2
    experts = {"moe_tp": wide} if c.moe_ep == 1 and configuration.arch.moe is not None else {}
    wider = replace(c, tp=wide, **(experts | ({"moe_ep": wide} if c.moe_ep > 1 else {})))
    if wide <= most_ranks(configuration.system) and c.attention_dp == 1 and not why_refused(configuration.arch, wider):
        stages = "" if c.pp == 1 else f" in each of {c.pp} stages"
        yield f"tensor parallel {wide}{stages}", SAME, replace(configuration, config=wider)
    if options.prefix_caching and load.at(1.0, 100).text is not None:
        yield "no prefix cache", SAME, replace(configuration, settings=replace(s, prefix_caching=False))
    if s.adapters is not None and s.adapters.at_once < s.adapters.count:
        more = replace(s.adapters, resident=min(2 * s.adapters.at_once, s.adapters.count))
        yield f"{more.at_once} adapters at once", SAME, replace(configuration, settings=replace(s, adapters=more))
    if s.drafts is None and s.adapters is None and c.pp == 1:
        guesses = Drafts(GUESSED, kept_on_code(GUESSED))
        words = f"speculative decoding of {GUESSED} tokens, accepted as for code"
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
        yield from _on_others(configuration, load, targets, n)


def _on_others(
    configuration: Configuration, load: Load, targets: Sequence[Target], n: int
) -> Iterator[tuple[str, str, Configuration]]:
    """Other accelerators, with the split and the tokens in a step that promise most there, else as installed."""
    for name in OTHERS:
        system = find_cluster(f"{configuration.system.count}x{name}").system
        if system.accelerator.id == configuration.system.accelerator.id:
            continue
        if configuration.config.program.listed_only and not engine_runs(system.accelerator, configuration.config.engine):
            continue
        able = [way_of(c, load, targets, n) for c in _splits(configuration, system)]
        best = max(able, key=lambda w: w.promise_per_s / w.configuration.ranks, default=None)
        chosen = (
            next(ways_of([best.configuration], load, targets, n)).configuration if best else replace(configuration, system=system)
        )
        split = "" if chosen.ranks == configuration.ranks else f", {chosen.split} each"
        yield system.accelerator.name + split, SAME, chosen


def _splits(configuration: Configuration, system: System) -> list[Configuration]:
    """The same format on ``system``, split as its own layouts: the smallest tensor groups with room, and stages of them."""
    c, s = configuration.config, configuration.settings
    settings = replace(s, max_num_batched_tokens=None, max_num_seqs=s.max_num_seqs if c.program.in_turn else None)
    if c.program.in_turn:
        most = min(system.count, c.program.in_turn)
        every = [replace(configuration, system=system, config=replace(c, pp=n), settings=settings) for n in SPLITS if n <= most]
        return list(filter(holds, every))[:MOST_WIDTHS]
    wanted = Requirements(c.engine, c.version, kv_dtype=c.kv_dtype, drafts=s.drafts, adapters=s.adapters)
    every = splits_of(
        configuration.arch, system, system.count, wanted, replace(c, tp=1, pp=1, attention_dp=1, moe_tp=1, moe_ep=1)
    )
    same = linked([replace(o, settings=settings, slowdown=configuration.slowdown) for o in every if holds(o)])
    widths = sorted({o.config.tp * o.config.attention_dp for o in same})[:MOST_WIDTHS]
    return [o for o in same if o.config.tp * o.config.attention_dp in widths]


def _of_slots(configuration: Configuration) -> Iterator[tuple[str, str, Configuration]]:
    """Narrower weights, twice and half the slots."""
    c, s = configuration.config, configuration.settings
    for bits, kind in ((8, SAME), (4, MODEL)):
        weights = c.program.by_bits[bits]
        if FORMATS[weights].bytes_per_weight < FORMATS[c.weights].bytes_per_weight:
            yield f"{weights} weights", kind, replace(configuration, config=replace(c, weights=weights))
    slots = configuration.server.options.max_num_seqs or 1
    for count in (slots // 2, slots * 2):
        if count:
            yield f"{count} {c.program.place}s", SAME, replace(configuration, settings=replace(s, max_num_seqs=count))


def _limit(configuration: Configuration, load: Load, targets: Sequence[Target], n: int, own: Limit | None = None) -> Limit:
    """Limit of one change; ``own``, of the changed configuration, is the starting point of the search."""
    full = full_rate(configuration, load, n)
    guess = None if own is None or not own.rate_per_s else own.rate_per_s / own.full_per_s * full
    return largest_rate(
        configuration,
        load,
        targets,
        n=n,
        full_per_s=full,
        guess_per_s=guess,
        resolution=CHANGE_RESOLUTION,
        with_missed=False,
    )


def _change(
    name: str,
    kind: str,
    other: Configuration,
    ranks: int,
    load: Load,
    targets: Sequence[Target],
    own: Limit | None,
    n: int,
) -> Change:
    try:
        limit = _limit(other, load, targets, n, own)
    except (InputError, UnpredictableError) as error:
        return Change(name, kind, None, None, None, error.message)
    rate = limit.rate_per_s * ranks / other.ranks
    ttft = next((t.percentile for t in targets if t.metric == "ttft"), 95.0)
    gain = rate / own.rate_per_s - 1.0 if own is not None and own.rate_per_s else None
    return Change(name, kind, rate, gain, limit.alone.latency("ttft", ttft))
