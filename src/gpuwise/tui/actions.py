# pyright: reportGeneralTypeIssues=false
# each `self` is the one application that these methods are mixed into
"""Actions of keys and clicks: they change the state and redraw."""

from __future__ import annotations

import signal

from textual import events

from gpuwise.tui.application import Application
from gpuwise.tui.lines import charts
from gpuwise.tui.lines.drawing import selected_card
from gpuwise.tui.lines.layout import VIEWS
from gpuwise.tui.lines.processes import BY_NAME, Entry, columns_for
from gpuwise.tui.lines.text_runs import Line
from gpuwise.tui.state import INTERVALS_S


class Actions(Application):
    """Methods that keys and clicks call."""

    def hit(self, action: str, *, double: bool) -> None:
        """A click: ``card:3``, ``process:1234:0``, ``sort:sm``, ``view:why``, ``chart:power``, ``why:2``, ``do:pause``."""
        what, _, value = action.partition(":")
        match what:
            case "card":
                self.action_card(int(value))
                if double:
                    self.action_card_details()
            case "process":
                pid, _, number = value.partition(":")
                self.state.process = (int(pid), int(number))
                self.redraw()
                if double:
                    self.action_details()
            case "sort":
                self.sort_by(value)
            case "view":
                self.action_view(value)
            case "why":
                if value:
                    self.state.card = int(value)
                    self.redraw()
                if double:
                    self.action_view("why")
            case "chart":
                self.state.chart = value
                self.redraw()
            case _:
                self.do(value)

    def do(self, name: str) -> None:
        """Run an action by its name in the bottom line."""
        match name:
            case "next_view" | "sort" | "chart":
                getattr(self, f"action_{name}")(1)
            case "quit":
                self.exit()
            case _:
                getattr(self, f"action_{name}")()

    def action_help(self) -> None:
        """Show the keys."""
        from gpuwise.tui.dialog import Dialog
        from gpuwise.tui.lines.help import help_lines

        self.open(Dialog(self.palette, "gpuwise top: keys", help_lines))

    def action_next_view(self, by: int) -> None:
        """Go ``by`` views on."""
        self.action_view(VIEWS[(VIEWS.index(self.state.view) + by) % len(VIEWS)])

    def action_view(self, view: str) -> None:
        # the key of a view brings back the overview when it is pressed again
        """Show a view; the overview where it is shown already."""
        self.state.view = "overview" if view == self.state.view else view
        self.redraw()

    def action_card(self, number: int) -> None:
        """Select the GPU with this number."""
        if self.shot is None or all(c.number != number for c in self.shot.frame.cards):
            return
        self.state.card = number
        if self.state.order.card is not None:
            self.reorder(card=number)
        self.redraw()

    def action_card_by(self, by: int) -> None:
        """Select the GPU ``by`` places on."""
        if self.shot is not None and self.shot.frame.cards:
            self.action_card((self.state.card + by) % len(self.shot.frame.cards))

    def action_only_card(self) -> None:
        """Show the processes of the selected GPU only, or of all."""
        self.reorder(card=self.state.card if self.state.order.card is None else None)

    def action_by(self, by: int) -> None:
        """Move the selection up or down: processes, or causes in the view ``why``."""
        if self.state.view == "why":
            self.state.first_why_line = max(0, self.state.first_why_line + by)
        elif self.screen_lines is not None and self.screen_lines.entries:
            entries = self.screen_lines.entries
            # nothing is selected yet: one down is the first that is seen
            start = self.state.first_process - 1 if self.state.process is None else self.state.place
            at = start + by
            self.state.process = entries[max(0, min(len(entries) - 1, at))].key
        self.redraw()

    def action_page(self, by: int) -> None:
        """Move ``by`` pages."""
        if self.screen_lines is None:
            return
        layout = self.screen_lines.layout
        lines = layout.chart if self.state.view == "why" else layout.processes
        self.action_by(by * max(1, lines - 2))

    def action_sort(self, by: int) -> None:
        """Sort by the column ``by`` places on."""
        shown = self._sortable()
        at = shown.index(self.state.order.column) if self.state.order.column in shown else -1
        self.sort_by(shown[(at + by) % len(shown)])

    def sort_by(self, name: str) -> None:
        """Sort by a column; reverse the order where it is the current one."""
        order = self.state.order
        falling = not order.falling if name == order.column else BY_NAME[name].numeric and name not in ("gpu", "pid")
        self.reorder(column=name, falling=falling)
        self.keep_choices()

    def _sortable(self) -> list[str]:
        entries = self.screen_lines.entries if self.screen_lines is not None else ()
        host_only = self.shot is not None and not self.shot.frame.cards
        return [c.name for c, _ in columns_for(max(1, self.size.width), entries, host_only=host_only)]

    def action_turn(self) -> None:
        """Reverse the order."""
        self.reorder(falling=not self.state.order.falling)
        self.keep_choices()

    def action_tree(self) -> None:
        """Show processes as a tree, or as a list."""
        self.sampler.tree = not self.state.order.tree
        self.reorder(tree=self.sampler.tree)
        if self.state.live:
            self.sampler.hurry()  # the processes above are only read for the tree
        self.keep_choices()

    def action_filter(self) -> None:
        """Start typing a filter."""
        self.state.typing = self.state.order.filter
        self.redraw()

    def action_clear_filter(self) -> None:
        """Remove the filter; without one, the selection."""
        if self.state.order.filter:
            self.reorder(filter="")
        else:
            self.state.process = None
            self.redraw()

    def set_filter(self, words: str) -> None:
        """Apply the filter typed so far."""
        self.state.typing = words
        self.state.first_process = 0
        self.reorder(filter=words.strip())

    def type_filter(self, event: events.Key) -> None:
        """Handle a key while a filter is typed."""
        typed = self.state.typing or ""
        if event.key == "enter":
            self.state.typing = None
            self.redraw()
        elif event.key in ("escape", "ctrl+c"):
            self.state.typing = None
            self.reorder(filter="")
        elif event.key in ("backspace", "ctrl+h"):
            self.set_filter(typed[:-1])
        elif event.key == "ctrl+u":
            self.set_filter("")
        elif event.key in ("up", "down"):
            self.action_by(-1 if event.key == "up" else 1)
        elif event.is_printable and event.character is not None:
            self.set_filter(typed + event.character)

    def action_chart(self, by: int) -> None:
        """Chart the reading ``by`` places on."""
        shown = self._charted()
        at = shown.index(self.state.chart) if self.state.chart in shown else 0
        self.state.chart = shown[(at + by) % len(shown)]
        self.redraw()

    def _charted(self) -> list[str]:
        """Names of the readings there is something to chart of; first the one for several."""
        selected = None if self.shot is None else selected_card(self.shot.frame, self.state)
        names = [] if selected is None else [m.name for m in charts.available_metrics(selected)]
        return names or ["use"] if self.state.all_cards else ["", *names]

    def action_all_cards(self) -> None:
        """Chart all GPUs, or the selected one."""
        self.state.all_cards = not self.state.all_cards
        self.redraw()

    def action_zoom(self) -> None:
        """Change the number of refreshes per dot of the charts."""
        self.state.zoom = charts.ZOOMS[(charts.ZOOMS.index(self.state.zoom) + 1) % len(charts.ZOOMS)]
        self.say(f"{self.state.zoom} refresh{'es' if self.state.zoom > 1 else ''} to a dot")

    def action_pause(self) -> None:
        """Pause or continue."""
        self.state.paused = not self.state.paused
        if not self.state.live:
            self.sampler.hold(self.state.paused)
        elif self.state.paused:
            self._stopped = (self.source.history.copy(), self.hosts.copy())
        else:
            self._stopped = None
            self.shot = self._waiting or self.shot
        self.redraw()

    def action_interval(self, by: int) -> None:
        """Change the seconds between refreshes."""
        now = self.sampler.interval_s
        longer = [s for s in INTERVALS_S if s > now * 1.001] if by > 0 else [s for s in INTERVALS_S[::-1] if s < now * 0.999]
        if longer:
            self.sampler.interval_s = self.state.interval_s = longer[0]
            self.sampler.wake()
        self.say(f"a refresh every {self.state.interval_s:g} s")

    def action_seek(self, by_s: int) -> None:
        """Move ``by_s`` seconds in a recording."""
        if not self.sampler.seekable:
            self.say("only a recording can be wound back")
            return
        self.sampler.seek(by_s)

    def action_theme(self) -> None:
        """Choose a theme, with a preview."""
        from gpuwise.tui.dialog import Choice, Dialog

        names, before = sorted(self.available_themes), self.theme

        def take(name: str | None) -> None:
            self.theme = name or before
            if name is not None:
                self._told_theme = None
                self.keep_choices()

        def look(name: str) -> None:
            self.theme = name

        dialog = Dialog(
            self.palette,
            "themes",
            lambda _: [],
            choices=[Choice(n, n) for n in names],
            at=names.index(before),
            move=look,
            widest=40,
        )
        self.open(dialog, take)

    def chosen_entries(self) -> list[Entry]:
        """The rows of the selected process, one for each GPU it uses."""
        if self.state.process is None or self.screen_lines is None:
            return []
        return [e for e in self.screen_lines.entries if e.host.pid == (self.state.process or (0, 0))[0]]

    def action_details(self) -> None:
        """Show the selected process in full; without one, the GPU."""
        rows = self.chosen_entries()
        if not rows:
            self.action_card_details()
            return
        from gpuwise.tui.dialog import Dialog
        from gpuwise.tui.lines.readings import process_lines

        def make(width: int) -> list[Line]:
            nonlocal rows
            rows = [e for e in (self.screen_lines.entries if self.screen_lines else ()) if e.host.pid == rows[0].host.pid] or rows
            return process_lines(rows, width)

        self.open(Dialog(self.palette, f"process {rows[0].host.pid}", make))

    def action_card_details(self) -> None:
        """Show the selected GPU in full."""
        if self.shot is None or selected_card(self.shot.frame, self.state) is None:
            self.say("there is no GPU")
            return
        from gpuwise.tui.dialog import Dialog
        from gpuwise.tui.lines.readings import card_lines

        def make(width: int) -> list[Line]:
            assert self.shot is not None
            selected = selected_card(self.shot.frame, self.state)
            watched_s = self.shot.frame.at_s - (self.state.began_s or self.shot.frame.at_s)
            return [] if selected is None else card_lines(selected, self.shot.causes, self.state.prices, watched_s, width)

        self.open(Dialog(self.palette, f"GPU {self.state.card}", make))

    def action_kill(self) -> None:
        """Ask to end the selected process."""
        from gpuwise.tui.kill_dialog import ask
        from gpuwise.tui.kill_process import refusal

        rows = self.chosen_entries()
        if not rows:
            self.say("choose a process first: ↑ ↓ or a click")
            return
        why = refusal(rows[0].host, live=self.state.live)
        if why is not None:
            self.say(why)
            return
        ask(self, rows, signal.SIGTERM)
