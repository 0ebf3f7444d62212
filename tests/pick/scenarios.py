"""Picks several tests look at, each made once a session."""

from __future__ import annotations

import datetime
from functools import cache

from gpuwise.facts.models.catalogue import find_model
from gpuwise.pick.api import Pick, pick
from gpuwise.pick.jobs import ModelJob, serving_job, training_job
from gpuwise.pick.limits import Limits
from gpuwise.pick.tries import Predictions

TODAY = datetime.date(2026, 11, 21)
KNOWN = Predictions()


def finetune_8b() -> ModelJob:
    return training_job(find_model("llama-3.1-8b"), purpose="finetune")


def chat_70b(**more: object) -> ModelJob:
    return serving_job(find_model("llama-3.1-70b"), **more)  # type: ignore[arg-type]


@cache
def picked(job: ModelJob, limits: Limits, top: int = 10) -> Pick:
    return pick(job, limits, today=TODAY, top=top, known=KNOWN)
