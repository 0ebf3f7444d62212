from __future__ import annotations

from dataclasses import replace

from gpuwise.train.tune.candidates import candidates_of
from gpuwise.train.tune.facts import Facts

SHARES = {"data": 0.5, "forward": 0.2, "backward": 0.25, "optimizer": 0.04, "other": 0.01, "copy": 0.0, "save": 0.0}
CPU = Facts(
    device="cpu",
    threads=2,
    cores=2,
    n_workers=0,
    epoch_steps=100,
    shares=SHARES,
    padding=0.6,
    convolutions=True,
    optimizers=("AdamW",),
    dtypes=("float32",),
    compiler=True,
    bf16_units=False,
)
GPU = replace(CPU, device="cuda", capability=(9, 0), bf16_units=None)


def why(facts: Facts) -> dict[str, str | None]:
    return {c.label: c.hopeless for c in candidates_of(facts)}


def test_no_tf32_nor_cuda_advice_on_a_processor() -> None:
    """torch's own pattern matcher told 168 operations of a machine without a GPU to use TF32."""
    found = why(CPU)
    assert found["tf32"] == "not on a CPU"
    assert found["pin_memory"] == found["cudnn_benchmark"] == found["attention=flash"] == "not on a CPU"


def test_tf32_only_where_the_gpu_has_it() -> None:
    assert why(GPU)["tf32"] is None
    assert why(replace(GPU, capability=(7, 5)))["tf32"] == "this GPU has no TF32"
    assert why(replace(GPU, capability=None))["tf32"] is not None


def test_bf16_is_not_tried_where_nothing_multiplies_it() -> None:
    assert "no bf16 units" in str(why(CPU)["autocast=bf16"])
    assert why(replace(CPU, bf16_units=True))["autocast=bf16"] is None
    assert why(GPU)["autocast=bf16"] is None
    assert why(replace(GPU, capability=(7, 0)))["autocast=fp16"] is None
    assert why(replace(GPU, capability=(7, 0)))["autocast=bf16"] is not None


def test_bf16_is_tried_with_channels_last_where_there_are_convolutions() -> None:
    """Alone, each lost; both together were 1.63x."""
    able = replace(CPU, bf16_units=True)
    together = next(c for c in candidates_of(able) if c.label == "autocast=bf16 with channels_last")
    assert together.beside == {"channels_last": True} and together.hopeless is None
    assert not any(c.beside for c in candidates_of(replace(able, convolutions=False)))
    assert not any(c.beside for c in candidates_of(CPU)), "no bf16 units"


def test_loader_levers_only_where_data_is_waited_for() -> None:
    assert why(CPU)["workers=2"] is None
    busy = replace(CPU, shares={**SHARES, "data": 0.01, "forward": 0.69})
    assert "waiting for data is 1.0% of the step" in str(why(busy)["workers=2"])
    assert "at most 1.0 %" in str(why(busy)["cache_decode"])


def test_the_ceiling_is_what_the_share_allows() -> None:
    by_name = {c.label: c.ceiling for c in candidates_of(CPU)}
    assert by_name["workers=2"] == 1 / (1 - 0.5)
    assert by_name["trim_padding"] == 1 / (1 - 0.6 * (0.2 + 0.25 + 0.01))
    assert by_name["compile=regional"] is None


def test_what_the_script_does_itself_is_not_done_again() -> None:
    own = replace(CPU, compiled=True, fused=True, autocast="bfloat16", n_workers=2)
    found = why(own)
    assert found["compile=regional"] == "the script compiles itself"
    assert found["fused_optimizer"] == "the optimizer is fused already"
    assert found["autocast=bf16"] == "the script casts to bfloat16 itself"
    assert found["workers=2"] == "the loader has 2 workers already"
    assert found["prefetch=4"] is None


def test_only() -> None:
    assert {c.lever.name for c in candidates_of(CPU, ("compile",))} == {"compile"}


def test_caches_are_tried_only_where_they_are_asked_for() -> None:
    """They act from the second epoch on, after the steps that are compared."""
    for name in ("cache_items", "cache_decode"):
        assert f"--only {name}" in str(why(CPU)[name])
        assert [c.hopeless for c in candidates_of(CPU, (name,))] == [None]


def test_levers_of_the_largest_share_come_first() -> None:
    """fsq_autoencoder waits for data for 27 % of a step; compilation had the minutes before its workers were tried."""
    waits = replace(CPU, bf16_units=True, shares={**SHARES, "data": 0.27, "forward": 0.3, "backward": 0.33, "optimizer": 0.1})
    order = [c.label for c in candidates_of(replace(waits, padding=None)) if c.hopeless is None]
    assert order.index("workers=2") < order.index("autocast=bf16") < order.index("compile=regional")
    computes = replace(waits, shares={**SHARES, "data": 0.05, "forward": 0.4, "backward": 0.44, "optimizer": 0.11})
    order = [c.label for c in candidates_of(replace(computes, padding=None)) if c.hopeless is None]
    assert order.index("autocast=bf16") < order.index("fused_optimizer") < order.index("workers=2")
