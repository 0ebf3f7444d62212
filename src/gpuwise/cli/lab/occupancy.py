"""``gpuwise lab occupancy``: the blocks of a kernel on one multiprocessor, what limits them, and what to change."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from gpuwise.cli.options import whole_number
from gpuwise.cli.reports import report
from gpuwise.cli.shown import options_shown, shows_part
from gpuwise.errors import InputError

if TYPE_CHECKING:
    from gpuwise.cli.shown import Shown
    from gpuwise.lab.kernel_files import KernelUse
    from gpuwise.lab.residency import Occupancy
else:
    Shown = options_shown("lab occupancy")

_MOST_BYTES = 2**30


def occupancy(
    *,
    on: Annotated[str | None, Parameter(show_default="the one of the compiled kernel", metavar="GPUS")] = None,
    regs: Annotated[str | None, Parameter(metavar="N")] = None,
    block: Annotated[str | None, Parameter(metavar="THREADS")] = None,
    smem: Annotated[str | None, Parameter(metavar="SIZE")] = None,
    dynamic_smem: Annotated[str | None, Parameter(metavar="SIZE")] = None,
    carveout: Annotated[int | None, Parameter(metavar="PERCENT")] = None,
    barriers: Annotated[int | None, Parameter(metavar="N")] = None,
    optin: Annotated[bool, Parameter(negative="")] = False,
    cubin: Annotated[str | None, Parameter(metavar="PATH")] = None,
    ptxas_log: Annotated[str | None, Parameter(metavar="PATH")] = None,
    triton: Annotated[str | None, Parameter(metavar="PATH")] = None,
    kernel: Annotated[str | None, Parameter(metavar="NAME")] = None,
    shown: Shown | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """How many blocks of a kernel fit on one multiprocessor, what limits them, and what to change?

    The answer is that of NVIDIA's own calculator. If another calculator gives a different answer, both are shown.

    Parameters
    ----------
    on
        A GPU (V100, H100-SXM, 4090) or a compute capability (9.0, sm_90).
    regs
        Registers per thread, as printed by `nvcc -Xptxas -v`: 37.
    block
        Threads per block: 256.
    smem
        Static shared memory per block: 12288, 12KiB.
    dynamic_smem
        Dynamic shared memory per block, set at launch: 49152, 48KiB.
    carveout
        Percent of the L1 cache that the kernel prefers as shared memory: 50.
    barriers
        Barriers per block: 1.
    optin
        The kernel opted in to more than 48 KiB of shared memory per block.
    cubin
        A compiled kernel to read registers, shared memory and barriers from.
    ptxas_log
        The output of `nvcc -Xptxas -v` to read them from.
    triton
        The .json of a kernel in Triton's cache to read them from.
    kernel
        Name of the kernel, if the file contains several.
    json
        One JSON document on the last line of stdout.
    """
    from gpuwise.lab import residency

    by_option = {"--cubin": cubin, "--ptxas-log": ptxas_log, "--triton": triton}
    files = {option: file for option, file in by_option.items() if file is not None}
    if len(files) > 1:
        raise InputError(f"{' and '.join(files)} name one kernel each", hint="give one of them")
    use = None
    if files:
        from gpuwise.lab.kernel_files import choose_kernel, read_kernels

        file = next(iter(files.values()))
        use = choose_kernel(read_kernels(Path(file)), kernel, file)
    elif kernel is not None:
        raise InputError("--kernel names one of a file", hint="give --cubin, --ptxas-log or --triton too")
    capability, device = _capability(on, use)
    options: dict[str, Any] = {
        "block_threads": _number(block, "--block", use and use.block_threads),
        "regs_per_thread": _number(regs, "--regs", use and use.regs_per_thread),
        "static_smem": byte_count(smem, "--smem", use.static_smem if use else 0),
        "dynamic_smem": byte_count(dynamic_smem, "--dynamic-smem", use.dynamic_smem if use else 0),
        "carveout_percent": -1 if carveout is None else _percent(carveout),
        "block_barriers": barriers if barriers is not None else use.block_barriers if use else 1,
        "optin": optin,
    }
    answer = residency.occupancy(capability, **options)
    _check(answer, use)
    from gpuwise.lab.documents import occupancy_document
    from gpuwise.report.answers.lessons import occupancy_answer

    drawn = shows_part(shown, "chart")
    report(occupancy_document(answer, device, use, chart=drawn), occupancy_answer, shown, json=json)
    return 0


def _capability(on: str | None, use: KernelUse | None) -> tuple[str, str]:
    """The compute capability, and how to call what was meant."""
    from gpuwise.errors import AmbiguousNameError, UnknownNameError
    from gpuwise.facts.hardware.accelerators import accelerators
    from gpuwise.facts.hardware.naming import USUAL, find_accelerator
    from gpuwise.facts.hardware.sm_limits import find_sm_limits

    if on is None:
        if use is None or use.compute_capability is None:
            raise InputError("on which GPU?", hint="--on V100, or a compute capability: --on 7.0")
        return use.compute_capability, f"compute capability {use.compute_capability}"
    try:
        if "." in on and on.replace(".", "", 1).isdecimal():
            raise UnknownNameError("accelerator", on, ())  # no card's name: 9.9 is in that of a Ryzen AI 9 HX 370
        candidates = [find_accelerator(on, prefer=USUAL)]
    except AmbiguousNameError as error:
        candidates = [accelerators()[c] for c in error.candidates]
        if len({a.compute_capability for a in candidates}) > 1:
            raise
    except UnknownNameError:
        try:
            limits = find_sm_limits(on)
        except UnknownNameError:
            raise
        except InputError:
            pass
        else:
            return limits.compute_capability, f"compute capability {limits.compute_capability}"
        raise
    accelerator = candidates[0]
    if accelerator.compute_capability is None or accelerator.vendor != "NVIDIA":
        raise InputError(f"{accelerator.name} has no CUDA compute capability", hint="occupancy is worked out for NVIDIA's GPUs")
    return accelerator.compute_capability, accelerator.name if len(
        candidates
    ) == 1 else f"{on} (compute capability {accelerator.compute_capability})"


def _number(text: str | None, option: str, default: int | None) -> int:
    if text is None:
        if default is None:
            what = "threads of a block" if option == "--block" else "registers of a thread"
            raise InputError(f"{option} is missing: {what}", hint=f"give {option}, like {option} 128")
        return default
    return 0 if text.strip() == "0" and option == "--regs" else whole_number(text, option)


def byte_count(text: str | None, option: str, default: int) -> int:
    """Bytes of shared memory that an option gives. Raises InputError for what is no whole number of them."""
    from gpuwise.units import parse_bytes

    if text is None:
        return default
    cleaned = text.strip()
    value = parse_bytes(f"{cleaned}B" if cleaned.isdigit() else cleaned)
    if value > _MOST_BYTES or value != int(value):
        raise InputError(f"{option}: {text!r} is not a size of shared memory", hint=f"write it like {option} 12KiB")
    return int(value)


def _percent(value: int) -> int:
    if not 0 <= value <= 100:
        raise InputError(f"--carveout: {value} is not a percentage", hint="write a whole number from 0 to 100")
    return value


def _check(answer: Occupancy, use: KernelUse | None) -> None:
    """Refuse what no launch on this capability accepts."""
    from gpuwise.lab.residency import refusal

    reason = refusal(answer)
    if reason:
        raise InputError(reason[0], hint=reason[1])
    if use and use.most_threads and answer.block_threads > use.most_threads:
        raise InputError(
            f"a block of {answer.block_threads:,} threads: {use.name} was compiled for {use.most_threads:,} at most",
            hint="change its __launch_bounds__, or --block",
        )
