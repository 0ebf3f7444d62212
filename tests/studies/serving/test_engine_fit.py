"""What the serving fits found lies between their bounds, not on one: a cost on its bound is the bound's, not the rows'."""

import pytest

from gpuwise.predict.coefficients import load_json
from studies.serving import client_fit, engine_fit

BOUNDS = {
    "iterations": dict(zip(engine_fit.NAMES, zip(engine_fit.LOW, engine_fit.HIGH, strict=True), strict=True)),
    "throughput": dict(zip(engine_fit.STEP, zip(engine_fit.STEP_LOW, engine_fit.STEP_HIGH, strict=True), strict=True)),
    "clients": {n: (client_fit.LOW[n], client_fit.HIGH[n]) for n in client_fit.LOW},
}


@pytest.mark.parametrize("fit", BOUNDS)
def test_no_cost_lies_on_a_bound_of_its_fit(fit: str) -> None:
    entries = [e | part for e in load_json("load")["engines"] for part in ({}, e.get("in_process", {}))]
    for entry in entries:
        for name, value in {**entry["costs"], **entry["front"]}.items():
            for bound in BOUNDS[fit].get(name, ()):
                assert abs(value / bound - 1.0) > 0.005, (entry["engine"], entry["since"], name)
