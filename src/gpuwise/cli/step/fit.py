"""``gpuwise fit`` on one's own code."""

from __future__ import annotations

from collections.abc import Sequence

from gpuwise.cli.options import LayoutOptions, Training
from gpuwise.cli.progress import progress
from gpuwise.cli.step.options import OwnCode, batch_of, changes_of, refuse_layout, subject_of


def fit_own(
    text: str, on: str, training: Training, fixed: LayoutOptions, code: OwnCode, arguments: Sequence[str] = (), *, json: bool
) -> int:
    """Capture, measure, show. Raises what :func:`gpuwise.plan.own.fit.fit_step` raises."""
    from gpuwise.facts.hardware.naming import USUAL, find_cluster
    from gpuwise.plan.own.fit import fit_step

    refuse_layout(training, fixed)
    if code.timeline or code.snapshot or code.trace:
        from gpuwise.cli.step.files import check_files

        check_files(code)
    cluster, batch = find_cluster(on, prefer=USUAL), batch_of(code.batch)
    changes = changes_of(code.change)
    subject, options = subject_of(text, code, arguments)
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
    if json:
        from gpuwise.cli.out import print_json
        from gpuwise.plan.document import answer_document

        print_json(answer_document(answer))
    else:
        from gpuwise.cli.step.fit_view import show_step_fit

        show_step_fit(answer)
    return 0
