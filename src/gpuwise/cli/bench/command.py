"""``gpuwise bench``: what this machine really delivers, and whether that is normal."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from gpuwise.cli.options import Duration, NewFile
from gpuwise.cli.progress import say
from gpuwise.cli.shown import options_shown
from gpuwise.errors import InputError

if TYPE_CHECKING:
    from gpuwise.cli.shown import Shown
    from gpuwise.machine.bench.cases import BenchCase
    from gpuwise.machine.bench.run import Limits
    from gpuwise.machine.bench.subjects import Subject
    from gpuwise.records.store import Records
else:
    Shown = options_shown("bench")

QUICK_S, QUICK_CASE_S = 45.0, 15.0
"""A quick run measures nothing longer than ``QUICK_S`` after its start, importing PyTorch included, and cuts a measurement
off that is not done after ``QUICK_CASE_S``: with starting, judging and printing it stays under a minute."""
QUICK_EACH_S, EACH_S, CALIBRATE_EACH_S = 0.7, 2.0, 0.25
"""Each measurement is sampled for up to this long."""
WRONG = 1
"""Exit code where an answer is wrong, a card is faulty, something is below ``--fail-below``, or nothing could be measured."""


@Parameter(name="*", group=Group("Instead of measuring", sort_key=50))
@dataclass(frozen=True, slots=True)
class Instead:
    """Other things to do than measuring the list; one at a time."""

    stress: Duration | None = None
    """Repeat one large matrix product for this time, 10m, and compare every result bit by bit. A GPU whose results differ is
    faulty."""
    calibrate: Annotated[bool, Parameter(negative="")] = False
    """Measure about 200 matrix products and some memory streams, for `--on this` in fit, plan and op."""
    history: Annotated[bool, Parameter(negative="")] = False
    """Show earlier measurements instead of measuring."""
    export: NewFile | None = None
    """Write your records to a file as JSON lines instead of measuring; - is stdout."""
    import_: Annotated[Path | None, Parameter(name="--import", allow_leading_hyphen=True, metavar="FILE")] = None
    """Add records from a file instead of measuring: of --export, or what llama-bench (json, jsonl, csv, md), `ollama run
    --verbose`, mlx_lm.generate, mlx_lm.benchmark or vllm bench serve printed; - is stdin."""
    list_: Annotated[bool, Parameter(name="--list", negative="")] = False
    """List the measurements instead of measuring."""

    def check(self) -> None:
        """Raises InputError where more than one is asked for."""
        if sum(getattr(self, name) != getattr(NOTHING_ELSE, name) for name in self.__dataclass_fields__) > 1:
            raise InputError(
                "these options exclude each other",
                hint="give one of --stress, --calibrate, --history, --list, --export, --import",
            )

    @property
    def reads_records(self) -> bool:
        return self.history or self.export is not None or self.import_ is not None


NOTHING_ELSE = Instead()


def bench(
    model: Annotated[str | None, Parameter(metavar="MODEL")] = None,
    *,
    quick: Annotated[bool, Parameter(negative="")] = False,
    only: Annotated[list[str] | None, Parameter(metavar="NAME")] = None,
    device: Annotated[list[str] | None, Parameter(show_default="all", metavar="DEVICE")] = None,
    against: Annotated[list[str] | None, Parameter(metavar="GPUS")] = None,
    fail_below: Annotated[str | None, Parameter(metavar="SHARE")] = None,
    each: Duration | None = None,
    llama_bench: Annotated[Path | None, Parameter(show_default="on PATH", metavar="FILE")] = None,
    save: bool = True,
    instead: Instead = NOTHING_ELSE,
    shown: Shown | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Measure this machine and compare it with its specification, with other GPUs of its type and with its CPU.

    With a model (a .gguf file): measure how fast it reads and writes with llama-bench, beside the prediction. `gpuwise fit MODEL
    --for run` shows both from then on, and speeds on this machine are corrected by what was measured.

    Without one: measures matrix products, attention, memory, launches, copies, collectives, the data loader and the disk. Checks
    every result against a reference of higher precision. Records clocks, power and throttling. Each result is saved as soon as it
    is measured, so Ctrl-C and kill -9 lose none. The exit code is 1 if a result is wrong, a GPU is faulty, a result is under
    --fail-below, or the machine was too busy to measure.

    Parameters
    ----------
    model
        A .gguf file to measure with llama-bench. With --import: the model that was measured, where the output does not name it.
    quick
        Run the short list, under a minute; skipped measurements are listed. Of a model: its shortest context alone.
    only
        Measure these: a family (matmul, attention, memory, launch, copy, peer, collective, loader, disk), a format or
        kind (bf16, nccl, pinned), both (matmul-bf16) or a key of --list. May be given several times.
    device
        Measure on these: cpu, gpu, gpu0, gpu1 ... May be given several times.
    against
        Compare the CPU's matrix products with a GPU you do not have: 4090, h100-sxm. May be given several times.
    fail_below
        Exit with 1 when a result is below this share of the expected value (0.9), or below its normal range (normal).
    each
        Longest time to sample each measurement: 2s. Without it: 2s, 0.7s with --quick.
    llama_bench
        The program llama-bench, which is part of llama.cpp.
    save
        Save the results in the record file (its path: GPUWISE_RECORDS).
    json
        One JSON document on the last line of stdout.
    """
    import time

    began_s = time.monotonic()
    threshold = _threshold(fail_below)
    instead.check()
    _check_model(model, instead, llama_bench, only, against, fail_below, each)
    if instead.list_ or instead.reads_records:
        for name, value in (("--device", device), ("--against", against), ("--each", each), ("--fail-below", fail_below)):
            if value:
                raise InputError(f"{name} belongs to a measurement; this command measures nothing", hint="leave it out")
    if instead.list_:
        from gpuwise.cli.bench.records import show_list

        return show_list(tuple(only or ()), quick=quick, shown=shown, json=json)
    if instead.reads_records:
        from gpuwise.cli.bench.records import show_kept

        return show_kept(instead.export, instead.import_, model, shown, json=json)
    if model is not None:
        from gpuwise.cli.bench.model import bench_model

        return bench_model(model, llama_bench, tuple(device or ()), quick=quick, save=save, json=json)
    with _measuring(tuple(device or ()), save=save) as (subjects, store, no_gpu):
        if instead != NOTHING_ELSE:
            return _do_instead(instead, subjects, store, each, json=json)
        words = tuple(only or ()), tuple(against or ())
        return _measure(subjects, store, _limits(each, quick, began_s), *words, threshold, no_gpu, quick=quick, json=json)


def _check_model(model: str | None, instead: Instead, llama_bench: Path | None, *others: object) -> None:
    """Raises InputError for options of a model without one, and for options that a model has no use for."""
    if model is None:
        if llama_bench is not None:
            raise InputError("--llama-bench measures a model", hint="name one: gpuwise bench FILE.gguf")
        return
    if instead not in (NOTHING_ELSE, Instead(import_=instead.import_)):
        raise InputError("a model is measured, or its measurements imported", hint="leave the model out")
    names = ("--only", "--against", "--fail-below", "--each")
    for name, value in zip(names, others, strict=True):
        if value:
            raise InputError(f"{name} is not for a model", hint="leave it out")
    if instead.import_ is not None and llama_bench is not None:
        raise InputError("--import measures nothing", hint="leave --llama-bench out")


def _do_instead(instead: Instead, subjects: list[Subject], store: Records | None, each_s: float | None, *, json: bool) -> int:
    if instead.stress is not None:
        from gpuwise.cli.bench.stress import stress_all

        return stress_all(subjects, store, instead.stress, json=json, progress=say)
    from gpuwise.cli.bench.calibrate import calibrate_all

    return calibrate_all(subjects, store, each_s or CALIBRATE_EACH_S, json=json, progress=say)


def _limits(each_s: float | None, quick: bool, began_s: float) -> Limits:
    from gpuwise.machine.bench.run import Limits

    if quick:
        return Limits(each_s or QUICK_EACH_S, began_s + QUICK_S, case_s=QUICK_CASE_S)
    return Limits(each_s or EACH_S)


def _measure(
    subjects: list[Subject],
    store: Records | None,
    limits: Limits,
    only: tuple[str, ...],
    against: tuple[str, ...],
    threshold: float | str | None,
    no_gpu: str,
    *,
    quick: bool,
    json: bool,
) -> int:
    """``no_gpu``: why there is none to measure; empty where there is one, or none was asked for."""
    import time

    from gpuwise.cli.bench.against import DEFAULT_AGAINST, speedups
    from gpuwise.facts.hardware.targets import find_target
    from gpuwise.machine.bench.cases import GPU, select_cases
    from gpuwise.machine.bench.expect import judge_all
    from gpuwise.machine.bench.run import new_run, pairs_of, run_cases

    targets = [find_target(name) for name in against or DEFAULT_AGAINST]
    cases = select_cases(only, quick=quick)
    pairs = pairs_of(cases, subjects)
    if not pairs:
        why = f": {no_gpu}" if no_gpu and all(c.on == GPU for c in cases) else ""
        raise InputError(f"this machine cannot measure any of these{why}", hint="`gpuwise bench --list` lists the measurements")
    run = new_run(subjects, "gpuwise bench" + (" --quick" if quick else ""), time.time())
    outcome = run_cases(pairs, run, store, limits, progress=say)
    say("")

    def earlier(subject: Subject) -> list[object]:
        if store is None:
            return []
        records = store.query(device=subject.device, machine_id=run.machine_id)
        return [r for r in records if r.run is not None and r.run.id != run.id]

    left_out: list[BenchCase] = [c for c in cases if c.on == GPU] if no_gpu else []
    without = (no_gpu or "", left_out)
    judged = judge_all(outcome.records, earlier)  # type: ignore[arg-type]
    compared = speedups(judged, targets)
    below = [j for j in judged if _is_below(j.of_expected, str(j.verdict), threshold)]
    if json:
        from gpuwise.cli.bench.document import document
        from gpuwise.cli.out import print_json

        print_json(document(outcome, judged, compared, below, without))
    else:
        from gpuwise.cli.bench.view import show

        show(outcome, judged, compared, below, threshold, without, saved_in=None if store is None else store.path)
    if outcome.interrupted:
        return 130
    return WRONG if outcome.wrong or below or (outcome.late and not outcome.records) else 0


@contextmanager
def _measuring(device: tuple[str, ...], *, save: bool) -> Generator[tuple[list[Subject], Records | None, str], None, None]:
    """The devices to measure with the driver's readings at hand, the record file, and why no GPU is among them."""
    from contextlib import ExitStack

    from gpuwise.machine.bench.absent import no_gpu_reason
    from gpuwise.machine.bench.host_threads import use_every_core
    from gpuwise.machine.bench.subjects import find_subjects, pick_subjects
    from gpuwise.machine.devices.find import find_devices
    from gpuwise.records.store import Records

    use_every_core()
    with ExitStack() as stack:
        try:
            backends = find_devices().backends
        except ImportError:
            # without the vendor's client clocks and power stay unknown, and the results say so
            backends = ()
        for backend in backends:
            stack.callback(backend.close)
        store = stack.enter_context(Records()) if save else None
        subjects = find_subjects(backends)
        no_gpu = "" if any(s.kind == "cuda" for s in subjects) or (device and "gpu" not in device) else no_gpu_reason(backends)
        if no_gpu and "gpu" in device:
            raise InputError(f"there is no GPU to measure: {no_gpu}", hint="`gpuwise bench --device cpu` measures the processor")
        yield pick_subjects(subjects, device), store, no_gpu


def _threshold(text: str | None) -> float | str | None:
    """``normal`` or a share above 0 and up to 2. Raises InputError."""
    if text is None or text == "normal":
        return text
    try:
        share = float(text.rstrip("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        share = -1.0
    if not 0.0 < share <= 2.0:
        raise InputError(f"--fail-below: {text!r} is not a share of the expected value", hint="write --fail-below 0.9, or normal")
    return share


def _is_below(of_expected: float | None, verdict: str, threshold: float | str | None) -> bool:
    if threshold is None or of_expected is None:
        return False
    return verdict == "low" if isinstance(threshold, str) else of_expected < threshold
