"""The command line: parse, call, show. No formula lives here."""

from __future__ import annotations


def main() -> None:
    """Entry point of the ``gpuwise`` command."""
    import sys

    if sys.argv[1:] in (["--version"], ["-V"]):
        from gpuwise import __version__

        sys.stdout.write(__version__ + "\n")
        raise SystemExit(0)
    from gpuwise.cli.app import run

    raise SystemExit(run())
