"""``gpuwise run`` on ranks: what is typed, as settings; what comes of it, as words and as a document."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from gpuwise.cli.options import Duration, LayoutOptions, Whole, options_of
from gpuwise.errors import InputError
from gpuwise.files import check_file
from gpuwise.workload.strategy import OPTIONS

if TYPE_CHECKING:
    from gpuwise.export.job import Job
    from gpuwise.train.ranks.launch import RankJournal, RanksResult
    from gpuwise.train.ranks.layout import Layout

OUT = "gpuwise-run"
HUGGING_FACE = "hf:"
HERE = "here"


OTHERWISE = ("dp", "optimizer", "recompute_every", "offload_optimizer", "offload_activations")
"""Fields that ``--ranks``, the function itself and ``--offload`` decide here."""
HERE_ONLY: Mapping[str, Mapping[str, Any]] = {
    "sharding": {
        "help": "Data-parallel sharding: DDP (none), FSDP2 (zero2, zero3) or groups (hybrid).",
        "choices": ("none", "zero2", "zero3", "hybrid"),
        "usual": "none",
    },
    "shard_group": {"help": "With hybrid: ranks over which one copy is sharded: 8.", "usual": ""},
    "pp": {"help": "Pipeline parallel degree: stages of repeated layers (1F1B)."},
    "cp": {"help": "Context parallel degree: ranks that share rows of tokens (causal models of Transformers)."},
    "ep": {"help": "Expert parallel degree: data-parallel ranks that share the experts (models of Transformers)."},
    "precision": {"help": "Format of the matrix products.", "choices": ("fp32", "tf32", "bf16"), "usual": "fp32"},
    "recompute": {
        "help": "full: recompute repeated blocks in the backward pass; or names of modules: blocks.0,blocks.2.mlp.",
        "unit": "none|full|NAMES",
        "usual": "none",
    },
    "micro_batch": {"help": "Samples per rank in one forward pass.", "unit": "SAMPLES"},
    "quantized_base": {"help": "As --lora, the frozen weights in 4 bits (bitsandbytes)."},
}
"""What is another for ranks than for a plan."""
ASKED = {f: replace(o, **HERE_ONLY.get(f, {})) for f, o in OPTIONS.items() if o.ranks and f not in OTHERWISE}
if TYPE_CHECKING:
    RankLayout = LayoutOptions
else:
    RankLayout = options_of(ASKED, "RankLayout", "The layout of the ranks.")
FREE = RankLayout()


@Parameter(name="*", group=Group("On ranks", sort_key=50))
@dataclass(frozen=True, slots=True)
class OnRanks:
    """Training on ranks: SCRIPT is FILE.py:function, or --ranks is given. A script as it is keeps its batch, epochs and files."""

    plan: Path | None = None
    """A file with the output of `gpuwise plan --json`: layout, precision and batch are taken from it."""
    ranks: Whole | None = None
    """Number of processes on this machine, with one GPU each if there are GPUs."""
    layout: RankLayout = FREE
    offload: Annotated[str | None, Parameter(metavar="WHAT")] = None
    """Offload to host memory: optimizer (with the weights, by FSDP2), activations, or both: optimizer,activations."""
    compress: Annotated[str | None, Parameter(metavar="fp16|powersgd")] = None
    """Compress the gradients of DDP: fp16 (lower precision) or powersgd (changes the training result)."""
    lora: Annotated[bool, Parameter(negative="")] = False
    """Train adapters of a low rank beside frozen weights (PEFT)."""
    prune: Annotated[str | None, Parameter(metavar="SHARE")] = None
    """Share of each layer's weights set to zero: 0.5, or 2:4 on GPUs with sparse tensor cores. Changes the training result."""
    teacher: Annotated[str | None, Parameter(metavar="FILE.py:FUNCTION")] = None
    """Distil from a teacher: FILE.py:function that returns a module, or hf:folder. Changes the training result."""
    global_batch: Whole | None = None
    """Samples a step, over all ranks."""
    set: Annotated[tuple[str, ...], Parameter(metavar="KEY=VALUE", negative="")] = ()
    """A keyword argument of the function, as key=value."""
    workers: Annotated[int, Parameter(metavar="N")] = 0
    """Processes that load data, for each rank."""
    seed: Annotated[int, Parameter(metavar="N")] = 0
    """Seed of the weights, the order of samples and all other random numbers."""
    save_every: Annotated[Whole | None, Parameter(show_default="every ten minutes")] = None
    """Steps between checkpoints, 500; one more is written at the end."""
    hang_after: Annotated[Duration, Parameter(show_default="5 min")] = 300.0
    """Time without progress before gpuwise reports the stuck rank and restarts all ranks."""
    prometheus: Annotated[str | None, Parameter(metavar="ADDRESS:PORT")] = None
    """Serve steps, collectives and the straggler as Prometheus metrics: ADDRESS:PORT, or :9401 for this machine."""
    otlp: Path | None = None
    """Append the same metrics to this file for OpenTelemetry: OTLP/JSON lines, for the collector's otlpjsonfile receiver."""
    grafana: Path | None = None
    """Write the Grafana dashboard of these metrics here."""
    out: Annotated[Path | None, Parameter(show_default="gpuwise-run")] = None
    """Folder for journals and checkpoints (script: journals and the output of the other ranks)."""
    on: Annotated[str, Parameter(metavar="here|slurm|ray|k8s|sky")] = "here"
    """Launcher of the ranks: here (torchrun), or slurm, ray, k8s or sky, which get the plan's files from --out."""
    follow: Annotated[bool, Parameter(negative="")] = False
    """With --on slurm: print progress until the job leaves the queue (--out must be on a shared file system)."""
    rehearse: Annotated[bool, Parameter(negative="")] = False
    """Run a plan for other GPUs on processes of this machine."""

    @property
    def is_set(self) -> bool:
        """Whether any of it was given."""
        return self != NO_RANKS


NO_RANKS = OnRanks()


def is_function(script: str) -> bool:
    """``train.py:make_step``, or ``hf:path/to/config.json``."""
    if script.startswith(HUGGING_FACE):
        return True
    place, colon, name = script.rpartition(":")
    return bool(colon) and "/" not in name and bool(place)


def run_on_ranks(
    script: str,
    arguments: Sequence[str],
    given: OnRanks,
    *,
    epochs: float | None,
    total_steps: int | None,
    json: bool,
    record: bool = True,
    config: Path | None = None,
) -> int:
    """The command. ``config``: a file of levers for a script. Raises InputError before anything is started."""
    from gpuwise.cli.run.screen import screen
    from gpuwise.errors import require, require_posix
    from gpuwise.train.ranks.launch import MOST_RESTARTS, run_ranks
    from gpuwise.train.ranks.settings import RankSettings

    require_posix("training on ranks")
    require("torch", "training on ranks")
    if script.endswith(".json") and given.plan is None and arguments:
        given, script, arguments = replace(given, plan=Path(script)), arguments[0], arguments[1:]
    whole = not is_function(script)
    if whole:
        _check_script(script, given, epochs=epochs, total_steps=total_steps)
    elif arguments:
        raise InputError(f"{arguments[0]!r} is not used", hint="keywords of the function are given by --set key=value")
    else:
        _check_function(script, given)
    job = None if given.plan is None else _job(given.plan)
    layout = _layout(given, job)
    levers = _levers(script, config, layout, whole=whole)
    if whole and (layout.n_ranks > layout.dp or layout.ep > 1):
        raise InputError(
            "layers are divided (--tp, --pp, --ep) and rows (--cp) for a model that a function returns, not within a script",
            hint=f"name that function: {script}:make_step, or train by data parallel ranks alone",
        )
    from gpuwise.train.ranks.methods import check_methods

    check_methods(layout, given.prune, given.teacher)
    if given.on == HERE:
        _check_here(layout, job, given)
    steps = total_steps if total_steps is not None else None if job is None or epochs is not None or whole else job.n_steps
    settings = RankSettings(
        _absolute(script),
        layout,
        str((given.out or Path(OUT)).resolve()),
        _settings(script, given),
        steps,
        1.0 if epochs is None else epochs,
        given.workers,
        given.seed,
        given.save_every or (None if job is None else job.save_every),
        whole=whole,
        arguments=list(arguments),
        time_exchanges=not whole,
        prune=given.prune,
        levers=levers,
        teacher=None if given.teacher is None else _absolute(given.teacher),
    )
    if given.on != HERE:
        from gpuwise.cli.run.submit import submit

        return submit(given.on, job, settings, given.out or Path(OUT), follow=progress if given.follow else None)
    from gpuwise.train.ranks.report import RunRecords

    records = RunRecords(settings, None if job is None or given.rehearse else job.step_time_s)
    settings = records.settings
    with screen() as shown, _metrics(given, settings.out) as metrics:
        batch = "" if whole else f", {layout.global_batch} samples a step"
        shown.show(f"gpuwise: {script} on {layout.words}{batch}")
        every_s = 1.0 if shown.is_live else 30.0

        def look(now: tuple[RankJournal, ...]) -> None:
            metrics(now)
            shown.show(progress(now, settings.steps))

        result = run_ranks(
            settings,
            look=look,
            every_s=every_s,
            streams=shown.streams,
            # a script would begin at its beginning again: that is the person's to say
            restarts=0 if whole else MOST_RESTARTS,
            hang_s=given.hang_after,
        )
        metrics(result.journals)
    if record and result.ended == "done":
        records.keep(result)
    if records.failed is not None:
        sys.stderr.write(f"gpuwise: no record: {records.failed}\n")
    if json:
        from gpuwise.cli.out import print_json

        print_json(document(result, script, layout, settings.out))
    else:
        _summary(result, settings.out, layout if whole else None, planned=job is not None)
    return result.code


@contextmanager
def _metrics(options: OnRanks, out: str) -> Generator[Callable[[tuple[RankJournal, ...]], None], None, None]:
    """Metrics from every look at the journals, served while the context is open. Raises InputError for an address that cannot
    be served."""
    if options.grafana is not None:
        from gpuwise.train.ranks.metrics import write_dashboard

        write_dashboard(options.grafana)
        sys.stderr.write(f"{options.grafana}: import it in Grafana under Dashboards, New, Import\n")
    from gpuwise.machine.telemetry.outputs.exporter import TextServer, parse_address
    from gpuwise.machine.telemetry.outputs.line_file import LineFile
    from gpuwise.machine.telemetry.outputs.otlp_points import write
    from gpuwise.train.ranks.metrics import exposition, otlp

    run, began_s = Path(out).name, time.time()
    latest: list[tuple[RankJournal, ...]] = [()]
    with ExitStack() as held:
        if options.prometheus is not None:
            server = TextServer(*parse_address(options.prometheus), lambda: exposition(latest[0], run))
            held.callback(server.close)
            sys.stderr.write(f"gpuwise: metrics at {server.address}\n")
        log = None if options.otlp is None else LineFile(str(options.otlp), append=True, unit="lines")
        if log is not None:
            held.callback(log.close)

        def take(now: tuple[RankJournal, ...]) -> None:
            latest[0] = now
            if log is not None:
                write(log, otlp(now, run, time.time(), began_s))

        yield take


def _check_script(script: str, options: OnRanks, *, epochs: float | None, total_steps: int | None) -> None:
    """Raises InputError for a file that is no script, and for what a script decides itself."""
    from gpuwise.train.hook.script import file_code

    file_code(script)
    flags = {
        "--set": options.set,
        "--workers": options.workers,
        "--save-every": options.save_every,
        "--micro-batch": options.layout.micro_batch,
        "--prune": options.prune,
        "--teacher": options.teacher,
        "--epochs": epochs,
        "--total-steps": total_steps,
    }
    for name, value in flags.items():
        if value:
            raise InputError(
                f"{name} is for a function that returns model and data; {script} decides it itself",
                hint=f"give it its own arguments after --: -- {name} .., or name a function: {script}:make_step",
            )


def _levers(script: str, config: Path | None, layout: Layout, *, whole: bool) -> dict[str, Any]:
    """Of the file, where one is named. Raises InputError for those that ranks do not put on, with the reason."""
    if config is None:
        return {}
    if not whole:
        raise InputError(
            "--config is for a script", hint="the function itself sets how it trains; change it with --precision and others"
        )
    from gpuwise.train.ranks.script.levers import check_levers
    from gpuwise.train.run.run import find_config

    levers = dict(find_config(script, config, module=False)[1].levers)
    check_levers(levers, layout)
    return levers


def _check_function(script: str, options: OnRanks) -> None:
    """Raises InputError where the function's file, or a model's configuration and data, are not there."""
    if not script.startswith(HUGGING_FACE):
        from gpuwise.workload.capture.target import find_target

        find_target(script, options.set)
        return
    from gpuwise.train.ranks.hugging_face import values_of as read_settings

    place = Path(script.removeprefix(HUGGING_FACE))
    config = place / "config.json" if place.is_dir() else place
    check_file(config, hint="write it like hf:path/to/config.json; nothing is downloaded")
    read_settings(list(options.set))


def _absolute(script: str) -> str:
    """The file as every rank finds it, whatever its working folder."""
    if script.startswith(HUGGING_FACE):
        return HUGGING_FACE + str(Path(script.removeprefix(HUGGING_FACE)).resolve())
    place, _, name = script.rpartition(":")
    return f"{Path(place).resolve()}:{name}" if ".py:" in script else script


def _settings(script: str, options: OnRanks) -> list[str]:
    if not script.startswith(HUGGING_FACE):
        return list(options.set)
    return [f"data={Path(s[5:]).resolve()}" if s.startswith("data=") else s for s in options.set]


def _job(path: Path) -> Job:
    from gpuwise.plan.plan_file import read_job

    return read_job(str(path))


def _layout(options: OnRanks, job: Job | None) -> Layout:
    import msgspec

    from gpuwise.export.ranks import shard_group
    from gpuwise.train.ranks.launch import gpus_here
    from gpuwise.train.ranks.layout import Layout, checked, layout_of

    if job is not None:
        layout = layout_of(job.strategy, shard_group(job))
        own = {name: getattr(options, name) for name in ("ranks", "offload", "compress", "lora")}
        for name, value in {**own, **{name: value for name, (_, value) in _named(options).items()}}.items():
            if name != "micro_batch" and value not in (None, False):
                raise InputError(f"--{name.replace('_', '-')} is in the plan already", hint="leave it out, or plan again with it")
        if options.global_batch is not None or options.layout.micro_batch is not None:
            layout = msgspec.structs.replace(
                layout,
                global_batch=options.global_batch or layout.global_batch,
                micro_batch=options.layout.micro_batch or layout.micro_batch,
            )
        return checked(layout)
    n, tp, pp, cp = options.ranks or len(gpus_here()) or 1, options.layout.tp or 1, options.layout.pp or 1, options.layout.cp or 1
    if n % (tp * pp * cp):
        words = f"--tp {tp} x --pp {pp}" + (f" x --cp {cp}" if cp > 1 else "")
        raise InputError(f"{words} do not divide {n} ranks", hint=f"--ranks {tp * pp * cp * max(n // (tp * pp * cp), 1)}")
    dp = n // (tp * pp * cp)
    offload = {word.strip() for word in (options.offload or "").split(",") if word.strip()}
    if offload - {"optimizer", "activations"}:
        raise InputError(f"--offload {options.offload}", hint="--offload optimizer, activations, or optimizer,activations")
    batch = options.global_batch or (options.layout.micro_batch or 8) * dp
    asked: dict[str, Any] = {field: value for field, value in _named(options).values() if value is not None}
    asked |= _adapters(options)
    asked |= {"dp": dp, "micro_batch": options.layout.micro_batch or -(-batch // dp), "global_batch": batch}
    asked |= {"offload_optimizer": "optimizer" in offload, "offload_activations": "activations" in offload}
    return checked(Layout(**asked, compress=options.compress or "none"))


def _named(options: OnRanks) -> dict[str, tuple[str, Any]]:
    """By option of the table that is asked for here: the field, and its value as given."""
    return {o.name or field: (field, getattr(options.layout, o.name or field)) for field, o in ASKED.items()}


def _adapters(options: OnRanks) -> dict[str, Any]:
    from gpuwise.workload.adapters import split_targets
    from gpuwise.workload.changes.strategy import LORA_RANK

    if options.lora and options.layout.qlora:
        raise InputError("--lora and --qlora are two ways", hint="--qlora for 4-bit frozen weights, --lora for others")
    if not (options.lora or options.layout.qlora):
        if options.layout.lora_rank is not None or options.layout.lora_targets is not None:
            raise InputError("--lora-rank and --lora-targets are for adapters", hint="add --lora or --qlora")
        return {}
    targets = {} if options.layout.lora_targets is None else {"lora_targets": split_targets(options.layout.lora_targets)}
    return {"lora_rank": options.layout.lora_rank or LORA_RANK, "quantized_base": bool(options.layout.qlora), **targets}


def _check_here(layout: Layout, job: Job | None, options: OnRanks) -> None:
    """Raises InputError where there are fewer GPUs than ranks, or others than the plan's."""
    from gpuwise.train.ranks.launch import gpus_here

    gpus = gpus_here()
    n, names = len(gpus), sorted(set(gpus))
    if options.workers < 0 or options.workers > 256:
        raise InputError(f"--workers {options.workers}", hint="--workers 4")
    here = f"{n} GPUs ({', '.join(names)})" if n else "no GPU"
    if n and n < layout.n_ranks:
        raise InputError(f"{layout.n_ranks} ranks and {here} here", hint=f"a GPU is one rank's: --ranks {n}")
    if job is None or options.rehearse:
        return
    from gpuwise.facts.hardware.naming import find_accelerator

    planned = job.cluster.system.accelerator
    if n < layout.n_ranks or not all(_is(find_accelerator, name, planned.id) for name in names):
        raise InputError(
            f"the plan is for {job.cluster.label}, and here is {here}",
            hint=f"--rehearse runs its layout on {layout.n_ranks} processes all the same, or plan for this machine",
        )


def _is(find: Any, name: str, planned: str) -> bool:
    from gpuwise.errors import GpuwiseError

    try:
        return bool(find(name).id == planned)
    except GpuwiseError:
        return True


def progress(journals: tuple[RankJournal, ...], steps: int | None) -> str:
    last = journals[0].last
    if not last:
        return "gpuwise: waiting for the first step"
    of = f" of {steps:,}" if steps is not None else ""
    words = [f"step {last['step']:,}{of}", f"{sum(j.last.get('samples', 0) for j in journals) / last['step_s']:.4g} samples/s"]
    words += [f"loss {last['loss']:.4g}", f"epoch {last['epoch']}"]
    from gpuwise.train.ranks.straggler import straggler

    slow = straggler([j.steps for j in journals])
    if slow is not None:
        words.append(f"waiting for rank {slow.rank} ({slow.share:.0%}): {slow.cause}")
    return ", ".join(words)


def _summary(result: RanksResult, out: str, of_script: Layout | None, *, planned: bool) -> None:
    from gpuwise.train.ranks.report import model_words
    from gpuwise.units import format_bytes, format_duration

    words = {"done": "trained", "asked": "stopped when asked", "failed": "a rank failed"}[result.ended]
    loss = "" if result.loss is None else f", loss {result.loss:.4g}"
    again = f", {result.restarts} restarts" if result.restarts else ""
    lines = [
        f"{words}, step {result.step:,}{loss}, {format_duration(result.wall_s)}{again}",
        f"journals in {out}; what the script saves is where it saves it" if of_script else f"journals and checkpoints in {out}",
    ]
    samples = sum(j.steps[0]["samples"] for j in result.journals if j.steps)
    if of_script is not None and planned and samples and samples != of_script.global_batch:
        lines.append(f"a step took {samples} samples, the script's own batch; the plan's has {of_script.global_batch}")
    if result.blocked is not None:
        lines.append(f"checkpoints held steps up for {result.blocked:.2%} of the time between them")
    if result.losses:
        mean_loss_s = sum(x.lost_s for x in result.losses) / len(result.losses)
        expected = "" if result.expected_loss_s is None else f", expected {format_duration(result.expected_loss_s)}"
        lines.append(f"a death of a rank cost {format_duration(mean_loss_s)}{expected}")
    slow = result.straggler
    if slow is not None:
        lines.append(f"rank {slow.rank} is waited for {format_duration(slow.lost_s)} a step ({slow.share:.0%}): {slow.cause}")
    planned_s = next((s["predicted_s"] for s in result.journals[0].steps[-1:] if s.get("predicted_s")), None)
    if planned_s is not None and result.step_s is not None:
        lines.append(f"a step: predicted {format_duration(planned_s)}, measured {format_duration(result.step_s)}")
    for kind, expected in result.exchange_times.items():
        took = "not seen by the process" if expected["measured_s"] is None else format_duration(expected["measured_s"])
        lines.append(
            f"{kind}: by its times on two payloads {format_duration(expected['predicted_s'] or 0.0)} a step, measured {took}"
        )
    model = result.journals[0].newest("model")
    if model is not None and (model["trained"] < model["parameters"] or model["zeros"]):
        lines.append(model_words(model))
    for kind, counts in result.collectives.items():
        expected = [f"{n[0]} of {format_bytes(n[1])} in all" if n else "none" for n in (counts["predicted"], counts["measured"])]
        lines.append(f"{kind} a step: predicted {expected[0]}, measured {expected[1]}")
    if result.hung is not None:
        lines.append(result.hung)
    if result.died is not None:
        lines.append(f"without a last word: {result.died}: killed, or out of memory")
    sys.stderr.write("".join(f"gpuwise: {line}\n" for line in lines))
    if result.ended == "failed":
        again = "its output is above" if of_script else "the same command goes on from the last checkpoint"
        sys.stderr.write(f"hint: see what ended it (memory: dmesg, --micro-batch); {again}\n")


def document(result: RanksResult, script: str, layout: Layout, out: str) -> dict[str, Any]:
    """For ``--json``."""
    from dataclasses import asdict

    import msgspec

    return {
        "script": script,
        "layout": {**msgspec.structs.asdict(layout), "ranks": layout.n_ranks},
        "folder": out,
        "ended": result.ended,
        "code": result.code,
        "steps": result.step,
        "loss": result.loss,
        "wall_s": result.wall_s,
        "restarts": result.restarts,
        "hung": result.hung,
        "straggler": None if result.straggler is None else asdict(result.straggler),
        "collectives": result.collectives,
        "model": result.journals[0].newest("model"),
        "exchange_times": result.exchange_times,
        "step_s": result.step_s,
        "predicted_step_s": next((s.get("predicted_s") for s in result.journals[0].steps[-1:]), None),
        "energy_j": result.energy_j,
        "save_blocks": result.blocked,
        "losses": [asdict(x) for x in result.losses],
        "expected_loss_s": result.expected_loss_s,
        "saved": [e["step"] for e in result.journals[0].events if e["event"] == "saved"],
        "resumed": next((e["step"] for e in result.journals[0].events if e["event"] == "resumed"), None),
    }
