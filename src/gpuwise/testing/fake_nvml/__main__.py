"""Runs a command with simulated GPUs: ``python -m gpuwise.testing.fake_nvml 8xH100-SXM RTX-4090 -- nvitop -1``."""

from __future__ import annotations

import subprocess
import sys

from gpuwise.errors import GpuwiseError
from gpuwise.testing.fake_nvml import fake_nvml, profile_names

USAGE = (
    "usage: python -m gpuwise.testing.fake_nvml [Nx]CARD [[Nx]CARD ...] -- COMMAND [ARGUMENT ...]\n"
    "Runs the command with a libnvidia-ml.so.1 that plays these cards; its exit code is the command's.\n"
    "cards: "
)


def main(arguments: list[str]) -> int:
    """The command's exit code; 2 for bad input."""
    cards, command = arguments, list[str]()
    if "--" in arguments:
        at = arguments.index("--")
        cards, command = arguments[:at], arguments[at + 1 :]
    if not cards or not command or "--help" in cards or "-h" in cards:
        sys.stderr.write(USAGE + ", ".join(profile_names()) + "\n")
        return 0 if {"--help", "-h"} & set(cards) else 2
    try:
        with fake_nvml(_each(cards)) as fake:
            return subprocess.run(command, env=fake.env, check=False).returncode
    except GpuwiseError as error:
        sys.stderr.write(f"error: {error}\n")
    except OSError as error:
        sys.stderr.write(f"error: {command[0]}: {error.strerror}\n")
    return 2


def _each(cards: list[str]) -> list[str]:
    """``8xH100-SXM`` is eight of them."""
    found: list[str] = []
    for card in cards:
        count, times, name = card.partition("x")
        many = bool(times) and count.isdecimal()
        found += [name] * int(count) if many else [card]
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
