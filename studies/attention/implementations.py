"""Training kernels of attention from published figures: share of the rates by head size and overhead per
thread block.

The figures (:mod:`studies.attention.published`) take part in the fit where :data:`~.published.FITTED` lists their
device; the others check it: other devices of the family, older versions of a library.
FlashAttention-2 on A100 is fitted to the long calls of the measured prefill table, where the serving engine's
extra passes no longer count.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.attention.rows import Table, is_check_site
from gpuwise.facts.hardware.accelerators import Accelerator, accelerators
from gpuwise.predict.kernels.attention.features import Device, Shape
from gpuwise.predict.kernels.attention.implementations import device_for
from gpuwise.predict.kernels.attention.training import Pass, pass_seconds
from studies.attention.published import FITTED, PublishedKernel, read_published, takes_part
from studies.spreads import log_sigma_of

F64 = NDArray[np.float64]

DEFAULTS = {
    "Ampere-GA100": "fa2",
    "Ampere": "fa2",
    "Ada": "fa2",
    "Blackwell-RTX": "fa2",
    "Hopper": "fa3",
    "Blackwell": "cudnn",
}
"""What training code runs where nobody says: FlashAttention-2 before Hopper, -3 on Hopper, cuDNN on
Blackwell."""
RELATED = {
    "Orin": "Ampere",
    "Turing": "Ampere-GA100",
    "Volta": "Ampere-GA100",
    "Rubin": "Blackwell",
    "Thor": "Blackwell",
}
WARP_CYCLES, HOPPER_CYCLES = 0.08, 0.03
"""Cycles of a unit a score element costs beside its products (shared-memory loads, softmax, waiting). Warp-level
units: what A5000 at head size 64 leaves when its products run at the full rate. Hopper: what lets H20, with a quarter
of H100's matrix rate per unit, meet its figures too."""
_CYCLES = {"Ampere": WARP_CYCLES, "Hopper": HOPPER_CYCLES, "Blackwell": 0.0}
A100_BACKWARD = 0.63 / 0.73
"""Backward over forward share of FlashAttention-2 on A100 at head size 128: best shares of peak in arXiv
2307.08691, 4.1."""
_A100_KERNEL = ("a100_sxm", "sglang", "flash_attention")
_L40S_KERNEL = ("l40s", "sglang", "flashinfer")
_LONG = 4096
_WARP_SIGMA = 0.15
"""Consumer Blackwell by GA10x figures: cards boost beyond the clock they are specified at."""
_OVERHEADS = np.arange(0.0, 4.05, 0.1)
_SIGMAS = {"family_forward": 0.1, "family_backward": 0.05, "relative": 0.25}
"""Added to a pass's own spread: another device of the family or another release of the library (what takes the intervals of
the figures that are not fitted to 80 %: cuDNN's forward on B200, H100 and H20 is 10 to 20 % off by release), another family."""


def fit_training(forward: Table) -> dict[str, Any]:
    """The ``training`` block of the coefficients. ``forward`` is the measured prefill table."""
    rows = [r for r in read_published() if takes_part(r)]
    families: dict[str, Any] = {}
    for family, implementations in FITTED.items():
        by_name: dict[str, Any] = {}
        for name, devices in implementations.items():
            mine = [r for r in rows if r.implementation == name and r.accelerator.id in devices]
            cycles = _CYCLES[family]
            wide = [r for r in mine if r.dtype == "bf16"]
            by_name[name] = {p: _fit_pass([r for r in wide if r.phase == p], p, cycles) for p in ("forward", "backward")}
            narrow = _fit_pass([r for r in mine if r.dtype == "fp8"], "backward", cycles)
            by_name[name] |= {"backward-fp8": narrow} if narrow else {}
        families[family] = {"default": DEFAULTS[family], "by_name": by_name}
    _fill_backward(families)
    _fill_narrow(families["Blackwell"])
    warp = families["Ampere"]["by_name"]["fa2"]
    spread = {"log_sigma": _WARP_SIGMA}
    families["Ada"] = {"default": "fa2", "by_name": {"fa2": _ada(forward, warp)}}
    families["Blackwell-RTX"] = {
        "default": "fa2",
        "by_name": {"fa2": {p: row | spread for p, row in warp.items()}},
    }
    hopper = families["Hopper"]["by_name"]["fa2"]
    families["Ampere-GA100"] = {"default": "fa2", "by_name": {"fa2": _a100(forward, hopper)}}
    return {"families": families, "related": RELATED, "log_sigma": _SIGMAS}


def _fill_backward(families: dict[str, Any]) -> None:
    """An implementation without backward figures takes its family's default's, scaled by the forward shares;
    and FlashAttention-2 on warp-level units, known at head size 64, takes the ratio at 128 from A100."""
    for entry in families.values():
        for row in entry["by_name"].values():
            if row["backward"] is None:
                model = entry["by_name"][entry["default"]]
                ratio = [
                    b / _at(w, model["forward"])
                    for w, b in zip(model["backward"]["widths"], model["backward"]["share"], strict=True)
                ]
                share = [round(r * _at(w, row["forward"]), 4) for w, r in zip(model["backward"]["widths"], ratio, strict=True)]
                row["backward"] = model["backward"] | {"share": share, "log_sigma": 0.2, "figures": 0}
    warp = families["Ampere"]["by_name"]["fa2"]
    if warp["backward"]["widths"] == [64.0]:
        second = round(_at(128.0, warp["forward"]) * A100_BACKWARD, 4)
        warp["backward"] |= {
            "widths": [64.0, 128.0],
            "share": [*warp["backward"]["share"], second],
            "log_sigma": 0.15,
        }


def _at(width: float, row: dict[str, Any]) -> float:
    widths, share = np.asarray(row["widths"], np.float64), np.asarray(row["share"], np.float64)
    log_share: Any = np.interp(math.log2(width), np.log2(widths), np.log(share))
    return math.exp(log_share)


def _fit_pass(rows: list[PublishedKernel], phase: str, cycles: float) -> dict[str, Any] | None:
    if not rows:
        return None
    devices = [_device(r) for r in rows]
    calls = [(d, r.shape, r.causal) for d, r in zip(devices, rows, strict=True)]
    return _fit_calls(calls, np.array([r.seconds for r in rows]), phase == "backward", cycles, _OVERHEADS)


def _device(row: PublishedKernel) -> Device:
    device = device_for(row.accelerator, row.dtype)
    assert device is not None
    return device


def _fit_calls(
    calls: list[tuple[Device, Shape, bool]], measured: F64, backward: bool, cycles: float, overheads: F64
) -> dict[str, Any]:
    """Shares by head size and the overhead that leave the smallest mean absolute log error."""
    width = np.array([float(s.head_dim[0]) for _, s, _ in calls])
    widths = sorted({float(w) for w in width})
    best: tuple[float, Pass, F64] | None = None
    for overhead in overheads:
        chosen, predicted = Pass(tuple(widths), (0.6,) * len(widths), float(overhead), cycles, 0.0), measured
        for _ in range(5):
            predicted = np.array([pass_seconds(d, s, chosen, 2.0, causal=c, backward=backward)[0] for d, s, c in calls])
            scale = [float(np.median(predicted[width == w] / measured[width == w])) for w in widths]
            chosen = replace(chosen, share=tuple(a * b for a, b in zip(chosen.share, scale, strict=True)))
        loss = float(np.mean(np.abs(np.log(predicted / measured))))
        if best is None or loss < best[0]:
            best = (loss, chosen, predicted)
    assert best is not None
    _, chosen, predicted = best
    return {
        "widths": widths,
        "share": [round(s, 4) for s in chosen.share],
        "overhead": round(chosen.overhead, 2),
        "cycles": cycles,
        "log_sigma": round(max(log_sigma_of(measured, predicted), 0.02), 4),
        "figures": len(calls),
    }


def _from_measured(
    table: Table, origin: tuple[str, str, str], accelerator: Accelerator, model: dict[str, Any], cycles: float
) -> dict[str, Any]:
    """Forward share from an engine's long measured calls at head size 128, the rest in ``model``'s
    proportions."""
    device = device_for(accelerator, "bf16")
    assert device is not None
    calls: list[tuple[Device, Shape, bool]] = []
    seconds: list[float] = []
    for labels, where in table.parts():
        if labels[:3] != origin or labels[4] != "bfloat16":
            continue
        long = (table.shape.q_len[where] >= _LONG) & (table.shape.head_dim[where] == 128)
        where = where[long & (table.shape.window[where] == 0) & ~is_check_site(table.rows(where))]
        for i in where[::5]:
            calls.append((device, Shape(*(c[i : i + 1] for c in table.shape)), True))
            seconds.append(float(table.seconds[i]))
    overhead = model["forward"]["overhead"]
    fitted = _fit_calls(calls, np.array(seconds), False, cycles, np.array([overhead]))
    scale = fitted["share"][0] / _at(128.0, model["forward"])
    narrow = min(scale * _at(64.0, model["forward"]), fitted["share"][0])
    return fitted | {"widths": [64.0, 128.0], "share": [round(narrow, 4), fitted["share"][0]]}


def _a100(table: Table, hopper: dict[str, Any]) -> dict[str, Any]:
    """FlashAttention-2 on A100: forward from measured calls, backward tied to it by the paper's shares of
    peak, head size 64 in the proportions of FlashAttention-2 on H100."""
    forward = _from_measured(table, _A100_KERNEL, accelerators()["a100-sxm-80gb"], hopper, HOPPER_CYCLES)
    top = forward["share"][1] * A100_BACKWARD
    ratio = _at(64.0, hopper["backward"]) / _at(128.0, hopper["backward"])
    share = [round(top * ratio, 4), round(top, 4)]
    backward = hopper["backward"] | {"widths": [64.0, 128.0], "share": share, "log_sigma": 0.1, "figures": 1}
    return {"forward": forward, "backward": backward}


def _ada(table: Table, warp: dict[str, Any]) -> dict[str, Any]:
    """FlashAttention-2 on Ada: forward from measured calls on L40S, backward in GA10x's proportion to it."""
    forward = _from_measured(table, _L40S_KERNEL, accelerators()["l40s"], warp, WARP_CYCLES)
    widths = warp["backward"]["widths"]
    ratio = forward["share"][1] / _at(128.0, warp["forward"])
    share = [round(b * ratio, 4) for b in warp["backward"]["share"]]
    return {"forward": forward, "backward": warp["backward"] | {"widths": widths, "share": share}}


def _fill_narrow(entry: dict[str, Any]) -> None:
    """An implementation without figures at head size 64 keeps its default's proportion between 64 and 128."""
    model = entry["by_name"][entry["default"]]
    for row in entry["by_name"].values():
        for part in ("forward", "backward"):
            curve, like = row[part], model[part]
            if curve["widths"][0] > 64.0 and like["widths"][0] == 64.0:
                share = curve["share"][0] * _at(64.0, like) / _at(curve["widths"][0], like)
                row[part] = curve | {
                    "widths": [64.0, *curve["widths"]],
                    "share": [round(share, 4), *curve["share"]],
                }
