"""A widget that shows lines and paints only what changed since the lines before."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from textual import events
from textual.filter import ANSIToTruecolor
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from gpuwise.tui.ink import BLANK, Line, clip, line_width, width_of
from gpuwise.tui.palette import Palette


class Panel(Widget, can_focus=False):
    """Lines from the top; what the height leaves over is empty. ``n_painted`` counts lines painted, ``n_shown`` calls of
    :meth:`show`: tests hold the screen to them."""

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
        self.n_painted = self.n_shown = 0

    @property
    def lines(self) -> tuple[Line, ...]:
        """What is shown now."""
        return self._shown

    def show(self, lines: Sequence[Line]) -> None:
        """Show these lines; only the cells from the first to the last difference of each line are painted anew."""
        self.n_shown += 1
        old, self._shown = self._shown, tuple(lines)
        width = self.size.width
        dirty = list[Region]()
        for y in range(max(len(old), len(self._shown))):
            was = old[y] if y < len(old) else BLANK
            now = self._shown[y] if y < len(self._shown) else BLANK
            if was == now:
                continue
            self._strips.pop(y, None)
            x0, x1 = _changed(was, now, width)
            if x1 > x0 and y < self.size.height:
                dirty.append(Region(x0, y, x1 - x0, 1))
        if dirty:
            self.n_painted += len(dirty)
            self.refresh(*dirty)

    def paint_with(self, palette: Palette) -> None:
        """Take other colours."""
        self._palette = palette
        self._strips.clear()
        self.refresh()

    def render_lines(self, crop: Region) -> list[Strip]:
        """The strips of ``crop``. The widget has no border and no padding, so that nothing else has to be drawn."""
        if self._columns != self.size.width:
            self._strips.clear()
            self._columns = self.size.width
        # our colours are all true ones but in a theme of the terminal's own, which asks for no such filter
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
        """What a click at a column and a line does; empty: nothing."""
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


def _changed(was: Line, now: Line, width: int) -> tuple[int, int]:
    """Columns from the first to behind the last run that differs. Rows whose background changed are painted whole."""
    if was.back != now.back:
        return 0, width
    start, n = 0, 0
    for a, b in zip(was.runs, now.runs, strict=False):
        if a[0] != b[0] or a[1] != b[1]:
            break
        start, n = start + width_of(a[0]), n + 1
    end_was, end_now = (sum(width_of(t) for t, _, _ in of.runs) for of in (was, now))
    if end_was != end_now:
        return min(start, width), min(width, max(end_was, end_now))
    end, a_left, b_left = end_now, list(was.runs[n:]), list(now.runs[n:])
    while a_left and b_left and a_left[-1][:2] == b_left[-1][:2]:
        end -= width_of(a_left.pop()[0])
        b_left.pop()
    return min(start, width), min(end, width)
