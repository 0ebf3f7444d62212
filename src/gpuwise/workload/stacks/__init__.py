"""Training software, one TOML file a stack: what runs and is fused, how memory is held, what it can lay out, what exports it."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
