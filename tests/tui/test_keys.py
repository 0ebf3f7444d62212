"""Keys and clicks: choosing, sorting, filtering, charts, themes, replay."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tui.screens import Clock, show, watch_cards, watch_demo

from gpuwise.machine.devices.null import NullCard
from gpuwise.machine.devices.readings import GpuProcess
from gpuwise.machine.telemetry.demo import DemoDevices, DemoReader
from gpuwise.machine.telemetry.monitor import Monitor
from gpuwise.machine.telemetry.options import ScreenOptions
from gpuwise.machine.telemetry.recording.recorder import Recorder
from gpuwise.machine.telemetry.recording.replay import Replay
from gpuwise.machine.telemetry.tap import Tap
from gpuwise.tui.preferences import Preferences, recall, remember


def rows(screen, column: int) -> list[str]:
    """A column of the table of processes, by its place."""
    lines = screen.lines
    at = next(i for i, t in enumerate(lines) if "PID" in t and "COMMAND" in t)
    return [t.split()[column] for t in lines[at + 1 : -1] if t.strip()]


def test_sort_by_key_and_by_click() -> None:
    async def act(screen) -> None:
        memory = rows(screen, 3)
        assert memory == sorted(memory, key=lambda t: -float(t[:-1]))
        await screen.click("PID")
        assert rows(screen, 1) == sorted(rows(screen, 1), key=int)
        await screen.click("PID")
        assert rows(screen, 1) == sorted(rows(screen, 1), key=int, reverse=True)
        await screen.press("s")
        assert screen.app.state.order.column == "user"
        assert rows(screen, 2) == sorted(rows(screen, 2))
        await screen.press("r")
        assert rows(screen, 2) == sorted(rows(screen, 2), reverse=True)
        await screen.press("S")
        assert screen.app.state.order.column == "pid"

    watch_demo(8, act, size=(80, 40))


def test_filter_as_one_types() -> None:
    async def act(screen) -> None:
        n = len(rows(screen, 1))
        await screen.press("slash", "v", "l")
        assert rows(screen, 1) == ["4200040"] and n > 1
        # q is a letter now, not the way out
        await screen.press("q")
        assert "no process matches 'vlq'" in screen.text
        await screen.press("backspace", "enter")
        assert "filter: vl" in screen.lines[-1] and rows(screen, 1) == ["4200040"]
        await screen.press("escape")
        assert len(rows(screen, 1)) == n
        await screen.press("slash", *"gpu:2", "enter")
        assert rows(screen, 0) == ["2"]
        await screen.click("✕")
        assert len(rows(screen, 1)) == n
        await screen.press("slash", "b", "o", "b", "escape")
        assert len(rows(screen, 1)) == n and screen.app.state.typing is None

    watch_demo(8, act, size=(80, 40))


def test_cards_by_key_and_click() -> None:
    async def act(screen) -> None:
        await screen.press("right")
        assert screen.app.state.card == 1
        await screen.press("left", "left")
        assert screen.app.state.card == 7
        await screen.press("3")
        assert screen.app.state.card == 3
        await screen.click(" 5 H100")
        assert screen.app.state.card == 5
        await screen.press("9")
        assert screen.app.state.card == 5
        await screen.press("o")
        assert set(rows(screen, 0)) == {"5"}
        await screen.press("7")
        assert "no process is seen on GPU 7" in screen.text

    watch_demo(8, act, size=(80, 40))


def test_processes_by_key_wheel_and_click() -> None:
    async def act(screen) -> None:
        await screen.press("down")
        assert screen.app.state.process == (4200040, 4)
        await screen.press("down", "down", "up")
        assert screen.app.state.process == (4200010, 1)
        await screen.press("end")
        assert screen.app.state.process == (4200030, 3)
        await screen.click("4200020")
        assert screen.app.state.process == (4200020, 2)
        text = await screen.press("enter")
        assert "process 4200020" in text and "On GPU 2" in text
        await screen.press("escape")
        await screen.press("escape")
        assert screen.app.state.process is None

    watch_demo(8, act, size=(80, 40))


def test_a_selected_process_that_ends_passes_the_selection_on() -> None:
    first, second = (GpuProcess(p, "compute", 2**30, 0.5) for p in (1001, 1002))

    def script(t: float) -> dict:
        return {"processes": (first, second) if t < 10 else (first,)}

    async def act(screen) -> None:
        await screen.press("end")
        assert screen.app.state.process == (1002, 0)
        await screen.next_frame(20.0)
        assert screen.app.state.process == (1001, 0)

    watch_cards([NullCard("t4", script=script)], act)


def test_views_by_key_and_click() -> None:
    async def act(screen) -> None:
        await screen.press("tab")
        assert screen.app.state.view == "processes" and "H100" not in screen.text
        await screen.press("tab")
        assert "memory busy" in screen.text and "PID" not in screen.text
        await screen.press("shift+tab", "shift+tab")
        assert screen.app.state.view == "overview"
        await screen.click("charts")
        assert screen.app.state.view == "charts"
        await screen.click("why")
        assert screen.app.state.view == "why"

    watch_demo(8, act, size=(100, 40))


def test_charts() -> None:
    async def act(screen) -> None:
        assert "GPU 0  all" in screen.text
        await screen.press("c", "c")
        assert screen.app.state.chart == "memory"
        await screen.press("a")
        assert "all GPUs" in screen.text and "1 H100" in screen.text
        await screen.click("temperature")
        assert screen.app.state.chart == "temperature"
        await screen.press("z")
        assert screen.app.state.zoom == 5 and "5 refreshes to a dot" in screen.text
        await screen.press("a", "C")
        assert screen.app.state.chart == "power"

    watch_demo(2, act, size=(120, 50), before=60)


def test_pause_and_interval() -> None:
    async def act(screen) -> None:
        await screen.press("space")
        assert "PAUSED" in screen.lines[0]
        shown, stood = screen.app.shot, screen.app.screen_lines.chart
        await screen.next_frame()
        # the source went on, and a key draws again: what is shown stands still
        screen.app.redraw()
        assert len(stood) > 3 and screen.app.screen_lines.chart == stood
        assert screen.app.sampler.interval_s == 1000.0
        await screen.press("space")
        assert screen.app.shot is not shown or not screen.app.state.live
        await screen.press("minus")
        assert screen.app.sampler.interval_s == 60.0 and "60 s" in screen.text
        await screen.press("minus", "minus", "plus")
        assert screen.app.sampler.interval_s == 30.0
        assert screen.app.screen_lines.chart != stood

    watch_demo(1, act)


def test_help_and_every_key_named_there_is_bound() -> None:
    from gpuwise.tui.app import TopApp
    from gpuwise.tui.lines.help import help_lines

    async def act(screen) -> None:
        text = await screen.press("question_mark")
        assert "gpuwise top: keys" in text and "more lines" in text
        before = screen.text
        await screen.press("pagedown")
        assert screen.text != before
        await screen.press("q")
        assert "gpuwise top: keys" not in screen.text

    watch_demo(1, act)
    keys = {k.strip() for b in TopApp.BINDINGS for k in b.key.split(",")}
    told = "\n".join("".join(text for text, _, _ in line.runs) for line in help_lines(90))
    for key, word in (("k", "SIGKILL"), ("T", "themes"), ("slash", "filter"), ("t", "tree"), ("z", "zoom"), ("o", "only those")):
        assert key in keys and word in told


def test_the_keys_at_the_bottom_can_be_clicked() -> None:
    async def act(screen) -> None:
        await screen.click("help")
        assert "gpuwise top: keys" in screen.text
        await screen.press("escape")
        await screen.click("tree")
        assert screen.app.state.order.tree
        await screen.click("sort")
        assert screen.app.state.order.column != "memory"
        await screen.click("tab view")
        assert screen.app.state.view == "processes"

    watch_demo(2, act, size=(120, 30))


def test_a_theme_is_shown_taken_and_remembered() -> None:
    kept: list[Preferences] = []

    async def act(screen) -> None:
        before = screen.app.export_screenshot()
        await screen.press("T")
        assert "textual-light" in screen.text
        while screen.app.theme != "textual-light":
            await screen.press("down")
        await screen.press("enter")
        # what is taken is kept by a later turn of the loop
        await screen.until(lambda: kept)
        assert screen.app.theme == "textual-light"
        assert "#e0e0e0" in screen.app.export_screenshot().lower() and before != screen.app.export_screenshot()
        await screen.press("T")
        await screen.until(lambda: len(screen.app.screen_stack) == 2)
        await screen.press("up", "escape")
        await screen.until(lambda: screen.app.theme == "textual-light" and len(screen.app.screen_stack) == 1)

    watch_demo(1, act, keep=lambda c: kept.append(c) or True, chosen=Preferences(theme="textual-dark"))
    assert [c.theme for c in kept] == ["textual-light"]


@pytest.mark.parametrize("theme", ["textual-light", "textual-ansi", "gruvbox"])
def test_every_kind_of_theme_paints(theme) -> None:
    async def act(screen) -> None:
        assert screen.app.theme == theme or theme not in screen.app.available_themes
        assert "H100" in screen.text
        assert "svg" in screen.app.export_screenshot()

    watch_demo(8, act, chosen=Preferences(theme=theme), before=30)


def test_what_was_chosen_comes_back(own_settings) -> None:
    assert recall() == Preferences()
    assert remember(Preferences("nord", "sm", False, True))
    assert recall() == Preferences("nord", "sm", False, True)
    (own_settings / "top.json").write_text('{"theme": 3, "sort": "cpu", "more": 1}')
    assert recall() == Preferences(sort="cpu")
    (own_settings / "top.json").write_bytes(b"\xff{")
    assert recall() == Preferences()
    assert not remember(Preferences(), Path("/proc/self/nothing/top.json"))


def recording(path: Path) -> None:
    clock = Clock()
    devices = DemoDevices(2, clock=clock)
    recorder = Recorder(path)
    with Monitor([devices], reader=DemoReader(devices), clock=clock, background=False, watch_xids=False) as monitor:
        for _ in range(90):
            frame = monitor.refresh()
            recorder.write(frame, monitor.causes(frame))
            clock.on(1.0)
    recorder.close()


@pytest.mark.parametrize("tapped", [False, True])
def test_a_replay_winds_pauses_and_refuses_to_kill(tmp_path, tapped) -> None:
    recording(tmp_path / "r.db")
    replay = Replay(tmp_path / "r.db")
    source = Tap(replay, ()) if tapped else replay

    async def act(screen) -> None:
        assert "r.db" in screen.lines[0] and not screen.app.state.live
        at_s = replay.position_s
        await screen.press("space", "greater_than_sign")
        # on its way there a replay passes the frames that rates and windows are read from
        await screen.until(lambda: replay.position_s == at_s + 60)
        await screen.press("comma")
        await screen.until(lambda: replay.position_s == at_s + 50)
        at_s = replay.position_s
        await screen.press("down", "k")
        assert "not a live view" in screen.text
        assert replay.position_s == at_s

    show(source, act, options=ScreenOptions(interval_s=1000.0, title="r.db"))
    source.close()


def test_only_a_recording_is_wound_back() -> None:
    async def act(screen) -> None:
        assert "only a recording" in await screen.press("comma")

    watch_demo(1, act)
