"""Settings of NVIDIA's published runs of models with experts that are missing in their tables: token dispatch, overlap, CUDA
graphs, recomputation.

Read from the configurations of each release: NVIDIA-NeMo/Megatron-Bridge scripts/performance/configs/*_workload_base_configs.py
at v0.1.0rc4 (release 25.09), v0.2.0 (25.11), v0.3.0 (26.02), v0.4.0 (26.04), v0.5.0 (26.06) and
src/megatron/bridge/perf_recipes at v0.6.0 (26.08); NVIDIA/dgxc-benchmarking deepseek_v3/pretraining/launch.sh at v25.05.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from gpuwise.workload.strategy import Strategy


class Recipe(NamedTuple):
    """From release ``since`` on, for matching models, accelerators and precisions; the last matching line counts."""

    since: float
    model: str
    gpu: str
    precision: str
    dispatch: str
    overlap: bool
    graphs: str


RECIPES = (
    Recipe(0.0, "", "", "", "all-to-all", False, "none"),
    Recipe(25.09, "", "H100", "", "all-to-all", True, "none"),
    Recipe(25.09, "deepseek-v3", "H100", "", "deepep", True, "none"),
    Recipe(25.09, "qwen3-235b", "^B[23]00", "", "all-to-all", True, "none"),
    Recipe(25.09, "qwen3", "^GB", "", "all-to-all", False, "partial"),
    Recipe(25.09, "gpt-oss", "H100", "", "all-to-all", False, "none"),
    Recipe(25.11, "", "^GB", "", "deepep", False, "partial"),
    Recipe(25.11, "gpt-oss", "^GB200|^B200", "", "all-to-all", False, "none"),
    Recipe(25.11, "gpt-oss", "300", "", "all-to-all", False, "partial"),
    Recipe(25.11, "qwen3-30b", "^B", "", "all-to-all", False, "partial"),
    Recipe(25.11, "qwen3-30b", "H100", "bf16", "all-to-all", True, "partial"),
    Recipe(26.02, "deepseek-v3", "H100|^B", "", "deepep", False, "none"),
    Recipe(26.02, "deepseek-v3|kimi", "^GB300", "fp8", "deepep", False, "none"),
    Recipe(26.02, "qwen3-235b", "^B200", "", "all-to-all", False, "none"),
    Recipe(26.02, "qwen3-30b", "B300", "", "deepep", False, "partial"),
    Recipe(26.02, "qwen3-30b", "H100", "", "deepep", True, "none"),
    Recipe(26.02, "nemotron", "", "", "deepep", False, "partial"),
    Recipe(26.04, "qwen3-235b", "^B300", "", "all-to-all", False, "none"),
    Recipe(26.04, "qwen3-30b", "^B", "", "deepep", False, "partial"),
    Recipe(26.04, "qwen3-30b", "H100", "", "deepep", False, "none"),
    Recipe(26.04, "gpt-oss", "^GB200", "", "deepep", True, "none"),
    Recipe(26.04, "gpt-oss", "^B200", "", "deepep", False, "none"),
    Recipe(26.04, "gpt-oss", "^B300", "", "deepep", False, "partial"),
    Recipe(26.06, "qwen3-235b", "^B300", "", "deepep", False, "none"),
    Recipe(26.06, "gpt-oss", "^GB200", "bf16", "all-to-all", True, "none"),
    Recipe(26.06, "gpt-oss", "^B200", "", "all-to-all", False, "none"),
    Recipe(26.06, "deepseek-v3|qwen3|gpt-oss", "^GB", "mxfp8", "deepep", True, "full"),
    Recipe(26.06, "qwen3-30b", "^B300", "mxfp8", "deepep", True, "full"),
)
SELECTIVE = re.compile("deepseek|kimi")
"""Models whose recipes recompute latent attention's up-projections (``recompute_modules`` with ``mla_up_proj``)."""


def with_recipe(strategy: Strategy, model: str, gpu: str, release: float | None, *, recompute_stated: bool = False) -> Strategy:
    """``strategy`` with that release's recipe; unchanged if the row names no release (year with decimals). The row's own
    recomputation setting has priority."""
    if release is None:
        return strategy
    year = int(release)
    name = round(year - 2000 + (round((release - year) * 12) + 1) / 100, 2)
    recipe = [
        r
        for r in RECIPES
        if name >= r.since and re.search(r.model, model) and re.search(r.gpu, gpu) and re.search(r.precision, strategy.precision)
    ][-1]
    repeats = SELECTIVE.search(model) is not None and not recompute_stated and strategy.recompute == "none"
    recompute = "selective" if repeats else strategy.recompute
    return strategy.with_(
        expert_dispatch=recipe.dispatch, overlap_ep=recipe.overlap, cuda_graphs=recipe.graphs, recompute=recompute
    )


AUTOMODEL_EXPERT_RANKS = {"gpt-oss-120b": 64}
"""Default where the table lacks it: NVIDIA-NeMo/Automodel examples/llm_benchmark/gpt_oss/gptoss_120b_te_deepep.yaml."""
AUTOMODEL_CHECKPOINTED = ("deepseek-v3", "qwen3-30b-a3b")
"""``activation_checkpointing: true`` in the same folder's deepseek_v3_te_deepep*.yaml and qwen3_moe_30b_te_deepep.yaml."""


def with_automodel(strategy: Strategy, model: str) -> Strategy:
    """``strategy`` as NeMo AutoModel's benchmark of ``model`` runs it: DeepEP, nothing overlapped."""
    ep = AUTOMODEL_EXPERT_RANKS.get(model, strategy.ep) if strategy.ep == 1 else strategy.ep
    recompute = "full" if model in AUTOMODEL_CHECKPOINTED else strategy.recompute
    return strategy.with_(ep=ep, recompute=recompute, expert_dispatch="deepep", overlap_ep=False, cuda_graphs="none")
