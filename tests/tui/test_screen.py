"""What is on the screen at the sizes and with the cards people have."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from tests.tui.screens import FAR_S, People, one_process, show, watch_cards, watch_demo

from gpuwise.errors import DataError
from gpuwise.machine.devices.null import NullCard
from gpuwise.machine.devices.readings import EventReason, GpuProcess, State
from gpuwise.machine.telemetry.frames import HostProcess
from gpuwise.machine.telemetry.monitor import Monitor
from gpuwise.machine.telemetry.options import Prices, ScreenOptions


@pytest.mark.parametrize(
    ("n", "size"),
    [
        (1, (60, 20)),
        (16, (60, 20)),
        (2, (80, 24)),
        (8, (80, 24)),
        (1, (120, 40)),
        (16, (120, 40)),
        (2, (200, 60)),
        (8, (200, 60)),
    ],
)
def test_every_card_and_a_table_of_processes_at_every_size(n, size) -> None:
    async def act(screen) -> None:
        lines = screen.lines
        assert len(lines) == size[1]
        for number in range(n):
            assert any(f" {number} H100" in text or f" {number} NVIDIA" in text for text in lines), number
        assert lines[0].startswith("gpuwise top DEMO") and f"{n} GPU" in lines[0]
        assert "help" in lines[-1]
        layout = screen.app.screen_lines.layout
        assert sum((layout.head, layout.cards, layout.chart, layout.processes, layout.foot)) == size[1]
        if size != (60, 20) or n < 16:
            assert "PID" in screen.text and "COMMAND" in screen.text

    watch_demo(n, act, size=size)


def test_why_stands_under_the_card_it_concerns_and_the_worst_is_counted() -> None:
    async def act(screen) -> None:
        lines = screen.lines
        at = next(i for i, t in enumerate(lines) if " 5 H100" in t)
        assert "✖ GPU 5 has memory errors" in lines[at + 1]
        warm = next(i for i, t in enumerate(lines) if " 2 H100" in t)
        assert "▲ GPU 2 is warm" in lines[warm + 1]
        assert "faults" in lines[1]

    watch_demo(8, act, size=(80, 24), before=30)


def test_the_view_why_says_everything_worst_first() -> None:
    async def act(screen) -> None:
        text = await screen.press("w")
        order = [text.index(w) for w in ("GPU 5 has memory errors", "GPU 2 is warm", "GPU 1 runs at its power limit")]
        assert order == sorted(order)
        assert "below the highest clock" in text and "try" in text and "seen" in text
        assert " 0 H100" not in text
        assert "PID" in await screen.press("w")

    watch_demo(8, act, size=(120, 60), before=30)


def test_a_lost_card_stays_and_says_so() -> None:
    def script(t: float) -> dict:
        return {"state": State.LOST, "error": "GPU is lost"} if 10 <= t < 80 else {"utilization": 0.5}

    cards = [NullCard("h100-sxm"), NullCard("h100-sxm", script=script)]

    async def act(screen) -> None:
        assert " 1 H100" in screen.text and "LOST" not in screen.text
        await screen.next_frame(20.0)
        await screen.next_frame(20.0)
        assert next(t for t in screen.lines if " 1 H100" in t).startswith("✖")
        assert "LOST for 0:40: GPU is lost" in screen.text
        text = await screen.press("1", "d")
        assert "LOST" in text and "Now" in text
        await screen.press("escape")
        await screen.next_frame(50.0)
        assert "LOST" not in screen.text

    watch_cards(cards, act, size=(100, 40))


def test_an_unknown_reason_is_printed() -> None:
    def script(t: float) -> dict:
        return {"event_reasons": 0x8000, "utilization": 0.9}

    async def act(screen) -> None:
        await screen.next_frame()
        assert "0x8000" in screen.text
        assert "unknown bits 0x8000" in await screen.press("d")

    watch_cards([NullCard("h100-sxm", script=script)], act, size=(120, 40))


def test_sixteen_cards_of_three_vendors() -> None:
    names = ["h100-sxm", "mi300x", "rtx-4090"]
    cards = [NullCard(names[i % 3], sample={"utilization": 0.5}) for i in range(16)]

    async def act(screen) -> None:
        for n in range(16):
            assert any(f" {n} " in t[:6] and t[0] in "●○▲" for t in screen.lines), n
        assert "MI300X" in screen.text and "RTX 4090" in screen.text

    watch_cards(cards, act, size=(80, 24))


def test_readings_that_are_not_there_are_dashes_and_the_details_say_why() -> None:
    card = NullCard(
        "h100-sxm",
        sample={"power_w": None, "temperature_c": None, "fan": None, "unknown": {"power_w": "no permission"}},
    )

    async def act(screen) -> None:
        assert "– of 700 W" in screen.text
        assert "(no permission)" in await screen.press("d")

    watch_cards([card], act, size=(80, 60))


def test_no_card_shows_processor_and_memory_with_a_word() -> None:
    def nothing():
        return (), {"nvidia": "the driver is not loaded"}

    async def act(screen) -> None:
        assert "There is no GPU to watch." in screen.text
        assert "nvidia: the driver is not loaded" in screen.text and "gpuwise doctor" in screen.text
        assert "processor" in screen.text and "memory" in screen.text
        await screen.press("slash", *str(os.getpid()), "enter")
        assert any(t.split()[:1] == [str(os.getpid())] for t in screen.lines)
        assert "GPU MEM" not in screen.text
        assert "there is no GPU" in await screen.press("d")

    with Monitor(find=nothing, background=False, watch_xids=False) as monitor:
        show(monitor, act)


def test_a_name_that_is_no_utf8_and_one_that_is_wide() -> None:
    cards, people = one_process(HostProcess(4242, "a\\xff", "a\\xff \\x1b[31m 训练模型训练模型训练模型训练模型训练模型", "ada"))

    async def act(screen) -> None:
        assert "a\\xff" in screen.text and "训练" in screen.text
        assert "\x1b" not in screen.text
        from rich.cells import cell_len

        assert max(cell_len("".join(s.text for s in strip)) for strip in screen.app.screen._compositor.render_strips()) == 80

    watch_cards(cards, act, people=people)


def test_resized_to_nothing_and_back() -> None:
    async def act(screen) -> None:
        for size in ((1, 1), (300, 2), (80, 24)):
            await screen.pilot.resize_terminal(*size)
            await screen.next_frame()
            for key in ("tab", "tab", "tab", "tab", "d", "escape", "end"):
                await screen.press(key)
        assert " 7 H100" in screen.text

    watch_demo(8, act)


def test_only_what_changed_is_painted() -> None:
    """The measure of what the screen costs: lines painted by a refresh, and one drawing a frame."""

    async def act(screen) -> None:
        app = screen.app
        painted, screen_lines, frames = app.painted.copy(), app.n_draws, app.n_frames
        for _ in range(5):
            screen.turn(0.0)
            n = app.n_frames
            app.sampler.hurry()
            await screen.until(lambda n=n: app.n_frames > n)
        assert app.n_draws - screen_lines == app.n_frames - frames == 5
        # the clock of the cards stands still: the host's line and the charts may move, nothing else
        for part in ("cards", "processes", "foot"):
            assert app.painted[part] == painted[part]
        await screen.next_frame()
        # eight cards, their causes at most, never the headings
        assert 0 < app.painted["cards"] - painted["cards"] <= 16

    watch_demo(8, act, size=(80, 24), before=200)


def test_energy_cost_and_co2() -> None:
    options = ScreenOptions(interval_s=FAR_S, prices=Prices(usd_per_kwh=0.3, co2_g_per_kwh=400.0))

    async def act(screen) -> None:
        await screen.next_frame(3600.0)
        text = screen.text
        assert "kW" in text and "/h (" in text and "CO2" in text
        details = await screen.press("d")
        assert "per hour" in details and "since the start" in details

    watch_demo(2, act, size=(160, 80), options=options)


def test_a_driver_that_hangs_does_not_hold_the_keys() -> None:
    import threading

    free = threading.Event()

    class Slow:
        demo = False

        def __init__(self, monitor) -> None:
            self.monitor, self.n = monitor, 0
            self.history, self.interval_s, self.notices = monitor.history, 1.0, ()

        def refresh(self):
            self.n += 1
            if self.n > 1:
                assert free.wait(300)
            return self.monitor.refresh()

        def causes(self, frame):
            return self.monitor.causes(frame)

        def close(self) -> None: ...

    from gpuwise.machine.devices.null import NullDevices

    async def act(screen) -> None:
        screen.app.sampler.hurry()
        await screen.until(lambda: screen.app.sampler.asking_since_s is not None)
        assert "gpuwise top: keys" in await screen.press("question_mark")
        await screen.press("escape")
        screen.app.sampler.asking_since_s -= 60.0
        screen.app._look_after()
        assert "no answer for 6" in (await screen.press("tab"))
        free.set()
        await screen.until(lambda: screen.app.n_frames == 2)
        screen.app._look_after()
        await screen.until(lambda: "no answer" not in screen.text)

    with Monitor([NullDevices([NullCard("t4")])], reader=People(), background=False, watch_xids=False) as monitor:
        show(Slow(monitor), act)


def test_what_breaks_the_source_ends_the_screen_and_is_told() -> None:
    class Broken:
        notices, interval_s = (), 1.0

        def __init__(self, monitor) -> None:
            self.monitor, self.history, self.n = monitor, monitor.history, 0

        def refresh(self):
            self.n += 1
            if self.n > 1:
                raise DataError("the recording is damaged")
            return self.monitor.refresh()

        def causes(self, frame):
            return ()

        def close(self) -> None: ...

    async def act(screen) -> None:
        screen.app.sampler.hurry()
        await screen.until(lambda: screen.app.failure is not None)

    with (
        Monitor([], reader=People(), background=False, watch_xids=False) as monitor,
        pytest.raises(DataError, match="damaged"),
    ):
        show(Broken(monitor), act)


def test_the_watch_ends_after_so_many_frames() -> None:
    async def act(screen) -> None:
        await screen.until(lambda: screen.app._exit)

    app = watch_demo(1, act, options=ScreenOptions(interval_s=0.01, count=3))
    assert app.n_frames == 3


def test_notices_are_at_the_bottom_and_in_full_in_the_view_why() -> None:
    class Noticing:
        def __init__(self, monitor) -> None:
            self.monitor, self.history, self.interval_s = monitor, monitor.history, 1.0
            self.notices = ("the disk is full: 12 frames wait",)

        def refresh(self):
            return self.monitor.refresh()

        def causes(self, frame):
            return self.monitor.causes(frame)

        def close(self) -> None: ...

    async def act(screen) -> None:
        assert "the disk is full" in screen.lines[-1]
        assert "the disk is full: 12 frames wait" in "\n".join((await screen.press("w")).split("\n")[:-1])

    from gpuwise.machine.devices.null import NullDevices

    with Monitor([NullDevices([NullCard("t4")])], reader=People(), background=False, watch_xids=False) as monitor:
        show(Noticing(monitor), act)


def test_a_card_that_never_answered_has_no_time_of_loss() -> None:
    card = NullCard("t4", sample={"state": State.UNREACHABLE, "error": "no permission"})

    async def act(screen) -> None:
        assert "NO ANSWER: no permission" in screen.text

    watch_cards([card], act)


def test_power_limit_and_process_of_two_cards() -> None:
    host = HostProcess(77, "python", "python x.py", "ada")
    gpus = [
        NullCard("h100-sxm", sample={"event_reasons": int(EventReason.SW_POWER_CAP), "utilization": 1.0}, processes=(p,))
        for p in (GpuProcess(77, "compute", 2**31, 0.4), GpuProcess(77, "both", 2**30, None))
    ]

    async def act(screen) -> None:
        rows = [t for t in screen.lines if "python x.py" in t]
        assert len(rows) == 2 and "2.0G" in rows[0] and "1.0G" in rows[1] and "–" in rows[1]
        await screen.press("down")
        details = await screen.press("enter")
        assert "On GPU 0" in details and "On GPU 1" in details

    watch_cards(gpus, act, people=People({77: host}), size=(100, 50))


def test_lines_are_what_is_seen() -> None:
    async def act(screen) -> None:
        first = "".join(text for text, _, _ in screen.app.screen_lines.processes[0].runs).rstrip()
        assert first in screen.text and replace(screen.app.state.order).column == "memory"

    watch_demo(2, act)
