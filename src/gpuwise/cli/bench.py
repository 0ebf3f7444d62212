"""``gpuwise bench``: what this machine really delivers, and whether that is normal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuwise.cli.options import Duration
from gpuwise.errors import InputError

if TYPE_CHECKING:
    from gpuwise.machine.bench.run import Limits
    from gpuwise.machine.bench.subjects import Subject
    from gpuwise.records.store import Records

QUICK_S, QUICK_EACH_S, EACH_S = 40.0, 0.7, 2.0
"""A quick run begins no measurement ``QUICK_S`` after the devices are found and samples each for up to ``QUICK_EACH_S``;
others ``EACH_S``."""
WRONG = 1
"""Exit code where an answer is wrong, a card is faulty, or something is below ``--fail-below``."""


def bench(
    *,
    quick: Annotated[bool, Parameter(negative="")] = False,
    only: list[str] | None = None,
    device: list[str] | None = None,
    stress: Duration | None = None,
    calibrate: Annotated[bool, Parameter(negative="")] = False,
    against: list[str] | None = None,
    fail_below: str | None = None,
    each: Duration | None = None,
    save: bool = True,
    history: Annotated[bool, Parameter(negative="")] = False,
    export: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    import_: Annotated[Path | None, Parameter(name="--import")] = None,
    list_: Annotated[bool, Parameter(name="--list", negative="")] = False,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """What does this machine deliver, against its specification, its siblings and its CPU? Is that normal?

    Measures matrix products, attention, memory, launches, copies, collectives, the data loader and the disk; checks
    every answer against a reference of higher precision; watches clocks, power and what holds them back. Each result
    is kept the moment it ends, so Ctrl-C and kill -9 lose nothing that was measured. The exit code is 1 when an answer
    is wrong, a card is faulty, or --fail-below says so.

    Parameters
    ----------
    quick
        The short list, under a minute.
    only
        Measure these: a family (matmul, attention, memory, launch, copy, peer, collective, loader, disk), its format
        (matmul-bf16) or a key of --list. May be given several times.
    device
        Measure on these: cpu, gpu, gpu0, gpu1 ... May be given several times; all by default.
    stress
        Repeat one large product for this long (10m) and compare every result bit by bit; a card that answers
        differently is faulty.
    calibrate
        Measure about 200 products and some streams, and learn this machine's own coefficients from them; `--on this`
        in fit, plan and op uses them from then on.
    against
        GPUs you do not have, to compare the processor's products with: 4090, h100-sxm. May be given several times.
    fail_below
        Exit with 1 when anything is below this share of what is expected (0.9), or below its normal range (normal).
    each
        How long to sample each measurement at most (2s; 0.7s with --quick).
    save
        Keep the results in the record file (GPUWISE_RECORDS says where).
    history
        Show what was measured before instead of measuring.
    export
        Write this user's records to a file as JSON lines instead of measuring; - is stdout.
    import_
        Read JSON lines of another machine or file into the records instead of measuring.
    list_
        List the measurements instead of measuring.
    json
        One JSON document on the last line of stdout.
    """
    import time

    threshold = _threshold(fail_below)
    if sum((stress is not None, calibrate, history, list_, export is not None, import_ is not None)) > 1:
        raise InputError(
            "these do different things", hint="give one of --stress, --calibrate, --history, --list, --export, --import"
        )
    if list_ or history or export is not None or import_ is not None:
        from gpuwise.cli.bench_records import show_kept, show_list

        if list_:
            return show_list(tuple(only or ()), quick=quick, json=json)
        return show_kept(export, import_, json=json)
    from gpuwise.machine.bench.run import Limits

    with _measuring(tuple(device or ()), save=save) as (subjects, store):
        if stress is not None:
            from gpuwise.cli.bench_stress import stress_all

            return stress_all(subjects, store, stress, json=json, progress=say)
        if calibrate:
            from gpuwise.cli.bench_calibrate import calibrate_all

            return calibrate_all(subjects, store, each or 0.25, json=json, progress=say)
        limits = Limits(each or (QUICK_EACH_S if quick else EACH_S), time.monotonic() + QUICK_S if quick else None)
        return _measure(subjects, store, limits, tuple(only or ()), tuple(against or ()), threshold, quick=quick, json=json)


def _measure(
    subjects: list[Subject], store: Records | None, limits: Limits, only: tuple[str, ...], against: tuple[str, ...],
    threshold: float | str | None, *, quick: bool, json: bool,
) -> int:  # fmt: skip
    import time

    from gpuwise.cli.bench_against import DEFAULT_AGAINST, speedups
    from gpuwise.machine.bench.cases import chosen
    from gpuwise.machine.bench.expect import judge_all
    from gpuwise.machine.bench.run import new_run, pairs_of, run_cases
    from gpuwise.plan.one_op import find_target

    targets = [find_target(name) for name in against or DEFAULT_AGAINST]
    pairs = pairs_of(chosen(only, quick=quick), subjects)
    if not pairs:
        raise InputError("nothing of that can be measured on these devices", hint="`gpuwise bench --list` says what runs where")
    run = new_run(subjects, "gpuwise bench" + (" --quick" if quick else ""), time.time())
    outcome = run_cases(pairs, run, store, limits, progress=say)
    say("")

    def earlier(subject: Subject) -> list[object]:
        if store is None:
            return []
        kept = store.query(device=subject.device, machine_id=run.machine_id)
        return [r for r in kept if r.run is not None and r.run.id != run.id]

    judged = judge_all(outcome.records, earlier)  # type: ignore[arg-type]
    compared = speedups(judged, targets)
    below = [j for j in judged if _is_below(j.of_expected, str(j.verdict), threshold)]
    if json:
        from gpuwise.cli.bench_document import document
        from gpuwise.cli.out import print_json

        print_json(document(outcome, judged, compared, below))
    else:
        from gpuwise.cli.bench_view import show

        show(outcome, judged, compared, below, threshold, saved_in=None if store is None else store.path)
    if outcome.interrupted:
        return 130
    return WRONG if outcome.wrong or below else 0


@contextmanager
def _measuring(device: tuple[str, ...], *, save: bool) -> Iterator[tuple[list[Subject], Records | None]]:
    """The devices to measure with the driver's readings at hand, and the record file."""
    from contextlib import ExitStack

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
        yield pick_subjects(find_subjects(backends), device), store


def _threshold(text: str | None) -> float | str | None:
    """``normal`` or a share above 0 and up to 2. Raises InputError."""
    if text is None or text == "normal":
        return text
    try:
        share = float(text.rstrip("%")) / (100.0 if text.endswith("%") else 1.0)
    except ValueError:
        share = -1.0
    if not 0.0 < share <= 2.0:
        raise InputError(f"--fail-below: {text!r} is no share of what is expected", hint="write --fail-below 0.9, or normal")
    return share


def _is_below(of_expected: float | None, verdict: str, threshold: float | str | None) -> bool:
    if threshold is None or of_expected is None:
        return False
    return verdict == "low" if isinstance(threshold, str) else of_expected < threshold


def say(text: str) -> None:
    """Progress on stderr: one line that is written over on a terminal, a line each elsewhere."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[2K{text[:78]}")
    elif text:
        sys.stderr.write(text + "\n")
    sys.stderr.flush()
