# pyright: basic
"""``gpuwise.capture``: a real PyTorch step on a pretended accelerator. Torch is imported when it is called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpuwise.errors import GpuwiseError, InputError, UnknownNameError
from gpuwise.workload.capture.captured import Capture
from gpuwise.workload.capture.errors import require_torch, without_our_frames, without_rule

DEVICES = ("cuda", "cpu")


def capture(
    step_or_module: Any,
    inputs: Any = None,
    *,
    optimizer: Any = "adamw",
    loss: Any = None,
    train: bool = True,
    device: str = "cuda",
    capability: tuple[int, int] = (8, 0),
    device_name: str = "NVIDIA A100-SXM4-80GB",
    total_memory_bytes: int = 80 << 30,
    n_steps: int = 2,
    batch: int | None = None,
    seq: int | None = None,
    name: str | None = None,
    world_size: int | None = None,
    rank: int = 0,
    keywords: Mapping[str, Any] | None = None,
    interventions: Iterable[Any] = (),
    memo: bool = True,
    guess: Mapping[str, float] | str | None = None,
) -> Capture:
    """Run a training (or inference) step without a GPU, without weights and without data, and record it.

    ``step_or_module``: an ``nn.Module`` (copied, never changed), a function that returns a module, a step (a function of no
    arguments), ``(module, inputs)``, ``(module, inputs, optimizer)`` or ``(module, inputs, optimizer, loss)``; or one of those;
    or a transformers configuration. A function is called once, on the simulated device, with ``keywords``.

    ``inputs``: tensors or shapes, in a tuple or by name. ``optimizer``: a class, a name, a function of the parameters, or
    ``None`` for none. ``loss``: a function of the output, or of the output and the inputs; default: ``output.loss`` or the mean
    of the first floating tensor. ``train=False`` captures the forward without a graph. ``batch`` and ``seq`` size the default
    inputs of a configuration. ``n_steps`` steps are run; the last is the steady one. ``interventions`` are functions of the
    simulated accelerator that return a context manager, entered before the step is built. With ``world_size`` the program is
    rank ``rank`` of so many, as torchrun starts it (1: alone in its group); default: no rank, a single process.

    ``guess`` sets the output size of operations whose size depends on values: a share by kind (``{"nonzero": 0.125}``;
    ``unique``, ``nms``), or ``"bound"`` for the maximum. Default: a balanced choice from the program's operations (one of 8
    experts gets 1/8 of the tokens; an unknown mask is half true).

    Raises what the step raises, and :class:`gpuwise.errors.InputError` for input that cannot be run.
    """
    _check(n_steps=n_steps, batch=batch, seq=seq, device=device, capability=capability, world_size=world_size, rank=rank)
    require_torch()
    from gpuwise.workload.capture.build import ModuleOptions
    from gpuwise.workload.capture.running import Machine, run_capture

    guesses = check_guess(guess)
    request = ModuleOptions(inputs, optimizer, loss, train, device, batch, seq)
    machine = Machine(capability, device_name, total_memory_bytes, min(8, world_size or 1), guesses, guess == "bound")
    try:
        return run_capture(
            step_or_module,
            request,
            machine,
            n_steps=n_steps,
            name=name,
            keywords=dict(keywords or {}),
            interventions=tuple(interventions),
            memo=memo,
            world_size=world_size,
            rank=rank,
        )
    except GpuwiseError:
        raise
    except Exception as error:
        rule_error = without_rule(error)
        if rule_error is not None:
            raise rule_error.with_traceback(error.__traceback__) from error
        raise without_our_frames(error) from error.__cause__


GUESSES = ("nonzero", "unique", "nms")
"""Kinds of operations whose share of picked elements can be given; masks and ``where`` are ``nonzero``."""


def check_guess(guess: Mapping[str, float] | str | None) -> dict[str, float]:
    """The shares given. Raises InputError for what is no share of a known kind."""
    hint = "give a share from 0 to 1 of nonzero, unique or nms, such as nonzero=0.125, or bound"
    if isinstance(guess, str):
        if guess == "bound":
            return {}
        raise InputError(f"a guess of {guess!r} is not a share", hint=hint)
    for kind, share in (guess or {}).items():
        if kind not in GUESSES:
            raise UnknownNameError("guess", kind, GUESSES, hint=hint)
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
            raise InputError(f"{kind}={share} is not a share", hint=hint)
    return dict(guess or {})


def _check(
    *, n_steps: int, batch: int | None, seq: int | None, device: str, capability: Any, world_size: int | None, rank: int
) -> None:
    for what, value in (("n_steps", n_steps), ("batch", batch), ("seq", seq), ("world_size", world_size)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise InputError(
                f"{what} is {value!r}: it must be a whole number of at least 1", hint=f"leave {what} out or give 1 or more"
            )
    if device.partition(":")[0] not in DEVICES:
        raise InputError(f"cannot capture on {device!r}", hint="the pretended device is 'cuda' (or 'cpu' for comparison)")
    if not 0 <= rank < (world_size or 1):
        raise InputError(f"rank {rank} is not one of {world_size or 1}", hint="ranks count from 0")
    if len(tuple(capability)) != 2 or capability[0] < 3:
        raise InputError(f"{capability!r} is not a compute capability", hint="give two numbers, for example (8, 0) for an A100")
