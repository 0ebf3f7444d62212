"""XIDs: the numbers under which the NVIDIA driver reports errors. The table is ``data/xids.csv``.

NVIDIA's description of each in a few words, its immediate action, and its next step if that does not help. Codes marked unused
are omitted. A code names where an error appeared, not always its origin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from gpuwise.facts.loading import Field, ShippedData
from gpuwise.facts.sources import cited_rows

XID_ACTIONS: Mapping[str, str] = MappingProxyType(
    {
        "ignore": "nothing has to be done",
        "restart-application": "start the application again",
        "check-application": "look for the fault in the application: run it under compute-sanitizer",
        "follow-others": "look at the other XIDs of the same time: this one follows from them",
        "reset-gpu": "stop what uses the GPU and reset it (nvidia-smi --gpu-reset), or reboot",
        "restart-vm": "start the virtual machine again",
        "restart-host": "reboot the machine",
        "read-recovery-action": "do what the driver asks for (nvidia-smi -q, GPU Recovery Action)",
        "check-nvlink": "look at the links (nvidia-smi nvlink -e) and reset the GPUs they join; "
        "if it comes again, have them checked",
        "check-mechanics": "check that the card sits well and its power plugs are in",
        "update-software": "update the driver and the firmware",
        "contact-support": "have the card looked at by its vendor",
        "unpublished": "NVIDIA has published no advice for it",
    }
)
"""The catalogue's buckets of advice, and what each asks a person to do."""

XID_SCHEMA: dict[str, Field] = {
    "code": Field("integer", minimum=1, maximum=9999),
    "mnemonic": Field("text"),
    "meaning": Field("text"),
    "action": Field("text", choices=tuple(XID_ACTIONS)),
    "then": Field("text", required=False, choices=tuple(XID_ACTIONS)),
    "source": Field("text"),
}


@dataclass(frozen=True, slots=True)
class XidFact:
    """One code of the catalogue."""

    code: int
    mnemonic: str
    """NVIDIA's name of it."""
    meaning: str
    """In a few words, without a full stop."""
    action: str
    """Immediate action: a key of :data:`XID_ACTIONS`."""
    then: str | None
    """Next step if it occurs again; None without one."""
    source: str

    @property
    def advice(self) -> str:
        """``action`` for the user, as a sentence."""
        return XID_ACTIONS[self.action]

    @property
    def is_fault(self) -> bool:
        """The card, its links or the driver are at fault, or may be: not one application, and not mere information."""
        return self.action not in ("ignore", "restart-application", "check-application", "follow-others")


@cache
def xids() -> Mapping[int, XidFact]:
    """Every code of the catalogue. Raises DataError when the file is corrupt."""
    with ShippedData():
        by_code: dict[int, XidFact] = {}
        for r in cited_rows("xids.csv", XID_SCHEMA):
            code = r.integer("code")
            if code in by_code:
                raise r.error(f"{code} appears twice", field="code")
            by_code[code] = XidFact(
                code, r.text("mnemonic"), r.text("meaning"), r.text("action"), r.text("then") or None, r.text("source")
            )
        return MappingProxyType(by_code)


def xid(code: int) -> XidFact | None:
    """NVIDIA's entry of a code; None: not in the catalogue (report the number)."""
    return xids().get(code)
