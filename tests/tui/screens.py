"""A screen over scripted cards, driven by keys and clicks, and what stands on it as text."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from textual.pilot import Pilot

from gpuwise.machine.devices.null import NullCard, NullDevices
from gpuwise.machine.devices.readings import GpuProcess
from gpuwise.machine.telemetry.demo import DemoDevices, DemoReader
from gpuwise.machine.telemetry.frames import HostProcess
from gpuwise.machine.telemetry.monitor import Monitor, Source
from gpuwise.machine.telemetry.options import ScreenOptions
from gpuwise.tui.app import TopApp
from gpuwise.tui.preferences import Preferences

PAUSE_S, N_PAUSES = 0.02, 500
FAR_S = 1000.0
"""Between refreshes: a test takes each frame by itself."""


@dataclass
class People:
    """What the operating system says, as a test wants it."""

    hosts: dict[int, HostProcess] = field(default_factory=dict)

    def read(self, pids, now_s):
        return {p: self.hosts.get(p, HostProcess(p, unknown={"name": "ended"})) for p in pids}


class Screen:
    """The application under test."""

    def __init__(self, app: TopApp, pilot: Pilot, turn: Callable[[float], None]) -> None:
        self.app, self.pilot, self.turn = app, pilot, turn

    @property
    def text(self) -> str:
        return "\n".join("".join(s.text for s in strip).rstrip() for strip in self.app.screen._compositor.render_strips())

    @property
    def lines(self) -> list[str]:
        return self.text.split("\n")

    async def press(self, *keys: str) -> str:
        await self.pilot.press(*keys)
        await self.pilot.pause()
        return self.text

    async def until(self, holds: Callable[[], object]) -> None:
        for _ in range(N_PAUSES):
            if holds():
                await self.pilot.pause()
                return
            await self.pilot.pause(PAUSE_S)
        raise AssertionError(f"it never came to be; on the screen:\n{self.text}")

    async def next_frame(self, by_s: float = 1.0) -> None:
        """The clock goes on and the sampler takes one frame."""
        n = self.app.n_frames
        self.turn(by_s)
        self.app.sampler.hurry()
        await self.until(lambda: self.app.n_frames > n)

    async def click(self, word: str) -> str:
        """Click on the first place where a word stands."""
        for y, text in enumerate(self.lines):
            if word in text:
                await self.pilot.click(offset=(text.index(word), y))
                await self.pilot.pause()
                return self.text
        raise AssertionError(f"{word!r} is not on the screen:\n{self.text}")


Act = Callable[[Screen], Awaitable[None]]


class Clock:
    def __init__(self) -> None:
        self.now_s = 5000.0

    def __call__(self) -> float:
        return self.now_s

    def on(self, by_s: float) -> None:
        self.now_s += by_s


def show(
    source: Source,
    act: Act,
    *,
    size: tuple[int, int] = (80, 24),
    turn: Callable[[float], None] = lambda s: None,
    options: ScreenOptions | None = None,
    chosen: Preferences | None = None,
    keep=lambda c: True,
) -> TopApp:
    """Run the application without a terminal and do ``act`` on it once the first frame is there."""
    app = TopApp(source, options or ScreenOptions(interval_s=FAR_S), chosen=chosen or Preferences(), keep=keep)

    async def go() -> None:
        async with app.run_test(size=size) as pilot:
            screen = Screen(app, pilot, turn)
            await screen.until(lambda: app.screen_lines is not None)
            await act(screen)

    asyncio.run(go())
    if app.failure is not None:
        raise app.failure
    return app


def watch_demo(n: int, act: Act, *, before: int = 5, **more) -> TopApp:
    """The demo's cards, which have been watched for ``before`` seconds."""
    clock = Clock()
    devices = DemoDevices(n, clock=clock)
    with Monitor([devices], reader=DemoReader(devices), demo=True, clock=clock, background=False, watch_xids=False) as monitor:
        for _ in range(before):
            monitor.refresh()
            clock.on(1.0)
        return show(monitor, act, turn=clock.on, **more)


def watch_cards(cards: Sequence[NullCard], act: Act, *, people: People | None = None, **more) -> TopApp:
    """Scripted cards."""
    clock = Clock()
    devices = NullDevices(cards, clock=clock)
    with Monitor([devices], reader=people or People(), clock=clock, background=False, watch_xids=False) as monitor:
        return show(monitor, act, turn=clock.on, **more)


def one_process(host: HostProcess, memory_bytes: int = 2**30) -> tuple[list[NullCard], People]:
    """A card with one process on it."""
    return [NullCard("h100-sxm", processes=(GpuProcess(host.pid, "compute", memory_bytes, 0.5),))], People({host.pid: host})
