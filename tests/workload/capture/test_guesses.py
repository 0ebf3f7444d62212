"""Sizes that depend on values: a balanced choice, the share that was given, or the most there can be."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

import gpuwise  # noqa: E402
from gpuwise.errors import InputError, UnknownNameError  # noqa: E402

TOKENS, WIDTH, EXPERTS, CHOSEN = 1024, 64, 8, 2


class Experts(nn.Module):
    """A router and feed-forward experts; subclasses hand out the tokens as public models do."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS)
        feed = (nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(EXPERTS))
        self.experts = nn.ModuleList(feed)

    def route(self, x: Any) -> Any:
        return self.gate(x).softmax(-1).topk(CHOSEN, -1)


class ByWhere(Experts):
    def forward(self, x: Any) -> Any:
        weights, chosen = self.route(x)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            token, place = torch.where(chosen == i)
            out.index_add_(0, token, expert(x[token]) * weights[token, place, None])
        return out


class ByOneHot(Experts):
    """Mixtral in transformers 4."""

    def forward(self, x: Any) -> Any:
        weights, chosen = self.route(x)
        mask = F.one_hot(chosen, EXPERTS).permute(2, 1, 0)
        out = torch.zeros_like(x)
        for i in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
            place, token = torch.where(mask[i].squeeze(0))
            out.index_add_(0, token, self.experts[int(i)](x[None, token].reshape(-1, WIDTH)) * weights[token, place, None])
        return out


class ByCounts(Experts):
    """DeepSeek's inference: counts read to the host."""

    def forward(self, x: Any) -> Any:
        weights, chosen = self.route(x)
        counts = chosen.new_zeros((len(chosen), EXPERTS))
        counts.scatter_(1, chosen, 1)
        order = chosen.view(-1).argsort()
        tokens, outs, start = x[order // CHOSEN], [], 0
        for expert, n in zip(self.experts, counts.sum(0).cpu().numpy(), strict=True):
            outs.append(expert(tokens[start : start + int(n)]))
            start += int(n)
        joined = torch.cat(outs)
        back = torch.empty_like(joined)
        back[order] = joined
        return (back.view(*chosen.shape, -1) * weights[..., None]).sum(1)


class BySplit(Experts):
    def forward(self, x: Any) -> Any:
        weights, chosen = self.route(x)
        flat = chosen.flatten()
        order, counts = flat.argsort(), torch.bincount(flat, minlength=EXPERTS).tolist()
        parts = x.repeat_interleave(CHOSEN, 0)[order].split(counts)
        joined = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        back = torch.zeros_like(joined).index_copy(0, order, joined)
        return (back.view(*chosen.shape, -1) * weights[..., None]).sum(1)


@pytest.mark.parametrize("cls", [ByWhere, ByOneHot, ByCounts, BySplit])
def test_experts_written_by_hand_do_the_work_that_torch_counts(cls: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model, x = cls(), torch.randn(TOKENS, WIDTH)
    with FlopCounterMode(display=False) as counter:
        model(x).mean().backward()
    captured = gpuwise.capture(model, x, optimizer=None)
    assert captured.flop() == pytest.approx(counter.get_total_flops(), rel=1e-3)


def test_bounds_and_given_shares_take_the_place_of_the_balanced_choice() -> None:
    model, x = ByWhere(), torch.randn(TOKENS, WIDTH)
    balanced, bound, quarter = (
        gpuwise.capture(model, x, optimizer=None, guess=g).flop() for g in (None, "bound", {"nonzero": 0.25})
    )
    gate = 3 * 2 * TOKENS * WIDTH * EXPERTS - 2 * TOKENS * WIDTH * EXPERTS  # the input needs no gradient
    assert (bound - gate) / (balanced - gate) == pytest.approx(8)
    assert (quarter - gate) / (balanced - gate) == pytest.approx(2)


def _sizes(step: Any, guess: Any = None) -> list[int]:
    seen: list[int] = []
    gpuwise.capture(lambda: lambda: step(seen), n_steps=1, guess=guess)
    return seen


def test_masks_follow_what_their_operations_say() -> None:
    def step(seen: list[int]) -> None:
        def note(mask: Any) -> None:
            seen.append(len(mask.nonzero()))

        n = 10_000
        ids = torch.randint(0, 50, (n,), device="cuda")
        note(torch.rand(n, device="cuda") < 0.15)
        note(ids == 7)
        note(ids != -100)
        note(ids >= 10)
        note((ids == 7) | (ids == 8))
        note(~(ids == 7))
        note(torch.ones(n, dtype=torch.bool, device="cuda"))
        note(torch.randn(n, device="cuda").isnan())
        mask = torch.zeros(n, dtype=torch.bool, device="cuda")
        mask[torch.randperm(n, device="cuda")[:300]] = True
        note(mask)
        note(torch.randn(n, device="cuda") > 0)
        seen.append(int((ids == 7).sum()))
        seen.append(len(ids.unique()))

    assert _sizes(step) == [1500, 200, 10000, 8000, 396, 9800, 10000, 0, 300, 5000, 200, 50]


def test_sizes_are_told_with_their_line() -> None:
    captured = gpuwise.capture(lambda: (torch.randn(100, device="cuda") > 0).nonzero(), n_steps=1)
    told = [f for f in captured.findings if f.kind == "data-dependent"]
    assert len(told) == 1
    assert "0.5 of the most it can be" in told[0].message
    assert told[0].where.startswith("test_guesses.py:")


@pytest.mark.parametrize("guess", ["most", {"nonzero": 2.0}, {"nonzero": True}])
def test_a_share_that_is_none_is_refused(guess: Any) -> None:
    with pytest.raises(InputError):
        gpuwise.capture(nn.Linear(2, 2), (1, 2), guess=guess)


def test_an_unknown_kind_of_guess_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownNameError, match="where"):
        gpuwise.capture(nn.Linear(2, 2), (1, 2), guess={"where": 0.5})


@pytest.mark.parametrize(("batch", "seq"), [(1, 2048), (1, 4096), (2, 2048), (4, 1024), (8, 1024)])
def test_positions_in_a_row_are_not_packed_sequences(batch: int, seq: int) -> None:
    """How transformers looks for packed sequences: the differences of the positions, with one before the first."""
    found: list[bool] = []

    def make_step() -> Any:
        model = nn.Linear(8, 8).cuda()

        def step() -> None:
            positions = torch.arange(seq, device="cuda").unsqueeze(0).expand(batch, -1)
            apart = torch.diff(positions, prepend=positions[:, :1] - 1, dim=-1)
            found.append(bool(((apart != 1).cumsum(-1)[:, -1] == 0).all()))
            model(torch.zeros(4, 8, device="cuda")).sum().backward()

        return step

    gpuwise.capture(make_step)
    assert found and all(found)


def test_whole_numbers_that_nobody_wrote_may_be_of_any_size() -> None:
    """timm's Swin moves an index to the device that ``torch.empty`` made."""

    def step() -> Any:
        index = torch.full((49, 49), 2**62, dtype=torch.int64).to("cuda")
        return lambda: index + 1

    assert gpuwise.capture(step, n_steps=1).signatures
