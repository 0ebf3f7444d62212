"""``gpuwise lab simulate``: one task, or your own kernel, on a GPU beside a CPU, event by event."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from gpuwise.arguments import keyed
from gpuwise.cli.options import Whole, option_name, refuse, whole_number
from gpuwise.errors import InputError

if TYPE_CHECKING:
    from gpuwise.facts.hardware.accelerators import Accelerator
    from gpuwise.facts.hardware.cpus import Cpu
    from gpuwise.lab.simulation import Simulation

USUAL_GPU, USUAL_CPU = "A100-80GB", "EPYC 9654"
SHOWN_WARPS, SHOWN_COLUMNS = 16, 60
LARGEST_ARRAY = 2**26
"""Elements of an argument."""


def simulate(
    task: Annotated[str | None, Parameter(show_default="a list of the tasks")] = None,
    *,
    on: Annotated[str, Parameter(metavar="GPUS")] = USUAL_GPU,
    against: Annotated[str, Parameter(metavar="CPU")] = USUAL_CPU,
    size: Whole | None = None,
    crossover: Annotated[bool, Parameter(negative="")] = False,
    timeline: Annotated[bool, Parameter(negative="")] = False,
    grid: Annotated[str | None, Parameter(metavar="SHAPE")] = None,
    block: Annotated[str | None, Parameter(metavar="THREADS")] = None,
    arg: Annotated[list[str] | None, Parameter(metavar="NAME=VALUE")] = None,
    regs: Annotated[Whole | None, Parameter(metavar="N")] = None,
    dynamic_smem: Annotated[str | None, Parameter(metavar="SIZE")] = None,
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
    timeline
        Show the first warps, cycle by cycle.
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

    of_kernel = {"grid": grid, "block": block, "arg": arg, "regs": regs, "dynamic_smem": dynamic_smem}
    chosen = [name for name, value in of_kernel.items() if value is not None]
    if task is None:
        shown = {
            "on": on != USUAL_GPU,
            "against": against != USUAL_CPU,
            "size": size,
            "crossover": crossover,
            "timeline": timeline,
        }
        named = [name for name, value in shown.items() if value] + chosen
        refuse(named, "belongs to a task; name one", "for example gpuwise lab simulate vector-add")
        return _tasks(json)
    accelerator = find_accelerator(on, prefer=USUAL)
    if ".py" in task:
        shown = {"size": size, "crossover": crossover or None, "against": against if against != USUAL_CPU else None}
        named = [name for name, value in shown.items() if value is not None]
        refuse(
            named,
            "belongs to a named task, not to your own kernel",
            "its arrays are given by --arg, and nothing stands beside it",
        )
        simulation = _file_kernel(task, accelerator, grid, block, arg or [], regs, dynamic_smem)
        return _print(simulation, accelerator, None, None, timeline=timeline, json=json)
    if chosen:
        raise InputError(f"{task} takes no {option_name(chosen[0])}", hint="it belongs to your own kernel, FILE.py:FUNCTION")
    from gpuwise.lab.beside_cpu import beside_document
    from gpuwise.lab.simulation import simulate_task
    from gpuwise.lab.tasks import find_task, launch_of
    from gpuwise.plan.one_op import find_processor

    lab_task, cpu = find_task(task), find_processor(against)
    n = lab_task.usual if size is None else size
    launch = launch_of(lab_task, n)
    simulation = simulate_task(lab_task, launch, accelerator)
    beside = beside_document(lab_task, launch, n, simulation, accelerator, cpu, with_crossover=crossover)
    return _print(simulation, accelerator, cpu, beside, timeline=timeline, json=json)


def _tasks(json: bool) -> int:
    from gpuwise.cli.out import console, print_json, table_of
    from gpuwise.lab.tasks import TASKS

    if json:
        print_json({"tasks": [{"task": t.name, "text": t.text, "size": t.usual} for t in TASKS.values()]})
        return 0
    table = table_of(("task", "what", "usual size"), left=("task", "what"), wrap=("what",))
    for t in TASKS.values():
        table.add_row(t.name, t.text, f"{t.usual:,}")
    console().print(table)
    return 0


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


def _print(
    simulation: Simulation,
    accelerator: Accelerator,
    cpu: Cpu | None,
    beside: dict[str, Any] | None,
    *,
    timeline: bool,
    json: bool,
) -> int:
    if json:
        from gpuwise.cli.out import print_json

        print_json({**simulation.to_document(), "beside": beside})
    else:
        _show(simulation, accelerator, cpu, beside, timeline=timeline)
    return 1 if simulation.findings or simulation.checked is False else 0


def _show(
    simulation: Simulation, accelerator: Accelerator, cpu: Cpu | None, beside: dict[str, Any] | None, *, timeline: bool
) -> None:
    from rich.text import Text

    from gpuwise.cli.out import console, section, table_of
    from gpuwise.units import format_bytes, format_duration, format_rate

    to, o, c = console(), simulation.occupancy, simulation.counters
    to.print(
        Text.assemble(
            (f"{simulation.task}, {format_duration(simulation.time_s)}", "bold"),
            f" on {accelerator.name}, bound by {simulation.bound}",
        )
    )
    right = {
        True: "values equal numpy's",
        False: f"WRONG values (off by {simulation.worst_error:.1g})",
        None: "values not checked",
    }
    per = f"{simulation.blocks_timed:,} of the {simulation.blocks_of_one:,} blocks of one multiprocessor timed"
    to.print(f"  {simulation.blocks:,} blocks of {simulation.threads:,} threads; {right[simulation.checked]}; {per}", style="dim")
    for finding in simulation.findings:
        to.print(f"  {finding.kind}, line {finding.line}: {finding.text}", style="bold red")
    for note in simulation.notes:
        to.print(f"  line {note.line}: {note.text}", style="yellow")
    table = table_of(("where the warps' time went", "share"), left=("where the warps' time went",))
    stalls = simulation.stalls
    for reason, share in [*list(stalls.items())[:6], ("issuing, or at its end", max(0.0, 1 - sum(stalls.values())))]:
        table.add_row(reason, f"{100 * share:.0f} %")
    section(to, "Warps", table)
    facts = table_of(("counter", "value"), left=("counter",), wrap=("value",))
    facts.add_row("occupancy", f"{o.active_warps} of {o.max_warps} warps, bound by {' and '.join(o.binding)}")
    facts.add_row("schedulers issue in", f"{100 * c['issue_share']:.0f} % of cycles")
    facts.add_row("lanes at work", f"{100 * c['active_lanes']:.0f} %")
    if c["sectors"]:
        facts.add_row("useful bytes of what is fetched", f"{100 * c['useful_share']:.0f} %")
        facts.add_row("found in the L1", f"{100 * c['l1_hit_share']:.0f} %")
    if c["bank_conflicts"]:
        facts.add_row("extra passes by bank conflicts", f"{c['bank_conflicts']:,.0f}")
    section(to, "Counters", facts)
    if beside is not None and cpu is not None:
        side = table_of(("where", "time", "rate"), left=("where",), wrap=("where",))
        amount, unit = (
            (beside["flop"], "FLOP/s") if beside["flop"] > 4 * beside["copied_bytes"] else (beside["copied_bytes"], "B/s")
        )
        launched = simulation.time_s + beside["launch_s"]
        for where, seconds in (
            (f"{cpu.name}, {beside['cpu']['cores']} cores", beside["cpu"]["time_s"]),
            ("the kernel", simulation.time_s),
            ("with its launch", launched),
            (f"with {format_bytes(beside['copied_bytes'])} copied too", launched + beside["copy_s"]),
        ):
            side.add_row(where, format_duration(seconds), format_rate(amount / seconds, unit))
        section(to, "Beside a CPU", side)
        first = format_duration(beside["first_call_s"])
        to.print(f"  a first call takes {first} more on either: the library's code comes from memory", style="dim")
        if beside["cache"] is not None:
            to.print(f"  {beside['cache']}", style="dim")
        if beside["roofline"] is not None:
            _roofline(to, beside["roofline"])
        if beside["crossover"] is not None:
            _crossover(to, beside["crossover"])
    if timeline:
        section(to, "The first warps (i issue, . memory, s shared, u unit, b barrier)", _timeline(simulation, to.width))


def _roofline(to: Any, document: dict[str, Any]) -> None:
    from gpuwise.cli.out import section, table_of
    from gpuwise.units import format_rate

    table = table_of(("device", "ridge, FLOP a byte", "roof here", "reached"), left=("device",), wrap=("device",))
    for d in document["devices"]:
        roof, share = d["roof_flop_per_s"], d["flop_per_s"] / d["roof_flop_per_s"]
        table.add_row(d["device"], f"{d['ridge_flop_per_byte']:.1f}", format_rate(roof, "FLOP/s"), f"{100 * share:.0f} %")
    section(to, f"Rooflines, at {document['flop_per_byte']:.3g} FLOP a byte of memory", table)


def _crossover(to: Any, document: dict[str, Any]) -> None:
    from gpuwise.cli.out import section, table_of
    from gpuwise.lab.beside_cpu import crossing_sentences
    from gpuwise.units import format_duration

    table = table_of(("size", "CPU", "GPU", "with copies"))
    for row in document["sizes"]:
        gpu = row["kernel_s"] + row["launch_s"]
        table.add_row(
            f"{row['size']:,}", format_duration(row["cpu_s"]), format_duration(gpu), format_duration(gpu + row["copy_s"])
        )
    section(to, "From which size on", table)
    for sentence in crossing_sentences(document):
        to.print(f"  {sentence}")


def _timeline(simulation: Simulation, width: int) -> str:
    """A line a warp: its state over the cycles of the spans held."""
    spans, columns = simulation.timing.spans, min(SHOWN_COLUMNS, width - 14)
    end = max((at for _, _, at, _, _ in spans), default=1.0) + 1
    letters = dict.fromkeys(("memory latency", "memory bandwidth", "L2 bandwidth"), ".")
    letters |= {"shared memory": "s", "barrier": "b", "load unit": "u"}
    rows: dict[int, list[str]] = {}
    before: dict[int, int] = {}
    for warp, _, at, _, why in spans:
        row = rows.setdefault(warp, [" "] * columns)
        column = min(int(at / end * columns), columns - 1)
        for between in range(before.get(warp, column) + 1, column):
            row[between] = letters.get(why, "u" if why else "-")
        row[column] = "i"
        before[warp] = column
    lines = [f"warp {w:>3} {''.join(rows[w])}" for w in sorted(rows)[:SHOWN_WARPS]]
    return "\n".join([*lines, f"0 to {end:,.0f} cycles"])
