"""``gpuwise profile``: where a training step's time goes, and what each cause costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuwise.cli.options import Whole
from gpuwise.cli.reports import check_reports, report
from gpuwise.cli.shown import options_shown
from gpuwise.errors import InputError

if TYPE_CHECKING:
    from gpuwise.cli.shown import Shown
    from gpuwise.train.profile.device_comparison import Target
    from gpuwise.train.profile.result import Profile
else:
    Shown = options_shown("profile")


def profile(
    script: Annotated[str | None, Parameter(metavar="PATH")] = None,
    *arguments: str,
    module: Annotated[str | None, Parameter(metavar="NAME", name=["--module", "-m"])] = None,
    steps: Whole | None = None,
    trace: Annotated[list[Path] | None, Parameter(consume_multiple=True, negative="")] = None,
    html: Path | None = None,
    stacks: Annotated[bool, Parameter(negative="--no-stacks")] = True,
    whole: Annotated[bool, Parameter(negative="")] = False,
    shown: Shown | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Where does my step's time go, why is the GPU idle, and what would each fix save?

    Runs the unmodified training script, times its steps, traces a few of them and stops it. The script's output is passed
    through. If it ends by itself, its exit code is this command's.

    Parameters
    ----------
    script
        The training script; its own arguments come after --: gpuwise profile train.py -- --lr 0.1
    arguments
        The script's own arguments, after --.
    module
        A module instead of a script, as for `python -m`.
    steps
        Steps to time before some are traced: 20.
    trace
        Read traces of torch.profiler, one for each rank, instead of running a script.
    html
        Write a page with the timeline and the roofline (.html).
    stacks
        Record Python stacks in the traced steps, to name functions of the script; --no-stacks for very long steps.
    whole
        Run the script to its end.
    json
        One JSON document on the last line of stdout.
    """
    check_reports(html)
    if module is not None and script is not None:
        arguments = (script, *arguments)
    target = module or script
    if trace and target:
        raise InputError(
            "both a script and a trace", hint="give one: `gpuwise profile train.py`, or `gpuwise profile --trace FILE`"
        )
    if trace:
        from gpuwise.train.profile.result import profile_traces

        answer = profile_traces(trace, target=_measured_processor())
        code = 0
    elif target:
        answer, code = _run(target, arguments, module=module is not None, steps=steps, stacks=stacks, whole=whole)
    else:
        raise InputError("no script", hint="`gpuwise profile train.py -- its arguments`, or `gpuwise profile --trace FILE`")
    from gpuwise.report.answers.profiling import pictures_of, profile_answer
    from gpuwise.train.profile.document import document

    drawn = [] if html is None else pictures_of(answer)
    made = document(answer, code=code if target else None)
    report(made, lambda found: profile_answer(found, drawn), shown, json=json, html=html, after_script=bool(target))
    return code


def _run(
    script: str, arguments: tuple[str, ...], *, module: bool, steps: int | None, stacks: bool, whole: bool
) -> tuple[Profile, int]:
    """Runs it; returns what was found and the exit code. Raises ScriptError where it gave nothing to profile."""
    import tempfile

    from gpuwise.cli.options import check_script
    from gpuwise.train.profile.session import CLEAN_STEPS, Request, profile_script
    from gpuwise.train.profile.verdict import remember, verdict_before

    check_script(script, module=module)
    request = Request(script, arguments, module, CLEAN_STEPS if steps is None else steps, stacks, whole)
    with tempfile.TemporaryDirectory(prefix="gpuwise-profile-") as folder:
        target, before = _measured_processor(), verdict_before(script, arguments)
        session = profile_script(request, Path(folder), target=target, before=before)
    remember(script, arguments, session.profile.verdict.kind)
    return session.profile, session.code


def _measured_processor() -> Target | None:
    """This machine's processor as `gpuwise bench` measured it; None where it did not. A GPU is known by what the trace says."""
    from gpuwise.errors import GpuwiseError
    from gpuwise.facts.hardware.this import this_processor

    try:
        return this_processor()
    except GpuwiseError:
        return None
