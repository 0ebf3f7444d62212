"""Errors in the user's own code, reported without gpuwise's frames; and torch missing or too old. No torch here."""

from __future__ import annotations

import os
import re
import traceback
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import TracebackType

from gpuwise.errors import InputError, MissingExtraError, NoFakeRuleError, require

OLDEST_TORCH = (2, 7)
_OURS = str(Path(__file__).resolve().parents[2])
_NO_RULE = re.compile(r"no fake impl registered for <CustomOpDef\(([\w:.]+)\)>")
_LAUNCHERS_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_PYTHONS = ("<frozen importlib", "<frozen runpy>")
_DRIVERS = ("libcuda.so", "NVIDIA driver", "No CUDA GPUs", "nvidia-smi", "NVML")
"""Words of errors where the driver is missing."""
_META_KERNELS = (
    "/torch/_ops.py",
    "/torch/_prims_common/",
    "/torch/_prims/",
    "/torch/_refs/",
    "/torch/_decomp/",
    "/torch/_meta_registrations.py",
    "/torch/_library/",
    "/torch/_higher_order_ops/",
    "/torch/__init__.py",
)


class UserCodeError(InputError):
    """The captured code raised; ``trace`` is its traceback as Python would show it without gpuwise."""

    def __init__(self, what: str, error: BaseException) -> None:
        self.trace = users_trace(error)
        self.kind = type(error).__name__
        self.is_ranks = _is_of_a_launcher(error)
        """Whether the program runs as a rank of torchrun, which was not there."""
        super().__init__(
            f"{what} raised {self.kind}: {_first_line(error)}\n{self.trace}".rstrip(),
            hint=_hint_of(error),
        )


def _hint_of(error: BaseException) -> str:
    if "SparseTensorImpl" in str(error) or "not linked with support for cuda" in str(error):
        return "sparse tensors have no stand-in without their values: the step cannot be captured without a GPU"
    files = [f.filename for f in traceback.extract_tb(error.__traceback__)]
    if f"{os.sep}triton{os.sep}" in "".join(files[-3:]):
        return (
            "Triton compiles for a GPU's driver, which is not here: wrap the kernel in torch.library.custom_op and register_fake"
        )
    if any(name.endswith("cpp_extension.py") for name in files) or "CUDA_HOME" in str(error):
        return "it builds a CUDA extension, which needs the CUDA toolkit: install the extension, or leave it out of this run"
    if isinstance(error, EOFError):
        return "the script reads from its standard input, which is empty here: give the answer by its arguments, after --"
    if any(words in str(error) for words in _DRIVERS):
        return "it asks the GPU's driver, which is not here and not pretended: leave that out of this run"
    if isinstance(error, AssertionError):
        return "an assertion that depends on values may fail here alone: without a GPU none are computed"
    if _is_of_a_launcher(error):
        return "as a rank of torchrun it fails too: name a function that returns one step of a single process, train.py:make_step"
    lines: list[str] = getattr(error, "read_back", [])
    if lines:
        return (
            f"values are read back before that ({', '.join(lines[:3])}) and are stand-ins, for none are computed: if the error "
            "comes of one, name a function without that check (train.py:make_step)"
        )
    return "the code itself failed, as it would on a GPU; fix it and run this again"


def _is_of_a_launcher(error: BaseException) -> bool:
    """Whether a variable that torchrun sets is missing, or torch cannot make a group of ranks."""
    if isinstance(error, KeyError) and error.args and str(error.args[0]) in _LAUNCHERS_VARIABLES:
        return True
    trace = traceback.extract_tb(error.__traceback__)
    if isinstance(error, (TypeError, ValueError)) and "init_process_group" not in {f.name for f in trace}:
        # int(os.environ.get("LOCAL_RANK"))
        line = next((f.line for f in reversed(trace) if not f.filename.startswith(_OURS)), "") or ""
        return any(re.search(rf"""["']{name}["']""", line) for name in _LAUNCHERS_VARIABLES)
    return any(f.name in ("init_process_group", "_create_nccl_process_group") for f in trace)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def users_trace(error: BaseException) -> str:
    """The traceback of ``error`` and its causes without frames of gpuwise or of the import system."""
    trace = traceback.TracebackException.from_exception(error)
    for one in _chain(trace):
        frames = [f for f in one.stack if not f.filename.startswith((_OURS, *_PYTHONS)) and not _is_meta_kernel(f.filename)]
        one.stack = traceback.StackSummary.from_list(frames)
    return "".join(trace.format()).rstrip("\n")


def _is_meta_kernel(filename: str) -> bool:
    """Torch's Python shape rules, which a run on a GPU would not pass through."""
    path = filename.replace("\\", "/")
    return any(part in path for part in _META_KERNELS)


def _chain(trace: traceback.TracebackException | None) -> Iterator[traceback.TracebackException]:
    error_ids: set[int] = set()
    todo = [trace]
    while todo:
        one = todo.pop()
        if one is None or id(one) in error_ids:
            continue
        error_ids.add(id(one))
        yield one
        todo += [one.__cause__, one.__context__]


def without_our_frames(error: BaseException) -> BaseException:
    """``error`` with its traceback cut to the frames outside gpuwise; the frames that raise it again come on top."""
    frames = [tb for tb in _links(error) if not tb.tb_frame.f_code.co_filename.startswith(_OURS)]
    tail = None
    for tb in reversed(frames):
        tb.tb_next = tail
        tail = tb
    return error.with_traceback(tail)


def _links(error: BaseException) -> list[TracebackType]:
    links: list[TracebackType] = []
    tb = error.__traceback__
    while tb is not None:
        links.append(tb)
        tb = tb.tb_next
    return links


def last_user_place(error: BaseException) -> str:
    """``train.py:31 in step`` of the innermost frame that is not gpuwise's or a library's; empty if there is none."""
    from gpuwise.workload.capture.places import is_library

    place = ""
    for tb in _links(error):
        code = tb.tb_frame.f_code
        if not is_library(code.co_filename):
            function = "" if code.co_name == "<module>" else f" in {code.co_name}"
            place = f"{Path(code.co_filename).name}:{tb.tb_lineno}{function}"
    return place


def without_rule(error: Exception) -> NoFakeRuleError | None:
    """Torch's own complaint about a custom operator without a fake rule, as ours; None for any other error."""
    match = _NO_RULE.search(str(error))
    return NoFakeRuleError(match[1]) if match is not None else None


def require_torch() -> None:
    """Raises MissingExtraError where torch is absent or older than 2.7."""
    require("torch", "capturing a step")
    version = metadata.version("torch")
    numbers = tuple(int(n) for n in version.partition("+")[0].split(".")[:2] if n.isdigit())
    if numbers < OLDEST_TORCH:
        raise MissingExtraError(
            f"torch {version} is too old to capture a step: {'.'.join(map(str, OLDEST_TORCH))} is the oldest that works",
            hint="pip install --upgrade 'torch>=2.7'",
        )
