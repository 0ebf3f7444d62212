from __future__ import annotations

import math

import numpy as np
import pytest

from gpuwise.errors import InputError
from gpuwise.facts.models.trained import known_trained, trained
from gpuwise.predict.parallel.sharding import Sharding, sharded
from gpuwise.workload.capture.captured import Category
from gpuwise.workload.tables.sizes import Sizes, term_of
from gpuwise.workload.tables.table import FOLDER, Made, made, table

PUBLISHED = {  # parameters as the checkpoints' files have them
    "sd-1.5": 859_520_964,
    "sdxl": 2_567_463_684,
    "flux-dev": 11_901_408_320,
    "sd-3.5-medium": 2_243_171_520,
    "sd-3.5-large": 8_056_627_520,
    "wan-2.1-14b": 14_288_491_584,
    "yolov8n": 3_157_200,
    "yolov8x": 68_229_648,
    "detr-r50": 41_501_895,
}


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_a_table_has_the_parameters_of_its_checkpoint(name: str, parameters: int) -> None:
    step = _full(name, 1)
    assert step.parameter_count == parameters
    assert step.trainable_count > 0.94 * parameters


@pytest.mark.parametrize("name", [*trained()])
def test_every_network_has_a_table_and_its_variants(name: str) -> None:
    variants = set(table(name)["variants"])
    network = trained()[name]
    for method in network.methods:
        assert {v for v in variants if v.startswith(method)}, method
    for frozen in (*network.text_encoders, *((network.autoencoder,) if network.autoencoder else ())):
        assert "forward" in table(frozen)["variants"]
    assert network.size % network.multiple == 0 and network.smallest <= network.size <= network.largest


def test_no_table_is_left_without_a_network() -> None:
    used = {*trained(), *(f for t in trained().values() for f in (*t.text_encoders, t.autoencoder))}
    assert {p.name.removesuffix(".json.xz") for p in FOLDER.glob("*.xz")} <= used


def _full(name: str, batch: int, size: float = 0.0, frames: int = 1):
    variants = table(name)["variants"]
    return made(
        name, Made("full", batch, size or table(name)["size"], frames=frames) if "full" in variants else Made("lora", 1, 512)
    )


def test_flop_grow_with_the_batch_and_the_area() -> None:
    one, four, wide = (_full("yolov8n", b, s).flop() for b, s in ((1, 640.0), (4, 640.0), (1, 1280.0)))
    assert four == pytest.approx(4 * one, rel=1e-3) and wide == pytest.approx(4 * one, rel=1e-2)


def test_frames_are_tokens() -> None:
    few, many = (made("wan-2.1-1.3b", Made("lora+recompute", 1, 480.0, frames=f)) for f in (1, 21))
    assert many.flop() > 21 * few.flop()
    assert many.parameter_count == few.parameter_count


def test_a_rank_is_that_of_the_adapters() -> None:
    small, large = (made("sdxl", Made("lora", 1, 1024.0, rank)).trainable_count for rank in (8, 32))
    assert large == 4 * small


def test_recomputing_saves_activations_and_takes_time() -> None:
    plain, again = (made("sdxl", Made(v, 1, 1024.0)) for v in ("lora", "lora+recompute"))
    assert again.peak_bytes() < 0.6 * plain.peak_bytes()
    assert again.flop() > 1.2 * plain.flop()


@pytest.mark.parametrize(("optimizer", "bytes_each"), [("adamw", 8.0), ("adamw8bit", 2.03), ("momentum", 4.0), ("sgd", 0.0)])
def test_states_are_those_of_the_optimizer(optimizer: str, bytes_each: float) -> None:
    step = made("dinov2-s", Made("full", 2, 224.0, optimizer=optimizer))
    states = step.bytes_by_category(len(step.event_op) - 1).get(Category.OPTIMIZER, 0)
    assert states == pytest.approx(bytes_each * step.trainable_count, rel=0.01, abs=1.0)


def test_encoders_run_before_a_step_that_has_nothing_cached() -> None:
    cached, whole = (
        made("sdxl", Made("lora", 1, 1024.0, frozen=frozen)) for frozen in ((), ("clip-l-text", "clip-g-text", "kl-encoder"))
    )
    assert whole.flop() > 1.05 * cached.flop()
    assert 1.5e9 < whole.peak_bytes() - cached.peak_bytes() < 4e9


def test_four_bit_weights_take_less() -> None:
    plain, small = (made("flux-dev", Made("lora+recompute", 1, 1024.0, quantized=q)) for q in (False, True))
    assert plain.peak_bytes() - small.peak_bytes() == pytest.approx(11.9e9 * (2 - 0.516), rel=0.03)


def test_a_step_is_split_as_own_code_is() -> None:
    step = _full("dinov2-b", 8)
    part = sharded(step, Sharding("zero3", 8)).capture
    assert part.peak_bytes() < step.peak_bytes() - 8 * step.trainable_count * 7 / 8


def test_another_variant_is_refused() -> None:
    with pytest.raises(InputError, match="has no lora"):
        made("yolov8n", Made("lora", 1, 640.0))


@pytest.mark.parametrize(
    ("low", "high", "term"),
    [
        (13 * 512 * 64, 13 * 768 * 64, (1, 0, 0, 0, 512 * 64, 1)),
        (13 * 64, 13 * 144, (1, 0, 0, 0, 64, 2)),
        (17 * 320, 17 * 320, (0, 1, 0, 320, 0, 0)),
        (13 * (512 + 1024), 13 * (512 + 2304), (1, 0, 0, 512, 1024, 2)),
    ],
)
def test_a_whole_number_becomes_a_term(low: int, high: int, term: tuple[int, ...]) -> None:
    found = term_of(low, high, 1.5, (13, 17, 1), 2)
    assert tuple(found) == term
    assert Sizes(13, 17, 1, 512, 512).of(found) == low and Sizes(13, 17, 1, 768, 512).of(found) == high


@pytest.mark.parametrize("name", ["sdxl", "SDXL", "flux", "wan", "llava", "yolo", "dinov2", "facebook/dinov2-base", "wav2vec2"])
def test_networks_are_known_by_the_names_people_use(name: str) -> None:
    assert known_trained(name) is not None


def test_a_table_is_the_step_that_torch_runs() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from studies.training_tables.capturing import captured

    real = captured("dinov2-s", "full", recompute=False, half=False, size=308, batch=4)
    step = made("dinov2-s", Made("full", 4, 308.0, optimizer="sgd"))
    span = real.steady
    assert len(step.op_signature) == span.end_op - span.first_op
    assert step.flop() == real.flop()
    assert math.isclose(step.peak_bytes(), real.peak_bytes(), rel_tol=0.02)
    at = np.flatnonzero(step.storage_category == Category.ACTIVATION)
    assert step.storage_bytes[at].sum() == real.storage_bytes[real.storage_category == Category.ACTIVATION].sum()
