"""Measured rows of networks that can be captured, and the captures themselves.

Rows are timm's published inference and training tables (Apache-2.0). A capture is made once for each network, mode and
layout, at the batch most of its rows have; a row of another batch (between a fifth and four times as large) scales with
the batch, as the device's time does when it is busy. Fit and check are told apart by the family of the network (its name
up to the first digit or underscore), a third of the families kept for checking by hash.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuwise.calibrate.tables import read_columns
from gpuwise.errors import GpuwiseError, InputError, require
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.units import MILLI
from gpuwise.workload.capture.captured import Capture

F64 = NDArray[np.float64]
TABLE = "models/timm.csv"
REPARAMETRISED = ("repvgg", "fastvit", "mobileone", "repvit", "repghost")
"""Networks that newer tables measured with their branches merged, older ones not: no row says which."""
SAMPLE = (
    "resnet50",
    "vit_base_patch16_224",
    "convnext_tiny",
    "mobilenetv3_large_100",
    "seresnet50",
    "swin_tiny_patch4_window7_224",
)
"""What is captured when not every network is asked for; of both splits."""
NETWORKS = (
    *SAMPLE,
    "nfnet_l0",
    "mixer_b16_224",
    "regnety_032",
    "resnext50_32x4d",
    "vit_large_patch16_224",
    "coatnet_0_rw_224",
    "maxvit_tiny_rw_224",
    "dla60",
    "hrnet_w18",
    "xception",
    "res2net50_26w_4s",
    "poolformer_s24",
    "levit_256",
    "convnext_base",
    "resnet101",
    "wide_resnet50_2",
    "mobilenetv2_100",
    "tf_efficientnet_b4",
    "cspdarknet53",
    "crossvit_small_240",
    "cait_xxs24_224",
    "xcit_small_12_p16_224",
    "twins_svt_base",
    "pvt_v2_b2",
    "gmlp_s16_224",
    "resmlp_24_224",
    "volo_d1_224",
    "nest_base",
    "visformer_small",
    "eca_nfnet_l0",
    "resnest50d",
    "eva02_base_patch14_224",
    "resnet34",
    "resnetv2_50",
    "swin_base_patch4_window7_224",
)
SCALES = (0.2, 4.0)


@dataclass(frozen=True, slots=True)
class Key:
    """One capture: network, mode, layout, image side, batch."""

    network: str
    training: bool
    channels_last: bool
    image_size: int
    batch: int
    torch: str = "2.5"
    """Generation of torch: ``1`` (timm ran without fused attention), ``2.0`` (attention without a fused kernel in 16 bits),
    ``2.5`` (such attention in fp32)."""

    @property
    def before_torch_2(self) -> bool:
        return self.torch == "1"


@dataclass(frozen=True, slots=True)
class Rows:
    """Columns [R] of the rows whose network is among those asked for; ``key`` is the capture each one needs."""

    gpu: list[str]
    key: list[Key]
    compiled: NDArray[np.bool_]
    batch: F64
    step_s: F64
    check: NDArray[np.bool_]
    accelerators: dict[str, Accelerator]

    @property
    def per_capture_s(self) -> F64:
        """Measured seconds at the batch of the capture."""
        return self.step_s * np.array([k.batch for k in self.key], dtype=np.float64) / self.batch


def stem_of(model: str) -> str:
    """The name without its pre-training tag (``.fb_in22k_ft_in1k``)."""
    return model.split(".")[0]


def family_of_network(stem: str) -> str:
    """``tf_efficientnet_b4`` is of ``efficientnet``, ``resnext50_32x4d`` of ``resnext``."""
    match = re.match(r"(?:tf_)?([a-z]+)", stem)
    return match.group(1) if match else stem


def is_check(stem: str) -> bool:
    """Whether the network's family is kept for checking."""
    return hashlib.sha256(family_of_network(stem).encode()).digest()[0] % 3 == 0


def named_networks(folder: Path, first: Sequence[str], most: int) -> tuple[str, ...]:
    """Up to ``most`` networks that the table names and timm has: those of ``first``, then of every family the one with most
    rows, then its next, so that a table that names none of ``first`` is scored too. Empty when the table is not there."""
    table = _table(folder)
    if table is None:
        return ()
    c, stems = table
    rows = Counter(str(s) for s in stems[_usable(c, stems)])
    chosen = [n for n in first if n in rows][:most]
    families: dict[str, list[str]] = defaultdict(list)
    for name in sorted(rows, key=lambda n: (-rows[n], n)):
        if name not in chosen:
            families[family_of_network(name)].append(name)
    turns = sorted((turn, -rows[n], n) for of_family in families.values() for turn, n in enumerate(of_family))
    for _, _, name in turns:
        if len(chosen) >= most:
            break
        if _in_timm(name):
            chosen.append(name)
    return tuple(chosen)


def _in_timm(network: str) -> bool:
    from studies.networks.support import timm_name

    try:
        timm_name(network)
    except GpuwiseError:
        return False
    return True


def _table(folder: Path) -> tuple[dict[str, NDArray[Any]], NDArray[Any]] | None:
    """The table's columns and the name of each row's network without its weights."""
    text = dict.fromkeys(("gpu", "precision", "layout", "compile", "mode", "model", "pt"), "str")
    numbers = dict.fromkeys(("step_time_ms", "batch_size", "img_size"), "float")
    c = read_columns(folder / TABLE, {**text, **numbers})
    return None if c is None else (c, np.array([stem_of(m) for m in c["model"]], dtype=object))


def _usable(c: dict[str, NDArray[Any]], stems: NDArray[Any]) -> NDArray[np.bool_]:
    """Rows under AMP with a time, a batch and a size of images, of networks that are measured as they are built."""
    usable = np.array([not str(s).startswith(REPARAMETRISED) for s in stems], dtype=bool)
    usable &= np.isin(c["precision"], ["amp", "amp_bf16"]) & np.isfinite(c["step_time_ms"])
    return usable & (c["step_time_ms"] > 0) & (c["batch_size"] > 0) & (c["img_size"] > 0)


def read_rows(folder: Path, networks: Iterable[str]) -> Rows | None:
    """Rows of ``networks`` under AMP on GPUs; None when the table is not there."""
    table = _table(folder)
    if table is None:
        return None
    c, stems = table
    usable = _usable(c, stems) & np.isin(stems.astype(str), list(networks))
    accelerators = _accelerators({str(g) for g in c["gpu"][usable]})
    usable &= np.isin(c["gpu"], list(accelerators))
    at = np.flatnonzero(usable)
    keys = _keys(stems, c, at)
    chosen = [(i, k) for i, k in zip(at.tolist(), keys, strict=True) if SCALES[0] <= c["batch_size"][i] / k.batch <= SCALES[1]]
    index = [i for i, _ in chosen]
    return Rows(
        gpu=[str(c["gpu"][i]) for i in index],
        key=[k for _, k in chosen],
        compiled=c["compile"][index] == "inductor",
        batch=c["batch_size"][index],
        step_s=c["step_time_ms"][index] * MILLI,
        check=np.array([is_check(k.network) for _, k in chosen], dtype=bool),
        accelerators=accelerators,
    )


def _keys(stems: NDArray[Any], c: dict[str, NDArray[Any]], at: NDArray[np.intp]) -> list[Key]:
    """The capture of each row: at the batch that most rows of its network, mode, layout and image size have."""
    groups: dict[tuple[str, bool, bool, int, str], Counter[int]] = defaultdict(Counter)
    old = [_generation(str(c["pt"][i])) for i in at]
    names = [
        (str(stems[i]), bool(c["mode"][i] == "train"), bool(c["layout"][i] == "nhwc"), int(c["img_size"][i]), o)
        for i, o in zip(at, old, strict=True)
    ]
    for name, i in zip(names, at, strict=True):
        groups[name][int(c["batch_size"][i])] += 1
    return [Key(*name[:4], groups[name].most_common(1)[0][0], name[4]) for name in names]


def _generation(release: str) -> str:
    """:attr:`Key.torch` of a release of torch; ``2.5`` where none is stated."""
    numbers = [int(n) for n in release.split(".")[:2] if n.isdigit()]
    if len(numbers) < 2 or numbers >= [2, 5]:
        return "2.5"
    return "1" if numbers[0] < 2 else "2.0"


def _accelerators(names: set[str]) -> dict[str, Accelerator]:
    from gpuwise.facts.hardware.naming import find_accelerator

    by_name: dict[str, Accelerator] = {}
    for name in sorted(names):
        try:
            by_name[name] = find_accelerator(name.replace("_", " "))
        except GpuwiseError:
            continue
    return by_name


def capture_of(key: Key) -> Capture:
    """The step of ``key`` under fp16 autocast. Raises MissingExtraError without torch or timm."""
    require("torch", "capturing networks")
    from gpuwise.workload.capture.api import capture
    from studies.networks import loops as zoo_loops
    from studies.networks.zoo import build

    if key.batch < 1:
        raise InputError(f"a batch of {key.batch} has nothing in it")
    factory = build(
        key.network, "timm", training=key.training, image_size=key.image_size, precision="amp", channels_last=key.channels_last
    )
    with (
        zoo_loops.attention_before_torch_2(key.before_torch_2),
        zoo_loops.attention_in_half(key.torch == "2.0"),
        zoo_loops.fast_norms(),
    ):
        captured = capture(lambda: factory(key.batch), n_steps=2 if key.training else 1, capability=(8, 6), batch=key.batch)
    return replace(captured, settings=replace(captured.settings, torch_version="1.13.1")) if key.before_torch_2 else captured
