"""Measurements of a tuning, one line each, on disk before the next begins.

The search requests a measurement by its name and gets the stored one if available: after a killed process, resuming is the
same search again.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuwise.errors import InputError
from gpuwise.files import drop_torn_line, parse_json, read_bytes, read_text

FILE = "measurements.jsonl"
VERSION = 3


class State:
    """The file of one tuning. ``subject`` identifies what is tuned; a file about another subject is not resumed."""

    def __init__(self, folder: Path, subject: Mapping[str, Any], *, resume: bool) -> None:
        self.path = folder / FILE
        folder.mkdir(parents=True, exist_ok=True)
        self._kept: dict[str, Any] = {}
        head = {"kind": "tuning", "version": VERSION, "subject": dict(subject)}
        if resume:
            self._read(head)
        elif self.path.exists():
            # what was measured is never overwritten
            self.path.rename(folder / time.strftime(f"measurements-%Y%m%d-%H%M%S-{os.getpid()}.jsonl"))
        if not self._kept and not self.path.exists():
            self._append(head)

    def measured(self, key: str, measure: Callable[[], Any]) -> Any:
        """The stored value of ``key``; else that of ``measure()``, stored at once. Values are JSON."""
        if key not in self._kept:
            value = measure()
            self._append({"kind": "measurement", "key": key, "at_s": time.time(), "value": value})
            self._kept[key] = value
        return self._kept[key]

    def has(self, key: str) -> bool:
        """Whether ``key`` is stored."""
        return key in self._kept

    def _append(self, line: Mapping[str, Any]) -> None:
        with self.path.open("ab") as file:
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _read(self, head: Mapping[str, Any]) -> None:
        if not self.path.exists():
            raise InputError(f"there is no tuning to resume in {self.path.parent}", hint="leave --resume out")
        whole = read_text(self.path, hint="leave --resume out").split("\n")[:-1]
        read = [parse_json(line, str(self.path), line=n, hint="leave --resume out") for n, line in enumerate(whole, 1)]
        if not read or read[0].get("kind") != "tuning" or read[0].get("version") != VERSION:
            raise InputError(f"{self.path}: not a file of measurements", hint="leave --resume out")
        changed = [k for k, v in head["subject"].items() if read[0]["subject"].get(k) != json.loads(json.dumps(v))]
        if changed:
            raise InputError(
                f"the tuning in {self.path.parent} had other inputs: {', '.join(changed)} changed",
                hint="leave --resume out to start again",
            )
        self._kept = {line["key"]: line["value"] for line in read[1:]}
        drop_torn_line(self.path)


def subject_of(script: str, arguments: Sequence[str], *, module: bool, versions: Mapping[str, str]) -> dict[str, Any]:
    """Identity of a tuning: the script's words and text, and the software."""
    text = b"" if module else read_bytes(Path(script))
    return {
        "script": script,
        "arguments": list(arguments),
        "text": hashlib.sha256(text).hexdigest(),
        **dict(versions),
    }
