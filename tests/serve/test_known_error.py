"""An answer says where an engine was never compared with a run of such a model on such a GPU, and where it is known to be off."""

import datetime

import pytest

from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.pick.compare.comparison import compare_accelerators
from gpuwise.predict.coefficients import load_json
from gpuwise.serve.engines.engine import tensor_parallel
from gpuwise.serve.replica import EngineReplica
from gpuwise.serve.simulate.front import BIAS, kind_of, known_error

TODAY = datetime.date(2026, 11, 28)


@pytest.mark.parametrize(
    ("engine", "model", "gpu", "said"),
    [
        ("sglang", "deepseek-v3", "mi300x", "SGLang with latent attention on MI300X took 2.38 times the time predicted in 2 "),
        ("vllm", "deepseek-r1", "h200-sxm-141gb", "took 1.25 times the time predicted in 1 measured run of DeepSeek-R1"),
        ("vllm", "deepseek-v3", "h200-sxm-141gb", "took 1.25 times"),
        ("vllm", "kimi-k2", "h200-sxm-141gb", None),
        ("sglang", "deepseek-v3", "h200-sxm-141gb", None),
        ("vllm", "llama-3.1-8b", "h100-sxm-80gb", None),
        ("vllm", "llama-3.1-8b", "l4", "vLLM with dense layers on L4 was never checked"),
        ("llama.cpp", "llama-3.1-8b", "l4", None),
    ],
)
def test_what_is_known_of_an_error_is_said(engine: str, model: str, gpu: str, said: str | None) -> None:
    text = known_error(find_model(model), accelerators()[gpu], engine)
    assert text is None if said is None else text is not None and said in text


def test_every_answer_says_it_in_the_same_words() -> None:
    model, card = find_model("llama-3.1-8b"), find_cluster("l4")
    said = known_error(model, card.accelerator, "vllm")
    assert said in EngineReplica(model, card.system, tensor_parallel(model, "fp8", 1)).notes  # pick and op decode
    assert said in compare_accelerators(("l4", "h100-sxm"), model=model, purpose="infer", today=TODAY).notes


def test_the_table_names_what_the_catalogue_has() -> None:
    kinds = {kind_of(find_model(m)) for m in ("llama-3.1-8b", "mixtral-8x7b", "deepseek-v3")}
    for by_device in load_json("load")["checked"].values():
        assert set(by_device) <= set(accelerators())
        for kind, rows in (cell for found in by_device.values() for cell in found.items()):
            assert kind in kinds and all(runs > 0 for _, _, runs, _ in rows)
            assert not rows or any(not 1 / BIAS <= ratio <= BIAS for *_, ratio in rows)
