"""``gpuwise top`` without a screen: what a person sees, what a program reads, and what it leaves on the disk."""

from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuwise.cli.top import options as top_options
from gpuwise.errors import InputError
from gpuwise.machine.telemetry.frames import Frame
from gpuwise.machine.telemetry.recording.plain import from_plain
from gpuwise.testing.fake_nvml import FakeNvml, NoCompilerError, fake_nvml

TOP = [sys.executable, "-u", "-c", "import sys; from gpuwise.cli.app import run; sys.exit(run())", "top"]
HEAVY = ("numpy", "rich", "matplotlib", "pyarrow", "textual", "torch", "pandas", "psutil", "prometheus_client")


@pytest.fixture
def nvml() -> Iterator[FakeNvml]:
    try:
        with fake_nvml(["H100-SXM", "RTX 4090"]) as fake:
            yield fake
    except NoCompilerError:
        pytest.skip("no C compiler here")


def call(arguments: list[str], env: dict[str, str] | None = None, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TOP, *arguments], capture_output=True, text=True, timeout=300, check=False, env=env, **more)


# --- one look ---


@pytest.mark.parametrize("columns", [40, 60, 80, 120, 200])
def test_one_look_keeps_to_the_width(gpuwise: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    ran = gpuwise("top", "--demo", "--once", "--price", "0.30/kWh", "--co2", "400")
    lines = ran.out.splitlines()
    assert ran.code == 0 and ran.err == "" and max(map(len, lines)) <= columns and "\x1b" not in ran.out
    assert "DEMO (these GPUs do not exist)" in " ".join(lines[:2])


def test_one_look_says_what_holds_each_card_back(gpuwise: Callable[..., Any]) -> None:
    out = " ".join(gpuwise("top", "--demo", "--once", "--all").out.split())
    for said in (
        "GPU 6 is lost",
        "GPU 2 is warm",
        "GPU 5 has 4 PCIe lanes of the 16",
        "most likely its data loader",
        "below the highest clock",
        "vllm serve",
        "docker 3f2a9c11d0e4",
    ):
        assert said in out
    assert "GPU 0 " not in out and "GPU 7 " not in out, "the healthy ones are left in peace"


def test_one_look_as_a_document(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("top", "--demo", "3", "--once", "--json", "--price", "2.5/h")
    made = ran.document
    assert ran.out.count("\n") == 1 and made["schema"] == 1 and made["demo"] is True and len(made["cards"]) == 3
    assert made["spending"]["usd_per_hour"] == 7.5 and {c["id"] for c in made["causes"]} >= {"sw-power-cap", "sw-thermal"}
    frame = from_plain(Frame, made)
    assert frame.cards[1].sample.power_limit_w == 700.0 and frame.cards[0].health is not None


def test_a_fault_can_be_the_exit_code(gpuwise: Callable[..., Any]) -> None:
    assert gpuwise("top", "--demo", "8", "--once", "--fail-on-fault").code == 3
    assert gpuwise("top", "--demo", "3", "--once", "--fail-on-fault").code == 0
    assert gpuwise("top", "--demo", "8", "--json", "--count", "1", "--interval", "50ms", "--fail-on-fault").code in (0, 3)


# --- a watch ---


def test_json_lines_for_a_while(gpuwise: Callable[..., Any]) -> None:
    ran = gpuwise("top", "--demo", "2", "--json", "--count", "3", "--interval", "50ms")
    made = [json.loads(line) for line in ran.out.splitlines()]
    assert [m["sequence"] for m in made] == [0, 1, 2] and made[2]["interval_s"] > 0
    ran = gpuwise("top", "--demo", "1", "--json", "--duration", "0.3", "--interval", "0.1")
    assert 1 <= len(ran.out.splitlines()) <= 3


def test_csv_on_stdout_and_in_a_file(gpuwise: Callable[..., Any], tmp_path: Path) -> None:
    ran = gpuwise("top", "--demo", "2", "--csv", "-", "--count", "2", "--interval", "50ms")
    rows = list(csv.DictReader(io.StringIO(ran.out)))
    assert [r["gpu"] for r in rows] == ["0", "1", "0", "1"]
    file = tmp_path / "a.csv"
    assert gpuwise("top", "--demo", "2", "--csv", str(file), "--count", "2", "--interval", "50ms").out == ""
    assert len(file.read_text().splitlines()) == 5


@pytest.mark.parametrize("name", ["a.sqlite", "a.parquet"])
def test_a_recording_plays_again(gpuwise: Callable[..., Any], tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    live = gpuwise("top", "--demo", "--json", "--record", str(file), "--count", "4", "--interval", "50ms")
    again = gpuwise("top", "--replay", str(file), "--json")
    one, other = ([json.loads(x) for x in ran.out.splitlines()] for ran in (live, again))
    assert again.err == "" and len(one) == len(other) == 4
    assert [m["causes"] for m in one] == [m["causes"] for m in other]
    for a, b in zip(one, other, strict=True):
        # the health is read in the background: a replay gives it with the frame it was seen in
        assert [c["sample"] for c in a["cards"]] == [c["sample"] for c in b["cards"]]
    assert "DEMO" in gpuwise("top", "--replay", str(file), "--once").out
    assert len(gpuwise("top", "--replay", str(file), "--csv", "-").out.splitlines()) == 1 + 4 * 8


# what it starts may end after the command, late as a busy machine is
@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
def test_an_alert_rings(gpuwise: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "told"
    ran = gpuwise(
        "top",
        "--demo",
        "--no-screen",
        "--count",
        "2",
        "--interval",
        "50ms",
        "--alert",
        "lost",
        "--exec",
        f"echo $GPUWISE_ALERT $GPUWISE_GPU > {file}",
    )
    assert ran.code == 0 and "alert: lost on GPU 6" in ran.err
    for _ in range(1000):
        if file.exists() and file.read_text():
            break
        subprocess.run(["sleep", "0.01"], check=True)
    assert file.read_text() == "lost 6\n"


def test_metrics_are_served_while_it_watches() -> None:
    words = [*TOP, "--demo", "2", "--no-screen", "--prometheus", "127.0.0.1:0", "--interval", "100ms"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        try:
            with urllib.request.urlopen(line.split()[-1], timeout=300) as answer:
                text = answer.read().decode()
            process.send_signal(signal.SIGTERM)
            assert process.wait(300) == 0
        finally:
            process.kill()
    assert 'DCGM_FI_DEV_POWER_USAGE{gpu="1"' in text or text == "\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_everything_written(tmp_path: Path, number: int) -> None:
    file = tmp_path / "a.sqlite"
    words = [*TOP, "--demo", "1", "--json", "--interval", "100ms", "--record", str(file)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        for _ in range(3):
            process.stdout.readline()
        process.send_signal(number)
        rest, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, "")
    from gpuwise.machine.telemetry.recording.replay import Replay

    replay = Replay(file)
    assert replay.n_frames == 3 + len(rest.splitlines()) and [p.name for p in tmp_path.iterdir()] == ["a.sqlite"]
    replay.close()


def test_a_reader_that_leaves_ends_it_quietly() -> None:
    words = [*TOP, "--demo", "1", "--json", "--interval", "50ms"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert json.loads(process.stdout.readline())["sequence"] == 0
        process.stdout.close()
        assert process.wait(300) == 0 and process.stderr.read() == ""


# --- the true client on cards that are played ---


def test_the_six_things_the_peers_do_not_name(nvml: FakeNvml) -> None:
    """95 C, thermal slowdown by the hardware, PCIe 1 x4, 210 of 1980 MHz, 12 uncorrectable errors, remapping failed."""
    card = nvml.gpu(0)
    card.set(
        temperature_c=95,
        event_reasons=0x48,
        sm_clock_hz=210e6,
        pcie_generation=1,
        pcie_width=4,
        utilization=0.99,
        performance_state=0,
        ecc_uncorrected=12,
        remap_failed=1,
    )
    try:
        done = call(["--once", "--fail-on-fault"], env=nvml.env)
    finally:
        card.restore()
    text = " ".join(done.stdout.split())
    assert done.returncode == 3 and done.stderr == ""
    for said in (
        "95 °C",
        "its hardware has cut the clocks",
        "4 PCIe lanes of the 16",
        "generation 1",
        "210/1980",
        "1770 MHz (89 %) below the highest clock",
        "12 since the driver was loaded",
        "could not replace a broken row",
    ):
        assert said in text
    assert "GPU 1 " not in text


def test_a_lost_card_stays_in_the_list(nvml: FakeNvml) -> None:
    nvml.gpu(1).lose()
    try:
        done = call(["--once", "--json", "--fail-on-fault"], env=nvml.env)
    finally:
        nvml.gpu(1).restore()
    made = json.loads(done.stdout)
    assert done.returncode == 3 and [c["sample"]["state"] for c in made["cards"]] == ["ok", "lost"]
    assert [(c["id"], c["number"]) for c in made["causes"]] == [("lost", 1)]


def test_without_the_driver_there_is_a_word_and_no_card(nvml: FakeNvml) -> None:
    nvml.unload()
    try:
        done = call(["--once"], env=nvml.env)
    finally:
        nvml.load()
    assert done.returncode == 1 and "No GPU answers here." in done.stdout and done.stderr.startswith("error: no GPU")
    assert "hint: `gpuwise doctor`" in done.stderr and "Traceback" not in done.stdout + done.stderr


def test_a_watch_without_a_screen_loads_nothing_heavy(nvml: FakeNvml, tmp_path: Path) -> None:
    """What keeps its memory small, as a fact that noise cannot move."""
    code = (
        "import sys; from gpuwise.cli.app import run\n"
        f"code = run(['top', '--json', '--count', '2', '--interval', '50ms', '--record', {str(tmp_path / 'a.sqlite')!r}, "
        f"'--csv', {str(tmp_path / 'a.csv')!r}, '--prometheus', '127.0.0.1:0', '--alert', 'temp>85'])\n"
        f"print(sorted({{m.split('.')[0] for m in sys.modules}} & set({HEAVY!r})), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=nvml.env, timeout=300, check=False)
    assert done.returncode == 0 and done.stderr.splitlines()[-1] == "[]", done.stderr


def test_nvml_is_asked_no_more_than_it_has_to_be(nvml: FakeNvml) -> None:
    """Calls a card and refresh, counted in the library: quick ones only, and none of the slow ones on the refresh path."""
    from gpuwise.machine.devices.find import find_devices
    from gpuwise.machine.telemetry.monitor import Monitor

    with nvml.in_process():
        found = find_devices(("nvidia",))
        try:
            with Monitor(found.backends, health=False, watch_xids=False) as monitor:
                monitor.refresh()
                nvml.reset_calls()
                for _ in range(10):
                    monitor.refresh()
                calls = nvml.calls()
        finally:
            for devices in found.backends:
                devices.close()
    a_card = {name: n / 20 for name, n in calls.items()}
    slow = {n for n in a_card if any(w in n for w in ("PcieThroughput", "Remapped", "EccErrors", "NvLink", "RetiredPages"))}
    assert slow == set() and sum(a_card.values()) <= 25, a_card


def test_a_library_too_old_for_a_reading_gives_the_others(nvml: FakeNvml) -> None:
    """Code 13, as from a driver of the time before the function; counters of GPM, which few cards have, are not asked for."""
    from gpuwise.machine.devices.find import find_devices
    from gpuwise.machine.telemetry.monitor import Monitor

    def look() -> list[tuple[str, str, bool]]:
        found = find_devices(("nvidia",))
        try:
            with Monitor(found.backends, watch_xids=False) as monitor:
                frame = monitor.refresh()
        finally:
            for devices in found.backends:
                devices.close()
        samples = [c.sample for c in frame.cards]
        return [(c.identity.name, str(s.state), s.temperature_c is not None) for c, s in zip(frame.cards, samples, strict=True)]

    with nvml.in_process():
        nvml.reset_calls()
        whole = look()
        asked = {n for n in nvml.calls() if n.startswith("nvmlDeviceGet") and not n.startswith("nvmlDeviceGetHandle")}
        assert len(whole) == 2 and len(asked) > 20 and not [n for n in nvml.calls() if n.startswith("nvmlGpm")]
        # what every driver since 396 has tells which card it is
        for name in sorted(asked - {f"nvmlDeviceGet{n}" for n in ("Count_v2", "Name", "UUID", "PciInfo_v3")}):
            nvml.fail(name, 13)
            seen = look()
            nvml.fail(name, 0)
            assert [row[:2] for row in seen] == [row[:2] for row in whole], name
            assert "Temperature" in name or seen == whole, name


# --- words that cannot be meant ---


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--interval", "0"], "--interval"),
        (["--interval", "fast"], "--interval"),
        (["--interval", "1e9"], "--interval"),
        (["--duration", "-5"], "--duration"),
        (["--count", "0"], "--count"),
        (["--once", "--count", "3"], "--once"),
        (["--prometheus", "host:http"], "--prometheus"),
        (["--alert", "temp"], "--alert"),
        (["--alert", "colour>3"], "colour"),
        (["--exec", "ls"], "--exec"),
        (["--price", "cheap"], "--price"),
        (["--price", "0.3"], "--price"),
        (["--co2", "-1"], "--co2"),
        (["--demo", "0"], "--demo"),
        (["--demo", "4", "5"], "--demo"),
        (["--demo", "many"], "--demo"),
        (["--replay", "nowhere.sqlite"], "nowhere.sqlite"),
        (["--replay", "a", "--demo"], "--demo"),
        (["--json", "--csv", "-"], "stdout"),
        (["--csv", "--json"], "--csv: '--json' is not the name of a file"),
        (["--once", "--theme", "nord"], "--theme"),
        (["--grafana", "no/such/folder.json"], "no/such is not a directory"),
        (["--demo", "1", "--record", "no/such/folder.sqlite"], "cannot be written"),
    ],
)
def test_what_cannot_be_meant_is_refused(gpuwise: Callable[..., Any], arguments: list[str], said: str) -> None:
    ran = gpuwise("top", *arguments)
    assert ran.code == 2 and said in ran.err and "hint: " in ran.err
    if "--json" in arguments:
        assert said in json.loads(ran.out)["error"]
    else:
        assert ran.out == ""


@pytest.mark.parametrize(
    ("price", "co2", "made"),
    [
        ("0.30/kWh", None, (0.3, None, None)),
        ("$2.50/h", "400", (None, 2.5, 400.0)),
        ("0.1 $/KWH", "380 g/kWh", (0.1, None, 380.0)),
        (None, "0", (None, None, 0.0)),
    ],
)
def test_prices(price: str | None, co2: str | None, made: tuple[Any, ...]) -> None:
    got = top_options.prices(price, co2)
    assert (got.usd_per_kwh, got.usd_per_hour, got.co2_g_per_kwh) == made


def test_intervals() -> None:
    assert [top_options.interval(t) for t in ("2", "0.5", "500ms", "1m")] == [2.0, 0.5, 0.5, 60.0]
    with pytest.raises(InputError):
        top_options.interval("2 parsecs")


def test_colours_only_on_a_terminal_and_not_with_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuwise.cli.top import watch as top_run

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert top_run.colours()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not top_run.colours()


def test_the_dashboard_is_written(gpuwise: Callable[..., Any], tmp_path: Path) -> None:
    ran = gpuwise("top", "--grafana", str(tmp_path / "gpus.json"))
    assert ran.code == 0 and ran.out == "" and json.loads((tmp_path / "gpus.json").read_text())["panels"]
    assert [p.name for p in tmp_path.iterdir()] == ["gpus.json"]
