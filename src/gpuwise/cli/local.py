"""The machine that a model runs on, as ``--on`` and ``--ram`` name it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwise.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from gpuwise.serve.local_machine import LocalMachine


def local_machine(on: str | None, ram: str | None) -> LocalMachine:
    """The machine with the device ``on``; this one where none is named. Raises InputError, UnknownNameError."""
    from gpuwise.facts.hardware.naming import USUAL, find_cards
    from gpuwise.facts.hardware.ram import Ram, read_ram, take_size
    from gpuwise.facts.hardware.this import THIS, counted_here, is_this
    from gpuwise.serve.local_machine import machine_of

    if on is None or is_this(on):
        if ram is not None:
            raise InputError("--ram is of a machine that is named", hint="the RAM of this one is known: leave it out")
        from gpuwise.machine.this import machine_here

        return machine_here(*counted_here(on or THIS))
    memory = None if ram is None else read_ram(ram)
    try:
        return machine_of(find_cards(on, prefer=USUAL), memory)
    except UnknownNameError:
        from gpuwise.plan.one_op import find_target

        target = find_target(on, memory)
    size = take_size(on)[0]
    return machine_of(target, memory if size is None else replace(memory or Ram(), size_bytes=size))
