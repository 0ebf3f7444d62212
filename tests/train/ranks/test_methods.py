"""Adapters, zeros and teachers: what each changes of a real tiny model, and that ranks train it as one process."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402

from gpuwise.errors import InputError  # noqa: E402
from gpuwise.train.levers.pruning import TwoOfFour, WeightMasks, share_of, why_not_semi_structured  # noqa: E402
from gpuwise.train.ranks.methods import LABELS, TEMPERATURE, Distillation  # noqa: E402
from gpuwise.train.ranks.task import Task  # noqa: E402

PEFT = pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="needs peft")
BITS = pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="needs bitsandbytes")


def losses(run: Any) -> list[float]:
    assert set(run.codes()) == {0}, run.output
    return [e["loss"] for e in run.lines(0)]


def weights(run: Any) -> dict[str, Any]:
    return torch.load(run.out / "written.pt")["weights"]


@PEFT
@pytest.mark.parametrize("sharding", ["none", pytest.param("zero3", marks=pytest.mark.slow)])
def test_adapters_are_trained_alone_and_as_in_one_process(sharding: str, ranks: Callable[..., Any]) -> None:
    """Rank 2 beside the seven products of two layers of 32 (keys and values of 16, an inner width of 64): 2,048 numbers of
    22,688. They begin as nothing, so the first loss is that of full training, bit for bit."""
    adapters = {"lora_rank": 2}
    whole = losses(ranks("llama", 1, out="whole", epochs=1))
    run = ranks("llama", 1, out="alone", layout=adapters, epochs=4)
    alone = losses(run)
    told = run.lines(0, "model")[0]
    assert told["trained"] == 2 * 2 * (2 * (32 + 32) + 2 * (32 + 16) + 3 * (32 + 64))
    assert told["parameters"] - told["trained"] == ranks_parameters(run.out.parent / "whole")
    assert alone[0] == pytest.approx(whole[0], rel=1e-6) and alone[-1] < alone[0] - 0.01
    two = ranks("llama", 2, layout={"sharding": sharding, **adapters}, epochs=4)
    assert losses(two) == pytest.approx(alone, rel=1e-5)
    found = weights(two)
    for name, value in weights(run).items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-4, msg=name)
    for name, value in weights(run_of(ranks, adapters)).items():
        if "lora" not in name:
            assert torch.equal(found[name], value), name
    exchanged = usual(two)
    assert exchanged == two.lines(0, "predicted")[0]["collectives"]


@PEFT
@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "n", "layout"),
    [
        ("llama", 2, {"dp": 1, "pp": 2, "micro_batch": 2}),
        ("llama", 4, {"dp": 2, "pp": 2, "micro_batch": 2}),
        ("llama", 4, {"dp": 2, "pp": 2, "micro_batch": 2, "sharding": "zero3"}),
        ("llama", 2, {"dp": 1, "cp": 2}),
        ("llama", 4, {"dp": 2, "cp": 2, "sharding": "zero3", "recompute": "full"}),
        ("qwen3_moe", 2, {"dp": 2, "ep": 2}),
        ("qwen3_moe", 4, {"dp": 4, "ep": 2, "sharding": "zero3"}),
        ("llama", 2, {"dp": 1, "pp": 2, "micro_batch": 2, "quantized_base": True}),
        ("llama", 2, {"dp": 1, "tp": 2}),
        ("llama", 2, {"dp": 1, "tp": 2, "micro_batch": 2, "recompute": "full"}),
        ("llama", 4, {"dp": 2, "tp": 2, "sharding": "zero3", "micro_batch": 2}),
        ("llama", 4, {"dp": 1, "tp": 2, "pp": 2, "micro_batch": 2}),
        ("phi3", 2, {"dp": 1, "tp": 2}),
        ("gpt2", 2, {"dp": 1, "tp": 2}),
        ("qwen3_moe", 2, {"dp": 1, "tp": 2}),
        ("olmo2", 2, {"dp": 1, "tp": 2, "recompute": "full"}),
        ("falcon", 2, {"dp": 1, "tp": 2}),
    ],
    ids=lambda value: " ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value),
)
def test_adapters_are_trained_where_other_things_are_divided(
    task: str, n: int, layout: dict[str, Any], ranks: Callable[..., Any]
) -> None:
    """Stages, rows and experts: the layers under the adapters are whole on every rank that has them."""
    adapters = {"lora_rank": 2, "quantized_base": layout.get("quantized_base", False)}
    if adapters["quantized_base"]:
        pytest.importorskip("bitsandbytes")
    more = {"settings": ["length=12", "n=16"], "epochs": 3}
    run = ranks(task, 1, out="alone", layout=adapters, **more)
    alone = losses(run)
    assert alone[-1] != alone[0]
    many = ranks(task, n, layout={**adapters, **layout}, **more)
    assert losses(many) == pytest.approx(alone, rel=1e-5)
    true, found = weights(run), {}
    for path in many.out.glob("written*.pt"):
        found |= {k: v for k, v in torch.load(path)["weights"].items() if "lora" in k}
    assert found.keys() == {k for k in true if "lora" in k}
    for name, value in found.items():
        torch.testing.assert_close(value, true[name], rtol=1e-3, atol=1e-4, msg=name)
    # what is written is gathered, and counted
    again = ranks(task, n, layout={**adapters, **layout}, environment={"GRADIENTS": ""}, **{**more, "epochs": 4})
    losses(again)
    assert again.lines(0, "resumed")[-1]["step"] == len(alone)
    assert usual(again) == again.lines(0, "predicted")[-1]["collectives"]


def ranks_parameters(folder: Any) -> int:
    events = [json.loads(line) for line in (folder / "rank-0.jsonl").read_text().splitlines()]
    return next(e["parameters"] for e in events if e["event"] == "model")


def run_of(ranks: Callable[..., Any], adapters: dict[str, Any]) -> Any:
    """One step: frozen weights as they began."""
    run = ranks("llama", 1, out="begun", layout=adapters, steps=1)
    losses(run)
    return run


def usual(run: Any) -> dict[str, list[int]]:
    """Collectives of the last step."""
    return run.lines(0)[-1]["collectives"]


@PEFT
@pytest.mark.slow
def test_adapters_go_on_after_a_kill(ranks: Callable[..., Any]) -> None:
    """Frozen weights are not in the checkpoints, which are a fraction of the model."""
    more = {"layout": {"lora_rank": 2}, "epochs": 3, "save_every": 2}
    alone = ranks("llama", 2, out="alone", **more)
    losses(alone)
    first = ranks("llama", 2, steps=3, **more)
    losses(first)
    again = ranks("llama", 2, **more)
    losses(again)
    assert again.lines(0, "resumed")[-1]["step"] == 3
    found = weights(again)
    assert all(torch.equal(value, found[name]) for name, value in weights(alone).items())
    assert alone.lines(0, "saved")[-1]["bytes"] < 4 * alone.lines(0, "model")[0]["parameters"] * 3


@PEFT
@BITS
@pytest.mark.slow
def test_frozen_weights_take_four_bits(ranks: Callable[..., Any]) -> None:
    """nf4 with fp32 scales of 64 weights: 4.5 bits each under adapters; the loss begins near that of the whole weights."""
    runs = [
        ranks("llama", 2, out=n, layout={"lora_rank": 2, "quantized_base": q}, epochs=4) for n, q in (("l", False), ("q", True))
    ]
    whole, four = (losses(r) for r in runs)
    assert four[0] == pytest.approx(whole[0], rel=0.02) and four[0] != whole[0] and four[-1] < four[0] - 0.01
    held = [r.lines(0, "model")[0]["weight_bytes"] for r in runs]
    linear = 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 64)
    assert held[0] - held[1] == linear * 4 - linear // 2


def test_the_smallest_weights_are_and_stay_zeros(ranks: Callable[..., Any]) -> None:
    """Half of each linear layer, on two ranks as on one, also where it goes on from a checkpoint."""
    alone, two = (ranks("tokens", n, out=f"of-{n}", prune="0.5", epochs=2) for n in (1, 2))
    assert losses(two) == pytest.approx(losses(alone), rel=1e-5)
    told = alone.lines(0, "model")[0]
    n = 2 * 2 * 10 * 30 + 10 * 32
    assert told["zeros"] == n // 2
    for run in (alone, two):
        found = {k: v for k, v in weights(run).items() if v.dim() == 2 and "tokens" not in k}
        assert sum(int((v == 0).sum()) for v in found.values()) == n // 2
    first = ranks("tokens", 2, out="first", prune="0.5", steps=2)
    losses(first)
    again = ranks("tokens", 2, out="first", prune="0.5", epochs=2)
    assert losses(again)[-1] == losses(two)[-1]
    other = ranks("tokens", 2, out="first", prune="0.25", epochs=3)
    assert set(other.codes()) == {2} and "of other pruning" in (other.out / "refused.json").read_text()


def test_two_of_four() -> None:
    weight = torch.tensor([[1.0, -3.0, 0.5, 2.0, 0.0, 0.1, -0.2, 0.3]])
    assert TwoOfFour().compute_mask(weight, torch.ones_like(weight)).tolist() == [[0, 1, 0, 1, 0, 0, 1, 1]]
    assert "on no such GPU" in str(why_not_semi_structured(torch.device("cpu")))
    assert share_of("2:4") is None and share_of("0.25") == 0.25
    for wrong in ("1", "-0.1", "half", True, "nan"):
        with pytest.raises(InputError, match="pruning takes no"):
            share_of(wrong)


def test_shared_weights_and_others_than_linear_are_left() -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(8, 4), torch.nn.Linear(4, 8, bias=False), torch.nn.LayerNorm(8))
    model[1].weight = model[0].weight
    assert not WeightMasks(model, "0.5").masks


# --- distillation ---


def test_the_gradient_is_that_of_labels_and_teacher() -> None:
    """By torch's own ``kl_div`` in fp64, places without a label left out."""
    torch.manual_seed(0)
    student, teacher = torch.nn.Linear(6, 5).double(), torch.nn.Linear(6, 5).double()
    x, labels = torch.randn(7, 6).double(), torch.tensor([0, 1, 2, -100, 3, 4, -100])
    hard = functional.cross_entropy(student(x), labels, ignore_index=-100, reduction="sum")
    there = labels != -100
    soft = functional.kl_div(
        functional.log_softmax(student(x) / TEMPERATURE, -1)[there],
        functional.log_softmax(teacher(x) / TEMPERATURE, -1)[there],
        reduction="sum",
        log_target=True,
    )
    (LABELS * hard + (1 - LABELS) * TEMPERATURE**2 * soft).backward()
    expected = student.weight.grad
    student.weight.grad = None
    task = Task("a", student, [], 0, None, lambda m: None)  # type: ignore[arg-type, return-value]
    distilled = Distillation(task, teacher, "teacher")
    functional.cross_entropy(student(x), labels, ignore_index=-100, reduction="sum").backward()
    torch.testing.assert_close(student.weight.grad, expected, rtol=1e-6, atol=1e-6)
    distilled.check(5)
    functional.cross_entropy(student(x), labels, ignore_index=-100).backward()
    with pytest.raises(InputError, match="counts 1 losses, and 5 rows"):
        distilled.check(1)


@pytest.mark.parametrize("sharding", ["none", pytest.param("zero3", marks=pytest.mark.slow)])
def test_a_model_is_drawn_to_its_teacher(sharding: str, ranks: Callable[..., Any]) -> None:
    """On labels that say nothing (random tokens) the distance to the teacher is smaller than without one."""
    more = {"epochs": 6, "settings": ["n=24"]}
    place = {"teacher": f"{__file__.rpartition('/')[0]}/tasks.py:teacher"}
    plain = ranks("tokens", 1, out="plain", **more)
    alone = ranks("tokens", 1, out="alone", **more, **place)
    two = ranks("tokens", 2, layout={"sharding": sharding}, **more, **place)
    assert losses(two) == pytest.approx(losses(alone), rel=1e-5)
    losses(plain)
    assert distance(weights(two)) < 0.95 * distance(weights(plain))


def distance(held: dict[str, Any]) -> float:
    """Mean KL divergence of a model with these weights from the teacher, on other rows."""
    import runpy

    made = runpy.run_path(f"{__file__.rpartition('/')[0]}/tasks.py")
    model, teacher = made["Tiny"](), made["teacher"]()
    model.load_state_dict(held)
    ids = torch.randint(0, 32, (64, 8), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        own, other = (functional.log_softmax(m(ids), -1) for m in (model, teacher))
    return float(functional.kl_div(own, other, reduction="none", log_target=True).sum(-1).mean())


@pytest.mark.parametrize(
    ("more", "layout", "message"),
    [
        ({"prune": "2:4"}, {}, "on no such GPU"),
        pytest.param({"teacher": "{tasks}:plain"}, {}, "cannot be a teacher", marks=pytest.mark.slow),
        pytest.param({"teacher": "{tasks}:other_teacher"}, {}, "logits of", marks=pytest.mark.slow),
        pytest.param(
            {}, {"lora_rank": 2, "lora_targets": ("q_proj",)}, "no linear layer is called q_proj", marks=[PEFT, pytest.mark.slow]
        ),
    ],
)
def test_what_has_nothing_to_act_on_is_refused(
    more: dict[str, Any], layout: dict[str, Any], message: str, ranks: Callable[..., Any]
) -> None:
    tasks = f"{__file__.rpartition('/')[0]}/tasks.py"
    run = ranks("tokens", 1, layout=layout, **{k: v.format(tasks=tasks) for k, v in more.items()})
    assert run.codes() == [2], run.output
    assert message in (run.out / "refused.json").read_text()
