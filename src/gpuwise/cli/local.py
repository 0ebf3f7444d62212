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

    if on is None or is_this(on):
        if ram is not None:
            raise InputError("--ram is of a machine that is named", hint="the RAM of this one is known: leave it out")
        from gpuwise.machine.this import machine_here

        return machine_here(*counted_here(on or THIS))
    memory = None if ram is None else read_ram(ram)
    try:
        target = find_cards(on, prefer=USUAL)
    except UnknownNameError:
        from gpuwise.facts.hardware.targets import find_target

        target, size = find_target(on, memory), take_size(on)[0]
        memory = memory if size is None else replace(memory or Ram(), size_bytes=size)
    from gpuwise.serve.local_machine import machine_of  # what a name that is refused does without

    return machine_of(target, memory)
