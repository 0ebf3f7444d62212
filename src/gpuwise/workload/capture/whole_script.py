"""A file as a program to capture."""

from __future__ import annotations

import runpy
from pathlib import Path


class WholeScript:
    """Runs a file as ``python FILE`` does, again at each call."""

    def __init__(self, file: Path) -> None:
        self.file, self.__name__ = file, file.name

    def __call__(self) -> None:
        try:
            runpy.run_path(str(self.file), run_name="__main__")
        except SystemExit as stop:
            if stop.code:
                raise
