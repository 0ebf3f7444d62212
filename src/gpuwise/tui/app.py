"""The application: shows the lines that :mod:`gpuwise.tui.lines.drawing` makes of the sampler's snapshots. No formula is in
here."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

from textual import events
from textual.app import ComposeResult, ScreenStackError
from textual.binding import Binding, BindingType
from textual.driver import Driver
from textual.filter import ANSIToTruecolor
from textual.message import Message
from textual.screen import Screen

from gpuwise.errors import UnknownNameError
from gpuwise.machine.telemetry.monitor import Source
from gpuwise.machine.telemetry.options import ScreenOptions
from gpuwise.tui.actions import Actions
from gpuwise.tui.dialog import Dialog
from gpuwise.tui.lines.drawing import HostHistory, ScreenLines, draw
from gpuwise.tui.lines.palette import Palette
from gpuwise.tui.lines.processes import BY_NAME
from gpuwise.tui.lines.text_runs import BLANK, Line, line, run
from gpuwise.tui.panel import Panel
from gpuwise.tui.preferences import Preferences, recall, remember
from gpuwise.tui.sampler import Sampler, Snapshot
from gpuwise.tui.state import Order, State

STALE_S = 3.0
"""Seconds without an answer after which a driver is reported as silent."""
MESSAGE_S = 4.0
"""How long a word on what a key has done stays."""
PARTS = ("head", "cards", "chart", "processes", "foot")


class TopApp(Actions):
    """``gpuwise top`` over any source of frames."""

    write_whole: Callable[[str], None] | None = None
    """Writes to the terminal past Textual's compositor; a driver that can sets it."""

    TITLE = "gpuwise top"
    ENABLE_COMMAND_PALETTE = False
    CSS = "Screen { layout: vertical; overflow: hidden; } Screen > Panel { height: 100%; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit"),
        Binding("question_mark,h,f1", "help"),
        Binding("tab", "next_view(1)", priority=True),
        Binding("shift+tab", "next_view(-1)", priority=True),
        Binding("w", "view('why')"),
        Binding("enter", "details"),
        Binding("d", "card_details"),
        Binding("slash,backslash", "filter"),
        Binding("escape", "clear_filter"),
        Binding("s", "sort(1)"),
        Binding("S", "sort(-1)"),
        Binding("r", "turn"),
        Binding("t", "tree"),
        Binding("o", "only_card"),
        Binding("k,delete", "kill"),
        Binding("c", "chart(1)"),
        Binding("C", "chart(-1)"),
        Binding("a", "all_cards"),
        Binding("z", "zoom"),
        Binding("space,p", "pause"),
        Binding("plus,equals_sign", "interval(1)"),
        Binding("minus", "interval(-1)"),
        Binding("T", "theme"),
        Binding("up", "by(-1)"),
        Binding("down", "by(1)"),
        Binding("pageup", "page(-1)"),
        Binding("pagedown", "page(1)"),
        Binding("home", "by(-100000)"),
        Binding("end", "by(100000)"),
        Binding("left,left_square_bracket", "card_by(-1)"),
        Binding("right,right_square_bracket", "card_by(1)"),
        Binding("comma", "seek(-10)"),
        Binding("full_stop", "seek(10)"),
        Binding("less_than_sign", "seek(-60)"),
        Binding("greater_than_sign", "seek(60)"),
        *(Binding(str(n), f"card({n})") for n in range(10)),
    ]

    class Arrived(Message):
        """The sampler has left a snapshot."""

    def __init__(
        self,
        source: Source,
        options: ScreenOptions,
        *,
        chosen: Preferences | None = None,
        keep: Callable[[Preferences], bool] | None = None,
        driver: type[Driver] | None = None,
    ) -> None:
        super().__init__(driver_class=driver)
        self.source, self.options = source, options
        self.failure: BaseException | None = None
        self.shot: Snapshot | None = None
        self.screen_lines: ScreenLines | None = None
        self.hosts = HostHistory()
        self.n_frames = self.n_draws = 0
        """Frames that arrived, and times the screen was drawn: tests hold them together."""
        self.painted: Counter[str] = Counter()
        """Part of the screen -> lines painted."""
        self._keep = keep or remember
        chosen = chosen if chosen is not None else recall()
        self._told_theme = options.theme
        if options.theme is not None and options.theme not in self.available_themes:
            raise UnknownNameError("theme", options.theme, self.available_themes)
        theme = options.theme or chosen.theme
        self.theme = theme if theme in self.available_themes else Preferences().theme
        order = Order(chosen.sort if chosen.sort in BY_NAME else Preferences().sort, chosen.falling, chosen.tree)
        live = not options.title and not hasattr(getattr(source, "source", source), "seek")
        self.state = State(options.interval_s, options.prices, options.title, live=live, order=order)
        self.sampler = Sampler(source, self._take, self._fail, interval_s=options.interval_s, live=live)
        self.sampler.tree = order.tree
        self._waiting: Snapshot | None = None
        self._stopped = None
        self._posted = False
        self._said_until_s = 0.0
        self._started_s = time.monotonic()
        self._handlers: dict[int, Any] = {}
        """Signal -> what it did before."""
        self.palette = Palette(self.current_theme, self.console.color_system)

    def compose(self) -> ComposeResult:
        # one widget: lines that pass from one part of the screen to another make no new layout
        yield Panel(self.palette, id="all")

    def on_mount(self) -> None:
        self.panel = self.query_one("#all", Panel)
        self.theme_changed_signal.subscribe(self, self._paint_anew)
        self.panel.show([line(run("gpuwise top", "title"), run("  asking the devices ...", "dim"))])
        self._leave_when_told()
        self.sampler.start()
        self.set_interval(1.0, self._look_after)

    def _leave_when_told(self) -> None:
        """End on the signals that end other programs, in the same way as on a key press, so the terminal is restored.

        Python's handlers, not the event loop's: they run while the loop waits for a blocked terminal.
        """
        loop = asyncio.get_running_loop()
        leave: Callable[[], None] | None = getattr(self._driver, "leave", None)

        def end(*_: object) -> None:
            if leave is not None:
                leave()
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self.exit)

        for name in ("SIGTERM", "SIGHUP"):
            # not on Windows, and only in the main thread
            with suppress(AttributeError, ValueError):
                number = getattr(signal, name)
                self._handlers[number] = signal.signal(number, end)

    def on_unmount(self) -> None:
        self.sampler.stop()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()

    def _take(self, shot: Snapshot) -> None:
        """From the sampler's thread: leave the newest snapshot; one message at a time, however slow the terminal is."""
        self._waiting = shot
        if not self._posted and self.is_running:
            self._posted = True
            self.post_message(self.Arrived())

    def _fail(self, error: BaseException) -> None:
        self.failure = error
        self.call_later(self.exit)

    def on_top_app_arrived(self) -> None:
        self._posted = False
        shot = self._waiting
        if shot is None:
            return
        self.n_frames += 1
        if self.state.began_s is None:
            self.state.began_s = shot.frame.at_s
        self.hosts.add(shot.frame)
        if not self.state.paused or self.shot is None or not self.state.live:
            self.shot = shot
            self.redraw()
        if self.options.count is not None and self.n_frames >= self.options.count:
            self.exit()

    def redraw(self) -> None:
        """Draw what there is, for the size the terminal has now."""
        if self.shot is None:
            return
        width, height = self.size
        self.n_draws += 1
        history, hosts = self._stopped or (self.source.history, self.hosts)
        screen_lines = self.screen_lines = draw(self.shot, self.state, history, hosts, width, height)
        lines, parts = list[Line](), list[str]()
        for name in PARTS:
            of = getattr(screen_lines, name)
            n = getattr(screen_lines.layout, name)
            lines += [*of[:n], *([BLANK] * (n - len(of)))]
            parts += [name] * n
        top = self._top()
        for y in self.panel.show(lines, None if isinstance(top, Dialog) else self._straight()):
            self.painted[parts[y] if y < len(parts) else ""] += 1
        if isinstance(top, Dialog):
            top.draw()

    def _straight(self) -> Callable[[str], None] | None:
        """The way to the terminal without Textual's compositor; None where something has to be done to the colours on the way,
        or the screen is not yet as large as the terminal."""
        if self.write_whole is None or self.panel.size != self.size:
            return None
        if any(not isinstance(f, ANSIToTruecolor) for f in self.panel.get_line_filters()):
            return None
        return self.write_whole

    def _top(self) -> Screen[object] | None:
        """The screen on top; None while the application ends."""
        try:
            return self.screen
        except ScreenStackError:
            return None

    def say(self, words: str) -> None:
        """Show a message in the bottom line for ``MESSAGE_S`` seconds."""
        self.state.message, self._said_until_s = words, time.monotonic() + MESSAGE_S
        self.redraw()

    def open(self, dialog: Dialog, done: Callable[[str | None], None] | None = None) -> None:
        """Show a dialog over the screen; ``done`` is called with its result."""
        self.push_screen(dialog, done)

    def keep_choices(self) -> None:
        """Store the preferences; a theme given on the command line is not stored."""
        order = self.state.order
        theme = recall().theme if self._told_theme == self.theme else self.theme
        if not self._keep(Preferences(theme, order.column, order.falling, order.tree)):
            self.say("this choice cannot be remembered: the settings folder is not writable")

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key) and self.state.typing is not None and not isinstance(self._top(), Dialog):
            self.type_filter(event)
            return
        await super().on_event(event)

    def on_resize(self, event: events.Resize) -> None:
        self.redraw()

    def on_paste(self, event: events.Paste) -> None:
        if self.state.typing is not None:
            self.set_filter(self.state.typing + event.text.partition("\n")[0])

    def on_panel_hit(self, event: Panel.Hit) -> None:
        self.hit(event.action, double=event.double)

    def on_panel_scrolled(self, event: Panel.Scrolled) -> None:
        self.action_by(event.by)

    def _look_after(self) -> None:
        """Once a second: whether the driver is silent, whether a word has stood long enough, whether the time is over."""
        now_s = time.monotonic()
        since_s = self.sampler.asking_since_s
        silent_s = None if since_s is None or now_s - since_s < STALE_S else now_s - since_s
        over = self.state.message and now_s >= self._said_until_s
        if over:
            self.state.message = ""
        if silent_s is not None or self.state.stale_s is not None or over:
            self.state.stale_s = silent_s
            self.redraw()
        if self.options.duration_s is not None and now_s - self._started_s >= self.options.duration_s:
            self.exit()

    def _paint_anew(self, theme: object) -> None:
        self.palette = Palette(self.current_theme, self.console.color_system)
        self.panel.paint_with(self.palette)
        for screen in self.screen_stack:
            if isinstance(screen, Dialog):
                screen.paint_with(self.palette)

    def reorder(self, **changes: object) -> None:
        """Change the order of the table and show it."""
        self.state.order = replace(self.state.order, **changes)  # type: ignore[arg-type]
        self.redraw()
