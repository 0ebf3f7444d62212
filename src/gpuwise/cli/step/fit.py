"""``gpuwise fit`` on own code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuwise.cli.options import LayoutOptions, Training
from gpuwise.cli.progress import progress
from gpuwise.cli.reports import report
from gpuwise.cli.step.named import NO_PICTURES, PictureOptions
from gpuwise.cli.step.options import OwnCode, changes_of
from gpuwise.cli.step.subject import step_asked

if TYPE_CHECKING:
    from gpuwise.cli.shown import Shown


def fit_own(
    text: str,
    on: str,
    training: Training,
    fixed: LayoutOptions,
    code: OwnCode,
    arguments: Sequence[str] = (),
    pictures: PictureOptions = NO_PICTURES,
    *,
    shown: Shown | None = None,
    json: bool,
) -> int:
    """Capture, measure, show. Raises what :func:`gpuwise.plan.own.fit.fit_step` raises."""
    from gpuwise.facts.hardware.naming import USUAL, find_cluster
    from gpuwise.plan.own.fit import fit_step

    if code.timeline or code.snapshot or code.trace:
        from gpuwise.cli.step.files import check_files

        check_files(code)
    cluster = find_cluster(on, prefer=USUAL)
    changes = changes_of(code.change)
    subject, options, batch = step_asked(text, training, fixed, code, arguments, pictures)
    with progress() as tell:
        answer = fit_step(
            subject,
            cluster,
            batch=batch,
            seq=training.seq,
            precision=fixed.precision or "as-is",
            optimizer=fixed.optimizer,
            allocator_conf=code.conf,
            compiled=code.compile or None,
            changes=changes,
            remedies=code.remedies,
            options=options,
            tell=tell,
        )
    if code.timeline or code.snapshot or code.trace:
        from gpuwise.cli.step.files import write_files

        write_files(answer.step.capture, answer.estimate, code)
    from gpuwise.plan.document import answer_document
    from gpuwise.report.answers.steps import step_answer

    noted = answer.cluster.assumption
    report(answer_document(answer), lambda document: step_answer(document, noted), shown, json=json)
    return 0
