"""``gpuwise run``: the unmodified script with its tuned levers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuwise.cli.options import Count, Money, Whole, check_script
from gpuwise.cli.run.ranks import NO_RANKS, OnRanks, is_function, run_on_ranks
from gpuwise.errors import InputError

if TYPE_CHECKING:
    from gpuwise.train.config import Plan

EVERY_S, QUIET_EVERY_S = 1.0, 30.0
"""Seconds between lines of progress, on a terminal and otherwise."""


def run(
    script: str,
    /,
    *arguments: Annotated[str, Parameter(allow_leading_hyphen=True)],
    module: Annotated[bool, Parameter(name=["-m", "--module"], negative="")] = False,
    config: Annotated[
        Path | None, Parameter(show_default="gpuwise.toml beside the script, or here; none on ranks", allow_leading_hyphen=True)
    ] = None,
    epochs: Count | None = None,
    total_steps: Whole | None = None,
    price: Money | None = None,
    country: Annotated[str | None, Parameter(metavar="COUNTRY")] = None,
    kwh: Money | None = None,
    record: bool = True,
    ranks: OnRanks = NO_RANKS,
    json: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Run a training script with its tuned settings, without editing it; or train on many ranks.

    FILE.py:function returns a model, data and a step. It is trained on ranks (torchrun, DDP, FSDP2) with the layout of a plan
    or of the options. With --ranks an unmodified script runs on all ranks: its batches are divided, its gradients are
    reduced, its files are written once. A script alone runs with the levers in the gpuwise.toml that `gpuwise tune` wrote
    beside it. Its output is unchanged, its exit code is this command's, and Ctrl-C goes to the script. While it runs, stderr
    shows rate, loss, memory, energy, cost and time left; at the end, prediction and measurement.

    Parameters
    ----------
    script
        The training script, with its own arguments after `--`. To train on ranks: a script with --ranks, FILE.py:function, or
        a plan and FILE.py:function.
    arguments
        The script's arguments: gpuwise run train.py -- --batch 32
    module
        SCRIPT is a module's name, as for python -m.
    config
        The file of levers.
    epochs
        Epochs of the script, for the time left. Not needed with the trainers of Transformers and Lightning.
    total_steps
        Optimizer steps of the script, instead of --epochs.
    price
        US dollars an hour for this machine.
    country
        Add the price of electricity in this place, DE or US-VA, for the energy that the GPU's or CPU's own meter reports.
    kwh
        US dollars per kilowatt-hour, instead of --country.
    record
        Save the measurement for predictions of later runs; --no-record does not.
    json
        One JSON document on the last line of stdout, after the script's own output.
    """
    if ranks.is_set or is_function(script) or script.endswith(".json"):
        _refuse_tuned(module=module, price=price, country=country, kwh=kwh)
        return run_on_ranks(
            script, arguments, ranks, epochs=epochs, total_steps=total_steps, json=json, record=record, config=config
        )
    from gpuwise.cli.run.screen import screen
    from gpuwise.cli.run.view import document, progress_words, summary
    from gpuwise.train.run.run import find_config, run_tuned

    check_script(script, module=module)
    path, tuned = find_config(script, config, module=module)
    plan = _plan(tuned.plan, epochs, total_steps, price, country, kwh)
    with screen() as terminal:
        result = run_tuned(
            script,
            arguments,
            tuned,
            module=module,
            plan=plan,
            look=lambda now: terminal.show(progress_words(now)),
            every_s=EVERY_S if terminal.is_live else QUIET_EVERY_S,
            streams=terminal.streams,
            record=record,
        )
    if json:
        from gpuwise.cli.out import print_json

        print_json(document(result, str(path)), after_script=True)
    else:
        summary(result)
    return result.outcome.code


def _refuse_tuned(**options: object) -> None:
    """Raises InputError for an option of a script that is run as it was tuned."""
    for name, value in options.items():
        if value:
            raise InputError(f"--{name} is for a tuned script", hint="leave it out on ranks")


def _plan(
    run_plan: Plan, epochs: float | None, total_steps: int | None, price: float | None, country: str | None, kwh: float | None
) -> Plan:
    """The file's, with what the command says in its place. Raises UnknownNameError for a country that there is not."""
    from dataclasses import replace

    options = {"epochs": epochs, "total_steps": total_steps, "price_per_hour": price, "usd_per_kwh": kwh, "country": country}
    if country is not None and kwh is None:
        run_plan = replace(run_plan, usd_per_kwh=None)
    if epochs is not None and total_steps is None:
        run_plan = replace(run_plan, total_steps=None)
    plan = replace(run_plan, **{name: value for name, value in options.items() if value is not None})  # type: ignore[arg-type]
    if plan.country is None or plan.usd_per_kwh is not None:
        return plan
    from gpuwise.facts.grid import find_grid

    grid = find_grid(plan.country)
    if grid.usd_per_kwh is None:
        raise InputError(f"no price of electricity is known for {grid.name}", hint="write it like --kwh 0.2")
    return replace(plan, usd_per_kwh=grid.usd_per_kwh)
