"""``gpuwise lab simulate``: one task, or your own kernel, on a GPU beside a CPU, event by event."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from gpuwise.arguments import keyed
from gpuwise.cli.options import Whole, option_name, refuse, whole_number
from gpuwise.cli.reports import report
from gpuwise.cli.shown import options_shown
from gpuwise.errors import InputError

if TYPE_CHECKING:
    from gpuwise.cli.shown import Shown
    from gpuwise.facts.hardware.accelerators import Accelerator
    from gpuwise.lab.simulation import Simulation
else:
    Shown = options_shown("lab simulate")

USUAL_GPU, USUAL_CPU = "A100-80GB", "EPYC 9654"
LARGEST_ARRAY = 2**26
"""Elements of an argument."""


def simulate(
    task: Annotated[str | None, Parameter(show_default="a list of the tasks")] = None,
    *,
    on: Annotated[str, Parameter(metavar="GPUS")] = USUAL_GPU,
    against: Annotated[str, Parameter(metavar="CPU")] = USUAL_CPU,
    size: Whole | None = None,
    crossover: Annotated[bool, Parameter(negative="")] = False,
    grid: Annotated[str | None, Parameter(metavar="SHAPE")] = None,
    block: Annotated[str | None, Parameter(metavar="THREADS")] = None,
    arg: Annotated[list[str] | None, Parameter(metavar="NAME=VALUE")] = None,
    regs: Annotated[Whole | None, Parameter(metavar="N")] = None,
    dynamic_smem: Annotated[str | None, Parameter(metavar="SIZE")] = None,
    shown: Shown | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Why is a kernel fast or slow? Simulates one task on a GPU, warp by warp, with measured cycles, and compares it with a CPU.

    The kernel is first run to check its values, then timed. Your own kernel is a file and a function:
    kernel.py:scale --grid 64 --block 256 --arg x=16384 --arg a=2.5

    Parameters
    ----------
    task
        vector-add, matmul-naive, matmul-tiled, reduction, transpose, transpose-padded, divergence, chain, gather, softmax,
        attention-scores, attention-fused, convolution, or FILE.py:FUNCTION.
    on
        The GPU: A100-80GB.
    against
        The CPU: EPYC 9654, or this (the CPU of this machine, as measured by gpuwise bench).
    size
        Elements, or the side of a matrix: 1024.
    crossover
        Show the size from which the GPU is faster, launch and copies included.
    grid
        Blocks of your own kernel: 64, 16x16.
    block
        Threads per block of your own kernel: 256, 16x16.
    arg
        An argument of your own kernel: NAME=SHAPE (an fp32 array of random numbers around 0: x=4096, a=64x64), NAME=KIND:SHAPE
        with KIND zeros, ones, uniform (0 to 1), int (0, 1, 2 ...), below-N (whole numbers from 0 to N - 1), zeros-int,
        ones-int or states (of random numbers), NAME=@FILE.npy, NAME=NUMBER with a dot (a=2.5, or a=2.5f in fp32) or as n=#1000.
    regs
        Registers per thread, for the occupancy: 37.
    dynamic_smem
        Bytes of cuda.shared.array(0, dtype), the last number of numba's launch: 4KiB.
    json
        One JSON document on the last line of stdout.
    """
    from gpuwise.facts.hardware.naming import USUAL, find_accelerator
    from gpuwise.lab.tasks import TASKS, find_task, launch_of
    from gpuwise.report.answers.lessons import tasks_answer

    of_kernel = {"grid": grid, "block": block, "arg": arg, "regs": regs, "dynamic_smem": dynamic_smem}
    chosen = [name for name, value in of_kernel.items() if value is not None]
    if task is None:
        others = {"on": on != USUAL_GPU, "against": against != USUAL_CPU, "size": size, "crossover": crossover}
        named = [name for name, value in others.items() if value] + chosen
        refuse(named, "belongs to a task; name one", "for example gpuwise lab simulate vector-add")
        tasks = [{"task": t.name, "text": t.text, "size": t.usual} for t in TASKS.values()]
        report({"tasks": tasks}, tasks_answer, shown, json=json)
        return 0
    accelerator = find_accelerator(on, prefer=USUAL)
    if ".py" in task:
        others = {"size": size, "crossover": crossover or None, "against": against if against != USUAL_CPU else None}
        named = [name for name, value in others.items() if value is not None]
        refuse(
            named,
            "belongs to a named task, not to your own kernel",
            "its arrays are given by --arg, and nothing stands beside it",
        )
        simulation = _file_kernel(task, accelerator, grid, block, arg or [], regs, dynamic_smem)
        return _report(simulation, None, shown, json=json)
    if chosen:
        raise InputError(f"{task} takes no {option_name(chosen[0])}", hint="it belongs to your own kernel, FILE.py:FUNCTION")
    from gpuwise.facts.hardware.targets import find_processor
    from gpuwise.lab.beside_cpu import beside_document
    from gpuwise.lab.simulation import simulate_task

    lab_task, cpu = find_task(task), find_processor(against)
    n = lab_task.usual if size is None else size
    launch = launch_of(lab_task, n)
    simulation = simulate_task(lab_task, launch, accelerator)
    beside = beside_document(lab_task, launch, n, simulation, accelerator, cpu, with_crossover=crossover)
    return _report(simulation, beside, shown, json=json)


def _report(simulation: Simulation, beside: dict[str, Any] | None, shown: Shown | None, *, json: bool) -> int:
    from gpuwise.report.answers.lessons import simulation_answer

    report({**simulation.to_document(), "beside": beside}, simulation_answer, shown, json=json)
    return 1 if simulation.findings or simulation.checked is False else 0


def _file_kernel(
    task: str, accelerator: Accelerator, grid: str | None, block: str | None, words: list[str], regs: int | None, smem: str | None
) -> Simulation:
    from gpuwise.cli.lab.occupancy import byte_count
    from gpuwise.files import read_text
    from gpuwise.lab.simulation import simulate_kernel
    from gpuwise.lab.source import kernel_source

    file, _, name = task.partition(":")
    if grid is None or block is None:
        raise InputError("a launch has a grid and a block", hint="--grid 64 --block 256")
    arguments = keyed(map(_argument, words), "--arg")
    return simulate_kernel(
        kernel_source(read_text(Path(file)), name or None),
        arguments,
        grid=_shape(grid, "--grid"),
        block=_shape(block, "--block"),
        accelerator=accelerator,
        name=name or Path(file).stem,
        regs_per_thread=32 if regs is None else regs,
        dynamic_smem=byte_count(smem, "--dynamic-smem", 0),
    )


def _shape(text: str, name: str) -> tuple[int, ...]:
    """Raises InputError, FieldError."""
    if text.lower().endswith("x") or "," in text:
        raise InputError(f"{name}: {text[:40]!r} is not a shape", hint=f"write it like {name} 16x16")
    return tuple(whole_number(part, name) for part in text.lower().split("x"))


KINDS = "zeros, ones, uniform, int, below-N, zeros-int, ones-int, states"


def _argument(word: str) -> tuple[str, Any]:
    """``x=64x64``, ``hist=zeros-int:64``, ``x=@x.npy``, ``n=#1000``, ``a=2.5``. Raises InputError, FieldError."""
    import math

    import numpy as np

    name, equals, text = word.partition("=")
    if not equals or not name.isidentifier():
        raise InputError(f"--arg {word!r} is not an argument", hint="write it like --arg x=4096, --arg n=#4096 or --arg a=2.5")
    if text.startswith("#"):
        return name, whole_number(text[1:], name)
    if text.startswith("@"):
        return name, _stored(text[1:])
    if "." in text:
        try:
            return name, np.float32(text[:-1]) if text.endswith("f") else float(text)
        except ValueError:
            raise InputError(f"--arg {word!r}: {text!r} is not a number", hint="write it like --arg a=2.5") from None
    kind, _, shape = text.rpartition(":")
    what, _, below = kind.partition("-")
    known = kind in ("", "zeros", "ones", "uniform", "int", "zeros-int", "ones-int", "states") or (
        what == "below" and below.isdecimal()
    )
    sizes = _shape(shape, name) if known else (0,)
    if not known or math.prod(sizes) > LARGEST_ARRAY:
        hint = f"x=4096, or KIND:SHAPE as in x=zeros:64x64, KIND one of {KINDS}"
        raise InputError(f"--arg {word!r} is not an array of at most {LARGEST_ARRAY:,} elements", hint=hint)
    if what == "states":
        from gpuwise.lab.random_states import random_states

        return name, random_states(math.prod(sizes))
    random = np.random.default_rng(1)
    if what == "below":
        return name, random.integers(0, max(int(below), 1), sizes, dtype=np.int32)
    if what == "int":
        return name, np.arange(math.prod(sizes), dtype=np.int32).reshape(sizes)
    if what in ("zeros", "ones"):
        return name, np.full(sizes, what == "ones", np.int32 if below else np.float32)
    draw = random.random if what else random.standard_normal
    return name, draw(sizes, dtype=np.float32)


def _stored(path: str) -> Any:
    """An array of a file that numpy saved. Raises InputError."""
    import numpy as np

    from gpuwise.files import MIB, check_file

    try:
        checked = check_file(Path(path), most=16 * LARGEST_ARRAY + MIB, hint="write it with np.save")
        made: Any = np.load(checked, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} is not a NumPy array: {error}", hint="write it with np.save") from None
    if not hasattr(made, "dtype") or made.dtype.kind not in "biufc" or not 0 < made.size <= LARGEST_ARRAY:
        raise InputError(
            f"{path} does not contain an array of 1 to {LARGEST_ARRAY:,} numbers", hint="write one array with np.save"
        )
    return np.ascontiguousarray(made)
