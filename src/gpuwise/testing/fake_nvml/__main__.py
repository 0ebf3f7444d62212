"""Run a command among cards that do not exist: ``python -m gpuwise.testing.fake_nvml H100-SXM RTX-4090 -- nvitop -1``."""

from __future__ import annotations

import subprocess
import sys

from gpuwise.errors import GpuwiseError
from gpuwise.testing.fake_nvml import fake_nvml, profile_names

USAGE = (
    "usage: python -m gpuwise.testing.fake_nvml CARD [CARD ...] -- COMMAND [ARGUMENT ...]\n"
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
        with fake_nvml(cards) as fake:
            return subprocess.run(command, env=fake.env, check=False).returncode
    except GpuwiseError as error:
        sys.stderr.write(f"error: {error}\n")
    except OSError as error:
        sys.stderr.write(f"error: {command[0]}: {error.strerror}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
