"""llama.cpp's slots: batches as its authors measured them, and what a person asks of them."""

from __future__ import annotations

import numpy as np
import pytest

from gpuwise.errors import InputError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.predict.coefficients import load_json
from gpuwise.serve.engines.engine import EngineConfig
from gpuwise.serve.engines.settings import Settings
from gpuwise.serve.simulate import Requests, Server
from gpuwise.serve.steady import step_time
from gpuwise.serve.streams import token_time
from studies.serving.llama_batches import CHECKED, SPARK, batch_ratios

ARCH = find_model("llama-3.1-8b")
SPARK_SYSTEM = find_cluster("1xgb10").system


def server(slots: int = 4, weights: str = "Q4_K_M", context: int = 4096) -> Server:
    return Server(ARCH, SPARK_SYSTEM, EngineConfig("llama.cpp", weights), Settings(max_num_seqs=slots, max_model_len=context))


@pytest.mark.parametrize("model", CHECKED)
def test_batches_of_models_kept_from_the_fit(model):
    form = load_json("single_stream")["form"]
    ratios = np.concatenate([batch_ratios(form, b) for b in SPARK if b.model == model])
    assert np.mean(np.abs(ratios - 1)) < 0.3
    assert 0.6 < ratios[0] < 1.2


def test_one_sequence_is_the_token_of_op_decode():
    assert step_time(server(), 1, 1024).expected == pytest.approx(
        token_time(ARCH, SPARK_SYSTEM.accelerator, "Q4_K_M", context=1024).expected, rel=1e-3
    )


def test_requests_wait_for_a_slot():
    n = 24
    load = Requests(np.zeros(n), np.full(n, 100, np.int64), np.full(n, 40, np.int64))
    few, many = (server(slots).run(load) for slots in (2, 24))
    assert few.stretches.decoding.max() == 2
    assert few.saturation == "sequences"
    assert few.mean("ttft") > 3 * many.mean("ttft")
    assert few.mean("tpot") < many.mean("tpot")


def test_slots_that_do_not_fit_say_by_how_much():
    with pytest.raises(InputError, match=r"8 slots of 131,072 tokens .* GiB short") as refused:
        _ = server(8, context=131072).limits
    assert "--context" in (refused.value.hint or "")


@pytest.mark.parametrize("config", [{"weights": "bf16"}, {"weights": "Q8_0", "tp": 2}])
def test_what_llama_cpp_does_not_have(config):
    with pytest.raises(InputError):
        EngineConfig("llama.cpp", **config)


def test_stages_of_other_engines_are_refused():
    with pytest.raises(InputError, match="pipeline stages of trtllm"):
        EngineConfig("trtllm", pp=2)
