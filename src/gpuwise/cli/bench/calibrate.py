"""``gpuwise bench --calibrate``: about 200 products, streams, the launch of one operation, and what is learned from them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuwise.calibrate.machine.calibration import DeviceCoefficients
    from gpuwise.machine.bench.cases import BenchCase
    from gpuwise.machine.bench.subjects import Subject
    from gpuwise.records.store import Records


def calibrate_all(
    subjects: list[Subject], store: Records | None, each_s: float, *, json: bool, progress: Callable[[str], None]
) -> int:
    """Measures, fits, saves and shows. One card of each kind stands for its siblings' shapes; rates are each card's own.

    Raises InputError where nothing is to be saved.
    """
    from gpuwise.calibrate.machine.calibration import fit_device, save
    from gpuwise.errors import InputError
    from gpuwise.machine.bench.run import Limits, new_run, run_cases
    from gpuwise.machine.model_speeds.here import calibrate_again

    if store is None:
        raise InputError("--calibrate learns from the records", hint="leave --no-save out")
    gpus = [s for s in subjects if s.kind == "cuda"]
    targets = gpus or subjects
    pairs = [(case, s) for s in targets for case in _cases(s)]
    run = new_run(subjects, "gpuwise bench --calibrate", time.time())
    outcome = run_cases(pairs, run, store, Limits(each_s, target=0.02), progress=progress)
    progress("")
    coefficients: list[DeviceCoefficients] = []
    for subject in targets:
        records = store.query(device=subject.device, machine_id=run.machine_id)
        if subject.kind == "cpu" or records:
            coefficients.append(fit_device(records, subject.accelerator))
    path = save(coefficients)
    calibrate_again(store)
    if json:
        from gpuwise.cli.out import print_json

        names = {"failed": [r.measurement for r in outcome.failed], "wrong": [r.measurement for r in outcome.wrong]}
        documents = [_document(d) for d in coefficients]
        print_json({"coefficients": str(path), "devices": documents, "interrupted": outcome.interrupted, **names})
    else:
        _show(coefficients, str(path), outcome.interrupted)
    if outcome.interrupted:
        return 130
    return 1 if outcome.wrong else 0


def _cases(subject: Subject) -> Sequence[BenchCase]:
    from gpuwise.machine.bench.cases import LAUNCH_CASE, calibration_cases

    if subject.kind == "cpu":
        return calibration_cases("fp32", "cpu", 40)
    half = tuple(f for f in ("bf16", "fp16") if subject.capability is None or subject.capability >= (8, 0) or f == "fp16")[:1]
    cases = [LAUNCH_CASE, *(c for f in half for c in calibration_cases(f, "cuda"))]
    cases += [c for c in calibration_cases("fp32", "cuda", 50) if c.family == "matmul"]
    return cases


def _document(d: DeviceCoefficients) -> dict[str, Any]:
    return {
        "device": d.device,
        "name": d.name,
        "accelerator": d.accelerator,
        "rates": dict(d.rates),
        "families": [
            {
                "key": f.key,
                "rows": f.rows,
                "error_before": f.before,
                "error_after": f.after,
                "bias": f.bias,
                "used": f.correction is not None,
            }
            for f in d.families.values()
        ],
    }


def _show(coefficients: Sequence[DeviceCoefficients], path: str, interrupted: bool) -> None:
    from gpuwise.cli.out import console, section, table_of
    from gpuwise.units import format_rate

    to = console()
    to.print(
        "`--on this` uses these from now on" + ("; interrupted: learned from what was measured" if interrupted else ""),
        style="bold",
    )
    for d in coefficients:
        if d.families:
            table = table_of(
                ("family", "shapes", "time against model", "error before", "after", ""),
                left=("family",),
                wrap=("family",),
                under="",
            )
            for f in d.families.values():
                note = "" if f.correction is not None else "left as it is: no better on shapes kept aside"
                table.add_row(f.key, str(f.rows), f"{f.bias:+.1%}", _error(f.before), _error(f.after), note)
            section(to, d.name, table)
        else:
            table = table_of(("rate", "measured"), left=("rate",))
            for key, rate in d.rates.items():
                table.add_row(key, format_rate(rate, "B/s" if key == "memory" else "FLOP/s"))
            section(to, d.name + ("" if d.accelerator else ", not in the catalogue"), table)
    to.print()
    to.print("errors: mean absolute, of products whose weight matrix was kept from the fit", style="dim")
    to.print(f"kept in {path}", style="dim", soft_wrap=True)


def _error(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
