import math
import statistics

import pytest

from gpuwise.errors import UnknownNameError
from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.hardware.cpus import find_cpu
from gpuwise.facts.models.catalogue import find_model, find_model_to_run, models
from gpuwise.facts.models.sized import SIZED_LOG_SIGMA, by_size, sizes_in_name
from gpuwise.serve.formats import weight_bytes
from gpuwise.serve.processor import token_time as processor_time
from gpuwise.serve.streams import token_time
from gpuwise.workload.transformer.parameters import count_parameters


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("Tess-4-27B", (27e9, None)),
        ("org/Tess-4-35B-A3B-Q4_K_M.gguf", (35e9, 3e9)),
        ("h2o-danube3-500m-chat", (5e8, None)),
        ("Mellum3-12B-A2.5B", (12e9, 2.5e9)),
        ("Fara1.5-9B-UD-Q4_K_XL.gguf", (9e9, None)),
        ("nobody", None),
        ("two-7b-9b", None),
        ("who-3B-A9B", None),
        ("LFM9-Audio-1.5B", None),
        ("nobody-reranker-4b", None),
        ("bitnet 3B ternary", None),
    ],
)
def test_sizes_are_read_from_a_name(name, sizes):
    assert sizes_in_name(name) == sizes


@pytest.mark.parametrize("name", ["Tess-4-27B", "Tess-4-35B-A3B", "granite-9.1-8b", "nobody-500m", "who_Someone-70B-Q4_K_M.gguf"])
def test_a_model_that_nobody_knows_is_run_by_the_size_in_its_name(name):
    with pytest.raises(UnknownNameError):
        find_model(name)
    arch, sizes = find_model_to_run(name), sizes_in_name(name)
    assert sizes is not None
    count = count_parameters(arch)
    assert count.total == pytest.approx(sizes[0], rel=0.03)
    assert sizes[1] is None or count.active == pytest.approx(sizes[1], rel=0.3)
    assert "is not known and is read as a decoder of" in arch.assumption
    assert arch.open_log_sigma == SIZED_LOG_SIGMA


@pytest.mark.parametrize("name", ["llama-3.1-9b", "qwen2.5-8b", "lama-9b", "qwem3-8b", "my-70b", "mistral-9b", "who-900000b"])
def test_a_size_that_a_known_release_does_not_have_is_not_guessed(name):
    with pytest.raises(UnknownNameError):
        find_model_to_run(name)


def test_the_interval_is_wider_by_what_the_size_leaves_open():
    sized, known, card = find_model_to_run("Tess-4-9B"), find_model("qwen3-8b"), accelerators()["rtx-4090"]
    cpu = find_cpu("i5-12400")
    for wide, narrow in (
        (token_time(sized, card, "Q4_K_M"), token_time(known, card, "Q4_K_M")),
        (processor_time(cpu, sized, "Q4_K_M").time_s, processor_time(cpu, known, "Q4_K_M").time_s),
    ):
        assert wide.log_sigma == pytest.approx(math.hypot(narrow.log_sigma, SIZED_LOG_SIGMA))
        assert wide.basis == "extrapolated"


def test_the_spread_is_that_of_the_catalogue_read_by_size_alone():
    """Each decoder from those of other families: memory to 3 %, time as wide as :data:`SIZED_LOG_SIGMA`."""
    card, apart, memory = accelerators()["rtx-3090"], [], []
    for arch in models().values():
        count = count_parameters(arch)
        if arch.kind != "decoder" or arch.max_seq_len < 32768 or count.total < 3e8:
            continue
        digits = 0 if count.total >= 1e10 else 1
        name = f"someone9-{count.total / 1e9:.{digits}f}b" + f"-a{count.active / 1e9:.{digits}f}b" * (arch.moe is not None)
        sized = by_size(name, [m for m in models().values() if m.family != arch.family])
        if sized is None:
            continue
        memory.append(abs(math.log(weight_bytes(sized, "Q4_K_M") / (weight_bytes(arch, "Q4_K_M")))))
        for context in (512, 8192):
            times = [token_time(a, card, "Q4_K_M", context=context).expected for a in (sized, arch)]
            apart.append(math.log(times[0] / times[1]))
    assert len(memory) > 100
    assert statistics.median(memory) < 0.02
    assert abs(statistics.median(apart)) < 0.05
    assert statistics.pstdev(apart) == pytest.approx(SIZED_LOG_SIGMA, rel=0.25)
