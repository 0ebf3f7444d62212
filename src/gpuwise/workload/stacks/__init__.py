"""Training software, one TOML file per stack: kernels and fusion, memory rules, layout rules, export tools."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
