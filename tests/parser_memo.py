"""The parser's reading of a signature, kept between the command lines that one process of tests runs.

A command line is parsed once in the life of a process; the tests run thousands in one, and two thirds of a short one
is the parser reading the same annotations again. Only that reading is kept: every command line gets arguments of its
own, without words.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable
from typing import Any

from cyclopts.argument import ArgumentCollection


def keep_signatures() -> None:
    """Let every later command line of this process share what its command's signature says."""
    read: Callable[..., ArgumentCollection] = ArgumentCollection._from_callable  # pyright: ignore[reportPrivateUsage]
    kept: dict[Hashable, ArgumentCollection] = {}

    def from_callable(
        _: type, func: Callable[..., Any], *defaults: Any, reserved: Any = (), **options: Any
    ) -> ArgumentCollection:
        reserved = tuple(reserved)
        key = (func, defaults, reserved, tuple(sorted(options.items())))
        try:
            found = kept.get(key)
        except TypeError:  # a group or a default that has no hash
            return read(func, *defaults, reserved=reserved, **options)
        if found is None:
            found = kept[key] = read(func, *defaults, reserved=reserved, **options)
        return _without_words(found)

    ArgumentCollection._from_callable = classmethod(from_callable)  # pyright: ignore


def _without_words(read: ArgumentCollection) -> ArgumentCollection:
    """Copies of the arguments that share all but what a command line writes into them."""
    copies = {id(argument): copy.copy(argument) for argument in read}
    for argument in copies.values():
        argument.tokens = []
        argument.children = ArgumentCollection([copies[id(child)] for child in argument.children])
    return ArgumentCollection([copies[id(argument)] for argument in read])
