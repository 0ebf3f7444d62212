"""A widget that shows lines and paints only what changed since the lines before."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.segment import Segment
from textual import events
from textual.filter import ANSIToTruecolor
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from gpuwise.tui.lines.palette import Palette
from gpuwise.tui.lines.text_runs import BLANK, Line, Run, clip, line_width, width_of


class Panel(Widget, can_focus=False):
    """Lines from the top; what the height leaves over is empty. ``n_shown`` counts calls of :meth:`show`, for tests."""

    DEFAULT_CSS = "Panel { height: auto; width: 100%; }"

    class Hit(Message):
        """A click on a line or a run that has an action."""

        def __init__(self, action: str, *, double: bool, panel: Panel) -> None:
            super().__init__()
            self.action, self.double, self.panel = action, double, panel

        @property
        def control(self) -> Panel:
            return self.panel

    class Scrolled(Message):
        """The wheel was turned over a panel: ``by`` lines, down is positive."""

        def __init__(self, by: int, panel: Panel) -> None:
            super().__init__()
            self.by, self.panel = by, panel

    def __init__(self, palette: Palette, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._palette = palette
        self._shown: tuple[Line, ...] = ()
        self._strips: dict[int, Strip] = {}
        self._columns = 0
        self.n_shown = 0

    @property
    def lines(self) -> tuple[Line, ...]:
        """The current lines."""
        return self._shown

    def show(self, lines: Sequence[Line], write: Callable[[str], None] | None = None) -> list[int]:
        """Show these lines; only the cells from the first to the last difference of each line are repainted. Returns the numbers
        of the repainted lines.

        With ``write`` changes go directly to the terminal: for a panel that fills the screen with nothing over it. Textual's
        own way, used otherwise, costs several times as much for the same cells.
        """
        self.n_shown += 1
        old, self._shown = self._shown, tuple(lines)
        width, height = self.size
        spans = dict[int, tuple[int, int, int, int]]()
        for y in range(max(len(old), len(self._shown))):
            was = old[y] if y < len(old) else BLANK
            now = self._shown[y] if y < len(self._shown) else BLANK
            if was is now or was == now:
                continue
            self._strips.pop(y, None)
            span = _difference(was, now, width)
            if span[1] > span[0] and y < height:
                spans[y] = span
        if spans:
            if write is None:
                self.refresh(*(Region(x0, y, x1 - x0, 1) for y, (x0, x1, _, _) in spans.items()))
            else:
                write("".join([self._escapes(y, *span) for y, span in spans.items()]) + "\x1b[0m")
        return list(spans)

    def _escapes(self, y: int, x0: int, x1: int, first: int, last: int) -> str:
        """Escape sequence that paints the runs ``first`` to ``last`` of a line at columns ``x0`` to ``x1``."""
        now = self._shown[y] if y < len(self._shown) else BLANK
        runs, back, used = now.runs[first:last], now.back, 0
        escapes, before = self._palette.escapes, ""
        parts = [f"\x1b[{y + 1};{x0 + 1}H"]
        for text, role, _ in clip(Line(runs), x1 - x0).runs if self.size.width <= x1 else runs:
            used += width_of(text)
            # the colour of a space is that of its line
            code = escapes(role, back) if not before or not text.isspace() else before
            parts += [text] if code == before else [code, text]
            before = code
        if used < x1 - x0:
            parts += ["" if before else escapes("", back), " " * (x1 - x0 - used)]
        return "".join(parts)

    def paint_with(self, palette: Palette) -> None:
        """Use another palette."""
        self._palette = palette
        self._strips.clear()
        self.refresh()

    def render_lines(self, crop: Region) -> list[Strip]:
        """The strips of ``crop``. The widget has no border and no padding, so that nothing else has to be drawn."""
        if self._columns != self.size.width:
            self._strips.clear()
            self._columns = self.size.width
        # our colours are true colours except in a theme of the terminal's own, which needs no such filter
        filters = [f for f in self.get_line_filters() if not isinstance(f, ANSIToTruecolor)]
        background = self.background_colors[1] if filters else None
        out = list[Strip]()
        for y in range(crop.y, crop.bottom):
            strip = self._strips.get(y)
            if strip is None:
                strip = self._strips[y] = self._strip(self._shown[y] if y < len(self._shown) else BLANK)
            for line_filter in filters:
                strip = strip.apply_filter(line_filter, background or self.background_colors[1])
            out.append(strip)
        if (crop.x, crop.right) != (0, self._columns):
            out = [s.crop(crop.x, crop.right) for s in out]
        return out

    def render_line(self, y: int) -> Strip:
        return self.render_lines(Region(0, y, self.size.width, 1))[0]

    def on_click(self, event: events.Click) -> None:
        action = self.action_at(event.x, event.y)
        if action:
            self.post_message(self.Hit(action, double=event.chain > 1, panel=self))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.post_message(self.Scrolled(3, self))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.post_message(self.Scrolled(-3, self))

    def action_at(self, x: int, y: int) -> str:
        """The action of a click at a column and a line; may be empty."""
        if not 0 <= y < len(self._shown):
            return ""
        at = 0
        for text, _, action in self._shown[y].runs:
            at += width_of(text)
            if x < at:
                return action or self._shown[y].action
        return self._shown[y].action

    def _strip(self, line: Line) -> Strip:
        style, back, width = self._palette.style, line.back, self._columns
        cut = clip(line, width)
        segments = [Segment(text, style(role, back)) for text, role, _ in cut.runs]
        used = line_width(cut)
        if used < width:
            segments.append(Segment(" " * (width - used), style("", back)))
        return Strip(segments, width)


def _difference(was: Line, now: Line, width: int) -> tuple[int, int, int, int]:
    """Columns from the first to behind the last run that differs, and which runs of ``now`` these are. Rows whose background
    changed are painted whole."""
    old, new = was.runs, now.runs
    if was.back != now.back:
        return 0, width, 0, len(new)
    first, least = 0, min(len(old), len(new))
    while first < least and (old[first] is new[first] or old[first][:2] == new[first][:2]):
        first += 1
    start, end_was, end_now = _columns(new[:first]), line_width(was), line_width(now)
    if end_was != end_now or end_now > width:
        return min(start, width), min(width, max(end_was, end_now)), first, len(new)
    n = 0
    while n < least - first and old[-1 - n][:2] == new[-1 - n][:2]:
        n += 1
    return start, end_now - _columns(new[len(new) - n :]), first, len(new) - n


def _columns(runs: Sequence[Run]) -> int:
    return width_of("".join([text for text, _, _ in runs]))
