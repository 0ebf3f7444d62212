"""Losses, gradients and updates on ranks are those of one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.train.ranks import orders

torch = pytest.importorskip("torch")

LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "DDP 2": (2, {}),
    "DDP 4, micro-batches": (4, {"micro_batch": 1}),
    "FSDP2 2": (2, {"sharding": "zero3"}),
    "FSDP2 4, micro-batches, recompute": (4, {"sharding": "zero3", "micro_batch": 1, "recompute": "full"}),
    "FSDP2 2, weights kept": (2, {"sharding": "zero2", "micro_batch": 2}),
    "FSDP2 hybrid 2 x 2": (4, {"sharding": "hybrid", "shard_group": 2}),
    "FSDP2 2, optimizer on the host": (2, {"sharding": "zero3", "offload_optimizer": True}),
    "DDP 2, activations on the host": (2, {"offload_activations": True, "micro_batch": 2}),
    "FSDP2 2, a selection recomputed": (2, {"sharding": "zero3", "recompute": "blocks.1,blocks.0.up"}),
}
SLOW = ("FSDP2 2, optimizer on the host", "DDP 2, activations on the host", "FSDP2 2, a selection recomputed")


def result(run: Any) -> dict[str, Any]:
    assert run.codes() == [0] * len(run.processes), run.output
    return {"losses": [e["loss"] for e in run.lines(0)], **torch.load(run.out / "written.pt")}


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return {}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in LAYOUTS])
def test_ranks_train_as_one_process(name: str, ranks: Callable[..., Any], alone: dict[str, Any]) -> None:
    """21 rows of unequal length, 8 a step: the last step of an epoch has 5, and on four ranks micro-batches without a sample."""
    n, layout = LAYOUTS[name]
    if not alone:
        alone.update(result(ranks("tokens", 1, out="alone", epochs=2, settings=["clip=0.5"])))
    found = result(ranks("tokens", n, layout=layout, epochs=2, settings=["clip=0.5"]))
    assert len(found["losses"]) == 6
    check_equal(found, alone)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [{"sharding": "zero3"}, {"sharding": "zero3", "recompute": "full"}])
def test_encoder_and_decoder_with_one_embedding(layout: dict[str, Any], ranks: Callable[..., Any]) -> None:
    """FSDP2 takes their layers, and what both hold with the rest."""
    alone = result(ranks("t5", 1, out="alone", epochs=1))
    run = ranks("t5", 2, layout=layout, epochs=1)
    check_equal(result(run), alone)
    # four layers and the rest, forward and backward
    assert run.lines(0, "predicted")[0]["collectives"]["all-gather"][0] == 9


def check_equal(found: dict[str, Any], alone: dict[str, Any]) -> None:
    assert found["losses"] == pytest.approx(alone["losses"], rel=1e-6)
    for step, gradients in enumerate(alone["gradients"]):
        for parameter, value in gradients.items():
            torch.testing.assert_close(found["gradients"][step][parameter], value, rtol=1e-4, atol=1e-6, msg=parameter)
    for parameter, value in alone["weights"].items():
        # a hundredth of an update: Adam makes whole steps of gradients near zero
        torch.testing.assert_close(found["weights"][parameter], value, rtol=1e-5, atol=1e-4, msg=parameter)


@pytest.mark.parametrize("task", ["llama_like", pytest.param("llama", marks=pytest.mark.slow)])
def test_tensor_parallel_trains_as_one_process(task: str, ranks: Callable[..., Any]) -> None:
    """Tensor 2 x FSDP2 2, and saved in the middle: it goes on without tensor parallel."""
    alone = result(ranks(task, 1, out="alone", epochs=1))
    found = result(ranks(task, 4, out="four", layout={"dp": 2, "tp": 2, "sharding": "zero3", "micro_batch": 2}, epochs=1))
    check_equal(found, alone)
    first = ranks(task, 4, layout={"dp": 2, "tp": 2, "sharding": "zero3"}, steps=1)
    assert first.codes() == [0] * 4, first.output
    again = result(ranks(task, 2, epochs=1))
    assert again["losses"] == pytest.approx(alone["losses"], rel=1e-6)


@pytest.mark.parametrize(
    ("task", "n", "layout"),
    [
        pytest.param("gpt_2_heads", 2, {"tp": 2}, marks=pytest.mark.thorough),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                ("phi3", 2, {"tp": 2, "recompute": "full"}),
                ("phi3", 4, {"dp": 2, "tp": 2, "sharding": "zero3", "micro_batch": 2}),
                ("gpt_2_heads", 4, {"tp": 4}),
                ("opt", 2, {"tp": 2}),
                ("bloom", 2, {"tp": 2}),
                ("falcon", 4, {"dp": 2, "tp": 2, "sharding": "zero3"}),
                ("bert", 2, {"tp": 2}),
                ("persimmon", 2, {"tp": 2, "recompute": "full"}),
                ("nanochat", 2, {"tp": 2}),
            ]
        ),
    ],
)
def test_layers_of_other_names_are_divided(task: str, n: int, layout: dict[str, Any], ranks: Callable[..., Any]) -> None:
    """Matrices that hold several, and what is saved after a step of them goes on in one process."""
    layout = {"dp": 1, **layout}
    alone = result(ranks(task, 1, out="alone", epochs=1))
    check_equal(result(ranks(task, n, layout=layout, epochs=1)), alone)
    first = ranks(task, n, out="again", layout=layout, steps=1)
    assert set(first.codes()) == {0}, first.output
    again = result(ranks(task, 1, out="again", epochs=1))
    assert again["losses"] == pytest.approx(alone["losses"], rel=1e-6)
    # and back: what one process has saved is taken apart
    assert ranks(task, 1, out="back", steps=1).codes() == [0]
    back = result(ranks(task, n, out="back", layout=layout, epochs=1))
    assert back["losses"] == pytest.approx(alone["losses"], rel=1e-6)


@pytest.mark.slow
def test_images_over_tensor_ranks(ranks: Callable[..., Any]) -> None:
    alone = result(ranks("bert", 1, out="alone", epochs=1, settings=["images=1"]))
    check_equal(result(ranks("bert", 2, layout={"dp": 1, "tp": 2}, epochs=1, settings=["images=1"])), alone)


PIPELINES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "PP 2": ("tokens", 2, {"dp": 1, "pp": 2, "micro_batch": 2}),
    "PP 4, more stages than micro-batches": ("tokens", 4, {"dp": 1, "pp": 4, "micro_batch": 4}),
    "PP 2 x DDP 2, micro-batches": ("tokens", 4, {"dp": 2, "pp": 2, "micro_batch": 1}),
    "PP 2 x FSDP2 2, recompute": ("tokens", 4, {"dp": 2, "pp": 2, "micro_batch": 2, "sharding": "zero3", "recompute": "full"}),
    "PP 2 x DDP 2, a layer that one of two uses": ("choosing", 4, {"dp": 2, "pp": 2, "micro_batch": 1}),
    "PP 2, tied embeddings": ("tied", 2, {"dp": 1, "pp": 2, "micro_batch": 2}),
    "PP 2 x TP 2": ("llama_like", 4, {"dp": 1, "pp": 2, "tp": 2, "micro_batch": 2}),
    "PP 2 x FSDP2 2 of Transformers' Llama": ("llama", 4, {"dp": 2, "pp": 2, "micro_batch": 2, "sharding": "zero3"}),
    "PP 2 of Transformers' GPT-2, tied": ("gpt2", 2, {"dp": 1, "pp": 2, "micro_batch": 4}),
}


@pytest.mark.parametrize("name", [n if n == "PP 2" else pytest.param(n, marks=pytest.mark.slow) for n in PIPELINES])
def test_pipeline_stages_train_as_one_process(name: str, ranks: Callable[..., Any], tmp_path: Path) -> None:
    """Rows of unequal length; each stage holds and writes its own layers, all of which are compared."""
    task, n, layout = PIPELINES[name]
    more = {"epochs": 2, "settings": ["layers=4"] if task in ("tokens", "tied", "choosing") else []}
    alone = result(ranks(task, 1, out="alone", **more))
    run = ranks(task, n, layout=layout, environment={"ORDERS": str(tmp_path / "out")}, **more)
    found = result(run)
    check_order(run.out, n)
    parts = [torch.load(p) for p in sorted(run.out.glob("written-*.pt"))]
    for part in parts:
        found["weights"] |= part["weights"]
        found["gradients"] = [a | b for a, b in zip(found["gradients"], part["gradients"], strict=True)]
    check_equal(found, alone)
    stages = [set(part["weights"]) for part in (torch.load(run.out / "written.pt"), *parts)]
    assert set().union(*stages) == set(alone["weights"]) and all(s < set(alone["weights"]) for s in stages)


@pytest.mark.thorough
@pytest.mark.parametrize("task", ["norms_only", *(pytest.param(t, marks=pytest.mark.slow) for t in ("qwen3", "olmo2"))])
def test_norms_of_divided_heads_have_their_whole_gradient(task: str, ranks: Callable[..., Any]) -> None:
    """Queries and keys of Qwen3 are normed head by head, with one weight for all heads; those of OLMo 2 all heads together."""
    alone = result(ranks(task, 1, out="alone", epochs=1))
    check_equal(result(ranks(task, 2, layout={"dp": 1, "tp": 2}, epochs=1)), alone)


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        ("tokens", [], "Block has no attention with names that ranks know"),
        ("llama_like", ["heads=1"], "1 heads do not divide over 2 ranks"),
        ("turned", [], "a Layer that is divided computes something else"),
    ],
)
def test_tensor_parallel_is_refused_elsewhere(task: str, settings: list[str], message: str, ranks: Callable[..., Any]) -> None:
    run = ranks(task, 2, layout={"dp": 1, "tp": 2}, settings=settings)
    assert set(run.codes()) == {2}, run.output
    assert message in (run.out / "refused.json").read_text()


CONTEXTS: dict[str, tuple[int, dict[str, Any]]] = {
    "CP 2": (2, {"dp": 1, "cp": 2}),
    "CP 2 x FSDP2 2, recompute": (4, {"dp": 2, "cp": 2, "sharding": "zero3", "micro_batch": 2, "recompute": "full"}),
    "CP 4, DDP": (4, {"dp": 1, "cp": 4, "micro_batch": 4}),
    "CP 2 x TP 2": (4, {"dp": 1, "cp": 2, "tp": 2, "sharding": "zero3"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTEXTS)
def test_shared_rows_train_as_one_process(name: str, ranks: Callable[..., Any]) -> None:
    """Rows of unequal length, most of which no number of ranks divides; keys and values have fewer heads than queries."""
    n, layout = CONTEXTS[name]
    alone = result(ranks("llama", 1, out="alone", epochs=1))
    check_equal(result(ranks("llama", n, layout=layout, epochs=1)), alone)


def check_order(folder: Path, n: int) -> None:
    """Whichever rank is late, none waits for one that waits for it."""
    calls = orders.read(folder)
    assert len(calls) == n and all(len(of) > 20 for of in calls.values())
    assert orders.stuck(calls) == {}


def test_orders_that_do_not_meet_are_found() -> None:
    both = [["all", "all_reduce 4", "a", [0, 1]], ["all", "all_reduce 4", "b", [0, 1]]]
    assert orders.stuck({0: both, 1: both}) == {}
    assert orders.stuck({0: both, 1: both[::-1]}) == {0: both[0], 1: both[1]}
    assert orders.stuck({0: both[:1], 1: [["all", "all_reduce 5", "a", [0, 1]]]}) != {}
    message = [[0, 1, 0]]
    late = ["post", message], ["wait", message]
    assert orders.stuck({0: [*late, both[0]], 1: [*late, both[0]]}) == {}
    assert set(orders.stuck({0: [*late, both[0]], 1: [both[0], *late]})) == {0, 1}


EXPERTS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "EP 2 of Mixtral": ("mixtral", 2, {"ep": 2, "micro_batch": 2}),
    "EP 2 of Qwen3-MoE, recompute": ("qwen3_moe", 2, {"ep": 2, "recompute": "full"}),
    "EP 2, two copies": ("mixtral", 4, {"ep": 2, "micro_batch": 1}),
    "EP 4 x FSDP2 4": ("qwen3_moe", 4, {"ep": 4, "sharding": "zero3", "micro_batch": 1}),
    "EP 2 over TP 2": ("mixtral", 2, {"ep": 2, "dp": 1, "tp": 2, "micro_batch": 2}),
    "EP 2 x TP 2 x FSDP2 2": ("mixtral", 4, {"ep": 2, "dp": 2, "tp": 2, "sharding": "zero3", "micro_batch": 2}),
    "EP 4 x TP 2 x FSDP2 2 of Qwen3-MoE, recompute": (
        "qwen3_moe",
        4,
        {"ep": 4, "dp": 2, "tp": 2, "sharding": "zero3", "micro_batch": 1, "recompute": "full"},
    ),
    "EP 2 x PP 2 x DDP 2": ("mixtral", 4, {"ep": 2, "dp": 2, "pp": 2, "micro_batch": 2}),
    "EP 2 x PP 2 x FSDP2 2": ("qwen3_moe", 4, {"ep": 2, "dp": 2, "pp": 2, "micro_batch": 1, "sharding": "zero3"}),
    "EP 2 x PP 2 over TP 2": ("mixtral", 4, {"ep": 2, "dp": 1, "tp": 2, "pp": 2, "micro_batch": 2}),
    "EP 4 x CP 2 x DDP 2": ("mixtral", 4, {"ep": 4, "dp": 2, "cp": 2, "micro_batch": 2}),
    "EP 2 x hybrid 2 x 2": ("mixtral", 4, {"ep": 2, "sharding": "hybrid", "shard_group": 2}),
    "EP 4, nothing else trained before them": ("experts_only", 4, {"ep": 4, "micro_batch": 1}),
    "EP 2 of GPT-OSS, recompute": ("gpt_oss", 2, {"ep": 2, "recompute": "full"}),
    "TP 2 with whole experts": ("mixtral", 2, {"dp": 1, "tp": 2}),
}


@pytest.mark.parametrize("name", [n if n == "EP 2 of Mixtral" else pytest.param(n, marks=pytest.mark.slow) for n in EXPERTS])
def test_divided_experts_train_as_one_process(name: str, ranks: Callable[..., Any], tmp_path: Path) -> None:
    """Tokens go to the ranks that hold their experts, some of which get none; saved in the middle, one rank goes on."""
    task, n, layout = EXPERTS[name]
    alone = result(ranks(task, 1, out="alone", epochs=1))
    run = ranks(task, n, layout=layout, epochs=1, environment={"ORDERS": str(tmp_path / "out")})
    found = result(run)
    check_order(run.out, n)
    for part in sorted(run.out.glob("written-*.pt")) if layout.get("pp", 1) > 1 else ():
        held = torch.load(part)
        found["weights"] |= held["weights"]
        found["gradients"] = [a | b for a, b in zip(found["gradients"], held["gradients"], strict=True)]
    check_equal(found, alone)
    first = ranks(task, n, out="again", layout=layout, steps=1)
    assert set(first.codes()) == {0}, first.output
    again = result(ranks(task, 1, out="again", epochs=1))
    assert again["losses"] == pytest.approx(alone["losses"], rel=1e-6)


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        ("tokens", [], "no layer of Tiny holds experts as rows of one tensor"),
        pytest.param("mixtral", ["experts=3"], "3 experts do not divide over 2 ranks", marks=pytest.mark.slow),
    ],
)
def test_expert_parallel_is_refused_elsewhere(task: str, settings: list[str], message: str, ranks: Callable[..., Any]) -> None:
    run = ranks(task, 2, layout={"ep": 2}, settings=settings)
    assert set(run.codes()) == {2}, run.output
    assert message in (run.out / "refused.json").read_text()


@pytest.mark.slow
def test_rows_of_other_steps_are_not_shared(ranks: Callable[..., Any]) -> None:
    run = ranks("tokens", 2, layout={"dp": 1, "cp": 2})
    assert set(run.codes()) == {2}, run.output
    assert "computes its loss from whole rows in its own step" in (run.out / "refused.json").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("compress", "near"), [("fp16", 1e-3), ("powersgd", 0.2)])
def test_compressed_gradients_are_near(compress: str, near: float, ranks: Callable[..., Any]) -> None:
    """fp16 is a rounding of the gradients; PowerSGD of rank one another training, which learns all the same."""
    settings = ["width=64"]
    alone = result(ranks("tokens", 1, out="alone", epochs=3, settings=settings))
    found = result(ranks("tokens", 2, layout={"compress": compress}, epochs=3, settings=settings))
    assert found["losses"] != alone["losses"] and found["losses"] == pytest.approx(alone["losses"], rel=near)
    assert found["losses"][-1] < found["losses"][0]


@pytest.mark.parametrize(
    ("task", "pp", "message"),
    [
        pytest.param("between", 2, "computes between Block 0 and 1", marks=pytest.mark.slow),
        ("skipping", 2, "Skip 0 takes another tensor with a gradient"),
        pytest.param("tokens", 3, "2 repeated layers do not make 3 stages", marks=pytest.mark.slow),
    ],
)
def test_pipelines_are_refused_elsewhere(task: str, pp: int, message: str, ranks: Callable[..., Any]) -> None:
    run = ranks(task, pp, layout={"dp": 1, "pp": pp})
    assert set(run.codes()) == {2}, run.output
    assert message in (run.out / "refused.json").read_text()


@pytest.mark.parametrize("sharding", ["none", "zero3"])
def test_half_precision_is_near(sharding: str, ranks: Callable[..., Any]) -> None:
    alone = result(ranks("tokens", 1, out="alone", epochs=1))
    found = result(ranks("tokens", 2, layout={"sharding": sharding, "precision": "bf16"}, epochs=1))
    assert found["losses"] == pytest.approx(alone["losses"], rel=0.02)
    assert found["losses"] != alone["losses"]
    assert all(w.dtype is torch.float32 for w in found["weights"].values())


@pytest.mark.parametrize(
    ("task", "message", "hint"),
    [
        ("closed", "returns a step that holds its own batch", '"data": dataset'),
        ("empty", "list is empty", "give data"),
        ("streamed", "Stream gives its samples in its own order", "__getitem__"),
        ("disagreeing", "ranks disagree about the initial weights", "same files"),
        ("leaving", "exit(7) on rank 1 tasks.py", "raise an error"),
        ("diverging", "the loss of step 0 is nan", "checkpoint"),
    ],
)
def test_what_cannot_be_divided_is_refused(task: str, message: str, hint: str, ranks: Callable[..., Any]) -> None:
    run = ranks(task, 2)
    assert set(run.codes()) == ({2} if task != "leaving" else {1}), run.output
    told = (Path(run.out) / "refused.json").read_text()
    assert message in told.replace('\\"', '"') and hint in told.replace('\\"', '"')
