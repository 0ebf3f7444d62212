"""The machine that a model runs on, as ``--on`` and ``--ram`` name it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuwise.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from gpuwise.facts.hardware.ram import Ram
    from gpuwise.facts.hardware.targets import Target
    from gpuwise.serve.local_machine import LocalMachine


def local_machine(on: str | None, ram: str | None) -> LocalMachine:
    """The machine with the device ``on``; this one where none is named. Raises InputError, UnknownNameError."""
    from gpuwise.facts.hardware.ram import read_ram
    from gpuwise.facts.hardware.this import THIS, counted_here, is_this

    if on is None or is_this(on):
        if ram is not None:
            raise InputError("--ram is of a machine that is named", hint="the RAM of this one is known: leave it out")
        from gpuwise.machine.this import machine_here

        return machine_here(*counted_here(on or THIS))
    target, memory = named_target(on, None if ram is None else read_ram(ram))
    from gpuwise.serve.local_machine import machine_of  # not before: a name that is refused does without it

    return machine_of(target, memory)


def named_target(on: str, memory: Ram | None) -> tuple[Target, Ram | None]:
    """The GPUs, or the processor, that ``on`` names, and ``memory`` or that of the name. Raises InputError, UnknownNameError."""
    from gpuwise.facts.hardware.naming import USUAL, find_cards
    from gpuwise.facts.hardware.ram import Ram, take_size
    from gpuwise.facts.hardware.targets import find_target

    try:
        return find_cards(on, prefer=USUAL), memory
    except UnknownNameError:
        target, size = find_target(on, memory), take_size(on)[0]
        return target, memory if size is None else replace(memory or Ram(), size_bytes=size)
