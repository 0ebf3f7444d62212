"""What a scheduler prints of its nodes, for questions about them (``--on slurm:gpu``, ``--on k8s``).

:mod:`gpuwise.facts.hardware.scheduled` is where that is read.
"""

from __future__ import annotations

import shutil
import subprocess
import time

from gpuwise.errors import InputError

COMMANDS = {"slurm": ("scontrol", "--oneliner", "show", "nodes"), "k8s": ("kubectl", "get", "nodes", "-o", "json")}
PATIENCE_S = 30.0
"""A controller that is busy answers within seconds."""
FRESH_S = 30.0
"""A question names the nodes several times; a server asks again."""
_answers: dict[str, tuple[float, str]] = {}


def nodes_of(scheduler: str) -> str:
    """The output of the command of ``scheduler``, at most :data:`FRESH_S` old. Raises InputError where it fails."""
    asked_s, text = _answers.get(scheduler, (0.0, ""))
    if text and time.monotonic() - asked_s < FRESH_S:
        return text
    _answers[scheduler] = (time.monotonic(), _run(COMMANDS[scheduler], scheduler))
    return _answers[scheduler][1]


def _run(command: tuple[str, ...], scheduler: str) -> str:
    written = " ".join(command)
    program = shutil.which(command[0])
    if program is None:
        raise InputError(
            f"{command[0]} is not on this machine",
            hint=f"save what `{written}` prints on another, and name the file: --on {scheduler}@FILE",
        )
    try:
        ran = subprocess.run(
            [program, *command[1:]], capture_output=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"`{written}` gave no answer in {PATIENCE_S:.0f} s", hint="run it by itself to see why") from None
    except OSError as error:
        raise InputError(f"{program} does not start: {error.strerror}", hint="run it by itself to see why") from None
    if ran.returncode:
        lines = ran.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise InputError(f"`{written}` failed: {lines[-1][:200]}", hint="run it by itself to see why")
    return ran.stdout.decode(errors="replace")
