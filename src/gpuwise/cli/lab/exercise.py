"""``gpuwise lab exercise``: a question of a lesson, hints in steps, and the judgement of an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from gpuwise.cli.reports import report
from gpuwise.cli.shown import options_shown
from gpuwise.errors import InputError

if TYPE_CHECKING:
    from gpuwise.cli.shown import Shown
    from gpuwise.lab.exercises import Exercise, Judgement
else:
    Shown = options_shown("lab exercise")


def exercise(
    number: Annotated[int | None, Parameter(show_default="the list", metavar="N")] = None,
    answer: Annotated[str | None, Parameter(metavar="ANSWER")] = None,
    *,
    hint: Annotated[int | None, Parameter(metavar="N")] = None,
    solution: Annotated[bool, Parameter(negative="")] = False,
    shown: Shown | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Show an exercise, give hints and check your answer: one exercise for each lesson.

    An answer within the exercise's tolerance is right (exit code 0), any other is wrong (1).

    Parameters
    ----------
    number
        1 to 12.
    answer
        Your number in the unit of the question (70, 1.5k), or with a unit: 145GB, 0.06s, 600M tokens.
    hint
        Hints up to this one: 1, 2, 3.
    solution
        Show the answer and the way to it.
    json
        One JSON document on the last line of stdout.
    """
    from gpuwise.lab.exercises import exercises, find_exercise
    from gpuwise.report.answers.lessons import exercise_answer, exercises_answer

    if number is None:
        if answer is not None or hint is not None or solution:
            raise InputError("an answer needs the number of its exercise", hint="gpuwise lab exercise 1 25")
        report({"exercises": [e.to_document() for e in exercises()]}, exercises_answer, shown, json=json)
        return 0
    one = find_exercise(number)
    if hint is not None and not 1 <= hint <= len(one.hints):
        raise InputError(f"exercise {number} has no hint {hint}", hint=f"--hint 1 to --hint {len(one.hints)}")
    judged = None if answer is None else one.judge(one.read(answer))
    report(_document(one, judged, hint, solution), exercise_answer, shown, json=json)
    return 1 if judged is not None and not judged.right else 0


def _document(one: Exercise, judged: Judgement | None, hint: int | None, solution: bool) -> dict[str, Any]:
    document: dict[str, Any] = {**one.to_document(), "hints": list(one.hints[: hint or 0])}
    if judged is not None:
        document |= {"right": judged.right, "ratio": judged.ratio, "says": judged.sentence}
    if solution:
        answer = one.solve()
        document["solution"] = {"value": answer.value, "steps": list(answer.steps), "command": answer.command}
    return document
