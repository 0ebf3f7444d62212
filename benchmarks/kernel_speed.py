"""Seconds the core takes for what every command does: load catalogues and coefficients, evaluate kernels.

python benchmarks/kernel_speed.py
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from time import process_time

import numpy as np

from gpuwise import find_accelerator
from gpuwise.facts.hardware.accelerators import accelerators, architectures
from gpuwise.facts.models.catalogue import models
from gpuwise.facts.sources import sources
from gpuwise.predict import coefficients
from gpuwise.predict.kernels.attention.fused import attention_forward_time
from gpuwise.predict.kernels.gemm.product import gemm_time


def best_of(run: Callable[[], object], times: int = 5) -> float:
    """Least CPU seconds of ``times`` runs."""
    taken: list[float] = []
    for _ in range(times):
        start = process_time()
        run()
        taken.append(process_time() - start)
    return min(taken)


def load_accelerators() -> None:
    for cached in (accelerators, architectures, sources):
        cached.cache_clear()
    accelerators()


def load_models() -> None:
    models.cache_clear()
    models()


def load_coefficients() -> None:
    for family in ("gemm", "attention", "moe"):
        coefficients.load_json.__wrapped__(family)
        coefficients.load_arrays.__wrapped__(family)


def main() -> None:
    h100 = find_accelerator("h100-sxm")
    rng = np.random.default_rng(2)
    m, n, k = (rng.integers(1, 20_000, 20_000) for _ in range(3))
    length = np.arange(1, 101) * 64
    rows = {
        "accelerator catalogue": load_accelerators,
        "model catalogue": load_models,
        "coefficients of gemm, attention, moe": load_coefficients,
        "gemm, 300 rows": lambda: gemm_time(h100, "bf16", m[:300], n[:300], k[:300]),
        "gemm, 20,000 rows": lambda: gemm_time(h100, "bf16", m, n, k),
        "attention, 100 rows": lambda: attention_forward_time(h100, "bf16", 4, length, length, 32, 8, 128),
    }
    print(f"{platform.python_version()}, numpy {np.__version__}; CPU ms, best of 5")
    for name, run in rows.items():
        run()
        print(f"{best_of(run) * 1e3:8.2f}  {name}")


if __name__ == "__main__":
    main()
