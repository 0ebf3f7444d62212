"""The command line: parse, call, show. No formula lives here."""

from __future__ import annotations

YOUNG_OBJECTS = 100_000
"""Objects made before cycles are looked for. Python's 700 (CPython 3.11) means some hundred searches while a command's modules
are read, of which nothing is garbage: 7 % of the processor time of ``gpuwise plan`` (seven runs, in turn)."""


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
