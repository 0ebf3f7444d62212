"""``gpuwise lab``: a table of its own commands; each module is imported only when its command runs."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from gpuwise.cli.examples import examples_text
from gpuwise.cli.reports import report

LAB_COMMANDS: tuple[tuple[str, str, str], ...] = (
    (
        "occupancy",
        "gpuwise.cli.lab.occupancy:occupancy",
        "How many blocks of a kernel fit on one multiprocessor, what limits them, and what to change?",
    ),
    (
        "simulate",
        "gpuwise.cli.lab.simulate:simulate",
        "Why is it fast, or slow? One task on a GPU beside a CPU, warp by warp.",
    ),
    (
        "cpu-vs-gpu",
        "gpuwise.cli.lab.cpu_vs_gpu:cpu_vs_gpu",
        "Compare one matrix product: measured on this CPU, predicted on any GPU.",
    ),
    (
        "exercise",
        "gpuwise.cli.lab.exercise:exercise",
        "Have I understood? A question for each lesson, hints in steps, your answer judged.",
    ),
)
"""Name, where it lives, what it answers."""

lab = App(
    name="lab",
    help_format="plaintext",
    help_epilogue=examples_text("lab"),
    default_parameter=Parameter(show_default=False, negative_iterable=()),
)
for _name, _target, _question in LAB_COMMANDS:
    lab.command(_target, name=_name, help=_question, help_epilogue=examples_text(f"lab {_name}"))


@lab.default
def about(*, json: Annotated[bool, Parameter(negative="")] = False) -> int:
    """Learn how a GPU runs a kernel: occupancy, simulation, comparison with a CPU, exercises.

    Parameters
    ----------
    json
        One JSON document on the last line of stdout.
    """
    from gpuwise.report.answers.lessons import lab_answer

    commands = [{"command": f"gpuwise lab {name}", "answers": text} for name, _, text in LAB_COMMANDS]
    report({"commands": commands}, lab_answer, None, json=json)
    return 0
