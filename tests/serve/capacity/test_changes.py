"""What single changes bring: the strongest ones alone equal those of all."""

from __future__ import annotations

import pytest

from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.serve.capacity.answer import usual_targets
from gpuwise.serve.capacity.changes import changes
from gpuwise.serve.capacity.configurations import Requirements, layouts
from gpuwise.serve.load.load import Load
from gpuwise.serve.load.workloads import find_workload

GAIN = 0.1


@pytest.mark.parametrize(("on", "count"), [("h100-sxm", 3), ("l40s", 2)])
def test_the_strongest_changes_are_those_of_all(on: str, count: int) -> None:
    arch, system = find_model("llama-3.1-8b"), find_cluster(on).system
    own = next(c for c in layouts(arch, system, 1, Requirements(bits=(8,))))
    load = Load(find_workload("chat"), arch.max_seq_len)
    question = (own, load, usual_targets(load), 10.0)
    every, few = changes(*question, n=200), changes(*question, n=200, strongest=(count, GAIN))

    def strong(found):
        return [c for c in found if c.gain is not None and abs(c.gain) >= GAIN][:count]

    assert strong(few) == strong(every) and len(strong(few)) == count
    assert len(few) < len(every)
