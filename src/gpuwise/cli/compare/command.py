"""``gpuwise compare``: accelerators side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuwise.cli.options import Count, Length
from gpuwise.cli.reports import check_reports, report
from gpuwise.cli.shown import options_shown

if TYPE_CHECKING:
    from gpuwise.cli.shown import Shown
else:
    Shown = options_shown("compare")


def compare(
    *names: str,
    model: Annotated[str | None, Parameter(metavar="MODEL")] = None,
    purpose: Annotated[str | None, Parameter(show_default="training and serving", name="--for", metavar="TASK")] = None,
    tokens: Count | None = None,
    seq: Length | None = None,
    precision: Annotated[str | None, Parameter(show_default="bf16", metavar="FORMAT")] = None,
    html: Path | None = None,
    svg: Path | None = None,
    shown: Shown | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Which GPU is better at what, and by how much?

    Shows specifications with their sources, measured rates of large kernels and prices. With --model: predicted time and cost
    of the work.

    Parameters
    ----------
    names
        Two to eight accelerators or systems: "RTX 4090" L40S "A100 80GB", 8xH100-SXM, dgx-h100.
    model
        Predict this model on each: a name (llama-3.1-8b), a Hugging Face config.json, or dimensions.
    purpose
        train, finetune or infer; or a task: pretrain, continue, full, lora, qlora.
    tokens
        Tokens to train on or to generate, for time and cost: 15B, 300M.
    seq
        Sequence length in tokens.
    precision
        Format of the matrix products in training, of the weights in serving: bf16, fp16, fp8, ...
    html
        Write a page with figures to this file (.html): it needs no network.
    svg
        Write the figures alone to this file (.svg).
    json
        One JSON document on the last line of stdout.
    """
    import datetime

    from gpuwise.pick.compare.comparison import compare_accelerators

    check_reports(html, svg)
    answer = compare_accelerators(
        names, today=datetime.date.today(), model=model, purpose=purpose, tokens=tokens, seq_len=seq, precision=precision
    )
    from gpuwise.pick.compare.document import comparison_document
    from gpuwise.report.answers.choosing import compare_answer

    report(comparison_document(answer), compare_answer, shown, json=json, html=html, svg=svg)
    return 0
