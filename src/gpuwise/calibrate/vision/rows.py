"""timm's published benchmark tables as columns of networks.

Rows without FLOP and activations (training tables leave them out) take them from another row of the same
network, scaled by the image's area: both are sums over positions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.tables import read_columns
from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.predict.kernels.image_network import Networks
from gpuwise.predict.kernels.image_network_traits import indicator, traits_of
from gpuwise.units import GIGA, MEGA, MILLI

F64 = NDArray[np.float64]
TABLE = "models/timm.csv"
_TEXT = ("gpu", "precision", "layout", "compile", "pt", "mode", "model")
_NUMBERS = ("step_time_ms", "batch_size", "img_size", "gmacs", "macts", "params_m")
PRECISION = {
    "amp": "fp16",
    "amp_bf16": "bf16",
    "bf16": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
    "bfloat16": "bf16",
    "amp_fp16": "fp16",
    "tf32": "tf32",
}
"""``amp`` is fp16 autocast; fp32 rows (convolutions in TF32, products not) are ambiguous and left to their
reason."""
_PROCESSORS = re.compile(r"^(i\d_|xeon|epyc|ryzen|m[1-9]|cpu)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class VisionRows:
    """Columns [R] in table order; ``reason`` is empty where a row can be predicted."""

    gpu: NDArray[Any]
    architecture: NDArray[Any]
    """The network's name without pre-training tags: what fit and check are split by."""
    precision: NDArray[Any]
    step_s: F64
    networks: Networks
    reason: NDArray[Any]
    accelerators: dict[str, Accelerator]


def read_rows(folder: Path) -> VisionRows | None:
    """Every row of ``models/timm.csv`` under ``folder``; None when the table is not there."""
    columns = read_columns(folder / TABLE, {**dict.fromkeys(_TEXT, "str"), **dict.fromkeys(_NUMBERS, "float")})
    if columns is None:
        return None
    stems = np.array([stem_of(m) for m in columns["model"]], dtype=object)
    macs, activations = _totals(stems, columns)
    names, where = np.unique(stems.astype(str), return_inverse=True)
    networks = Networks(
        macs=macs * GIGA,
        activations=activations * MEGA,
        parameters=columns["params_m"] * MEGA,
        batch=columns["batch_size"],
        image_side=columns["img_size"],
        compiled=columns["compile"] == "inductor",
        channels_last=columns["layout"] == "nhwc",
        training=columns["mode"] == "train",
        modern=np.array([not v.startswith(("0.", "1.")) for v in columns["pt"]], bool),
        traits=indicator([traits_of(n) for n in names])[:, where],
    )
    accelerators, reason = _accelerators(columns["gpu"])
    precision = np.array([PRECISION.get(p, "") for p in columns["precision"]], dtype=object)
    reason[(reason == "") & (precision == "")] = "arithmetic format not stated (fp32 or TF32)"
    measured = columns["step_time_ms"]
    reason[(reason == "") & ~(np.isfinite(measured) & (measured > 0))] = "step time not measured"
    whole = np.min(
        [networks.macs, networks.activations, networks.parameters, networks.batch, networks.image_side],
        axis=0,
    )
    reason[(reason == "") & ~(whole > 0)] = "FLOP and activations of the network not stated"
    return VisionRows(
        columns["gpu"],
        np.array([architecture_of(s) for s in stems], dtype=object),
        precision,
        measured * MILLI,
        networks,
        reason,
        accelerators,
    )


def stem_of(model: str) -> str:
    """The name without its pre-training tag (``.fb_in22k_ft_in1k``)."""
    return model.split(".")[0]


def architecture_of(stem: str) -> str:
    """One name for the same network under several weights: ``swsl_resnext50_32x4d`` is
    ``resnext50_32x4d``."""
    name = re.sub(r"^(swsl|ssl|ig|tv|gluon|adv|ens_adv|legacy|jx|tf)_", "", stem)
    name = re.sub(r"_(in22ft1k|in22k|22kft1k|22k|in1k|ns|ap|miil|dino|distilled|dist|\d{3})(?=_|$)", "", name)
    return name


def _totals(stems: NDArray[Any], columns: dict[str, NDArray[Any]]) -> tuple[F64, F64]:
    """GMACs and million activations [R], filled in from the same network at the nearest image size."""
    macs, activations, side = columns["gmacs"].copy(), columns["macts"].copy(), columns["img_size"]
    known = np.isfinite(macs) & np.isfinite(activations) & (macs > 0)
    seen: dict[str, dict[float, tuple[float, float]]] = {}
    for i in np.flatnonzero(known):
        seen.setdefault(stems[i], {}).setdefault(side[i], (macs[i], activations[i]))
    for i in np.flatnonzero(~known):
        sizes = seen.get(stems[i])
        if sizes and np.isfinite(side[i]):
            nearest = min(sizes, key=lambda s: abs(np.log(s / side[i])))
            scale = (side[i] / nearest) ** 2
            macs[i], activations[i] = (x * scale for x in sizes[nearest])
    return macs, activations


def _accelerators(names: NDArray[Any]) -> tuple[dict[str, Accelerator], NDArray[Any]]:
    from gpuwise.facts.hardware.naming import find_accelerator

    found: dict[str, Accelerator] = {}
    reasons: dict[str, str] = {}
    for name in sorted(set(names)):
        if _PROCESSORS.search(name):
            reasons[name] = "a processor, not an accelerator"
            continue
        try:
            found[name] = find_accelerator(name.replace("_", " "))
        except GpuwiseError as error:
            reasons[name] = error.message[:80]
    return found, np.array([reasons.get(n, "") for n in names], dtype=object)
