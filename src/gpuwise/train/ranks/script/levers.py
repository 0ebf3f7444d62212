"""Levers on a script that runs on ranks: those that a rank applies itself, and why the others are not supported."""

from __future__ import annotations

from collections.abc import Mapping

from gpuwise.errors import InputError
from gpuwise.train.levers.table import BY_NAME
from gpuwise.train.ranks.layout import Layout

_LOADER = "the loaders of the ranks are made from the script's: give it as the script's own argument"
_KEPT = "every rank would keep the whole data set"
_PARTS = "ranks with other numbers of rows would call the model other numbers of times, and FSDP2 exchanges in each call"
WHY_NOT = {
    "batch": "a batch of the script is what all ranks take together: give it as the script's own argument",
    "workers": _LOADER,
    "prefetch": _LOADER,
    "pin_memory": _LOADER,
    "cache_decode": _KEPT,
    "cache_items": _KEPT,
    "fp8": "torchao's layers are neither sharded nor exchanged here",
}
"""Reasons, by lever."""
WHY_NOT_SHARDED = {
    "length_groups": _PARTS,
    "micro_batches": _PARTS,
    "trim_padding": "ranks cut other columns, which FSDP2 does not mind, but was not tried",
    "pruning": "masks are of whole weights, and FSDP2 shards them",
    "channels_last": "FSDP2 shards flat rows of a weight, which have no channels",
}
"""Reasons that apply only with sharding."""


def check_levers(levers: Mapping[str, object], layout: Layout) -> None:
    """Raises InputError for a lever that ranks do not put on, with the reason."""
    unknown = sorted(set(levers) - set(BY_NAME))
    if unknown:
        raise InputError(f"there is no lever {unknown[0]!r}", hint="there are " + ", ".join(BY_NAME))
    is_sharded = layout.sharding != "none" and layout.dp > 1
    for name, value in levers.items():
        why = WHY_NOT.get(name) or (WHY_NOT_SHARDED.get(name) if is_sharded else None)
        if name == "autocast" and value == "fp16":
            why = "its loss is scaled by what one process has seen overflow"
        if name == "checkpointing" and value == "off":
            why = "what the script recomputes was counted in one process"
        if why is not None:
            raise InputError(f"the lever {name} = {value} on ranks: {why}", hint=f"take {name} out of the file of levers")
