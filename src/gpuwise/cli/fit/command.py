"""``gpuwise fit``: will it fit, what fills the memory, what makes it fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuwise.cli.options import LEFT_OPEN, NOTHING_FIXED, LayoutOptions, Training, wishes_of
from gpuwise.cli.shown import options_shown
from gpuwise.cli.step.options import NO_CODE, OwnCode, is_own_code, refuse_arguments, refuse_own

if TYPE_CHECKING:
    from gpuwise.cli.shown import Shown
else:
    Shown = options_shown("fit")


def fit(
    model: Annotated[str, Parameter(metavar="MODEL")],
    *arguments: str,
    on: Annotated[str, Parameter(metavar="GPUS")],
    training: Training = LEFT_OPEN,
    fixed: LayoutOptions = NOTHING_FIXED,
    code: OwnCode = NO_CODE,
    shown: Shown | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Will it fit? What fills the memory? What is the cheapest change that makes it fit?

    By default: micro-batch 1, no sharding, no recompute, no offload. Your own code (train.py, train.py:make_step)
    runs unmodified, without a GPU: see the guide "Your own training script".

    Parameters
    ----------
    model
        A model by name (llama-3.1-8b), a Hugging Face config.json, dimensions (layers=32,hidden=4096,...), or your
        own code: train.py (the whole script; its own arguments come after --), train.py:make_step,
        package.module:function, hf:path/to/config.json.
    arguments
        The script's own arguments, after --.
    on
        The GPUs: 4090, 8xH100-SXM, 2x8xH200, dgx-a100, or this (the GPUs of this machine, as measured here).
    json
        One JSON document on the last line of stdout.
    """
    if is_own_code(model):
        from gpuwise.cli.step.fit import fit_own

        return fit_own(model, on, training, fixed, code, arguments, json=json)
    refuse_own(code)
    refuse_arguments(arguments)
    from gpuwise.cli.this_machine import cluster_or_text
    from gpuwise.plan.api import fit as check
    from gpuwise.plan.document import answer_document

    document = answer_document(check(model, cluster_or_text(on), wishes_of(training, fixed)))
    if json:
        from gpuwise.cli.out import print_json

        print_json(document)
    else:
        from gpuwise.cli.answer import show
        from gpuwise.report.answers.training import fit_answer

        show(fit_answer(document), shown)
    return 0
