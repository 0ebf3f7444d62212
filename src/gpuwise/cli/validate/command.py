"""``gpuwise validate``: how far prediction is from measurement."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from gpuwise.cli.options import NewFile
from gpuwise.cli.reports import report
from gpuwise.cli.shown import options_shown

if TYPE_CHECKING:
    from gpuwise.cli.shown import Shown
else:
    Shown = options_shown("validate")


def validate(
    *,
    data: Path | None = None,
    all_check: Annotated[bool, Parameter(negative="")] = False,
    family: Annotated[str | None, Parameter(metavar="NAMES")] = None,
    summary: Annotated[bool, Parameter(negative="")] = False,
    local: Annotated[bool, Parameter(negative="")] = False,
    only: Annotated[str | None, Parameter(metavar="WORDS")] = None,
    minutes: Annotated[float | None, Parameter(metavar="MINUTES")] = None,
    record: Annotated[NewFile | None, Parameter(show_default="a file with today's date in the folder of your records")] = None,
    runs: Annotated[bool, Parameter(negative="")] = False,
    ranks: Path | None = None,
    shown: Shown | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """How far are predictions from measurements, by family, source and GPU?

    Rows used to fit the coefficients (fit) and held-out rows (check) are scored separately. Without --data: the published
    figures that ship with gpuwise.

    Parameters
    ----------
    data
        A folder laid out like the measured tables (ops/, models/, serving/, memory/, llm_training.csv).
    all_check
        Treat every row as held out from the fit.
    family
        Only these families, with commas: gemm, attention, llm_training, ...
    summary
        One line per source, without the GPUs.
    local
        Run real training steps on this machine's GPU and compare memory and time with the prediction. Without a GPU: compare
        the bytes of every storage on the CPU.
    only
        With --local: only the cases with one of these words in their name, with commas: resnet50, bf16, checkpoint.
    minutes
        With --local: start no new case after this many minutes. The same command resumes where it stopped.
    record
        With --local: the file to which each result is written; its path is printed.
    runs
        Compare predictions and measurements of your own runs of `gpuwise tune` and `gpuwise run`.
    ranks
        The folder (--out) of a run on ranks: reports the time of each rank, the straggler, and collectives against prediction.
    json
        One JSON document on the last line of stdout.
    """
    _check_mode(
        {"--local": local, "--runs": runs, "--ranks": ranks, "--data": data, "--family": family},
        {"--only": only, "--minutes": minutes, "--record": record},
    )
    if runs:
        from gpuwise.cli.validate.runs import validate_runs

        return validate_runs(shown, json=json)
    if ranks is not None:
        from gpuwise.cli.validate.runs import validate_ranks

        return validate_ranks(ranks, shown, json=json)
    if local:
        from gpuwise.cli.validate.local import validate_local

        return validate_local(only, minutes, None if record is None else Path(record), shown, json=json)
    from gpuwise.calibrate.tables import leaving_out
    from gpuwise.calibrate.validation import validate as score

    with leaving_out() as skipped:
        results = score(_folder(data), _families(family), all_check=all_check)
    skipped = list(dict.fromkeys(skipped))
    if not results and data is not None:
        from gpuwise.errors import InputError

        if skipped:
            raise InputError(f"no row of {str(data)!r} can be scored: {skipped[0]}", hint="complete its cells")
        what = "a known family" if family is None else f"the family {family}"
        raise InputError(f"--data: {str(data)!r} contains no table of {what}", hint=f"give the folder that contains {TABLES}")
    from gpuwise.report.answers.scores import scores_answer

    document = {"results": [r.as_dict() for r in results], "skipped": skipped}
    report(document, lambda made: scores_answer(made, summary=summary), shown, json=json)
    return 0


def _check_mode(modes: dict[str, Any], of_local: dict[str, Any]) -> None:
    """Raises InputError for two things asked at once, and for an option of ``--local`` without it."""
    from gpuwise.errors import InputError

    first, *others = [name for name, value in modes.items() if value] or [""]
    if others and first != "--data":
        raise InputError(f"{first} and {others[0]} exclude each other", hint="give one of them")
    for name, value in of_local.items():
        if value is not None and first != "--local":
            raise InputError(f"{name} needs --local", hint=f"add --local, or leave {name} out")


TABLES = "ops/, serving/ and llm_training.csv"
MORE = "; a checkout scores more: python -m studies.validate"


def _folder(data: Path | None) -> Path:
    """The folder to score. Raises InputError if it is not one."""
    from gpuwise.errors import InputError

    if data is None:
        import gpuwise.calibrate

        return Path(gpuwise.calibrate.__file__).parent / "data"
    if not data.is_dir():
        raise InputError(f"--data: {str(data)!r} is not a folder", hint=f"give the folder that contains {TABLES}")
    return data


def _families(names: str | None) -> list[str]:
    """Families by name, or all. Raises UnknownNameError."""
    from gpuwise.calibrate.validation import FAMILIES
    from gpuwise.errors import UnknownNameError

    if names is None:
        return list(FAMILIES)
    families = [n.strip() for n in names.split(",") if n.strip()]
    for name in families:
        if name not in FAMILIES:
            raise UnknownNameError("family", name, FAMILIES, hint="it is one of " + ", ".join(FAMILIES) + MORE)
    return families
