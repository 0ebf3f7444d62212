"""Colours of pages and their pictures, each with its counterpart on a dark screen.

The series are Okabe and Ito's colours (jfly.uni-koeln.de/color), darkened where they were too pale for text on white.
"""

from __future__ import annotations

INK, MUTED, GRID, PAPER = "#1f2430", "#5b6270", "#d5d9e0", "#fdfdfe"
SERIES = ("#0060a8", "#c14a00", "#007a5a", "#b0478a", "#8a6d00", "#0b7fae", "#6b4fbb", "#5c6670")
GOOD, BAD = "#00724f", "#b3261e"
DARK = {
    INK: "#e8eaf0",
    MUTED: "#a9b0bd",
    GRID: "#3a404c",
    PAPER: "#15181e",
    **dict(zip(SERIES, ("#6cb6ff", "#ff9a57", "#43cfa4", "#f08cc8", "#e6c34a", "#5fd0f5", "#b8a1ff", "#b4bdc9"), strict=True)),
    GOOD: "#4fd6a5",
    BAD: "#ff8a80",
}
"""Every colour that is used, and what it is on a dark screen."""
