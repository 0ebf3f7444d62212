"""``gpuwise bench FILE.gguf`` and ``--import`` of what other programs measured: speeds of a model beside their predictions."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwise.cli.progress import say
from gpuwise.errors import InputError

if TYPE_CHECKING:
    from gpuwise.calibrate.machine.calibration import FamilyCoefficients
    from gpuwise.facts.models.architecture import Architecture
    from gpuwise.machine.model_speeds.here import Beside, Here
    from gpuwise.records.store import Records
    from gpuwise.serve.local_machine import LocalMachine

ALL_LAYERS = 999
"""As ``llama-server`` is started here: more than any model has."""
VERBS = {"decode": "writes", "prompt": "reads", "total": "reads and writes"}


def bench_model(model: str, program: Path | None, device: tuple[str, ...], *, quick: bool, save: bool, json: bool) -> int:
    """Measures with llama-bench. Raises InputError where it is not installed, for a model that is no file and for one that does
    not fit."""
    from gpuwise.facts.models.catalogue import find_model_to_run
    from gpuwise.machine.model_speeds.here import added
    from gpuwise.machine.model_speeds.program import find_program, run

    arch = find_model_to_run(model)
    if arch.stored_bytes is None or not Path(arch.source).is_file():
        raise InputError(f"llama-bench runs a GGUF file, and {model[:80]!r} is a name", hint="give the path of the .gguf file")
    path, machine = find_program(program), _machine(device)
    words = _words(path, arch, machine, _index(device), quick=quick)
    say("llama-bench: loading the model")
    with ExitStack() as stack:
        store = _store(stack, save=save)
        speeds = run(words)
        found: list[tuple[Here, Beside]] = []
        interrupted = False
        try:
            for one in added(speeds, machine, arch.source, store, "gpuwise bench MODEL"):
                found.append(one)
                say(f"{VERBS[one[1].speed.kind]} {one[1].speed.tokens_per_s:,.1f} tokens/s after {one[1].speed.before:,} tokens")
        except KeyboardInterrupt:
            interrupted = True
        finally:
            speeds.close()
        say("")
        return _show(arch.name, found, store, interrupted=interrupted, json=json)


def import_speeds(text: str, name: str, model: str | None, *, json: bool) -> int:
    """Adds what a program printed. Raises FileError for another text."""
    from gpuwise.machine.model_speeds.here import added
    from gpuwise.machine.model_speeds.read import read_speeds
    from gpuwise.machine.this import machine_here

    speeds = read_speeds(text, name)
    path = Path(name)
    at_s = path.stat().st_mtime if path.is_file() else time.time()
    once = hashlib.sha256(text.encode()).hexdigest()[:32], at_s
    with ExitStack() as stack:
        store = _store(stack, save=True)
        # all of it is understood before any of it is stored
        list(added(speeds, machine_here(), model, None, "", once=once))
        found = list(added(speeds, machine_here(), model, store, "gpuwise bench --import", once=once))
        return _show(model or found[0][1].speed.model, found, store, interrupted=False, json=json)


def _store(stack: ExitStack, *, save: bool) -> Records | None:
    from gpuwise.records.store import Records

    return stack.enter_context(Records()) if save else None


def _index(device: tuple[str, ...]) -> int | None:
    """The GPU of ``--device gpu1``; None: all of them, or the processor. Raises InputError."""
    if len(device) > 1:
        raise InputError("a model is measured on one device, or on all GPUs", hint="give one --device")
    word = "".join(device).lower()
    if word in ("", "cpu", "gpu"):
        return None
    number = word.removeprefix("gpu").removeprefix("cuda:")
    if not number.isdigit():
        raise InputError(f"there is no device {word!r} to measure", hint="cpu, gpu, gpu0, gpu1 ...")
    return int(number)


def _machine(device: tuple[str, ...]) -> LocalMachine:
    from gpuwise.machine.this import machine_here

    machine = machine_here(index=_index(device))
    return replace(machine, cluster=None) if device and device[0].lower() == "cpu" else machine


def _words(path: str, arch: Architecture, machine: LocalMachine, gpu: int | None, *, quick: bool) -> list[str]:
    """The command, with the layers that fit and the contexts that ``fit --for run`` shows."""
    from gpuwise.machine.model_speeds.program import PROMPT, command
    from gpuwise.serve.local_run import CONTEXTS, run_locally

    run = run_locally(arch, machine)
    if run.chosen is not None:
        longest = run.chosen.longest_context
        lengths = [s.context for s in run.speeds]
        layers, experts = (0 if machine.cluster is None else ALL_LAYERS), 0
    elif run.offload is not None:
        longest, lengths = run.context, [c for c in CONTEXTS if c <= run.context]
        experts = run.offload.host_expert_layers
        layers = ALL_LAYERS if experts else run.offload.device_layers
    else:
        raise InputError(f"{arch.name} does not fit this machine", hint=f"see what does: gpuwise fit {arch.source} --for run")
    depths = list(dict.fromkeys(max(min(c, longest - PROMPT), 0) for c in lengths)) or [0]
    return command(path, arch.source, depths[:1] if quick else depths, layers=layers, expert_layers=experts, gpu=gpu)


def _show(model: str, found: Sequence[tuple[Here, Beside]], store: Records | None, *, interrupted: bool, json: bool) -> int:
    from gpuwise.machine.model_speeds.here import calibrate

    fits: dict[str, FamilyCoefficients] = {}
    for here in {here.device: here for here, _ in found}.values():
        if store is not None:
            fits |= calibrate(here, store)
    rows = [beside for _, beside in found]
    if json:
        from gpuwise.cli.out import print_json

        calibration = {
            key: {"factor": math.exp(-f.correction.weights[0]), "log_sigma": f.correction.log_sigma, "rows": f.rows}
            for key, f in fits.items()
            if f.correction is not None
        }
        devices = list(dict.fromkeys(here.name for here, _ in found))
        documents = [b.document() for b in rows]
        kept = None if store is None else str(store.path)
        print_json(
            {
                "command": "bench",
                "model": model,
                "devices": devices,
                "measurements": documents,
                "calibration": calibration,
                "interrupted": interrupted,
                "records": kept,
            }
        )
    else:
        _print(model, found, fits, store, interrupted=interrupted)
    return 130 if interrupted else 0


def _print(
    model: str,
    found: Sequence[tuple[Here, Beside]],
    fits: Mapping[str, FamilyCoefficients],
    store: Records | None,
    *,
    interrupted: bool,
) -> None:
    from gpuwise.cli.out import console, section, table_of

    to = console()
    names = ", ".join(dict.fromkeys(here.name for here, _ in found))
    to.print(f"{model} on {names}" if found else f"{model}: nothing was measured", style="bold")
    if interrupted:
        to.print("interrupted: what was measured before is shown and stays in the records")
    if found:
        columns = ("", "tokens", "after", "measured, tokens/s", "+-", "predicted", "difference")
        table = table_of(columns, left=("",), gives_way=("+-",))
        for _, b in found:
            table.add_row(*_row(b))
        section(to, f"Measured with {', '.join(dict.fromkeys(b.speed.program for _, b in found))}", table)
        to.print()
    for line in _learned(fits):
        to.print(line)
    if store is not None and found:
        to.print(
            f"kept in {store.path}; `gpuwise fit MODEL --for run` shows it beside the prediction", style="dim", soft_wrap=True
        )


def _row(b: Beside) -> Iterator[str]:
    s, e = b.speed, b.predicted
    at_once = f", {s.sequences} at once" if s.sequences > 1 else ""
    yield VERBS[s.kind] + at_once + ("" if s.whole else ", offloaded")
    yield f"{s.tokens:,}"
    yield f"{s.before:,}"
    yield f"{s.tokens_per_s:,.3g}" if s.tokens_per_s < 1000 else f"{s.tokens_per_s:,.0f}"
    yield f"{s.sigma_tokens_per_s / s.tokens_per_s:.1%}" if s.sigma_tokens_per_s else "-"
    yield "-" if e is None else f"{e.low:,.3g} to {e.high:,.3g}" if e.high < 1000 else f"{e.low:,.0f} to {e.high:,.0f}"
    yield "-" if b.difference is None else f"{b.difference:+.0%}"


def _learned(fits: Mapping[str, FamilyCoefficients]) -> Iterator[str]:
    for key, f in fits.items():
        if f.correction is not None:
            factor = math.exp(-f.correction.weights[0])
            measured = "1 measurement" if f.rows == 1 else f"{f.rows} measurements"
            yield f"Speeds of {key.partition('/')[2]} on this machine are corrected by {factor:.2f} from now on ({measured})"
