"""``gpuwise check``: fail where a model no longer fits, or a figure is over its limit."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from gpuwise.cli.options import NewFile
from gpuwise.cli.reports import report
from gpuwise.cli.shown import options_shown

if TYPE_CHECKING:
    from gpuwise.cli.shown import Shown
else:
    Shown = options_shown("check")

USUAL = "gpuwise.checks.toml"


def check(
    file: Annotated[Path, Parameter(metavar="FILE")] = Path(USUAL),
    *,
    junit: Annotated[NewFile | None, Parameter()] = None,
    sarif: Annotated[NewFile | None, Parameter()] = None,
    markdown: Annotated[NewFile | None, Parameter()] = None,
    template: Annotated[bool, Parameter(negative="")] = False,
    shown: Shown | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Does every question of this file still have an answer within its limits? For continuous integration.

    A file has questions (the words of `gpuwise fit`, `plan`, `capacity` or `cost`) with limits: fits, max_memory,
    max_step_time, max_time, max_price. A limit is compared with the expected value. Exit code 0: all hold; 1: one does not.
    Scripts that are named are run, to trace a step without a GPU.

    Parameters
    ----------
    file
        The file of checks (TOML).
    junit
        Write the results as JUnit's XML.
    sarif
        Write what fails as SARIF, which code hosts show beside the line.
    markdown
        Write the results as a table.
    template
        Print a file to begin with.
    json
        One JSON document on the last line of stdout.
    """
    from gpuwise.cli.check.checks import TEMPLATE, judge, read_checks

    if template:
        sys.stdout.write(TEMPLATE)
        return 0
    from gpuwise.cli.progress import progress
    from gpuwise.report.answers.checks import checks_answer

    ready = read_checks(file)
    results: list[dict[str, Any]] = []
    with progress("checking") as tell:
        for i, one in enumerate(ready, 1):
            tell(f"[{i}/{len(ready)}] {one.name}")
            results.append(judge(one))
    document = {"file": str(file), "passed": all(r["passed"] for r in results), "checks": results}
    _write(document, {"junit": junit, "sarif": sarif, "markdown": markdown})
    report(document, checks_answer, shown, json=json)
    return 0 if document["passed"] else 1


def _write(document: dict[str, Any], targets: Mapping[str, str | None]) -> None:
    """Write the files that were asked for; ``-`` is stdout."""
    from gpuwise.files import write_whole
    from gpuwise.report.answers.checks_files import WRITERS

    for name, write in WRITERS:
        target = targets[name]
        if target == "-":
            sys.stdout.write(write(document))
        elif target is not None:
            write_whole(Path(target), write(document))
            sys.stderr.write(f"wrote {target}\n")
