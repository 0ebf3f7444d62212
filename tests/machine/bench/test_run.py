"""Running cases: a failure has a name, an interruption keeps what was measured, rows are kept as they end."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from pathlib import Path

import pytest
from doubles import RIGHT, card, case_of, flop_of, timed

from gpuwise import __version__
from gpuwise.errors import DeviceLostError
from gpuwise.machine.bench.cases import CASES, BenchCase
from gpuwise.machine.bench.prepared_case import Check, NotHereError, PreparedCase
from gpuwise.machine.bench.run import Limits, new_run, pairs_of, reason_of, run_case, run_cases
from gpuwise.machine.bench.subjects import Subject, this_processor
from gpuwise.machine.devices.null import NullCard, NullDevices
from gpuwise.machine.devices.readings import EventReason, State
from gpuwise.records.store import Records

BIG = case_of("matmul-bf16-8192x8192x8192")
SMALL = case_of("matmul-bf16-1024x1024x1024")
LAUNCH = case_of("launch-eager-1")


def ticking() -> float:
    return next(_TICKS) * 0.01


_TICKS = itertools.count()
LIMITS = Limits(1.0)


def test_a_rate_is_work_over_the_median_with_its_interval() -> None:
    seconds = [1.0, 1.1, 0.9, 1.0, 1.05, 0.95, 1.0, 1.0]
    record = run_case(BIG, card(), LIMITS, make=lambda c, s: timed(seconds, flop_of(c)), clock=ticking, now=lambda: 5.0)
    assert record.value == flop_of(BIG)
    assert record.low is not None
    assert record.high is not None
    assert record.low <= record.value <= record.high
    assert record.time_s == 1.0
    assert record.correct is True
    assert record.accelerator == "h100-sxm-80gb"


def test_a_latency_is_kept_as_seconds() -> None:
    record = run_case(LAUNCH, card(), LIMITS, make=lambda c, s: timed([3e-6], 1.0), clock=ticking)
    assert record.value == 3e-6
    assert record.unit == "s"


def make_mixed(case: BenchCase, subject: Subject) -> PreparedCase:
    if case is SMALL:
        raise RuntimeError("CUDA error: no kernel image is available\nfor execution on the device")
    if case is LAUNCH:
        raise NotHereError("no such thing here")
    return timed([1e-3], flop_of(case))


def test_a_failure_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    pairs = [(case, card()) for case in (SMALL, LAUNCH, BIG)]
    with Records(tmp_path / "r.db") as store:
        outcome = run_cases(pairs, new_run([card()], "test", 1.0), store, LIMITS, make=make_mixed, clock=ticking)
        kept = store.query()
    assert [r.failed for r in kept] == [
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        None,
    ]
    assert [(c.key, why) for c, _, why in outcome.skipped] == [(LAUNCH.key, "no such thing here")]
    assert [r.measurement for r in outcome.failed] == [SMALL.key]


@pytest.mark.parametrize("where", ["make", "sample", "check"])
def test_it_does_not_matter_where_it_fails(where: str) -> None:
    def boom(*_: object) -> None:
        raise MemoryError

    def make(case: BenchCase, subject: Subject) -> PreparedCase:
        if where == "make":
            boom()
        sample = boom if where == "sample" else lambda: 1e-3
        return PreparedCase(sample, 1.0, boom if where == "check" else lambda: RIGHT)  # type: ignore[arg-type]

    assert run_case(BIG, card(), LIMITS, make=make, clock=ticking).failed == "out of host memory"


def test_an_interruption_keeps_what_was_measured(tmp_path: Path) -> None:
    def make(case: BenchCase, subject: Subject) -> PreparedCase:
        if case is SMALL:
            raise KeyboardInterrupt
        return timed([1e-3], 1.0)

    pairs = [(case, card()) for case in (BIG, SMALL, LAUNCH)]
    with Records(tmp_path / "r.db") as store:
        outcome = run_cases(pairs, new_run([card()], "test", 1.0), store, LIMITS, make=make, clock=ticking)
        assert outcome.interrupted
        assert [r.measurement for r in store.query()] == [BIG.key]


def test_a_row_is_kept_before_the_next_begins(tmp_path: Path) -> None:
    seen: list[int] = []
    with Records(tmp_path / "r.db") as store, Records(tmp_path / "r.db") as other:

        def make(case: BenchCase, subject: Subject) -> PreparedCase:
            seen.append(len(other.query()))
            return timed([1e-3], 1.0)

        pairs = [(case, card()) for case in (BIG, SMALL, LAUNCH)]
        run_cases(pairs, new_run([card()], "test", 1.0), store, LIMITS, make=make, clock=ticking)
    assert seen == [0, 1, 2]


def test_wrong_answers_are_told_apart_from_slow_ones() -> None:
    work = timed([1e-3], 1.0, check=lambda: Check(False, float("inf"), "all"))
    outcome = run_cases([(BIG, card())], new_run([card()], "t", 1.0), None, LIMITS, make=lambda c, s: work, clock=ticking)
    assert [r.measurement for r in outcome.wrong] == [BIG.key]
    assert outcome.wrong[0].error is None, "an infinite error is not a number to keep"


def test_no_case_begins_after_the_end() -> None:
    clock = itertools.count()
    pairs = [(case, card()) for case in CASES[:6]]
    limits = Limits(1.0, end_s=6.0)
    run = new_run([card()], "t", 1.0)
    outcome = run_cases(pairs, run, None, limits, make=lambda c, s: timed([1e-3], 1.0), clock=lambda: float(next(clock)))
    assert outcome.records
    assert outcome.late
    assert len(outcome.records) + len(outcome.late) == 6


def test_a_quick_run_ends_however_slow_the_machine_is() -> None:
    """By the run's own clock: every case takes what it likes, up to the limit of one."""
    now = [100.0]
    seen: list[float] = []

    def make(case: BenchCase, subject: Subject) -> PreparedCase:
        seen.append(now[0])
        now[0] += 14.0
        return timed([1e-3], 1.0)

    limits = Limits(0.7, end_s=100.0 + 45.0, case_s=15.0)
    pairs = [(case, card()) for case in CASES[:20]]
    outcome = run_cases(pairs, new_run([card()], "t", 1.0), None, limits, make=make, clock=lambda: now[0])
    assert seen == [100.0, 114.0, 128.0, 142.0]
    assert len(outcome.records) == 4
    assert len(outcome.late) == 16
    assert limits.left_s(142.0) == 3.0, "the last one may take what is left, not 15 s"


def test_a_case_that_hangs_is_cut_off_closed_and_named() -> None:
    closed: list[str] = []

    def make(case: BenchCase, subject: Subject) -> PreparedCase:
        if case is LAUNCH:
            time.sleep(600.0)
        check = (lambda: time.sleep(600.0)) if case is SMALL else (lambda: RIGHT)
        return PreparedCase(lambda: 1e-3, 1.0, check, lambda: closed.append(case.key))  # type: ignore[arg-type]

    pairs = [(case, card()) for case in (LAUNCH, SMALL, BIG)]
    before = signal.getsignal(signal.SIGALRM)
    outcome = run_cases(pairs, new_run([card()], "t", 1.0), None, Limits(0.01, case_s=1.0), make=make, clock=ticking)
    assert [c.key for c, _, why in outcome.skipped if "not ready after" in why] == [LAUNCH.key, SMALL.key]
    assert closed == [SMALL.key, BIG.key]
    assert [r.measurement for _, _, r in outcome.records] == [BIG.key]
    assert signal.getsignal(signal.SIGALRM) == before
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0


def test_nothing_is_cut_off_outside_the_main_thread_or_under_another_timer() -> None:
    from gpuwise.machine.bench.time_limit import MeasurementTimeout, time_limit

    with pytest.raises(MeasurementTimeout), time_limit(0.01):
        time.sleep(600.0)
    done: list[bool] = []

    def body() -> None:
        with time_limit(0.001):
            time.sleep(0.05)
        done.append(True)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert done == [True]


def test_a_run_cut_short_has_seen_every_family() -> None:
    subject = this_processor()
    rows = [c for c in CASES if c.quick]
    pairs = pairs_of(rows, [subject])
    families = {c.family for c, _ in pairs} - {"collective"}
    assert {c.family for c, _ in pairs[: len(families)]} == families
    assert [c.family for c, _ in pairs].index("collective") == len(pairs) - 1, "its processes take long to start"
    assert {c.key for c, _ in pairs} == {c.key for c in rows if "cpu" in c.on}


def test_what_names_a_run_does_not_name_the_host() -> None:
    import platform

    run = new_run([this_processor()], "test", 1.0)
    assert run.software["gpuwise"] == __version__
    text = repr(run)
    assert len(platform.node()) < 4 or platform.node() not in text


def test_a_source_tree_without_the_metadata_of_an_installation_names_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    found = metadata.distribution

    def installed(name: str) -> metadata.Distribution:
        if name == "gpuwise":
            raise metadata.PackageNotFoundError(name)
        return found(name)

    monkeypatch.setattr(metadata, "distribution", installed)
    assert new_run([this_processor()], "test", 1.0).software["gpuwise"] == __version__


def test_reasons_are_one_short_line() -> None:
    assert reason_of(RuntimeError("a\nb " + "x" * 500)).startswith("RuntimeError: a b")
    assert len(reason_of(RuntimeError("x" * 500))) == 200
    assert reason_of(DeviceLostError(1, "device 1 is lost")) == "device 1 is lost"


# --- what is watched ---


def scripted(**readings: object) -> Subject:
    seam = NullDevices([NullCard("h100-sxm", script=lambda t: readings)])
    return card(backend=seam)


def test_clocks_power_and_what_held_them_back_are_kept() -> None:
    subject = scripted(
        sm_clock_hz=1.2e9,
        power_w=695.0,
        temperature_c=83.0,
        event_reasons=int(EventReason.SW_POWER_CAP | EventReason.IDLE) | 0x4000,
    )
    record = run_case(BIG, subject, LIMITS, make=lambda c, s: timed([1e-3], 1.0), clock=ticking)
    assert record.conditions["sm_clock_hz"] == 1.2e9
    assert record.conditions["power_w"] == 695.0
    assert record.conditions["event SW_POWER_CAP"] == 1.0
    assert record.conditions["event 0x4000"] == 1.0, "a bit nobody has named is kept"
    assert "event IDLE" not in record.conditions


def test_a_card_that_is_lost_while_it_is_measured_is_told() -> None:
    subject = scripted(state=State.LOST, error="GPU is lost")
    record = run_case(BIG, subject, LIMITS, make=lambda c, s: timed([1e-3], 1.0), clock=ticking)
    assert record.conditions["state"] == "lost"
    assert record.conditions["state_error"] == "GPU is lost"


def test_without_a_driver_library_the_record_says_so() -> None:
    record = run_case(BIG, card(), LIMITS, make=lambda c, s: timed([1e-3], 1.0), clock=ticking)
    assert "no driver library" in str(record.conditions["unwatched"])


def test_what_others_did_to_the_processor_is_kept() -> None:
    from gpuwise.machine.bench.watch import others_busy

    assert others_busy((0.0, 100.0, 10.0), (10.0, 118.0, 20.0), 4) == {"others_busy": 0.2}
    assert others_busy((0.0, 100.0, 10.0), (10.0, 105.0, 20.0), 4) == {"others_busy": 0.0}, "never below nothing"
    assert others_busy((0.0, 0.0, 0.0), (0.01, 5.0, 0.0), 4) == {}, "too short to tell"
    assert others_busy(None, None, 4) == {}


def test_one_case_is_tried_where_the_time_was_over_before_any() -> None:
    """A machine on which importing PyTorch took longer than a quick run may."""
    now = [200.0]

    def make(case: BenchCase, subject: Subject) -> PreparedCase:
        now[0] += 5.0
        return timed([1e-3], 1.0)

    limits = Limits(0.7, end_s=145.0, case_s=15.0)
    pairs = [(case, card()) for case in CASES[:3]]
    outcome = run_cases(pairs, new_run([card()], "t", 1.0), None, limits, make=make, clock=lambda: now[0])
    assert [c for c, _, _ in outcome.records] == [CASES[0]] and [c for c, _ in outcome.late] == list(CASES[1:3])
