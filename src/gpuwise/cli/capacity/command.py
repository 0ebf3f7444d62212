"""``gpuwise capacity``: which GPUs, how many, at what latency and price, to serve this load?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from gpuwise.cli.options import Duration, Length, Money, Pause, Rate, Whole, given, positive_count, refuse
from gpuwise.cli.reports import check_reports, report
from gpuwise.cli.shown import options_shown, shows_part
from gpuwise.errors import GpuwiseError, InputError, NoRoomError, UnknownNameError

if TYPE_CHECKING:
    from gpuwise.cli.shown import Shown
    from gpuwise.facts.models.architecture import Architecture
    from gpuwise.facts.models.convnets import ConvNet
    from gpuwise.facts.models.denoisers import Denoiser
    from gpuwise.pick.capacity import CapacityRanking, Option
    from gpuwise.pick.limits import Limits
    from gpuwise.serve.capacity.answer import Capacity, Draft, Question
    from gpuwise.serve.capacity.configurations import Requirements
    from gpuwise.serve.capacity.fleet import Demand
    from gpuwise.serve.engines.settings import Adapters, Drafts
    from gpuwise.serve.load.load import Load
    from gpuwise.serve.load.targets import Target
    from gpuwise.serve.passes.capacity import PassQuestion
else:
    Shown = options_shown("capacity")

ARRIVALS = ("poisson", "gamma", "diurnal")
DRAWN = ("steps", "resolution", "frames", "offload")
"""Options of images and videos."""
OF_PASSES = ("workload", "slo", "rate", "max", "batching", "price", "provider", "context", "budget", "engine", *DRAWN)
"""Options that mean something there."""
LEAST_REQUESTS = 50
"""Of a trace that is replayed."""
TRACES = (".csv", ".json", ".jsonl")
"""Ends of names that --workload takes for a trace's."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Traffic:
    """What is asked of the server."""

    workload: Annotated[str | None, Parameter(show_default="chat for text decoders", metavar="WORKLOAD")] = None
    """chat, code, rag, agent, summarise, reasoning, a trace file, or in=2000,out=300 with cv=, in_cv=, out_cv=, prefix=,
    peak=. Embedding models: embed or rerank (passages of --context tokens). Vision transformers and CNNs (resnet-50): vision.
    Whisper: speech (30 s windows, --context tokens written for each). Diffusion models: image or video."""
    trace: Path | None = None
    """Replay a recording: CSV (arrival_s,input_tokens,output_tokens or Azure's), Mooncake's JSON lines, ShareGPT's JSON."""
    drop_long: Annotated[bool, Parameter(negative="")] = False
    """Drop requests of the trace that are longer than the context."""
    arrivals: Annotated[str | None, Parameter(metavar="PROCESS")] = None
    """poisson, gamma:CV (gaps that vary by CV), or diurnal:PEAK (a day whose busiest hour is PEAK times the mean)."""
    slo: Annotated[
        str | None,
        Parameter(show_default="a time to first token typical for the workload, then reading speed", metavar="TARGETS"),
    ] = None
    """Targets: ttft_p95=1s,itl_p99=50ms,e2e_p90=10s,tpot_mean=30ms."""
    rate: Rate | None = None
    """Requests to serve: 20/s, 1M/day."""
    users: Whole | None = None
    """Users at once; each sends the next request --think after the last answer."""
    think: Pause | None = None
    """Time between an answer and the user's next request: 45s."""
    concurrency: Whole | None = None
    """Requests in flight at all times, as `vllm bench serve --max-concurrency` sends them: 64. Needs --on; without --slo
    nothing is asked of the latencies."""
    max: Annotated[bool, Parameter(negative="")] = False
    """Report the highest throughput within the latency targets."""
    batching: Annotated[str | None, Parameter(metavar="KIND:N")] = None
    """For embed, rerank, vision and speech: dynamic:32, dynamic:32:5ms (wait at most 5 ms for a full batch) or static:32 (all
    items are there already, without --slo)."""
    steps: Whole | None = None
    """Image and video: denoising steps. Without it: the model's usual number."""
    resolution: Annotated[str | None, Parameter(metavar="WIDTHxHEIGHT")] = None
    """Image and video: pixels, 1344x768."""
    frames: Whole | None = None
    """Video: frames."""
    offload: Annotated[str | None, Parameter(metavar="model|sequential")] = None
    """Image and video: what waits in the host's memory: model (networks take turns) or sequential (layer by layer)."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Constraints:
    """What is held fast, and what the answer must stay within."""

    engine: Annotated[str | None, Parameter(metavar="ENGINE", show_default="vllm")] = None
    """vllm, sglang, trtllm, llama.cpp or mlx-lm, with a version if it matters: vllm@0.19.0. Speech: also transformers,
    faster-whisper, whisper-s2t, openai-whisper, whisper.cpp. Embeddings: also tei, infinity, sentence-transformers (fp32) and
    sentence-transformers-fp16."""
    weights: Annotated[str | None, Parameter(metavar="BITS|FORMAT")] = None
    """Bits per weight allowed: 16, 8 or 4; several with commas (16,8). Or a format: fp8_block, nvfp4, Q4_K_M (GGUF), nf4
    (bitsandbytes)."""
    kv_cache: Annotated[str, Parameter(metavar="bf16|fp8")] = "bf16"
    """Format of the key-value cache: bf16 or fp8."""
    tp: Whole | None = None
    """Tensor parallel degree."""
    pp: Whole | None = None
    """Pipeline stages (vllm): 2. Without it: tried where links are slow, and where nothing else fits."""
    ep: Whole | None = None
    """Expert parallel over this many GPUs, with data-parallel attention on each: 32. Over several hosts with DeepEP and EPLB."""
    disaggregate: Annotated[str | None, Parameter(metavar="READ:WRITE")] = None
    """Separate replicas for prefill and decode: auto, or their ratio, 3:1 (vllm, sglang)."""
    draft: Annotated[str | None, Parameter(metavar="DRAFTER:TOKENS:KEPT")] = None
    """Speculative decoding: draft tokens per step, and tokens accepted per step, 3:2.4. 3 alone: the acceptance measured on
    code (2.99). eagle, eagle3, mtp, ngram or a model in front sets the drafter, whose weights and cache take memory:
    eagle:3, llama-3.2-1b:5:3.1."""
    enforce_eager: Annotated[bool, Parameter(negative="")] = False
    """Start the engine without CUDA graphs: more memory for the cache, slower steps of few tokens."""
    sampling: Annotated[str | None, Parameter(metavar="greedy|temperature|top-p")] = None
    """How tokens are chosen: greedy, temperature (by probability), or top-p (or top-k), as most models' own settings say.
    With --concurrency and vllm before 0.15: greedy, as vllm bench asked."""
    lora: Annotated[str | None, Parameter(metavar="ADAPTERS")] = None
    """LoRA adapters beside the model, used equally often: 50, or 50:32 with a rank, or 50:32:8 with 8 at once."""
    context: Length | None = None
    """Longest request in tokens: 8192. Without it: the model's context."""
    budget: Money | None = None
    """Most US dollars an hour for the whole fleet."""
    price: Money | None = None
    """US dollars per GPU and hour, instead of the market price."""
    provider: Annotated[str | None, Parameter(metavar="NAME")] = None
    """Use the price of this provider: lambda."""
    buy: Annotated[bool, Parameter(negative="")] = False
    """Without --on: also consider bought machines, with their price spread over three years, resale and electricity."""
    form: Annotated[str | None, Parameter(metavar="FORM")] = None
    """Without --on: only hardware of this form, bought or rented: card, laptop, mini, edge, server."""
    max_watts: Whole | None = None
    """Without --on: most watts of all accelerators together (design power). Bought machines are considered too."""


@Parameter(name="*", group=Group("Measuring a running server", sort_key=50))
@dataclass(frozen=True, slots=True)
class Sent:
    """A real server, and how far it is measured."""

    measure: Annotated[str | None, Parameter(metavar="URL")] = None
    """Send the load to this server (http://127.0.0.1:8000) and print what was measured beside what was predicted."""
    seconds: Duration = 60.0
    """With --measure: how long requests are sent."""
    requests: Whole = 400
    """With --measure: most requests."""
    in_flight: Whole = 512
    """With --measure: most requests at once."""
    stall: Duration = 30.0
    """With --measure: longest wait for a token."""
    retries: Annotated[int, Parameter(metavar="N")] = 0
    """With --measure: how often a request that is refused (429, 503) is sent again."""
    served_model: Annotated[str | None, Parameter(metavar="NAME")] = None
    """With --measure: the model's name on the server, where it has several."""
    save: bool = True
    """With --measure: save the measurement for --calibrated."""
    otlp: Path | None = None
    """With --measure: append the latencies to this file as OpenTelemetry histograms (OTLP/JSON lines, conventions for
    generative AI)."""


CHAT, FREE, USUALLY_SENT = Traffic(), Constraints(), Sent()
LONGEST_MEASURE_S, MOST_REQUESTS = 3600.0, 100_000
MOST_RETRIES = 20
MOST_GUESSES, MOST_ADAPTERS = 16, 10_000


def capacity(
    model: Annotated[str, Parameter(metavar="MODEL")],
    *,
    on: Annotated[
        str | None, Parameter(show_default="all rented accelerators that the engine supports, by price", metavar="GPUS")
    ] = None,
    asked: Traffic = CHAT,
    held: Constraints = FREE,
    sent: Sent = USUALLY_SENT,
    calibrated: Annotated[bool, Parameter(negative="")] = False,
    quick: Annotated[bool, Parameter(negative="")] = False,
    html: Path | None = None,
    shown: Shown | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Which GPUs, how many, at what latency and price, to serve this load?

    Simulates the serving engine under the load and searches for the settings with the highest throughput within the latency
    targets. Reports the bottleneck, the cost, and the commands that start and check the server.

    Parameters
    ----------
    model
        A model by name (llama-3.1-8b), a Hugging Face config.json, or dimensions (layers=32,hidden=4096,...).
    on
        The accelerators: 8xH100-SXM, 4090, dgx-h100, or this (the GPUs of this machine).
    calibrated
        Use the measurements of --measure for this model, engine and accelerator.
    quick
        Skip the effects of single changes.
    html
        Write a page with figures to this file (.html): it needs no network.
    json
        One JSON document on the last line of stdout.
    """
    import datetime

    check_reports(html)
    if asked.trace is None and (asked.workload or "").lower().endswith(TRACES):
        asked = replace(asked, workload=None, trace=Path(asked.workload or ""))
    from gpuwise.facts.models.served import served_model

    arch = served_model(model, asked.workload)
    # not before: a name that is refused does without them
    from gpuwise.facts.models.architecture import Architecture
    from gpuwise.serve.capacity.answer import Question

    of_passes = False
    if asked.workload is not None or not isinstance(arch, Architecture) or arch.kind != "decoder" or arch.encoder is not None:
        from gpuwise.serve.passes.capacity import WORKLOADS, usual_workload

        asked = replace(asked, workload=asked.workload or usual_workload(arch))
        of_passes = asked.workload in WORKLOADS
    _check_sent(sent)
    drawn = sorted(given(asked, CHAT).keys() & {*DRAWN})
    if drawn and not of_passes:
        raise InputError(f"--{drawn[0]} is for images and videos", hint="with --workload image or video")
    if asked.batching is not None and not of_passes:
        raise InputError("--batching is for forward passes", hint="with --workload embed, rerank, vision or speech")
    if of_passes or not isinstance(arch, Architecture):
        if sent.measure is not None or calibrated:
            raise InputError(f"--workload {asked.workload} is not measured", hint="leave --measure and --calibrated out")
        from gpuwise.cli.capacity.passes import capacity_passes_command

        passes = _passes(asked, held)
        return capacity_passes_command(arch, on, passes, held.budget, held.price, held.provider, shown, json=json, html=html)
    held = as_named(model, arch, held)
    load, targets, demand = question(arch, asked, held)
    wanted, today = wanted_of(held, load, arch), datetime.date.today()
    if asked.concurrency is not None:
        if sent.measure is not None or calibrated:
            raise InputError("--measure and --calibrated are for a rate or users", hint="leave --concurrency out")
        targets = () if asked.slo is None else targets
        return _in_flight(arch, on, load, targets, asked.concurrency, wanted, held, shown, json=json, html=html)
    ranked = None
    explain = None if quick else json or html is not None or shows_part(shown, "changes")
    compare = json or html is not None or shows_part(shown, "front")
    if on is not None and (held.buy or held.form is not None or held.max_watts is not None):
        raise InputError("--buy, --form and --max-watts search for hardware, and --on names it", hint="leave one of them out")
    if on is None:
        if sent.measure is not None or calibrated:
            raise InputError("--measure and --calibrated need --on", hint="name the accelerators the server runs on")
        within = _limits(held)
        ranked = _ranked(arch, load, targets, demand, wanted, held, within)
        if not ranked.options:
            return _none(ranked, shown, json=json)

        def ask(option: Option) -> Draft:
            c = option.limit.configuration.config
            engine = wanted if c.engine == wanted.engine else replace(wanted, engine=c.engine, tp=None)
            own = option.usd_per_accelerator_hour if option.how != "rent" else None
            return _answer(Question(arch, option.cluster, load, targets, demand, today, engine, own))

        ranked, answer = ranked.answered(ask, load, targets, demand, within, compare=compare)
        answer = _finished(answer, explain, compare=compare)
        is_open = True
    else:
        from gpuwise.facts.hardware.naming import USUAL, find_cluster, is_counted

        cluster = find_cluster(on, prefer=USUAL)
        if calibrated:
            from gpuwise.cli.capacity.measure import learnt

            wanted = replace(wanted, slowdown=learnt(arch.id, wanted.engine, cluster.accelerator.id))
        whole = Question(
            arch, cluster, load, targets, demand, today, wanted, held.price, held.provider, typical=asked.slo is None
        )
        answer = _finished(_enough(on, whole), None if sent.measure is not None else explain, compare=compare)
        is_open = bool(demand.users or demand.rate_per_s) and not is_counted(on)
    if is_open and answer.served is not None:
        answer = replace(answer, cluster=answer.served.fleet.cluster)  # fewer accelerators were not requested
    if sent.measure is not None:
        from gpuwise.cli.capacity.measure import measure_server
        from gpuwise.serve.measure.run import Bounds

        bounds = Bounds(sent.seconds, sent.in_flight, sent.stall, sent.retries)
        return measure_server(
            answer, sent.measure, bounds, sent.requests, sent.served_model, otlp=sent.otlp, keep=sent.save, json=json
        )
    from gpuwise.serve.capacity.document import capacity_document

    document = capacity_document(answer) | {"ranked": None}
    if ranked is not None:
        from gpuwise.pick.capacity import ranked_document

        document["ranked"] = ranked_document(ranked)
    _show(document, held.budget, shown, json=json, html=html)
    return 0 if within_budget(answer, held.budget) else 1


ENOUGH = (2, 4, 8, 16)
"""Counts tried, one after another, of a GPU that was named without one and does not hold the model."""


def _enough(on: str, asked: Question) -> Draft:
    """The answer, or, where the model has no room and ``on`` gives no number, that for the fewest of :data:`ENOUGH`."""
    from gpuwise.facts.hardware.naming import find_cluster, is_counted

    try:
        return _answer(asked)
    except NoRoomError as error:
        if is_counted(on):
            raise
        refusal = error
    for n in ENOUGH:
        enough = f"{n} GPUs, the fewest of {', '.join(map(str, ENOUGH))} that hold it (no number was given)"
        try:
            wider = find_cluster(f"{n}x{asked.cluster.accelerator.typed}")
            assumption = "; ".join(filter(None, (asked.cluster.assumption, enough)))
            return _answer(replace(asked, cluster=replace(wider, assumption=assumption)))
        except NoRoomError:
            continue
        except GpuwiseError:
            break
    raise refusal


def _in_flight(
    arch: Architecture,
    on: str | None,
    load: Load,
    targets: tuple[Target, ...],
    concurrency: int,
    wanted: Requirements,
    constraints: Constraints,
    shown: Shown | None,
    *,
    json: bool,
    html: Path | None,
) -> int:
    """What the accelerators do with that many requests in flight; exit code 1 where they miss the targets or the budget."""
    import datetime

    from gpuwise.cli.progress import progress
    from gpuwise.facts.hardware.naming import USUAL, find_cluster
    from gpuwise.serve.capacity.closed import closed_on
    from gpuwise.serve.capacity.document import closed_document
    from gpuwise.serve.engines.engine import EngineConfig
    from gpuwise.serve.engines.releases import client_sampling

    if on is None:
        raise InputError("--concurrency needs --on", hint="name the accelerators: --on H100-SXM")
    if constraints.sampling is None:
        wanted = replace(wanted, sampling=client_sampling(EngineConfig(wanted.engine, version=wanted.version)))
    with progress("simulating") as say:
        answer = closed_on(
            arch,
            find_cluster(on, prefer=USUAL),
            load,
            targets,
            concurrency,
            wanted,
            datetime.date.today(),
            usd_per_hour=constraints.price,
            provider=constraints.provider,
            progress=say,
        )
    _show(closed_document(answer), constraints.budget, shown, json=json, html=html)
    dear = constraints.budget is not None and (answer.usd_per_hour is None or answer.usd_per_hour > constraints.budget)
    return 1 if dear or not answer.best.point.met else 0


def as_named(model: str, arch: Architecture | ConvNet | Denoiser, constraints: Constraints) -> Constraints:
    """``constraints`` with the engine and weights that the model's name or config says (:func:`stored_as`)."""
    from gpuwise.serve.engines.engine import stored_as

    engine, weights = stored_as(model, arch, constraints.engine, constraints.weights)
    return replace(constraints, engine=engine, weights=weights)


def _passes(traffic: Traffic, constraints: Constraints) -> PassQuestion:
    """The question of a workload that writes nothing. Raises InputError for options that mean nothing there."""
    from gpuwise.cli.capacity.passes import question_of
    from gpuwise.serve.engines.engine import DEFAULT_ENGINE

    chosen, engine, rate = given(traffic, CHAT) | given(constraints, FREE), constraints.engine or DEFAULT_ENGINE, traffic.rate
    spoken = traffic.workload == "speech"
    load = "--rate 5/s sets the load" if not spoken else "--users 20 (who speak at once) or --rate 5/s sets the load"
    refuse(chosen, f"means nothing for --workload {traffic.workload}", load, (*OF_PASSES, "users") if spoken else OF_PASSES)
    if traffic.users is not None and rate is not None:
        raise InputError("--users and --rate are two loads", hint="give one of them")
    if traffic.users is not None:
        from gpuwise.facts.software.speech_programs import find_speech_program

        rate = traffic.users / find_speech_program(engine.partition("@")[0]).advance_s
    assert traffic.workload is not None
    return question_of(
        traffic.workload,
        traffic.slo,
        rate,
        constraints.context,
        traffic.batching,
        engine,
        traffic.steps,
        traffic.resolution,
        traffic.frames,
        traffic.offload,
    )


def _ranked(
    arch: Architecture,
    load: Load,
    targets: tuple[Target, ...],
    demand: Demand,
    wanted: Requirements,
    constraints: Constraints,
    within: Limits,
) -> CapacityRanking:
    """Every accelerator that is had, as the fleet that carries the load."""
    import datetime

    from gpuwise.cli.progress import progress
    from gpuwise.pick.capacity import rank_accelerators

    if constraints.price is not None or constraints.provider is not None:
        raise InputError("--price and --provider are for one accelerator", hint="name it with --on")
    with progress("simulating") as say:
        return rank_accelerators(
            arch,
            load,
            targets,
            demand,
            wanted,
            today=datetime.date.today(),
            limits=within,
            budget_usd_per_hour=constraints.budget,
            progress=say,
        )


def _limits(constraints: Constraints) -> Limits:
    """Which hardware is looked at: what is rented, and what is bought where that was asked for. Raises UnknownNameError and
    InputError."""
    from gpuwise.pick.limits import FORMS, Limits, check_limits

    if constraints.form is not None and constraints.form not in FORMS:
        raise UnknownNameError("form", constraints.form, FORMS, hint="it is one of " + ", ".join(FORMS))
    bought = constraints.buy or constraints.form is not None or constraints.max_watts is not None
    limits = Limits(ways=("rent", "buy") if bought else ("rent",), form=constraints.form, max_watts=constraints.max_watts)
    check_limits(limits)
    return limits


def _show(
    document: dict[str, object], budget: float | None, shown: Shown | None, *, json: bool, html: Path | None = None
) -> None:
    """As JSON, or as a person reads it."""
    from gpuwise.report.answers.serving import capacity_answer

    report(document, lambda made: capacity_answer(made, budget), shown, json=json, html=html)


def _none(ranked: CapacityRanking, shown: Shown | None, *, json: bool) -> int:
    """Nothing that is rented keeps the targets."""
    from gpuwise.pick.capacity import ranked_document

    _show({"served": None, "ranked": ranked_document(ranked)}, None, shown, json=json)
    return 1


def _check_sent(sent: Sent) -> None:
    """Raises InputError for options of a measurement without one, and for one that has no end."""
    if sent.measure is None:
        if sent != USUALLY_SENT:
            raise InputError("an option of --measure without it", hint="add --measure http://127.0.0.1:8000")
        return
    if sent.seconds > LONGEST_MEASURE_S or sent.requests > MOST_REQUESTS or sent.in_flight > MOST_REQUESTS:
        raise InputError(
            "a measurement takes at most an hour and 100,000 requests", hint="60s and 400 requests are usually enough"
        )
    if not 0 <= sent.retries <= MOST_RETRIES:
        raise InputError(
            f"--retries {sent.retries}: from 0 to {MOST_RETRIES}", hint="3 outlast a short burst; more hides an overload"
        )
    from gpuwise.serve.measure.http import parse_address

    parse_address(sent.measure)


def within_budget(answer: Capacity, budget_usd_per_hour: float | None) -> bool:
    """Whether something keeps the targets within the budget."""
    if answer.served is None:
        return False
    usd = answer.served.fleet.usd_per_hour
    return budget_usd_per_hour is None or (usd is not None and usd <= budget_usd_per_hour)


def question(arch: Architecture, traffic: Traffic, constraints: Constraints) -> tuple[Load, tuple[Target, ...], Demand]:
    """The options as a load, targets and a demand. Raises InputError."""
    from gpuwise.serve.capacity.answer import check_model, usual_targets
    from gpuwise.serve.capacity.fleet import Demand
    from gpuwise.serve.load.load import Load
    from gpuwise.serve.load.targets import parse_targets
    from gpuwise.serve.load.workloads import THINK_S

    check_model(arch)
    if traffic.trace is not None and traffic.workload is not None:
        raise InputError("--trace and --workload are two loads", hint="give one of them")
    options = [
        name
        for name, value in (
            ("--rate", traffic.rate),
            ("--users", traffic.users),
            ("--concurrency", traffic.concurrency),
            ("--max", traffic.max or None),
        )
        if value
    ]
    if len(options) > 1:
        raise InputError(" and ".join(options) + " both set the load", hint="give one of them")
    if traffic.think is not None and traffic.users is None and not (traffic.concurrency and traffic.think == 0.0):
        raise InputError("--think without --users", hint="it is the pause of a user: add --users 500")
    context = constraints.context or arch.max_seq_len
    if context > arch.max_seq_len:
        raise InputError(
            f"{arch.name} has a context of {arch.max_seq_len:,} tokens, not {context:,}", hint=f"--context {arch.max_seq_len}"
        )
    source, peak = _source(traffic, context)
    load = Load(source, context, 0 if constraints.lora is None else _adapters(constraints.lora).count)
    targets = usual_targets(load) if traffic.slo is None else parse_targets(traffic.slo)
    rate = load.recorded_rate_per_s if traffic.rate is None and traffic.users is None and not traffic.max else None
    rate = rate if traffic.rate is None else traffic.rate
    return load, targets, Demand(rate, traffic.users, THINK_S if traffic.think is None else traffic.think, peak)


def _source(traffic: Traffic, context: int) -> tuple[Any, float]:
    """What is drawn from or replayed, and how much higher its peak is than its mean."""
    from gpuwise.serve.load.arrivals import day_shape, unit_arrivals
    from gpuwise.serve.load.traces import read_trace, refuse_beyond
    from gpuwise.serve.load.workloads import find_workload, within

    if traffic.trace is not None:
        if traffic.arrivals is not None:
            raise InputError("--arrivals with a trace, which has its own", hint="leave one of them out")
        trace = refuse_beyond(read_trace(traffic.trace), context, drop=traffic.drop_long)
        if len(trace.requests) < LEAST_REQUESTS:
            count = len(trace.requests)
            raise InputError(f"{count} requests of {trace.name} are too few for percentiles", hint=f"at least {LEAST_REQUESTS}")
        return trace, trace.peak_over_mean
    if traffic.drop_long:
        raise InputError("--drop-long without --trace", hint="requests of a workload are cut to the context")
    workload = within(find_workload(traffic.workload or "chat"), context)
    if traffic.arrivals is None:
        return workload, workload.peak_over_mean
    kind, _, value = traffic.arrivals.partition(":")
    if kind not in ARRIVALS:
        raise UnknownNameError("arrivals", kind, ARRIVALS, hint="poisson, gamma:2 or diurnal:3")
    if kind == "poisson" and not value:
        return replace(workload, gap_cv=1.0), workload.peak_over_mean
    if kind == "poisson" or not value:
        raise InputError(f"--arrivals {traffic.arrivals!r} cannot be read", hint="poisson, gamma:2 or diurnal:3")
    number = positive_count(value, "--arrivals")
    import numpy as np

    if kind == "gamma":
        unit_arrivals(1, number, np.random.default_rng(0))  # rejects unknown ones
        return replace(workload, gap_cv=number), workload.peak_over_mean
    day_shape(number, 24)
    return workload, number


def wanted_of(constraints: Constraints, load: Load, arch: Architecture) -> Requirements:
    """The options as what the search must hold fast. Raises InputError and UnknownNameError."""
    from gpuwise.serve.capacity.configurations import USUAL_BITS, Requirements
    from gpuwise.serve.engines.engine import DEFAULT_ENGINE, engine_name
    from gpuwise.serve.formats import asked_weights

    engine, _, version = (constraints.engine or DEFAULT_ENGINE).partition("@")
    bits, form = asked_weights(constraints.weights)
    if constraints.kv_cache not in ("bf16", "fp8"):
        raise UnknownNameError("cache format", constraints.kv_cache, ("bf16", "fp8"), hint="bf16 or fp8")
    return Requirements(
        engine_name(engine),
        version or None,
        bits or USUAL_BITS,
        constraints.tp,
        constraints.kv_cache,
        None if constraints.context is None else load.context,
        None if constraints.draft is None else _draft(constraints.draft, arch),
        None if constraints.lora is None else _adapters(constraints.lora),
        pp=constraints.pp,
        ep=constraints.ep,
        eager=constraints.enforce_eager,
        apart=None if constraints.disaggregate is None else _apart(constraints.disaggregate),
        form=form,
        sampling=_sampling(constraints.sampling),
    )


def _sampling(text: str | None) -> str:
    """The engine's setting. Raises UnknownNameError."""
    from gpuwise.serve.engines.settings import DRAWN, FILTERED, GREEDY

    ways = {"greedy": GREEDY, "temperature": DRAWN, "top-p": FILTERED, "top-k": FILTERED}
    if text is not None and text not in ways:
        raise UnknownNameError("sampling", text, ways, hint="it is one of " + ", ".join(ways))
    return FILTERED if text is None else ways[text]


def _apart(text: str) -> tuple[int, int] | str:
    """``auto`` or ``3:1``. Raises InputError."""
    from gpuwise.serve.capacity.configurations import AUTO, MOST_APART

    parts = text.split(":")
    if text == AUTO:
        return AUTO
    if len(parts) != 2 or not all(p.isdecimal() and int(p) for p in parts) or sum(map(int, parts)) > MOST_APART:
        raise InputError(f"--disaggregate {text!r} cannot be read", hint=f"auto, or 3:1, with at most {MOST_APART} replicas")
    return int(parts[0]), int(parts[1])


def _draft(text: str, arch: Architecture) -> Drafts:
    """``3``, ``3:2.4`` or ``eagle:3:2.4``. Raises InputError and UnknownNameError."""
    from gpuwise.facts.models.catalogue import find_model
    from gpuwise.serve.engines.settings import DRAFTERS, Drafts, kept_on_code

    drafter, _, rest = ("", "", text) if text[:1].isdecimal() else text.partition(":")
    tokens, _, acceptance = rest.partition(":")
    if not tokens.isdecimal() or int(tokens) > MOST_GUESSES:
        raise InputError(f"--draft {text!r} cannot be read", hint="3, 3:2.4 or eagle:3:2.4, with at most 16 guesses")
    if drafter and drafter not in DRAFTERS:
        small = find_model(drafter)
        if small.vocab != arch.vocab:
            raise InputError(
                f"{small.name} has a vocabulary of {small.vocab:,} tokens, {arch.name} of {arch.vocab:,}: it cannot draft for it",
                hint="take a smaller model of the same family, or eagle3",
            )
    drafts = Drafts(
        int(tokens), positive_count(acceptance, "--draft") if acceptance else kept_on_code(int(tokens)), drafter=drafter
    )
    drafts.drafter_of(arch)
    return drafts


def _adapters(text: str) -> Adapters:
    """``50``, ``50:32`` or ``50:32:8``. Raises InputError."""
    from gpuwise.serve.engines.settings import Adapters

    parts = text.split(":")
    if len(parts) > 3 or not all(p.isdecimal() for p in parts):
        raise InputError(f"--lora {text!r} cannot be read", hint="50, 50:32 with a rank, 50:32:8 with 8 of them at once")
    if int(parts[0]) > MOST_ADAPTERS:
        raise InputError(f"{parts[0]} adapters", hint=f"at most {MOST_ADAPTERS:,}")
    return Adapters(*(int(p) for p in parts))


def _answer(asked: Question) -> Draft:
    from gpuwise.cli.progress import progress
    from gpuwise.serve.capacity.answer import draft_on

    with progress("simulating") as say:
        return draft_on(asked, say)


def _finished(answer: Draft | Capacity, explain: bool | None, *, compare: bool) -> Capacity:
    """The answer, with what single changes would bring: with ``explain`` False where nothing serves the load, with None never.
    ``compare`` is as in :meth:`Draft.completed`."""
    from gpuwise.cli.progress import progress
    from gpuwise.serve.capacity.answer import Draft, explained

    with progress("simulating") as say:
        whole = answer.completed(compare=compare) if isinstance(answer, Draft) else answer
        if explain is False and whole.served is not None:
            return replace(whole, changes=None)
        return whole if explain is None else explained(whole, say)
