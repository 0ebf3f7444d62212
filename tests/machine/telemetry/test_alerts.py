"""Alerts: what is a rule and what is not; a value that trembles rings once; commands that hang hold up nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import InputError
from gpuwise.machine.devices.readings import State
from gpuwise.machine.telemetry.alerts import CAUSE_IDS, N_RUNNING, READINGS, WORDS, AlertRule, Alerts, Watch, parse_rule
from gpuwise.machine.telemetry.causes.cause import Cause, Severity


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("temp>85 for 60s", ("temp", ">", 85.0, 60.0, None)),
        ("temp > 85C", ("temp", ">", 85.0, 0.0, None)),
        ("TEMP>=85°C for 1m until 80", ("temp", ">=", 85.0, 60.0, 80.0)),
        ("util<5% for 10m until 20", ("util", "<", 5.0, 600.0, 20.0)),
        ("memused>70GiB", ("memused", ">", 70 * 2.0**30, 0.0, None)),
        ("clock<1.2GHz", ("clock", "<", 1200.0, 0.0, None)),
        ("pcie>12GB/s for 5s", ("pcie", ">", 12e9, 5.0, None)),
        ("lost", ("lost", "", 0.0, 0.0, None)),
        (" fault for 30s ", ("fault", "", 0.0, 30.0, None)),
        ("sw-thermal for 5m", ("cause", "", 0.0, 300.0, None)),
    ],
)
def test_rules(text: str, rule: tuple[Any, ...]) -> None:
    made = parse_rule(text)
    assert (made.name, made.sign, made.limit, made.hold_s, made.until) == rule and made.text == text.strip()


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "temp",
        "temp>",
        "temp>hot",
        "temp=85",
        "temp>85 for",
        "temp>85 for ever",
        "colour>3",
        "sw-thermal>3",
        "lost until 4",
        "temp>nan",
        "temp>inf",
        "temp>85 until 90",
        "util<5 until 2",
        "temp>85 for 60s for 60s",
        "temp>85; ls",
        "memused>70",
        "warmth",
    ],
)
def test_what_is_no_rule(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_rule(text)
    assert caught.value.hint


@given(st.text(max_size=40))
def test_any_text_is_a_rule_or_refused(text: str) -> None:
    try:
        parse_rule(text)
    except InputError as error:
        assert error.message


@given(
    st.sampled_from([n for n, (_, unit) in READINGS.items() if not unit.startswith("B")]),
    st.sampled_from([">", ">=", "<", "<="]),
    st.integers(0, 10**6),
    st.integers(0, 10**5),
    st.booleans(),
)
def test_a_rule_written_is_the_rule_read(name: str, sign: str, limit: int, hold_s: int, until: bool) -> None:
    text = f"{name}{sign}{limit}" + (f" for {hold_s}s" if hold_s else "") + (f" until {limit}" if until else "")
    rule = parse_rule(text)
    assert (rule.name, rule.sign, rule.limit, rule.hold_s) == (name, sign, limit, hold_s)
    assert rule.until == (limit if until else None)


def test_every_word_and_cause_is_a_rule() -> None:
    for name in (*WORDS, *CAUSE_IDS):
        assert parse_rule(name).holds is not None


def fired(made: Any, rule: str, temperatures: list[float | None], step_s: float = 1.0) -> list[tuple[int, bool]]:
    watch, out = Watch((parse_rule(rule),)), []
    for n, t in enumerate(temperatures):
        frame = made.frame(made.card(sample={"temperature_c": t}), at_s=n * step_s)
        out += [(n, a.fired) for a in watch.look(frame, ())]
    return out


def test_it_rings_when_the_time_is_up_and_once(made: Any) -> None:
    assert fired(made, "temp>85 for 3s", [90.0] * 10) == [(3, True)]
    assert fired(made, "temp>85", [80.0, 90.0, 90.0, 80.0]) == [(1, True), (3, False)]


def test_a_dip_starts_the_time_again(made: Any) -> None:
    assert fired(made, "temp>85 for 3s", [90, 90, 80, 90, 90, 90, 90, 90]) == [(6, True)]


def test_it_is_over_only_after_as_long(made: Any) -> None:
    assert fired(made, "temp>85 for 2s", [90, 90, 90, 80, 90, 80, 80, 80, 80]) == [(2, True), (7, False)]


def test_until_ends_it_at_once_and_not_before(made: Any) -> None:
    assert fired(made, "temp>85 for 2s until 70", [90, 90, 90, 80, 80, 80, 80, 70, 80]) == [(2, True), (7, False)]


def test_an_unknown_reading_changes_nothing(made: Any) -> None:
    assert fired(made, "temp>85 for 2s", [90, None, 90, None, 90, None]) == [(2, True)]
    assert fired(made, "temp>85", [90, None, None, 80]) == [(0, True), (3, False)]


@given(st.lists(st.sampled_from([None, 60.0, 84.0, 85.0, 86.0, 99.0]), max_size=40), st.integers(0, 4))
def test_alerts_take_turns(made: Any, temperatures: list[float | None], hold_s: int) -> None:
    """On, off, on, off; and no change comes sooner after the one before than the rule's time."""
    changes = fired(made, f"temp>85 for {hold_s}s", temperatures)
    assert [f for _, f in changes] == [n % 2 == 0 for n in range(len(changes))]
    assert all(b - a > hold_s for (a, _), (b, _) in pairwise(changes))


def test_words_and_causes_hold_on_their_card_only(made: Any) -> None:
    lost = replace(made.card(sample={"state": State.LOST}), number=1)
    cause = Cause("sw-thermal", 0, "", (), None, Severity.SLOWS)
    frame = made.frame(made.card(), lost)
    rules = tuple(parse_rule(t) for t in ("lost", "sw-thermal", "slow", "fault"))
    assert [(a.rule.text, a.number) for a in Watch(rules).look(frame, (cause,))] == [("lost", 1), ("sw-thermal", 0), ("slow", 0)]


def test_the_command_is_told_by_its_environment(made: Any, tmp_path: Path) -> None:
    code = "import os,sys; open(sys.argv[1],'a').write('|'.join(os.environ['GPUWISE_'+k] for k in sys.argv[2:])+chr(10))"
    told = "ALERT STATE GPU GPU_NAME GPU_UUID VALUE CAUSES"
    out = tmp_path / "told"
    alerts = Alerts((parse_rule("temp>85"),), f'"{sys.executable}" -c "{code}" "{out}" {told}')
    cause = Cause("sw-thermal", 0, "It's warm; $(touch /tmp/never)", (), None, Severity.SLOWS)
    for n, t in enumerate((90.0, 60.0)):
        alerts.write(made.frame(made.card(sample={"temperature_c": t}), at_s=float(n)), (cause,))
        _wait(lambda n=n: out.exists() and out.read_text().count("\n") > n)
    for process in alerts._running:
        process.wait(300)
    assert out.read_text().splitlines() == [
        "temp>85|fired|0|RTX 4090|GPU-0|90|It's warm; $(touch /tmp/never)",
        "temp>85|over|0|RTX 4090|GPU-0|60|It's warm; $(touch /tmp/never)",
    ]
    assert alerts.n_fired == 1


def test_commands_that_hang_hold_up_nothing_and_do_not_pile_up(made: Any) -> None:
    alerts = Alerts(tuple(parse_rule(f"temp>{n}") for n in range(N_RUNNING + 3)), "exec sleep 60")
    try:
        alerts.write(made.frame(made.card(sample={"temperature_c": 90.0})), ())
        assert len(alerts._running) == N_RUNNING and any("not started" in n for n in alerts.notices)
        assert sum(n.startswith("alert: ") for n in alerts.notices) == N_RUNNING + 3
        alerts.close()
    finally:
        for process in alerts._running:
            process.kill()
            process.wait()


def test_a_command_that_fails_is_told(made: Any) -> None:
    alerts = Alerts((parse_rule("temp>5"),), "exit 7", quiet=True)
    frame = made.frame(made.card())
    alerts.write(frame, ())
    _wait(lambda: alerts.write(frame, ()) or any("ended with 7" in n for n in alerts.notices))


def _wait(done: Callable[[], object]) -> None:
    for _ in range(12_000):
        if done():
            return
        time.sleep(0.01)
    pytest.fail("it never came")


def test_a_rule_without_a_card_is_quiet(made: Any) -> None:
    assert Watch((AlertRule("lost", "lost"),)).look(made.frame(), ()) == ()
