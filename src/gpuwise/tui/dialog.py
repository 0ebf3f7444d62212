"""A modal dialog: lines in a frame, scrolled by keys and wheel; with choices, one is picked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.screen import ModalScreen

from gpuwise.tui.lines.palette import Palette
from gpuwise.tui.lines.text_runs import Line, clip, cut, line, line_width, run, width_of
from gpuwise.tui.panel import Panel

WIDEST = 96


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice of a dialog."""

    name: str
    words: str
    key: str = ""
    """A key that picks it at once."""


class Dialog(ModalScreen[str | None]):
    """Shows the lines that ``make(width)`` returns, width in columns. Its result is the name of the choice, or None (escape).

    ``move`` is called with the name of the choice that is highlighted (a preview before it is taken).
    """

    DEFAULT_CSS = "Dialog { align: center middle; } Dialog Panel { width: auto; height: auto; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,ctrl+c", "close"),
        Binding("up", "by(-1)"),
        Binding("down", "by(1)"),
        Binding("pageup", "by(-10)"),
        Binding("pagedown,space", "by(10)"),
        Binding("home", "by(-10000)"),
        Binding("end", "by(10000)"),
        Binding("enter", "pick"),
    ]

    def __init__(
        self,
        palette: Palette,
        title: str,
        make: Callable[[int], Sequence[Line]],
        *,
        choices: Sequence[Choice] = (),
        at: int = 0,
        move: Callable[[str], None] | None = None,
        widest: int = WIDEST,
    ) -> None:
        super().__init__()
        self._palette, self._title, self._make, self._choices = palette, title, make, tuple(choices)
        self._at, self._first, self._move, self._widest = at, 0, move, widest
        self._panel = Panel(palette)

    def compose(self) -> ComposeResult:
        yield self._panel

    def on_mount(self) -> None:
        self.draw()

    def on_resize(self, event: Resize) -> None:
        self.draw()

    def draw(self) -> None:
        """Draw the dialog; called again with each frame."""
        screen = self.app.size  # pyright: ignore[reportUnknownMemberType]
        width = max(4, min(self._widest, screen.width - 2))
        body = [clip(of, width - 4) for of in self._make(width - 4)]
        choices = [self._choice(n, c) for n, c in enumerate(self._choices)]
        room = max(1, screen.height - 2)
        lines = [*body, *choices]
        if len(lines) > room:
            at = len(body) + self._at if choices else self._first
            self._first = max(0, min(self._first, len(lines) - room))
            if choices:
                self._first = min(max(self._first, at - room + 1), at)
            lines = lines[self._first : self._first + room]
        else:
            self._first = 0
        if not self.is_mounted:
            return
        self._panel.styles.width, self._panel.styles.height = width, len(lines) + 2
        self._panel.show(self._framed(lines, width, len(body) + len(choices) - len(lines)))

    def paint_with(self, palette: Palette) -> None:
        """Use another palette."""
        self._palette = palette
        self._panel.paint_with(palette)

    def _choice(self, n: int, choice: Choice) -> Line:
        here = n == self._at
        return line(
            run("▸ " if here else "  ", "key"),
            run(choice.words, "strong" if here else ""),
            run(f"  ({choice.key})" if choice.key else "", "dim"),
            back="selected" if here else "",
            action=f"pick:{n}",
        )

    def _framed(self, lines: Sequence[Line], width: int, hidden: int) -> list[Line]:
        title = cut(f" {self._title} ", max(0, width - 4))
        out = [line(run("╭─", "bar"), run(title, "title"), run("─" * (width - 3 - width_of(title)) + "╮", "bar"))]
        for of in lines:
            pad = run(" " * max(0, width - 4 - line_width(of)))
            out.append(Line((("│ ", "bar", ""), *of.runs, pad, (" │", "bar", "")), of.back, of.action))
        end = (
            f" {hidden} more lines: ↑ ↓ " if hidden > 0 else " esc closes " if not self._choices else " enter takes, esc leaves "
        )
        end = cut(end, max(0, width - 4))
        out.append(line(run("╰─", "bar"), run(end, "dim"), run("─" * max(0, width - 3 - width_of(end)) + "╯", "bar")))
        return out

    def action_close(self) -> None:
        """Close without a choice."""
        self.dismiss(None)

    def action_by(self, n: int) -> None:
        """Highlight the choice ``n`` places on, or scroll by ``n`` lines."""
        if self._choices:
            self._at = max(0, min(len(self._choices) - 1, self._at + n))
            if self._move is not None:
                self._move(self._choices[self._at].name)
        else:
            self._first = max(0, self._first + n)
        self.draw()

    def action_pick(self) -> None:
        """Close with the highlighted choice."""
        self.dismiss(self._choices[self._at].name if self._choices else None)

    def on_key(self, event: object) -> None:
        key = getattr(event, "character", None)
        for choice in self._choices:
            if choice.key and key == choice.key:
                self.dismiss(choice.name)

    def on_panel_hit(self, event: Panel.Hit) -> None:
        event.stop()
        if event.action.startswith("pick:"):
            self.dismiss(self._choices[int(event.action.removeprefix("pick:"))].name)

    def on_panel_scrolled(self, event: Panel.Scrolled) -> None:
        event.stop()
        self.action_by(event.by if not self._choices else (1 if event.by > 0 else -1))
