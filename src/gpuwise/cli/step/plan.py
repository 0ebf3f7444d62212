"""``gpuwise plan`` on own code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuwise.cli.options import LayoutOptions, Training
from gpuwise.cli.progress import progress
from gpuwise.cli.reports import report
from gpuwise.cli.step.named import NO_PICTURES, PictureOptions
from gpuwise.cli.step.options import OwnCode
from gpuwise.cli.step.subject import step_asked
from gpuwise.errors import InputError

if TYPE_CHECKING:
    from gpuwise.cli.shown import Shown
    from gpuwise.plan.answer import Plan
    from gpuwise.plan.step.estimates import StepEstimate


def captured_plan(
    text: str,
    on: str | None,
    training: Training,
    fixed: LayoutOptions,
    code: OwnCode,
    arguments: Sequence[str] = (),
    pictures: PictureOptions = NO_PICTURES,
    *,
    samples: float | None,
    price: float | None,
    provider: str | None,
) -> Plan[StepEstimate]:
    """Capture and predict. Raises what :func:`gpuwise.plan.own.plan.plan_step` raises."""
    from gpuwise.facts.hardware.naming import USUAL, find_cluster
    from gpuwise.plan.own.named import NamedStep
    from gpuwise.plan.own.plan import plan_step

    cluster = None if on is None else find_cluster(on, prefer=USUAL)
    subject, options, batch = step_asked(text, training, fixed, code, arguments, pictures)
    if isinstance(subject, NamedStep):
        samples = samples or subject.network.samples
    with progress() as tell:
        return plan_step(
            subject,
            cluster,
            batch=batch,
            seq=training.seq,
            precision=fixed.precision or "as-is",
            optimizer=fixed.optimizer,
            allocator_conf=code.conf,
            compiled=code.compile or None,
            samples=samples,
            usd_per_hour=price,
            provider=provider,
            remedies=bool(code.remedies),
            options=options,
            tell=tell,
        )


def plan_own(
    text: str,
    on: str | None,
    training: Training,
    fixed: LayoutOptions,
    code: OwnCode,
    arguments: Sequence[str] = (),
    pictures: PictureOptions = NO_PICTURES,
    *,
    samples: float | None,
    price: float | None,
    provider: str | None,
    shown: Shown | None = None,
    json: bool,
) -> int:
    """Capture, predict, show. Raises what :func:`gpuwise.plan.own.plan.plan_step` raises."""
    if code.change:
        raise InputError(
            "--change is for fit", hint="`gpuwise fit` accepts it; plan --remedies tries changes that make it faster"
        )
    if code.timeline or code.snapshot or code.trace:
        from gpuwise.cli.step.files import check_files

        check_files(code)
    answer = captured_plan(text, on, training, fixed, code, arguments, pictures, samples=samples, price=price, provider=provider)
    if code.timeline or code.snapshot or code.trace:
        from gpuwise.cli.step.files import write_files

        assert answer.best is not None
        write_files(answer.step.capture, answer.best.estimate, code)
    from gpuwise.plan.document import answer_document
    from gpuwise.report.answers.steps import step_answer

    noted = answer.cluster.assumption
    report(answer_document(answer), lambda document: step_answer(document, noted), shown, json=json)
    return 0
