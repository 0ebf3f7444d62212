"""Roles to colours, from the theme in use. Colour is never the only sign of a role: glyphs and words show it too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.color import Color as RichColor
from rich.console import COLOR_SYSTEMS
from rich.style import Style
from textual.color import Color, ColorParseError

if TYPE_CHECKING:
    from textual.theme import Theme

RAMP = 8
"""Steps of the ramps of a chart, from its ground to its top."""

FRONTS: Mapping[str, tuple[str, float, str]] = {
    "": ("foreground", 1.0, ""),
    "dim": ("foreground", 0.62, ""),
    "faint": ("foreground", 0.4, ""),
    "strong": ("foreground", 1.0, "bold"),
    "title": ("primary", 1.0, "bold"),
    "key": ("accent", 1.0, "bold"),
    "track": ("foreground", 0.16, ""),
    "bar": ("primary", 1.0, ""),
    "memory": ("accent", 1.0, ""),
    "power": ("warning", 1.0, ""),
    "heat": ("success", 1.0, ""),
    "clock": ("primary", 0.8, ""),
    "ok": ("success", 1.0, ""),
    "warn": ("warning", 1.0, ""),
    "warn-strong": ("warning", 1.0, "bold"),
    "bad": ("error", 1.0, "bold"),
    "note": ("foreground", 0.72, ""),
}
"""Role -> colour of the theme, how much of it over the background, and the weight."""
RAMPS: Mapping[str, tuple[str, str]] = {
    "up": ("success", "error"),
    "bar": ("primary", "primary"),
    "memory": ("accent", "accent"),
    "power": ("warning", "warning"),
    "heat": ("success", "success"),
    "clock": ("primary", "secondary"),
}
"""Name of a ramp -> colours at its ground and at its top; roles are ``up:0`` to ``up:7``."""
BACKS: Mapping[str, tuple[str, float]] = {
    "": ("background", 0.0),
    "heading": ("foreground", 0.08),
    "selected": ("primary", 0.34),
    "chosen": ("primary", 0.18),
    "alarm": ("error", 0.25),
}
"""Role of a line's background -> colour of the theme and how much of it."""
_ANSI = {
    "foreground": "default",
    "background": "default",
    "primary": "blue",
    "secondary": "cyan",
    "accent": "magenta",
    "warning": "yellow",
    "error": "red",
    "success": "green",
}
"""Colours for themes that use the terminal's own sixteen."""


class Palette:
    """Styles of one theme, cached."""

    def __init__(self, theme: Theme, depth: str | None = "truecolor") -> None:
        """``depth``: rich's colour depth of the terminal."""
        self._styles: dict[tuple[str, str], Style] = {}
        self._escapes: dict[tuple[str, str], str] = {}
        self._depth = COLOR_SYSTEMS.get(depth or "")
        self._native = theme.ansi or theme.primary.startswith("ansi")
        colours = {} if self._native else theme.to_color_system().generate()
        self._colors = {name: _color(colours.get(name), fallback) for name, fallback in _FALLBACK.items()}

    def style(self, role: str, back: str = "") -> Style:
        """The style of a role over the background of its line."""
        style = self._styles.get((role, back))
        if style is None:
            style = self._styles[role, back] = self._native_style(role, back) if self._native else self._blend(role, back)
        return style

    def escapes(self, role: str, back: str = "") -> str:
        """The escape sequence that sets the style of a role, independent of the current one."""
        escapes = self._escapes.get((role, back))
        if escapes is None:
            escape = self.style(role, back).render(".", color_system=self._depth).partition(".")[0]
            escapes = self._escapes[role, back] = "\x1b[0;" + escape.removeprefix("\x1b[") if escape else "\x1b[0m"
        return escapes

    def _blend(self, role: str, back: str) -> Style:
        name, share = BACKS[back]
        ground = self._colors["background"].blend(self._colors[name], share)
        if ":" in role:
            ramp, _, step = role.partition(":")
            low, high = (self._colors[c] for c in RAMPS[ramp])
            at = int(step) / (RAMP - 1)
            # a ramp of one colour still rises out of the ground
            front = low.blend(high, at) if low != high else ground.blend(low, 0.5 + 0.5 * at)
            return Style.from_color(front.rich_color, ground.rich_color)
        color, weight, bold = FRONTS[role]
        front = ground.blend(self._colors[color], weight)
        return Style.from_color(front.rich_color, ground.rich_color) + (Style(bold=True) if bold else Style())

    def _native_style(self, role: str, back: str) -> Style:
        if ":" in role:
            ramp, _, step = role.partition(":")
            low, high = RAMPS[ramp]
            return Style(color=_ANSI[high if int(step) >= RAMP * 3 // 4 else low])
        color, weight, bold = FRONTS[role]
        style = Style.from_color(RichColor.parse(_ANSI[color])) + Style(bold=bool(bold), dim=weight < 0.7)
        return style + (Style(reverse=True) if back in ("selected", "alarm") else Style(underline=back == "heading" or None))


_FALLBACK = {
    "foreground": "#e0e0e0",
    "background": "#121212",
    "primary": "#0178d4",
    "secondary": "#004578",
    "accent": "#ffa62b",
    "warning": "#ffa62b",
    "error": "#ba3c5b",
    "success": "#4ebf71",
}
"""Colours that a theme leaves open."""


def _color(value: str | None, fallback: str) -> Color:
    try:
        return Color.parse(value or fallback)
    except ColorParseError:
        return Color.parse(fallback)
