"""What releases of Megatron-Bridge set for models with experts."""

import pytest

from gpuwise.calibrate.llm_training.expert_recipes import RECIPES, with_recipe
from gpuwise.workload.strategy import CUDA_GRAPHS, EXPERT_DISPATCHES, Strategy


@pytest.mark.parametrize(
    ("model", "gpu", "precision", "release", "expected"),
    [
        # scripts/performance/configs at v0.5.0: cuda_graph_impl="full_iteration", moe_a2a_overlap=True
        ("deepseek-v3", "GB300", "mxfp8", 2026 + 5 / 12, ("deepep", True, "full")),
        # v0.2.0: moe_flex_dispatcher_backend="hybridep", cuda_graph_scope=["moe_router", "moe_preprocess"]
        ("deepseek-v3", "GB200", "bf16", 2025 + 10 / 12, ("deepep", False, "partial")),
        ("qwen3-235b-a22b", "H100", "fp8", 2026 + 3 / 12, ("all-to-all", True, "none")),
        ("gpt-oss-120b", "B200", "bf16", 2026 + 1 / 12, ("all-to-all", False, "none")),
        # dgxc-benchmarking v25.05
        ("deepseek-v3", "H100", "bf16", 2025 + 4 / 12, ("all-to-all", False, "none")),
    ],
)
def test_a_release_runs_its_recipe(model: str, gpu: str, precision: str, release: float, expected: tuple[str, bool, str]) -> None:
    made = with_recipe(Strategy(precision=precision), model, gpu, release)
    assert (made.expert_dispatch, made.overlap_ep, made.cuda_graphs) == expected
    assert made.recompute == ("selective" if model == "deepseek-v3" else "none")


def test_recipes_are_in_order_and_name_known_settings() -> None:
    assert [r.since for r in RECIPES] == sorted(r.since for r in RECIPES)
    assert {r.dispatch for r in RECIPES} <= set(EXPERT_DISPATCHES) and {r.graphs for r in RECIPES} <= set(CUDA_GRAPHS)


def test_without_a_release_nothing_changes() -> None:
    assert with_recipe(Strategy(), "deepseek-v3", "H100", None) == Strategy()


def test_what_a_row_says_of_recomputing_holds() -> None:
    plain = Strategy(dp=8, ep=8)
    assert with_recipe(plain, "deepseek-v3", "B200", 2026.0).recompute == "selective"
    assert with_recipe(plain, "deepseek-v3", "B200", 2026.0, recompute_stated=True).recompute == "none"
