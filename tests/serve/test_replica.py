"""One copy of a model and the choice among the ways to serve it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwise.errors import InputError, UnpredictableError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.hardware.systems import System, default_system
from gpuwise.facts.models.catalogue import find_model
from gpuwise.serve.engines.engine import engine_runs, tensor_parallel
from gpuwise.serve.formats import FORMAT_OF_BITS
from gpuwise.serve.iteration import iteration_time
from gpuwise.serve.replica import EngineReplica, LocalReplica, NoReplica, ReplicaStep, replicas, serve
from gpuwise.serve.simulate import Server
from gpuwise.serve.steady import step_time
from gpuwise.serve.streams import token_time

EIGHT, SEVENTY = find_model("llama-3.1-8b"), find_model("llama-3.1-70b")
WIDEST_FIRST = tuple(FORMAT_OF_BITS.values())


def system(name: str) -> System:
    return find_cluster(name).system


@pytest.mark.parametrize(("model", "per_s"), [("qwen3-8b", 186), ("qwen3-30b-a3b", 147)])
def test_published_decode_of_one_user_under_sglang(model: str, per_s: float) -> None:
    """SafeAILab/EAGLE issue 198 (July 2025), one H200, which nothing was fitted on."""
    config = replace(tensor_parallel(find_model(model), "bf16", 1, "sglang"), version="0.4.8")
    assert 1 / EngineReplica(find_model(model), system("H200-SXM"), config).step(1, 512).expected == pytest.approx(
        per_s, rel=0.15
    )


def served(
    model: str,
    on: str,
    formats: tuple[str, ...] = WIDEST_FIRST,
    ranks: tuple[int, ...] = (1,),
    sequences: int = 1,
    least: float = 0.0,
) -> ReplicaStep:
    arch, where = find_model(model), system(on)
    got = serve(arch, where, formats, ranks, sequences=sequences, context=4096, least_tokens_per_s=least)
    assert isinstance(got, ReplicaStep)
    return got


def test_a_step_is_the_one_of_the_program() -> None:
    engine = served("llama-3.1-8b", "h100-sxm", ("bf16",))
    assert engine.replica.program == "vLLM"
    config = tensor_parallel(EIGHT, "bf16", 1)
    assert engine.step == step_time(Server(EIGHT, system("h100-sxm"), config), 1, 4096)
    kernels = iteration_time(EIGHT, system("h100-sxm"), config, 1, 1, 4096)
    assert engine.step.expected == pytest.approx(kernels.expected, rel=0.1)  # the same kernels under another engine's costs
    local = served("llama-3.1-8b", "m2-ultra", ("bf16",))
    assert (local.replica.program, local.replica.weights) == ("llama.cpp", "F16")
    assert local.step == token_time(EIGHT, accelerators()["apple-m2-ultra"], "F16", context=4096)


def test_the_widest_weights_that_fit_and_are_fast_enough() -> None:
    assert served("llama-3.1-8b", "rtx-4090").replica.weights == "bf16"
    assert served("llama-3.1-8b", "rtx-3060-12gb").replica.weights in ("fp8", "Q8_0")
    assert served("llama-3.1-8b", "rtx-3070").replica.weights in ("int4_wo", "Q4_K_M")
    slow = served("llama-3.1-70b", "m2-ultra")
    fast = served("llama-3.1-70b", "m2-ultra", least=5.3)
    assert slow.replica.weights == "F16" and fast.replica.weights != "F16"
    none = served("llama-3.1-70b", "m2-ultra", least=1e6)  # none is: the narrowest
    assert none.replica.weights == "Q4_K_M"


def test_llama_cpp_serves_one_sequence_only() -> None:
    one, several = (list(replicas(EIGHT, system("rtx-4090"), "bf16", 1, sequences=n)) for n in (1, 2))
    assert [r.program for r in one] == ["vLLM", "llama.cpp"] and [r.program for r in several] == ["vLLM"]
    assert [r.program for r in replicas(EIGHT, system("rtx-4090"), "Q4_0", 1)] == ["llama.cpp"]
    assert [r.program for r in replicas(EIGHT, system("rtx-4090"), "nvfp4", 1)] == ["vLLM"]  # it has no such numbers
    local = LocalReplica(EIGHT, system("rtx-4090"), "Q4_K_M", 1)
    for refused in (lambda: local.step(2, 4096), lambda: local.memory(2, 4096)):
        with pytest.raises(InputError):
            refused()


def test_the_fastest_split_is_taken() -> None:
    best = served("llama-3.1-8b", "8xh100-sxm", ("bf16",), (1, 2, 4, 8))
    for n in (1, 2, 4, 8):
        assert best.step.expected <= served("llama-3.1-8b", "8xh100-sxm", ("bf16",), (n,)).step.expected
    assert best.replica.ranks > 1


def test_more_ranks_than_a_host_are_refused() -> None:
    replica = EngineReplica(EIGHT, system("8xh100-sxm"), tensor_parallel(EIGHT, "bf16", 16))
    for refused in (lambda: replica.step(1, 4096), lambda: replica.prompt(4096), lambda: replica.largest(10, 10)):
        with pytest.raises(InputError):
            refused()


def test_what_nothing_holds_says_by_how_much() -> None:
    got = serve(SEVENTY, system("rtx-4090"), ("bf16", "int4_wo"), (1,), context=4096)
    assert isinstance(got, NoReplica) and got.error is None and got.memory is not None
    assert 10e9 < got.short_bytes == got.memory.total - got.memory.most < 30e9
    widest = serve(SEVENTY, system("rtx-4090"), ("bf16",), (1,), context=4096)
    assert isinstance(widest, NoReplica) and widest.short_bytes > got.short_bytes


def test_a_longer_context_may_not_fit() -> None:
    gemma = find_model("gemma-3-27b")
    fits, not_ = (serve(gemma, system("rtx-4090"), ("int4_wo",), (1,), context=c) for c in (32_768, 131_072))
    assert isinstance(fits, ReplicaStep) and isinstance(not_, NoReplica)


def test_rates_are_inverse_times() -> None:
    got = served("llama-3.1-8b", "h100-sxm", ("bf16",), sequences=8)
    per_s = got.tokens_per_s(8)
    assert per_s == got.step.inverse(8) and per_s.basis == got.step.basis
    assert per_s.low == 8 / got.step.high and per_s.high == 8 / got.step.low
    assert got.tokens_per_s().expected == pytest.approx(per_s.expected / 8)


def test_a_full_replica_reads_and_writes() -> None:
    replica = EngineReplica(EIGHT, system("h100-sxm"), tensor_parallel(EIGHT, "bf16", 1))
    slow, quick = replica.largest(1000, 100), replica.largest(1000, 100, 0.02)
    assert quick.requests_per_s < slow.requests_per_s and quick.sequences < slow.sequences
    assert quick.token_s.expected <= 0.02 < slow.token_s.expected
    step = replica.step(slow.sequences, 1000 + 100 // 2).expected
    assert slow.requests_per_s < slow.sequences / (99 * step)  # without the prompts


def test_an_engine_that_lacks_room_is_told_to_run_fewer() -> None:
    small = EngineReplica(EIGHT, system("rtx-4060-ti-8gb"), tensor_parallel(EIGHT, "int4_wo", 1))
    assert small.server(1, 4096).options.max_num_seqs == 1 and small.memory(1, 4096).fits
    large = EngineReplica(EIGHT, system("h100-sxm"), tensor_parallel(EIGHT, "bf16", 1))
    assert large.server(1, 4096).options.max_num_seqs == 1024 and large.server(2000, 16).options.max_num_seqs == 2000


def test_sequences_that_fit_fill_the_memory() -> None:
    replica = EngineReplica(EIGHT, system("h100-sxm"), tensor_parallel(EIGHT, "bf16", 1))
    most = replica.most_sequences(4096)
    assert replica.memory(int(most), 4096).fits and not replica.memory(int(1.05 * most), 4096).fits
    local = LocalReplica(EIGHT, system("m2-ultra"), "F16", 1)
    memory = local.memory(1, 4096)
    assert local.most_sequences(4096) * memory.cache == pytest.approx(memory.most - memory.weights - memory.workspace)


def test_notes() -> None:
    widened = EngineReplica(EIGHT, system("a100-sxm-80gb"), tensor_parallel(EIGHT, "fp8", 1))
    assert widened.notes and not EngineReplica(EIGHT, system("h100-sxm"), widened.config).notes
    stranger = default_system(accelerators()["snapdragon-8-elite-hexagon"])
    assert LocalReplica(EIGHT, stranger, "Q4_K_M", 1).notes
    assert not LocalReplica(EIGHT, system("rtx-4090"), "Q4_K_M", 1).notes
    assert LocalReplica(EIGHT, system("2x4090"), "Q4_K_M", 2).notes


@pytest.mark.thorough
def test_every_accelerator_is_served_refused_or_unpredictable() -> None:
    """Nothing but the product's own errors comes out, whatever the device lacks."""
    small = find_model("llama-3.2-1b")
    programs: set[str] = set()
    for accelerator in accelerators().values():
        for sequences in (1, 8):
            got = serve(small, default_system(accelerator), WIDEST_FIRST, (1,), sequences=sequences, context=2048)
            if isinstance(got, ReplicaStep):
                programs.add(got.replica.program)
                assert got.memory.fits and 0 < got.step.low < got.step.high
                assert got.replica.program != "vLLM" or engine_runs(accelerator)
            else:
                assert got.error is None or isinstance(got.error, (InputError, UnpredictableError))
    assert programs == {"vLLM", "llama.cpp"}
