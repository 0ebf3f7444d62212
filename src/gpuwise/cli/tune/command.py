"""``gpuwise tune``: makes a training script faster, and proves it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuwise.cli.options import Bytes, Duration, Money, Whole, check_script
from gpuwise.errors import InputError

if TYPE_CHECKING:
    from gpuwise.train.tune.search import Options, Result
    from gpuwise.train.tune.trial import TrialJob
    from gpuwise.train.tune.worth import Worth

FOLDER = "gpuwise-tune"


def tune(
    script: str,
    /,
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True)],
    module: Annotated[bool, Parameter(name=["-m", "--module"], negative="")] = False,
    minutes: Annotated[float, Parameter(metavar="MINUTES")] = 10.0,
    resume: Annotated[bool, Parameter(negative="")] = False,
    only: Annotated[list[str] | None, Parameter(metavar="LEVER")] = None,
    steps: Whole = 10,
    run_length: Annotated[
        Duration | None, Parameter(show_default="estimated from the script's epochs and steps, or one hour")
    ] = None,
    price: Money | None = None,
    record: bool = True,
    parity: bool = True,
    find_batch: Annotated[bool, Parameter(negative="")] = False,
    accept_batch: Annotated[bool, Parameter(negative="")] = False,
    memory: Annotated[Bytes | None, Parameter(show_default="the free memory minus a reserve")] = None,
    out: Path = Path(FOLDER),
    config: Annotated[Path | None, Parameter(show_default="beside the script")] = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Make this training script faster, and prove that it trains the same.

    Runs the unmodified script several times for a few steps, each time in its own process with one lever changed: loader
    workers, caches, padding, precision, torch.compile, the optimizer's kernel, threads. A faster variant is compared with the
    original (losses of the first steps, every parameter's gradient). A variant that trains differently is rejected, with the
    evidence. Every measurement is saved to disk before the next starts.

    Parameters
    ----------
    script
        The training script. Its own arguments come after `--`.
    arguments
        The script's arguments: gpuwise tune train.py -- --batch 32
    module
        SCRIPT is a module's name, as for python -m.
    minutes
        Start no new trial after this many minutes.
    resume
        Resume the tuning in --out. Its measurements are not repeated.
    only
        Try only this lever. May be given several times. cache_items and cache_decode are tried only if named here.
    steps
        Steady steps of each run.
    run_length
        Length of the real training run: 12h, 3d. Compilation and start-up of `gpuwise run` count once in it.
    price
        US dollars per hour for this machine; the saving over --run-length is also printed in dollars.
    record
        Save prediction and measurement in your records; --no-record does not.
    parity
        Check that the tuned script trains the same; --no-parity skips this check.
    find_batch
        After the levers, search for the largest batch that fits and the smallest that is as fast. Each size is one run with
        the longest samples. Changing the batch size changes the training result, so it is reported separately.
    accept_batch
        As --find-batch, and write the batch to gpuwise.toml.
    memory
        Memory limit for the training, of the GPU, or of this machine without a GPU: 2GB.
    out
        Folder for the measurements.
    config
        Where to write gpuwise.toml.
    json
        One JSON document on the last line of stdout.
    """
    from gpuwise.train.config import FILE
    from gpuwise.train.tune.search import Options
    from gpuwise.train.tune.trial import TrialJob

    _check(script, minutes, tuple(only or ()), module=module)
    target = config or (Path.cwd() if module else Path(script).parent) / FILE
    if not os.access(target.parent, os.W_OK):
        # known before the minutes are spent
        raise InputError(f"{target} cannot be written", hint="--config names another place for it")
    options = Options(
        minutes=minutes,
        steps=steps,
        only=tuple(only or ()),
        parity=parity,
        run_length_s=run_length,
        find_batch=find_batch or accept_batch,
        accept_batch=accept_batch,
        memory_bytes=memory,
    )
    result, worth = _tune(TrialJob(script, tuple(arguments), module), options, out, resume=resume, usd_per_hour=price)
    if record:
        _record(result, worth, script, arguments, module=module)
    return _show(result, worth, script, target if result.levers else None, module=module, json=json)


def _check(script: str, minutes: float, only: tuple[str, ...], *, module: bool) -> None:
    """Raises InputError for what cannot be meant."""
    from gpuwise.train.levers.table import BY_NAME

    if not 0.0 < minutes < 1e6:
        raise InputError(f"--minutes: {minutes:g} is not a number of minutes above zero", hint="write it like --minutes 10")
    for name in only:
        if name in ("batch", "micro_batches"):
            raise InputError(f"--only: {name} is not tried by itself", hint="--find-batch finds a batch that fits")
        if name not in BY_NAME:
            raise InputError(f"--only: there is no lever {name!r}", hint="there are " + ", ".join(BY_NAME))
    check_script(script, module=module)


def _tune(job: TrialJob, options: Options, out: Path, *, resume: bool, usd_per_hour: float | None) -> tuple[Result, Worth]:
    from contextlib import ExitStack
    from importlib.metadata import PackageNotFoundError, version

    from gpuwise.cli.progress import say
    from gpuwise.files import alone_in
    from gpuwise.train.hook.zygote import FORKS, Zygote
    from gpuwise.train.tune.search import Search
    from gpuwise.train.tune.state import State, subject_of
    from gpuwise.train.tune.worth import worth_of

    try:
        versions = {"torch": version("torch")}
    except PackageNotFoundError:
        raise InputError("PyTorch is not installed here", hint="run gpuwise with the Python of the script") from None
    subject = subject_of(job.script, job.arguments, module=job.module, versions=versions)
    with ExitStack() as stack:
        stack.enter_context(alone_in(out, "tuning"))
        state = State(out, {**subject, "steps": options.steps, "memory_bytes": options.memory_bytes}, resume=resume)
        zygote = stack.enter_context(Zygote()) if FORKS else None
        result = Search(job, state, out, zygote, options, say=say).run()
        worth = worth_of(result, job, state, out, zygote, usd_per_hour=usd_per_hour)
    say("")
    return result, worth


def _record(result: Result, worth: Worth, script: str, arguments: tuple[str, ...], *, module: bool) -> None:
    """Keep prediction and measurement; a store that cannot be written is a word on stderr."""
    import sys
    from importlib.metadata import version

    from gpuwise.errors import GpuwiseError
    from gpuwise.train.tune.record import keep_tuning, script_of

    try:
        keep_tuning(result, script_of(script, arguments, module=module), version("torch"), worth.utilisation)
    except GpuwiseError as error:
        sys.stderr.write(f"not kept for the next prediction: {error}\n")


def _show(result: Result, worth: Worth, script: str, target: Path | None, *, module: bool, json: bool) -> int:
    from gpuwise.train.tune.document import document, write_config
    from gpuwise.workload.changes.diff import Patch, diff_of

    patch = diff_of(Path(script), result.levers, device=result.facts.device) if not module else Patch("", ())
    if target is not None:
        write_config(result, script, target)
    if json:
        from gpuwise.cli.out import print_json

        print_json(document(result, patch, target, worth))
    else:
        from gpuwise.cli.tune.view import show

        show(result, patch, script, target, worth)
    return 0
