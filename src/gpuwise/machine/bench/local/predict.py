"""Predicts cases as they come on stdin, one JSON line each, and answers with one line: the other half of a local check."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

from gpuwise.errors import GpuwiseError
from gpuwise.machine.bench.local.cases import LocalCase


def predict(case: LocalCase, machine: dict[str, Any]) -> dict[str, Any]:
    """The quantities of ``validation.QUANTITIES`` for ``case`` on ``machine``; on the CPU, live bytes alone."""
    from gpuwise.machine.bench.local.models import make_step
    from gpuwise.workload.capture.api import capture

    if machine["device"] == "cpu":
        captured = capture(lambda: make_step(case, "cpu"), device="cpu", n_steps=3, name=case.key)
        return {"first_allocated_bytes": captured.peak_bytes(0), "allocated_bytes": captured.peak_bytes(-1)}
    from gpuwise.facts.hardware.naming import find_accelerator
    from gpuwise.predict.memory.capture import captured_memory
    from gpuwise.predict.step.capture_time import captured_time

    accelerator = find_accelerator(machine["gpu"])
    major, minor = machine["capability"]
    captured = capture(lambda: make_step(case), capability=(major, minor), n_steps=3, name=case.key)
    memory = captured_memory(captured, accelerator)
    times = captured_time(captured, accelerator)
    return {
        "allocated_bytes": memory.allocated.expected,
        "reserved_bytes": memory.reserved.expected,
        "process_bytes": memory.process.expected,
        "step_time_s": times.step_time.expected,
    }


def main() -> None:
    """Answer requests until stdin ends. Output of libraries goes to stderr; stdout has only answers."""
    machine = json.loads(sys.argv[1])
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        case = LocalCase.from_dict(json.loads(line))
        try:
            answer = predict(case, machine)
        except GpuwiseError as refused:
            answer = {"failed": str(refused)[:300]}
        except Exception as wrong:  # noqa: BLE001 - a case that cannot be captured is a result
            answer = {"failed": f"{type(wrong).__name__}: {wrong}"[:300]}
        with contextlib.suppress(BrokenPipeError):
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()
