"""The command line: parse, call, show. No formula lives here."""

from __future__ import annotations

YOUNG_OBJECTS = 1_000_000
"""Objects made before cycles are looked for: more than a command makes. With Python's 700 (CPython 3.11) modules are searched a
hundred times while they are read, and nothing of them is garbage. With 100,000 it took 0.1 s of ``gpuwise fit``, 0.17 s of a
``gpuwise pick``; without, both take 12 MB more."""


def main() -> None:
    """Entry point of the ``gpuwise`` command."""
    import gc
    import sys

    gc.set_threshold(YOUNG_OBJECTS)
    if sys.argv[1:] in (["--version"], ["-V"]) and sys.stdout is not None:
        from gpuwise import __version__

        try:
            sys.stdout.write(__version__ + "\n")
            sys.stdout.flush()
            raise SystemExit(0)
        except OSError:  # a full disk, a reader that left: said below as for any command
            pass
    from gpuwise.cli.app import run

    raise SystemExit(run())
