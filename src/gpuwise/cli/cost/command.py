"""``gpuwise cost``: three questions, each a command of its own whose module is imported only when it runs."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

from cyclopts import App, Parameter, UnknownOptionError

from gpuwise.cli.examples import examples_text
from gpuwise.errors import InputError

COST_COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("own", "gpuwise.cli.cost.own:own", "Rent, own or mix for so many GPU-hours: money, power and carbon."),
    ("run", "gpuwise.cli.cost.run:run", "What does one training run cost?"),
    ("serve", "gpuwise.cli.cost.serve:serve", "Rent, own or mix for a model that serves a load."),
)
"""Name, where it lives, what it answers."""
SERVES, TRAINS = ("--rate", "--users"), ("--model", "--tokens", "--samples")
"""Options of one question, not of GPU-hours."""

cost = App(
    name="cost",
    help_format="plaintext",
    default_parameter=Parameter(negative_iterable=()),
    usage="Usage: gpuwise cost own|run|serve [OPTIONS]",
    help_epilogue=examples_text("cost"),
)
for _name, _target, _question in COST_COMMANDS:
    cost.command(_target, name=_name, help=_question, help_epilogue=examples_text(f"cost {_name}"))


@cost.default
def either(*words: Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]) -> int:
    """Rent or own: what does a year cost, in money, power and carbon?

    Without own, run or serve, the words decide: GPUs or --hours mean own, --tokens means run, --rate or --users means serve.
    """
    if words and not words[0].startswith("-") and _are_gpus(words[0]):
        words = ("--on", *words)
    question, gpuwise = question_of(words), App(name="gpuwise", result_action="return_value")
    gpuwise.command(cost)
    try:
        return gpuwise(["cost", question, *words], exit_on_error=False, print_error=False)
    except UnknownOptionError as error:
        option = error.token.keyword or error.token.value.partition("=")[0]
        homes = [name for name, *_ in COST_COMMANDS if name != question and _has(cost[name], option)]
        if not homes:
            raise
        commands = " and ".join(f"gpuwise cost {name}" for name in homes)
        raise InputError(
            f"gpuwise cost {question} has no {option}", hint=f"it is an option of {commands}: see its --help"
        ) from None


def _are_gpus(word: str) -> bool:
    from gpuwise.facts.hardware.naming import USUAL, find_cluster

    with suppress(InputError):
        find_cluster(word, prefer=USUAL)
        return True
    return False


def _has(command: App, option: str) -> bool:
    return any(option in argument.names for argument in command.assemble_argument_collection())


def question_of(words: tuple[str, ...]) -> str:
    """The command that ``words`` are for, by what only it has: the load that is served, what is trained on, a model."""
    names = {word.partition("=")[0] for word in words}
    if names.intersection(SERVES):
        return "serve"
    return "run" if names.intersection(TRAINS) or (words and not words[0].startswith("-")) else "own"
