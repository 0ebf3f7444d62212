"""``gpuwise share``: what another program measured, beside its prediction, as a file without names."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from cyclopts import Parameter

from gpuwise.cli.options import NewFile
from gpuwise.cli.reports import report
from gpuwise.cli.shown import options_shown
from gpuwise.errors import InputError

if TYPE_CHECKING:
    from gpuwise.calibrate.shared import Hardware, Kind, Row
    from gpuwise.cli.shown import Shown
    from gpuwise.machine.model_speeds.nccl_tests import Timed
    from gpuwise.serve.local_measured import MeasuredSpeed
else:
    Shown = options_shown("share")


def share(
    file: Annotated[Path, Parameter(metavar="FILE")],
    *,
    on: Annotated[str | None, Parameter(show_default="the device that the file names", metavar="DEVICE")] = None,
    model: Annotated[str | None, Parameter(show_default="the model that the file names", metavar="MODEL")] = None,
    out: Annotated[NewFile | None, Parameter(show_default="nothing is written")] = None,
    shown: Shown | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """How far is a prediction from what I measured, and how do others get to know?

    Reads what llama-bench, Ollama, MLX LM, `vllm bench serve` or nccl-tests (all_reduce_perf) printed, and shows it beside the
    prediction. With --out it writes one file of exactly what is shown: hardware, software, question, predicted, measured, and
    the month; no names, paths or host. `gpuwise validate --data FOLDER` scores such files.

    Parameters
    ----------
    file
        The output of the program.
    on
        The GPU or processor that was measured, with its count (2x3090).
    model
        The model by its name in the catalogue.
    out
        Write the file: NAME.gpuwise.json.
    json
        One JSON document on the last line of stdout.
    """
    from gpuwise.calibrate.shared import SUFFIX, shared_document
    from gpuwise.files import read_text, write_whole
    from gpuwise.machine.model_speeds.nccl_tests import is_nccl_tests, read_nccl_tests
    from gpuwise.machine.model_speeds.read import read_speeds
    from gpuwise.report.answers.shared import file_text, shared_answer

    if out is not None and not out.endswith(SUFFIX):
        raise InputError(f"--out: {out!r} does not end in {SUFFIX}", hint=f"name it {Path(out).stem}{SUFFIX}")
    text, name = read_text(file), str(file)
    if is_nccl_tests(text):
        rows = _collectives(read_nccl_tests(text, name), on)
    else:
        rows = [_speed(speed, on, model) for speed in read_speeds(text, name)]
    changed = datetime.datetime.fromtimestamp(file.stat().st_mtime, datetime.UTC)
    document = shared_document(rows, f"{changed:%Y-%m}")
    report(document, shared_answer, shown, json=json)
    if out is not None:
        write_whole(Path(out), file_text(document))
        sys.stderr.write(f"wrote {out}\n")
    return 0


def _speed(speed: MeasuredSpeed, on: str | None, asked: str | None) -> Row:
    """A speed as a row. Raises InputError where device or model are not known."""
    from gpuwise.calibrate.shared import Question, Row, Software
    from gpuwise.facts.models.catalogue import models
    from gpuwise.machine.model_speeds.here import model_of

    _, arch, weights = model_of(speed, asked)
    if arch.id not in models():
        raise InputError(f"the model {arch.name!r} is in no catalogue, and others cannot predict it", hint="name it: --model")
    names = [speed.processor] if speed.on_processor else speed.gpus
    hardware = _hardware(on, names, speed.program, on_processor=speed.on_processor)
    software = Software(speed.program, speed.engine, speed.build)
    question = Question(cast("Kind", speed.kind), arch.id, weights, speed.tokens, speed.before, speed.sequences, speed.whole)
    return Row(hardware, software, question, speed.time_s)


def _collectives(timed: Timed, on: str | None) -> list[Row]:
    """The sizes of an all-reduce as rows. Raises InputError for an unknown device."""
    from gpuwise.calibrate.shared import Question, Row, Software
    from gpuwise.machine.model_speeds.nccl_tests import PROGRAM

    hardware = _hardware(on, [timed.device] * timed.ranks, PROGRAM, on_processor=False)
    software = Software(PROGRAM, "nccl", timed.build)
    return [Row(hardware, software, Question("all_reduce", bytes=size), time_s) for size, time_s in timed.rows]


def _hardware(on: str | None, names: Sequence[str], program: str, *, on_processor: bool) -> Hardware:
    """The device that the person names, or the program. Raises InputError where neither does."""
    from gpuwise.calibrate.shared import Hardware
    from gpuwise.cli.local import named_target
    from gpuwise.facts.hardware.cpus import Cpu, find_cpu
    from gpuwise.facts.hardware.naming import USUAL, find_accelerator

    if on is not None:
        target, _ = named_target(on, None)
        return Hardware(target.id) if isinstance(target, Cpu) else Hardware(target.accelerator.id, target.n_accelerators)
    kinds = sorted({name for name in names if name})
    if len(kinds) != 1:
        what = "no device" if not kinds else f"{len(kinds)} kinds of devices"
        raise InputError(f"{program} names {what}", hint="name the one that was measured: --on 4090")
    if on_processor:
        return Hardware(find_cpu(kinds[0]).id)
    return Hardware(find_accelerator(kinds[0], prefer=USUAL).id, len(names))
