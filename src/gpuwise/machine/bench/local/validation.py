"""``gpuwise validate --local``: prediction against this machine's own GPU, one real training step after the other.

Every case is predicted (captured without using the GPU, in one separate process for all cases) and measured (a fresh process
each). Each result is appended to the record as soon as it is there, so an interrupted run resumes where it stopped.
"""

from __future__ import annotations

import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuwise.errors import DataError, InputError, MissingExtraError
from gpuwise.files import drop_torn_line, read_text
from gpuwise.machine.bench.local.cases import LocalCase

CASE_LIMIT_S = 240
"""A case that takes longer is a failure, not the end of the run."""
QUANTITIES = ("allocated_bytes", "reserved_bytes", "process_bytes", "step_time_s")


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine of the cases. ``device`` is ``cuda`` or ``cpu``; ``gpu`` is the driver's name."""

    device: str
    gpu: str
    memory_bytes: int
    driver: str
    torch: str
    capability: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class LocalResult:
    """One case: the quantities predicted and measured, or why either is missing."""

    case: str
    predicted: dict[str, Any]
    measured: dict[str, Any]

    @property
    def whole(self) -> bool:
        """Both sides have an answer (running out of memory is one): not to be run again."""
        return "failed" not in self.predicted and self.measured.get("failed") in (None, "out of memory")

    def error(self, quantity: str) -> float | None:
        """predicted / measured - 1; None where one of them is missing."""
        guess, truth = self.predicted.get(quantity), self.measured.get(quantity)
        return guess / truth - 1 if guess and truth else None


def find_machine() -> Machine:
    """The first CUDA device as torch sees it, else the CPU. Raises MissingExtraError without torch."""
    code = (
        "import json,torch;c=torch.cuda.is_available();p=torch.cuda.get_device_properties(0) if c else None;"
        "print(json.dumps([torch.__version__]+([p.name,p.total_memory,[p.major,p.minor]] if c else ['CPU',0,[0,0]])))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=CASE_LIMIT_S, check=False)
    if ran.returncode:
        raise MissingExtraError("PyTorch does not import here", hint="pip install 'gpuwise[torch]'")
    version, name, memory, (major, minor) = json.loads(ran.stdout.splitlines()[-1])
    return Machine("cpu" if name == "CPU" else "cuda", name, memory, _driver(), version, (major, minor))


def _driver() -> str:
    try:
        out = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return out.stdout.strip()


def run(
    cases: Sequence[LocalCase],
    machine: Machine,
    record: Path,
    *,
    minutes: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[LocalResult]:
    """Measures and predicts ``cases``, oldest results from ``record`` first. Raises InputError, DataError.

    After ``minutes`` no further case starts; missing cases are absent from the record.
    """
    if minutes is not None and not minutes > 0:
        raise InputError(f"minutes must be positive, got {minutes}", hint="leave it out to run every case")
    results = {r.case: r for r in read_record(record, machine) if r.whole}
    end = None if minutes is None else time.monotonic() + 60 * minutes
    remaining = [c for c in cases if c.key not in results]
    drop_torn_line(record)
    with record.open("a", encoding="utf-8") as out:
        if not record.stat().st_size:
            _append(out, {"machine": _as_dict(machine), "started": _now()})
        for case, predicted in _predictions(remaining, machine):
            if end is not None and time.monotonic() > end:
                progress(f"time is up: {len(cases) - len(results)} cases left")
                break
            progress(f"[{len(results) + 1}/{len(cases)}] {case.key}")
            result = LocalResult(case.key, predicted, _in_a_process("measure", case, machine))
            _append(out, {"case": case.key, "predicted": result.predicted, "measured": result.measured, "at": _now()})
            results[case.key] = result
    return [results[c.key] for c in cases if c.key in results]


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _as_dict(machine: Machine) -> dict[str, object]:
    return {f: getattr(machine, f) for f in Machine.__slots__}


def _append(out: Any, document: dict[str, object]) -> None:
    """One line, on the disk before the next case starts."""
    out.write(json.dumps(document) + "\n")
    out.flush()
    os.fsync(out.fileno())


def read_record(record: Path, machine: Machine | None = None) -> list[LocalResult]:
    """The results in ``record``; a truncated last line is skipped. Raises InputError if it is another machine's."""
    if not record.is_file():
        return []
    results: list[LocalResult] = []
    lines = read_text(record).splitlines()
    for number, line in enumerate(lines, 1):
        try:
            document = json.loads(line)
        except ValueError:
            if number == len(lines):
                break
            raise DataError(f"{record}:{number} is not JSON", hint="move the file away and run again") from None
        if "machine" in document:
            _check_same(document["machine"], machine, record)
        else:
            results.append(LocalResult(document["case"], document["predicted"], document["measured"]))
    return results


def _check_same(recorded: dict[str, Any], machine: Machine | None, record: Path) -> None:
    if machine is None:
        return
    for part in ("gpu", "torch"):
        if recorded[part] != getattr(machine, part):
            raise InputError(
                f"{record} was measured on {recorded['gpu']} with torch {recorded['torch']}, this is "
                f"{machine.gpu} with torch {machine.torch}",
                hint="give another file with --record",
            )


def _predictions(cases: Sequence[LocalCase], machine: Machine) -> Iterator[tuple[LocalCase, dict[str, Any]]]:
    """Each case with its prediction, from one long-lived process that never sees the GPU."""
    if not cases:
        return
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    with subprocess.Popen(
        [sys.executable, "-m", "gpuwise.machine.bench.local.predict", json.dumps(_as_dict(machine))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for case in cases:
            answer = ""
            try:
                child.stdin.write(json.dumps(case.as_dict()) + "\n")
                child.stdin.flush()
                answer = child.stdout.readline()
            except BrokenPipeError:
                pass
            yield case, json.loads(answer) if answer.startswith("{") else {"failed": "the capture's process ended"}
        child.kill()


def _in_a_process(module: str, case: LocalCase, machine: Machine) -> dict[str, Any]:
    """Output of ``module`` for ``case``; a crash, a hang or no answer is a result."""
    command = [sys.executable, "-m", f"gpuwise.machine.bench.local.{module}", json.dumps(case.as_dict()), machine.device]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=CASE_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return {"failed": f"no answer in {CASE_LIMIT_S} s"}
    last = ran.stdout.strip().splitlines()[-1:] or [""]
    if not last[0].startswith("{"):
        return {"failed": f"ended with {ran.returncode}", "detail": ran.stderr.strip()[-300:]}
    return json.loads(last[0])


@dataclass(frozen=True, slots=True)
class Summary:
    """Errors of one quantity over the cases that have it, as fractions."""

    quantity: str
    cases: int
    median_ape: float
    mape: float
    p90_ape: float
    bias: float


def summarise(results: Sequence[LocalResult]) -> list[Summary]:
    """A row per quantity that at least one case has."""
    rows: list[Summary] = []
    for quantity in QUANTITIES:
        errors = [e for r in results if (e := r.error(quantity)) is not None]
        if errors:
            size = sorted(abs(e) for e in errors)
            rows.append(
                Summary(
                    quantity,
                    len(errors),
                    statistics.median(size),
                    statistics.fmean(size),
                    size[min(len(size) - 1, int(0.9 * len(size)))],
                    statistics.fmean(errors),
                )
            )
    return rows
