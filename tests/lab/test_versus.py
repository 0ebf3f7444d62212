"""One product, measured and predicted: the predictions are those of ``gpuwise op``."""

from __future__ import annotations

import pytest

from gpuwise.facts.hardware.cpus import find_cpu
from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.lab.versus import compare_product, measure_product
from gpuwise.machine.bench.watch import Watch
from gpuwise.predict.kernels import single


def test_the_predicted_rows_say_what_op_says() -> None:
    here, cpu, *cards = compare_product(128, ["4090", "h100-sxm"], find_cpu("EPYC 9654"))[-4:]
    assert here.basis == "measured" and here.time_s > 0 and "EPYC 9654" in cpu.device
    for row, name in zip(cards, ("4090", "h100-sxm"), strict=True):
        assert row.time_s == float(single.matmul(find_accelerator(name), "fp32", 128, 128, 128).time_s[0])
        assert row.copy_s and row.with_copies_s > row.time_s and row.why


def test_larger_products_take_longer() -> None:
    assert measure_product(512) > measure_product(32)


@pytest.mark.parametrize(("busy", "said"), [(0.86, True), (0.01, False), (None, False)])
def test_what_others_took_of_the_cores_is_said(monkeypatch: pytest.MonkeyPatch, busy: float | None, said: bool) -> None:
    conditions = {} if busy is None else {"others_busy": busy}
    monkeypatch.setattr(Watch, "conditions", property(lambda _: conditions))
    assert ("86% of the cores" in compare_product(16, ["4090"])[0].why) is said
