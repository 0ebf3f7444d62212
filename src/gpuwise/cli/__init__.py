"""The command line: parse, call, show. No formula lives here."""

from __future__ import annotations


def main() -> None:
    """Entry point of the ``gpuwise`` command."""
    from gpuwise.cli.app import run

    raise SystemExit(run())
