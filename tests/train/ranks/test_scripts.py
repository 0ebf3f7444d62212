"""A script that knows nothing of ranks trains on them as one process does, or is refused with the reason."""

from __future__ import annotations

import importlib.util
import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuwise.errors import InputError
from gpuwise.train.ranks.layout import Layout
from gpuwise.train.ranks.script.levers import check_levers

torch = pytest.importorskip("torch")

SCRIPTS, PLAIN = Path(__file__).with_name("scripts"), Path(__file__).with_name("plain_process.py")
SAME = {"rtol": 1e-4, "atol": 1e-6}


@pytest.fixture
def alone(server: Any, tmp_path: Path) -> Callable[..., Path]:
    """``alone(name, *more)`` runs a script by itself, and returns its first argument."""

    def run(name: str, *more: str) -> Path:
        out = tmp_path / "alone"
        given = str(SCRIPTS / f"{name}.py"), (str(out), *more)
        process = server.Process(target=runpy.run_path, args=(str(PLAIN), {"GIVEN": given}))
        process.start()
        process.join()
        assert process.exitcode == 0
        return out

    return run


def start(
    ranks: Callable[..., Any], name: str, n: int, *arguments: str, layout: dict[str, Any] | None = None, **more: Any
) -> Any:
    settings = {"whole": True, "arguments": list(arguments), **more}
    return ranks("", n, target=str(SCRIPTS / f"{name}.py"), layout=layout, **settings)


def same(one: Any, other: Any) -> None:
    """Every tensor and number of two nested documents."""
    if isinstance(one, torch.Tensor):
        assert type(other) is torch.Tensor
        torch.testing.assert_close(other, one, **SAME)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            same(one[key], other[key])
    elif isinstance(one, list):
        for a, b in zip(one, other, strict=True):
            same(a, b)
    else:
        assert other == (pytest.approx(one, rel=1e-4) if isinstance(one, float) else one)


@pytest.mark.parametrize(
    ("n", "layout", "workers"),
    [
        (2, {}, 0),
        (2, {"sharding": "zero3"}, 0),
        pytest.param(3, {}, 2, marks=pytest.mark.slow),
        pytest.param(3, {"sharding": "zero2"}, 0, marks=pytest.mark.slow),
        pytest.param(4, {"sharding": "hybrid", "shard_group": 2}, 0, marks=pytest.mark.slow),
        pytest.param(2, {"recompute": "full"}, 0, marks=pytest.mark.slow),
        pytest.param(2, {"sharding": "zero3", "recompute": "full"}, 0, marks=pytest.mark.slow),
    ],
)
def test_it_trains_evaluates_and_saves_as_one_process(
    n: int, layout: dict[str, Any], workers: int, ranks: Callable[..., Any], alone: Callable[..., Path], tmp_path: Path
) -> None:
    """Uneven last batches, targets that are ignored, a schedule that follows the evaluation, optimizer states; and every line and
    file once."""
    plain = alone("classify")
    run = start(ranks, "classify", n, str(tmp_path / "divided"), str(workers), layout=layout)
    assert run.codes() == [0] * n, run.output
    same(torch.load(f"{plain}.pt"), torch.load(tmp_path / "divided.pt"))
    logs = [[float(line) for line in Path(f"{p}.log").read_text().splitlines()] for p in (plain, tmp_path / "divided")]
    assert logs[1] == pytest.approx(logs[0], rel=1e-4) and len(logs[0]) == 14
    # what ranks after the first print is theirs
    assert len((tmp_path / "out" / "output-0").read_text().splitlines()) == 2
    assert (tmp_path / "out" / "rank-1.txt").read_text() == (tmp_path / "out" / "output-0").read_text()
    steps = [run.lines(r) for r in range(n)]
    assert [sum(s[i]["samples"] for s in steps) for i in range(7)] == [8] * 6 + [5]
    assert [s["loss"] for s in steps[0]] == pytest.approx(logs[0], rel=1e-4)
    assert steps[0][3]["collectives"] == run.lines(0, "predicted")[-1]["collectives"]


PEFT = pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="needs peft")


@PEFT
@pytest.mark.parametrize("layout", [{}, {"sharding": "zero3"}], ids=["DDP", "FSDP2"])
def test_adapters_on_a_script_are_those_of_one_process(layout: dict[str, Any], ranks: Callable[..., Any], tmp_path: Path) -> None:
    """Only they are trained, and what is saved are the script's own weights with them added: a plain script loads it."""
    both = {}
    for n in (1, 2):
        run = start(ranks, "classify", n, str(tmp_path / f"of-{n}"), out=f"out-{n}", layout={"lora_rank": 2, **layout})
        assert run.codes() == [0] * n, run.output
        both[n] = torch.load(tmp_path / f"of-{n}.pt")
        assert not run.lines(0, "predicted") or n == 1 or run.lines(0)[3]["collectives"]
    same(both[1]["model"], both[2]["model"])
    model = both[2]["model"]
    assert list(model) == ["0.0.inner.weight", "0.0.inner.bias", "0.1.inner.weight", "0.1.inner.bias", "1.weight", "1.bias"]
    states = both[2]["optimizer"]["state"]
    assert sorted(tuple(s["exp_avg"].shape) for s in states.values()) == [(2, 8)] * 3 + [(3, 2)] + [(8, 2)] * 2
    first = start(ranks, "classify", 1, str(tmp_path / "plain"), out="plain", layout={})
    assert first.codes() == [0]
    whole = torch.load(tmp_path / "plain.pt")["model"]
    assert (
        torch.linalg.matrix_rank(model["0.0.inner.weight"] - whole["0.0.inner.weight"], atol=1e-5) > 2
    )  # the plain run moves all
    on = start(
        ranks, "classify", 2, str(tmp_path / "on"), "0", str(tmp_path / "of-2.pt"), out="on", layout={"lora_rank": 2, **layout}
    )
    assert on.codes() == [0, 0], on.output
    assert on.lines(0)[0]["loss"] < run.lines(0)[0]["loss"]


@pytest.mark.parametrize(
    ("levers", "layout"),
    [
        ({"fused_optimizer": True, "checkpointing": "blocks", "threads": 1}, {}),
        ({"fused_optimizer": True, "checkpointing": "blocks"}, {"sharding": "zero3"}),
        pytest.param({"pruning": 0.5}, {}, marks=pytest.mark.slow),
        pytest.param({"micro_batches": 2}, {}, marks=pytest.mark.slow),
        pytest.param({"autocast": "bf16"}, {}, marks=pytest.mark.slow),
        pytest.param({"autocast": "bf16"}, {"sharding": "zero3"}, marks=pytest.mark.slow),
        pytest.param({"compile": "whole"}, {}, marks=pytest.mark.slow),
        pytest.param({"compile": "reduce-overhead"}, {}, marks=pytest.mark.slow),
        pytest.param({"compile": "regional"}, {}, marks=pytest.mark.slow),
        pytest.param({"compile": "regional", "fused_optimizer": True}, {"sharding": "zero3"}, marks=pytest.mark.slow),
    ],
)
def test_levers_of_a_rank_train_as_one_process(
    levers: dict[str, Any], layout: dict[str, Any], ranks: Callable[..., Any], tmp_path: Path
) -> None:
    """What the levers leave exact stays so on ranks, and the saved files are the script's own."""
    trains_otherwise = not {"pruning", "autocast"}.isdisjoint(levers)
    for n in (1, 2):
        given = levers if n == 2 or trains_otherwise else {}
        run = start(ranks, "classify", n, str(tmp_path / f"of-{n}"), out=f"out-{n}", layout=layout, levers=given)
        assert run.codes() == [0] * n, run.output
    applied = {e["name"] for e in run.lines(0, "lever") if e["applied"]}
    assert applied == set(levers)
    if "autocast" in levers:
        # sums of gradients are rounded on each rank
        losses = [[float(line) for line in (tmp_path / f"of-{n}.log").read_text().split()] for n in (1, 2)]
        assert losses[1] == pytest.approx(losses[0], rel=0.01)
        return
    same(torch.load(tmp_path / "of-1.pt"), torch.load(tmp_path / "of-2.pt"))


@pytest.mark.parametrize(
    "lever",
    [
        pytest.param({"trim_padding": True}, marks=pytest.mark.thorough),
        pytest.param({"length_groups": 4}, marks=pytest.mark.slow),
    ],
)
def test_ranks_cut_other_padding_and_train_alike(lever: dict[str, Any], ranks: Callable[..., Any], tmp_path: Path) -> None:
    for n in (1, 2):
        run = start(ranks, "padded", n, str(tmp_path / f"of-{n}"), out=f"out-{n}", levers=lever if n == 2 else {})
        assert run.codes() == [0] * n, run.output
    assert [e["applied"] for r in (0, 1) for e in run.lines(r, "lever")] == [True, True], run.lines(0, "lever")
    same(torch.load(tmp_path / "of-1.pt"), torch.load(tmp_path / "of-2.pt"))


@pytest.mark.parametrize(
    ("levers", "sharding", "said"),
    [
        ({"batch": 64}, "none", "what all ranks take together"),
        ({"cache_items": True}, "none", "the whole data set"),
        ({"autocast": "fp16"}, "none", "scaled by what one process"),
        ({"length_groups": 4}, "zero3", "other numbers of times"),
        ({"nothing": 1}, "none", "no lever 'nothing'"),
    ],
)
def test_other_levers_are_refused_with_the_reason(levers: dict[str, Any], sharding: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as error:
        check_levers(levers, Layout(dp=2, sharding=sharding, global_batch=2))
    assert error.value.hint
    check_levers({"fused_optimizer": True, "compile": "regional", "length_groups": 4}, Layout(dp=2, global_batch=2))


@pytest.mark.thorough
def test_a_checkpoint_is_gone_on_from_whole(ranks: Callable[..., Any], alone: Callable[..., Path], tmp_path: Path) -> None:
    before = Path(f"{alone('classify')}.pt").rename(tmp_path / "before.pt")
    plain = alone("classify", "0", str(before))
    run = start(ranks, "classify", 2, str(tmp_path / "on"), "0", str(before), layout={"sharding": "zero3"})
    assert run.codes() == [0, 0], run.output
    same(torch.load(f"{plain}.pt"), torch.load(tmp_path / "on.pt"))


@pytest.mark.parametrize("n", [pytest.param(2, marks=pytest.mark.thorough), pytest.param(3, marks=pytest.mark.slow)])
def test_models_in_turn_sums_and_accumulation(
    n: int, ranks: Callable[..., Any], alone: Callable[..., Path], tmp_path: Path
) -> None:
    plain = alone("two_models")
    run = start(ranks, "two_models", n, str(tmp_path / "divided"))
    assert run.codes() == [0] * n, run.output
    same(torch.load(plain), torch.load(tmp_path / "divided"))
    # one line a batch of the first loop, two updates each, and one an update of the second, a batch or two each
    steps = [run.lines(r) for r in range(n)]
    assert [sum(s[i]["samples"] for s in steps) for i in range(6)] == [10, 10, 10, 10, 26, 14]
    assert [s["step"] for s in steps[0]] == list(range(1, 7)) and [s["position"] for s in steps[0]] == [10, 20, 30, 40, 26, 40]
    losses = torch.load(plain)["losses"]
    assert [s["loss"] for s in steps[0][:4]] == pytest.approx(losses[2:12:3], rel=1e-4)
    shown = "import sys, torch; torch.load(sys.argv[1], weights_only=False); assert 'gpuwise' not in sys.modules"
    subprocess.run([sys.executable, "-c", shown, str(tmp_path / "divided.whole")], check=True)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_ranks_draw_other_numbers_and_evaluate_alike(workers: int, ranks: Callable[..., Any], tmp_path: Path) -> None:
    """Running statistics are the first rank's, and a file that a later rank writes, renames and reads again is its own."""
    run = start(ranks, "draws", 2, str(tmp_path / "made"), str(workers))
    assert run.codes() == [0, 0], run.output
    first, second = (json.loads((tmp_path / "out" / name).read_text().splitlines()[-1]) for name in ("output-0", "rank-1.txt"))
    assert len(first["drawn"]) == len(second["drawn"]) == 8 and not set(first["drawn"]) & set(second["drawn"])
    assert first["said"] == second["said"]
    assert json.loads((tmp_path / "made" / "drawn.json").read_text()) == first
    assert [p.name for p in (tmp_path / "made").iterdir()] == ["drawn.json"]


@pytest.mark.parametrize(
    ("what", "said", "hint"),
    [
        ("no loader", "without a DataLoader", "train.py:make_step"),
        ("itself", "divides the script's work over ranks itself", "leave out the layout"),
        ("stream", "Stream gives its samples in its own order", "__getitem__"),
        ("statistics", "TensorDataset was divided", "torch.no_grad()"),
        ("sparse", "sparse", "sparse=False"),
        ("rates", "ranks disagree about the learning rates", "same files"),
        ("error", "ValueError: of the script", "traceback"),
    ],
)
def test_what_cannot_be_divided_says_why(what: str, said: str, hint: str, ranks: Callable[..., Any]) -> None:
    run = start(ranks, "cannot", 2, what)
    assert all(run.codes()), run.output
    told = json.loads((run.out / "refused.json").read_text())
    assert said in told["error"] and hint in told["hint"]


def test_an_exit_code_is_the_scripts(ranks: Callable[..., Any]) -> None:
    assert start(ranks, "cannot", 2, "exit").codes() == [3, 3]
