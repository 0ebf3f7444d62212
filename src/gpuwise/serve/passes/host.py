"""The host of passes: how fast it is beside another year's."""

from __future__ import annotations

import math

from gpuwise.predict.coefficients import load_json


def host_pace(year: int, since: int) -> float:
    """Seconds of the host beside an accelerator of ``year`` over those beside one of ``since``. A processor's single thread gets
    faster every year, and a newer accelerator sits in a newer machine: fitted on transcriptions
    (``coefficients/serving/speech.json``)."""
    return math.exp(-load_json("speech")["host_pace_per_year"] * (year - since))
