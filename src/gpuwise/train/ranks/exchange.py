# pyright: basic
"""Times of collectives between ranks: measured on a small and a large payload before the first step, predicted from these two,
and put into the user's records, from which ``gpuwise bench --calibrate`` learns; and the joules of a rank's steps."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpuwise.machine.devices.readings import plain_uuid
from gpuwise.train.tune.energy import EVERY_S, Rapl

if TYPE_CHECKING:
    import torch

    from gpuwise.records.record import Record
    from gpuwise.train.tune.peak import Device

SIZES = (1 << 14, 1 << 20)
BETWEEN = 1 << 17
"""Payload bytes through which a line is drawn, and one at which it is checked."""
REPEATS = 5
OPS = {"all-reduce": "all_reduce", "all-gather": "all_gather", "reduce-scatter": "reduce_scatter", "all-to-all": "all_to_all"}
"""Kinds of the meter, and operations of :mod:`gpuwise.predict.comm.collectives`."""
Line = tuple[float, float]
"""Seconds of any payload, and more a byte."""


def measure(kinds: Sequence[str], groups: Mapping[str, Any], device: torch.device) -> list[dict[str, Any]]:
    """Minimum seconds of each kind and payload over its group, on the slowest rank: other activity can only add time. Called
    by every rank of all groups."""
    found: list[dict[str, Any]] = []
    for kind in kinds:
        group = groups[kind]
        for n_bytes in (*SIZES, BETWEEN):
            call = _call(kind, n_bytes, group, device)
            times = [_timed(call, group, device) for _ in range(REPEATS + 1)][1:]
            found.append({"kind": kind, "bytes": n_bytes, "ranks": group.size(), "seconds": _slowest(min(times))})
    return found


def _call(kind: str, n_bytes: int, group: Any, device: torch.device) -> Callable[[], Any]:
    import torch
    import torch.distributed as dist

    n = group.size()
    whole = torch.zeros(max(n_bytes // 4 // n, 1) * n, device=device)
    part = torch.zeros(len(whole) // n, device=device)
    if kind == "all-reduce":
        return lambda: dist.all_reduce(whole, group=group)
    if kind == "all-gather":
        return lambda: dist.all_gather_into_tensor(whole, part, group=group)
    if kind == "reduce-scatter":
        return lambda: dist.reduce_scatter_tensor(part, whole, group=group)
    other = torch.zeros_like(whole)
    return lambda: dist.all_to_all_single(other, whole, group=group)


def _timed(call: Callable[[], Any], group: Any, device: torch.device) -> float:
    import torch
    import torch.distributed as dist

    dist.barrier(group=group)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def _slowest(seconds: float) -> float:
    import torch
    import torch.distributed as dist

    from gpuwise.train.ranks.wrap import control_group

    told = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(told, op=dist.ReduceOp.MAX, group=control_group())
    return float(told)


def lines_of(measured: Sequence[Mapping[str, Any]]) -> dict[str, Line]:
    """Lines by kind, through the smallest and the largest payload, never decreasing."""
    lines: dict[str, Line] = {}
    for kind in dict.fromkeys(m["kind"] for m in measured):
        (small, a), (large, b) = ((m["bytes"], m["seconds"]) for m in measured if m["kind"] == kind and m["bytes"] in SIZES)
        slope = max(b - a, 0.0) / (large - small)
        lines[kind] = (max(a - slope * small, 0.0), slope)
    return lines


def seconds_of(counts: Mapping[str, Sequence[int]], lines: Mapping[str, Line]) -> dict[str, float]:
    """Seconds of the collectives of a step, by kind; kinds without a line are omitted."""
    return {k: n * lines[k][0] + size * lines[k][1] for k, (n, size) in counts.items() if k in lines}


def check(measured: Sequence[Mapping[str, Any]], lines: Mapping[str, Line]) -> dict[str, float]:
    """By kind: predicted over measured, minus 1, at the payload not used for the line."""
    return {
        m["kind"]: seconds_of({m["kind"]: (1, m["bytes"])}, lines)[m["kind"]] / m["seconds"] - 1.0
        for m in measured
        if m["bytes"] == BETWEEN and m["seconds"] > 0
    }


def records_of(measured: Sequence[Mapping[str, Any]], device: Device) -> list[Record]:
    """The measurements as records of the device; ``bytes`` as :mod:`gpuwise.predict.comm.collectives` counts a payload."""
    from gpuwise.records.record import Record

    backend, now_s = "nccl" if device.kind == "cuda" else "gloo", time.time()
    return [
        Record(
            now_s + n * 1e-3,
            f"{backend}-{m['kind']}-{m['ranks']}-ranks-{m['bytes']}",
            "collective",
            device.id,
            device.name,
            device.accelerator,
            "fp32",
            {"variant": f"{backend}-{m['kind']}", "op": OPS[m["kind"]], "ranks": m["ranks"], "bytes": m["bytes"]},
            "B/s",
            m["bytes"] / m["seconds"],
            samples=REPEATS,
            time_s=m["seconds"],
        )
        for n, m in enumerate(measured)
        if m["seconds"] > 0
    ]


READINGS = ("energy_j", "sm_clock_hz", "held_by")


class RankDevice:
    """Driver readings of this rank's GPU; on processors the energy of the whole machine (RAPL), reported by its first rank for
    all."""

    def __init__(self, device: torch.device) -> None:
        self._card: Any = None
        self._rapl = Rapl() if device.type == "cpu" and os.environ.get("LOCAL_RANK", "0") == "0" else None
        if device.type == "cuda":
            self._open(device)
        self._used_j = self._read()["energy_j"]
        self._read_s = time.monotonic()

    def take(self) -> dict[str, Any]:
        """``energy_j`` since the last answer that had it, ``sm_clock_hz``, and ``held_by``: bits of
        :class:`gpuwise.machine.devices.readings.EventReason`. None where there is no such reading, or where it was read just
        before."""
        if time.monotonic() - self._read_s < EVERY_S:
            return dict.fromkeys(READINGS)
        now, before = self._read(), self._used_j
        self._used_j, self._read_s = now["energy_j"], time.monotonic()
        now["energy_j"] = None if before is None or self._used_j is None else self._used_j - before
        return now

    def _open(self, device: torch.device) -> None:
        import torch

        from gpuwise.machine.telemetry.monitor import find_all
        from gpuwise.machine.telemetry.rates import EnergyMeter

        own = plain_uuid(torch.cuda.get_device_properties(device).uuid)
        for backend in find_all()[0]:
            for card in backend.identities():
                if plain_uuid(card.uuid) == own:
                    self._card = (backend, card.index, EnergyMeter())

    def _read(self) -> dict[str, Any]:
        found: dict[str, Any] = dict.fromkeys(READINGS)
        if self._rapl is not None:
            found["energy_j"] = self._rapl.read()
        if self._card is not None:
            backend, index, meter = self._card
            sample = backend.sample(index)
            meter.add(sample)
            energy_j = meter.energy_j if meter.energy_j is not None else 0.0
            found = {"energy_j": energy_j, "sm_clock_hz": sample.sm_clock_hz, "held_by": sample.event_reasons}
        return found
