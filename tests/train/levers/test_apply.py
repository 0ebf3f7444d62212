"""Levers on loops in this process: what they do, and that nothing of them stays."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset

from gpuwise.errors import InputError
from gpuwise.train.hook.watch import Watch
from gpuwise.train.levers.apply import apply_levers
from gpuwise.train.levers.items import CHECKED
from gpuwise.train.levers.saving import saves_plain

OWNERS = (
    (nn.Module, "__call__"),
    (nn.Module, "zero_grad"),
    (torch.optim.Optimizer, "__init__"),
    (torch.optim.Optimizer, "zero_grad"),
    (torch.autograd, "backward"),
    (nn.utils, "clip_grad_norm_"),
    (DataLoader, "__init__"),
    (F, "dropout"),
    (F, "scaled_dot_product_attention"),
    (PIL.Image, "open"),
    (PIL.Image.Image, "resize"),
    (torch, "compile"),
)


@pytest.fixture
def pull(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """``pull(lever=value)`` puts levers on until the test ends, and then nothing of them is left."""
    before = [vars(owner).get(name) for owner, name in OWNERS]
    applied: list[Any] = []

    def pulling(**levers: object) -> list[dict[str, Any]]:
        told: list[dict[str, Any]] = []
        saving = saves_plain()
        saving.__enter__()
        one = apply_levers(levers, tell=lambda kind, **values: told.append({"event": kind, **values}))
        watch = Watch(before_optimizer=one.before_optimizer, on_tick=one.on_tick)
        watch.open()
        applied.append((one, watch, saving))
        return told

    yield pulling
    for one, watch, saving in reversed(applied):
        watch.close()
        one.close()
        saving.__exit__(None, None, None)
    assert [vars(owner).get(name) for owner, name in OWNERS] == before


class Images(Dataset):
    def __init__(self, folder: Path, n: int = 4, augmented: bool = True) -> None:
        self.augmented = augmented
        self.paths = [folder / f"{k}.png" for k in range(n)]
        for k, path in enumerate(self.paths):
            pixels = np.random.default_rng(k).integers(0, 255, (40, 40), dtype=np.uint8)
            PIL.Image.fromarray(pixels).save(path)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = PIL.Image.open(self.paths[index]).convert("L").resize((16, 16))
        if self.augmented:
            image = image.rotate(random.uniform(-20, 20))
        return torch.from_numpy(np.array(image, dtype=np.float32)), index


def train(model: nn.Module, steps: int = 4, **options: Any) -> tuple[list[float], torch.optim.Optimizer]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **options)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 0.9**k)
    losses = []
    for k in range(steps):
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(k))
        loss = (model(x) - x[:, :1]).square().mean()
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses, optimizer


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.GELU(), nn.Linear(32, 1))


def test_an_unknown_lever() -> None:
    with pytest.raises(InputError, match="no lever 'magic'"):
        apply_levers({"magic": 1}, tell=lambda *a, **k: None)


def test_fused(pull: Callable[..., Any]) -> None:
    plain, _ = train(net())
    told = pull(fused_optimizer=True)
    losses, optimizer = train(net())
    assert optimizer.param_groups[0]["fused"] is True
    assert told == [{"event": "lever", "name": "fused_optimizer", "applied": True, "why": None, "optimizer": "AdamW"}]
    assert losses == pytest.approx(plain, rel=1e-5)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda p: torch.optim.RMSprop(p), "RMSprop has no fused form"),
        (lambda p: torch.optim.AdamW(p, fused=True), "AdamW is fused already"),
        (lambda p: torch.optim.Adam(p, differentiable=True), "Adam with differentiable=True"),
    ],
)
def test_what_torch_refuses_is_not_fused(pull: Callable[..., Any], make: Any, why: str) -> None:
    told = pull(fused_optimizer=True)
    optimizer = make([nn.Parameter(torch.ones(3))])
    optimizer.param_groups[0]["params"][0].grad = torch.ones(3)
    with torch.no_grad() if "differentiable" in why else torch.enable_grad():
        before = dict(optimizer.param_groups[0])
        try:
            optimizer.step()
        except RuntimeError:
            assert "differentiable" in why
    assert told[0]["applied"] is False and told[0]["why"] == why
    assert optimizer.param_groups[0].get("fused") == before.get("fused")


def test_autocast_casts_the_model_and_gives_fp32_back(pull: Callable[..., Any]) -> None:
    seen: list[torch.dtype] = []
    model = net()
    model[0].register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    pull(autocast="bf16")
    out = model(torch.randn(2, 6))
    assert seen == [torch.bfloat16] and out.dtype == torch.float32


def test_fp16_is_scaled_unscaled_before_clipping_and_trains_alike(pull: Callable[..., Any]) -> None:
    plain, _ = train(net())
    told = pull(autocast="fp16")
    losses, optimizer = train(net())
    assert losses == pytest.approx(plain, rel=2e-2)
    assert losses[-1] != losses[0] and told[0]["applied"] is True
    norm = sum(float(p.grad.norm()) ** 2 for g in optimizer.param_groups for p in g["params"]) ** 0.5
    assert norm <= 1.0 + 1e-3  # clipped at 1 as unscaled


def test_a_copy_of_a_changed_model_is_its_own(pull: Callable[..., Any], tmp_path: Path) -> None:
    pull(autocast="bf16")
    model = net()
    model(torch.randn(2, 6))
    average = copy.deepcopy(model)
    with torch.no_grad():
        for p in average.parameters():
            p.zero_()
    assert not average(torch.randn(2, 6)).any() and model(torch.randn(2, 6)).any()
    file = tmp_path / "model.pt"
    torch.save(model, file)
    assert b"gpuwise" not in file.read_bytes()
    assert isinstance(torch.load(file, weights_only=False), nn.Sequential)


def test_set_to_none(pull: Callable[..., Any]) -> None:
    told = pull(set_to_none=True)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(2, 6)).sum().backward()
    optimizer.zero_grad(set_to_none=False)
    assert all(p.grad is None for p in model.parameters()) and told[0]["name"] == "set_to_none"


def test_channels_last(pull: Callable[..., Any]) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3))
    image = torch.randn(2, 3, 8, 8)
    expected = model(image)
    pull(channels_last=True)
    result = model(image)
    torch.testing.assert_close(result, expected)
    assert result.is_contiguous(memory_format=torch.channels_last)
    assert model[0].weight.is_contiguous(), "strides of weights go into files, and safetensors takes no others"


def test_no_dropout(pull: Callable[..., Any]) -> None:
    pull(_no_dropout=True)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.9))
    x = torch.randn(8, 4)
    assert torch.equal(model(x), model[0](x)) and torch.equal(F.dropout(x, 0.5), x)


def test_rounding_noise_is_of_its_unit(pull: Callable[..., Any]) -> None:
    model, x = net(), torch.randn(64, 6)
    expected = model(x)
    pull(_rounding=2.0**-8)
    off = ((model(x) - expected).norm() / expected.norm()).item()
    assert 2.0**-12 < off < 2.0**-6


@pytest.mark.parametrize("augmented", [True, False])
def test_images_are_decoded_once_and_come_out_the_same(
    pull: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, augmented: bool
) -> None:
    images = Images(tmp_path, augmented=augmented)

    def read() -> list[torch.Tensor]:
        random.seed(0)
        return [batch for _ in range(3) for batch, _ in DataLoader(images, batch_size=2)]

    expected = read()
    monkeypatch.setattr("gpuwise.train.levers.decode.CHECKED_HITS", 0)
    told = pull(cache_decode=True)
    decoded: list[int] = []
    loading = PIL.Image.Image.frombytes
    from PIL import PngImagePlugin

    plain = PngImagePlugin.PngImageFile.load_prepare
    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load_prepare", lambda self: decoded.append(1) or plain(self))
    assert all(torch.equal(a, b) for a, b in zip(read(), expected, strict=True))
    assert len(decoded) == len(images) and loading is not None
    assert told[0] == {"event": "lever", "name": "cache_decode", "applied": True}


def test_an_image_changed_in_place_is_no_longer_its_file(pull: Callable[..., Any], tmp_path: Path) -> None:
    path = Images(tmp_path, 1).paths[0]
    pull(cache_decode=True)
    for _ in range(2):
        PIL.Image.open(path).resize((8, 8))
    image = PIL.Image.open(path)
    image.paste(0, (0, 0, 40, 40))
    assert not np.array(image.resize((8, 8))).any()


def test_a_file_that_was_written_anew_is_decoded_anew(pull: Callable[..., Any], tmp_path: Path) -> None:
    path = Images(tmp_path, 1).paths[0]
    pull(cache_decode=True)
    PIL.Image.open(path).load()
    PIL.Image.fromarray(np.zeros((30, 30), np.uint8)).save(path)
    assert not np.array(PIL.Image.open(path)).any()


def test_a_full_cache_keeps_what_it_has(pull: Callable[..., Any], tmp_path: Path) -> None:
    images = Images(tmp_path, 3, augmented=False)
    expected = [images[k][0] for k in range(3)]
    pull(cache_decode=2000)
    for _ in range(2):
        assert all(torch.equal(images[k][0], expected[k]) for k in range(3))


def test_items_that_come_out_the_same_are_kept_and_others_are_not(pull: Callable[..., Any], tmp_path: Path) -> None:
    told = pull(cache_items=True)
    other, made = Images(tmp_path, 12), np.zeros(64, int)

    class Counted(Images):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            made[index] += 1
            return super().__getitem__(index)

    counted = Counted(tmp_path, 12, augmented=False)
    state = random.getstate()
    first = [b.clone() for b, _ in DataLoader(counted, batch_size=2)]
    assert made.sum() == len(counted)
    for b, _ in DataLoader(counted, batch_size=2):
        b.zero_()  # a loop that works in place
    assert all(torch.equal(a, b) for a, (b, _) in zip(first, DataLoader(counted, batch_size=2), strict=True))
    # some hits of each epoch are made again
    assert made.sum() == len(counted) + 2 * CHECKED and random.getstate() == state
    list(DataLoader(other, batch_size=2))
    assert [t["applied"] for t in told] == [True, False] and "draws random numbers" in told[1]["why"]


def test_workers_are_not_given_an_iterable_dataset(pull: Callable[..., Any]) -> None:
    class Stream(IterableDataset):
        def __iter__(self) -> Iterator[int]:
            return iter(range(4))

    told = pull(workers=2)
    assert DataLoader(Stream()).num_workers == 0
    loader = DataLoader(range(8), batch_size=2)  # type: ignore[arg-type]
    assert (loader.num_workers, loader.persistent_workers) == (2, True)
    assert [t["applied"] for t in told] == [False, True]


@pytest.mark.parametrize("newer", [True, False])
def test_allocator_settings_reach_torch_without_a_warning(monkeypatch: pytest.MonkeyPatch, newer: bool) -> None:
    reached: list[tuple[str, str]] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda.memory, "_set_allocator_settings", lambda conf: reached.append(("older", conf)))
    if newer:
        call = lambda conf: reached.append(("newer", conf))  # noqa: E731
        monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", call, raising=False)
    else:
        monkeypatch.delattr(torch._C, "_accelerator_setAllocatorSettings", raising=False)
    apply_levers({"allocator": "expandable_segments:True"}, tell=lambda kind, **values: None).close()
    assert reached == [("newer" if newer else "older", "expandable_segments:True")]


class Wrapper(nn.Module):
    """As Fabric's (lightning.fabric.wrappers._FabricModule): what is set on it is set on the module that it calls too."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.whole = True

    def __setattr__(self, name: str, value: Any) -> None:
        if getattr(self, "whole", False) and hasattr(self.inner, name):
            setattr(self.inner, name, value)
        super().__setattr__(name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def test_a_wrapper_that_hands_on_what_is_set_on_it(pull: Callable[..., Any]) -> None:
    inner = nn.Linear(4, 4)
    pull(autocast="bf16")
    out = Wrapper(inner)(torch.randn(2, 4))
    assert out.dtype is torch.float32 and "forward" not in vars(inner)


@pytest.fixture
def fabric_module() -> Any:
    """Asked for before ``pull``: its import replaces ``torch.compile`` for good."""
    return pytest.importorskip("lightning.fabric")


def test_a_model_that_fabric_set_up(fabric_module: Any, pull: Callable[..., Any]) -> None:
    model, optimizer = nn.Linear(4, 4), None
    fabric = fabric_module.Fabric(accelerator="cpu", devices=1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    pull(autocast="bf16")
    fabric.backward(model(torch.randn(2, 4)).sum())
    optimizer.step()
    assert model.weight.grad is not None
