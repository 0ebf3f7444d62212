"""Asks each installed framework in its own process, all at once, with a time limit; a crash or hang is a result."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from importlib.resources import files
from typing import Any, cast

from gpuwise.machine.doctor.host import CommandResult, Host
from gpuwise.machine.doctor.observation import Framework

LIMIT_S = 90.0
"""A first import from a cold network disk takes a minute; a hang never ends."""
_LAST_WORDS = 400
_KINDS: dict[str, type | tuple[type, ...]] = {
    "stage": str,
    "failed": str,
    "version": str,
    "file": str,
    "cuda": str,
    "hip": str,
    "xpu": str,
    "nccl": str,
    "error": str,
    "numpy_error": str,
    "backend": str,
    "cudnn": (str, int),
    "architectures": list,
    "available": bool,
    "mps": bool,
    "mps_built": bool,
    "count": int,
    "threads": int,
}


def ask_frameworks(host: Host, python: str, names: Iterable[str], limit_s: float = LIMIT_S) -> tuple[Framework, ...]:
    """The report of each of ``names``, in the same order."""
    framework_names = tuple(names)
    if not framework_names:
        return ()
    with ThreadPoolExecutor(max_workers=len(framework_names)) as pool:
        return tuple(pool.map(partial(ask, host, python, limit_s=limit_s), framework_names))


def ask(host: Host, python: str, name: str, limit_s: float) -> Framework:
    """The report of one framework."""
    ran = host.run((python, "-c", question(), name), limit_s=limit_s)
    return understand(name, ran)


@cache
def question() -> str:
    """The source of the program that the user's interpreter runs."""
    return files("gpuwise.machine.doctor.probes").joinpath("ask_framework.py").read_text(encoding="utf-8")


def understand(name: str, ran: CommandResult) -> Framework:
    """The report that a run of the question printed, or how it failed."""
    answer: dict[str, Any] = {}
    for line in ran.out.splitlines():
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if isinstance(message, dict):
            answer |= _valid_fields(cast("dict[str, Any]", message))
    stage = str(answer.pop("stage", "start"))
    failed = str(answer.pop("failed", ""))
    last = " ".join(ran.err.split())[-_LAST_WORDS:]
    if ran.timed_out:
        return Framework(name, "hang", stage, last, ran.seconds, answer)
    if ran.status is None:
        return Framework(name, "error", "start", "the interpreter could not be started", ran.seconds, answer)
    if failed:
        return Framework(name, "error", stage, failed, ran.seconds, answer)
    if ran.status < 0 or (ran.status != 0 and stage != "done"):
        ended = f"ended by {signal_name(-ran.status)}" if ran.status < 0 else f"ended with status {ran.status}"
        return Framework(name, "crash", stage, f"{ended}: {last}" if last else ended, ran.seconds, answer)
    if not answer.get("available") and answer.get("error") is None and name == "tensorflow" and answer.get("cuda"):
        answer["error"] = last
    return Framework(name, "ok", stage, "", ran.seconds, answer)


def _valid_fields(message: dict[str, Any]) -> dict[str, Any]:
    """Fields with the name and type of the query; a library may print other objects in between."""
    valid = {k: v for k, v in message.items() if k in _KINDS and isinstance(v, _KINDS[k])}
    if "architectures" in valid:
        valid["architectures"] = [str(a) for a in valid["architectures"]]
    for name in ("devices", "ran"):
        rows = message.get(name)
        if isinstance(rows, list):
            entries = [cast("dict[str, Any]", r) for r in cast("list[object]", rows) if isinstance(r, dict)]
            valid[name] = [entry for entry in entries if isinstance(entry.get("index"), int)]
    for device in valid.get("devices", ()):
        pair = device.get("capability")
        numbers = cast("list[object]", pair) if isinstance(pair, list) else []
        if len(numbers) != 2 or not all(isinstance(n, int) for n in numbers):
            device["capability"] = None
    return valid


def signal_name(number: int) -> str:
    """``SIGSEGV`` of 11."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
