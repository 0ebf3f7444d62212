"""``gpuwise lab exercise``: a question of a lesson, hints in steps, and the judgement of an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from gpuwise.errors import InputError

if TYPE_CHECKING:
    from gpuwise.lab.exercises import Exercise, Judgement


def exercise(
    number: Annotated[int | None, Parameter(show_default="the list", metavar="N")] = None,
    answer: Annotated[str | None, Parameter(metavar="ANSWER")] = None,
    *,
    hint: Annotated[int | None, Parameter(metavar="N")] = None,
    solution: Annotated[bool, Parameter(negative="")] = False,
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

    if number is None:
        if answer is not None or hint is not None or solution:
            raise InputError("an answer needs the number of its exercise", hint="gpuwise lab exercise 1 25")
        return _list(exercises(), json=json)
    one = find_exercise(number)
    if hint is not None and not 1 <= hint <= len(one.hints):
        raise InputError(f"exercise {number} has no hint {hint}", hint=f"--hint 1 to --hint {len(one.hints)}")
    judged = None if answer is None else one.judge(one.read(answer))
    if json:
        _print_document(one, judged, hint, solution)
    else:
        _show(one, judged, hint, solution)
    return 1 if judged is not None and not judged.right else 0


def _list(all_of_them: tuple[Exercise, ...], *, json: bool) -> int:
    from gpuwise.cli.out import console, print_json, table_of

    if json:
        print_json({"exercises": [e.to_document() for e in all_of_them]})
        return 0
    table = table_of(("exercise", "lesson", "question"), left=("lesson", "question"), wrap=("question",))
    for e in all_of_them:
        table.add_row(str(e.number), e.title, e.question)
    console().print(table)
    return 0


def _print_document(one: Exercise, judged: Judgement | None, hint: int | None, solution: bool) -> None:
    from gpuwise.cli.out import print_json

    document: dict[str, Any] = {**one.to_document(), "hints": list(one.hints[: hint or 0])}
    if judged is not None:
        document |= {"right": judged.right, "ratio": judged.ratio, "says": judged.sentence}
    if solution:
        answer = one.solve()
        document["solution"] = {"value": answer.value, "steps": list(answer.steps), "command": answer.command}
    print_json(document)


def _show(one: Exercise, judged: Judgement | None, hint: int | None, solution: bool) -> None:
    from rich.text import Text

    from gpuwise.cli.out import console
    from gpuwise.lab.exercises import number_text

    to = console()
    to.print(Text(f"{one.number}. {one.title}", style="bold"))
    to.print(one.question)
    for n, words in enumerate(one.hints[: hint or 0], start=1):
        to.print(f"  hint {n}: {words}")
    if judged is not None:
        to.print(Text(f"  {judged.sentence}", style="green" if judged.right else "yellow"))
    if solution:
        answer = one.solve()
        to.print(Text(f"  {number_text(answer.value)} {one.unit}", style="bold"))
        for step in answer.steps:
            to.print(f"  - {step}")
        to.print(f"  {answer.command}", style="dim")
    elif judged is None or not judged.right:
        more = min((hint or 0) + 1, len(one.hints))
        to.print(
            f"  gpuwise lab exercise {one.number} YOUR_NUMBER checks it; --hint {more} helps, --solution shows the answer",
            style="dim",
        )
