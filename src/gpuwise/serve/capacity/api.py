"""The question of this room by name: how many requests a second, with which settings, on how many accelerators."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

from gpuwise.facts.hardware.naming import USUAL, find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.serve.capacity.answer import Capacity, Question, capacity_on, check_model, usual_targets
from gpuwise.serve.capacity.configurations import USUAL_BITS, Requirements
from gpuwise.serve.capacity.fleet import Demand
from gpuwise.serve.engines.engine import DEFAULT_ENGINE, stored_as
from gpuwise.serve.formats import asked_weights
from gpuwise.serve.load.load import Load
from gpuwise.serve.load.targets import parse_targets
from gpuwise.serve.load.traces import read_trace, refuse_beyond
from gpuwise.serve.load.workloads import THINK_S, find_workload, within


def make_capacity(
    model: str,
    on: str,
    *,
    workload: str = "chat",
    trace: str | Path | None = None,
    slo: str | None = None,
    requests_per_s: float | None = None,
    users: int | None = None,
    think_s: float = THINK_S,
    engine: str = DEFAULT_ENGINE,
    bits: tuple[int, ...] = USUAL_BITS,
    today: datetime.date | None = None,
    explain: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Capacity:
    """Capacity of ``on`` for ``workload`` (or a recorded ``trace``) with ``model`` within the targets ``slo``
    (``ttft_p95=1s,itl_p99=50ms``; None: a time to first token typical for the workload, then reading speed, both wider where not
    even a request alone keeps them), and the fleet for ``requests_per_s`` or for ``users`` users, who wait ``think_s`` before
    the next question.

    ``engine`` may have a version (``vllm@0.19.0``); ``explain`` adds the effects of single changes; ``progress`` receives
    progress messages. Raises InputError and UnknownNameError for invalid input, UnpredictableError if no kernel has a rate.
    """
    arch = find_model(model)
    check_model(arch)
    asked_bits = None if bits == USUAL_BITS else ",".join(map(str, bits))
    stored, weights = stored_as(model, arch, None if engine == DEFAULT_ENGINE else engine, asked_bits)
    widths, form = asked_weights(weights)
    source = (
        within(find_workload(workload), arch.max_seq_len)
        if trace is None
        else refuse_beyond(read_trace(Path(trace)), arch.max_seq_len)
    )
    load = Load(source, arch.max_seq_len)
    name, _, version = (stored or DEFAULT_ENGINE).partition("@")
    rate = load.recorded_rate_per_s if requests_per_s is None and users is None else requests_per_s
    asked = Question(
        arch,
        find_cluster(on, prefer=USUAL),
        load,
        usual_targets(load) if slo is None else parse_targets(slo),
        Demand(rate, users, think_s, load.peak_over_mean),
        today or datetime.date.today(),
        Requirements(name, version or None, widths or USUAL_BITS, form=form),
        typical=slo is None,
    )
    return capacity_on(asked, explain=explain, progress=progress or (lambda words: None))
