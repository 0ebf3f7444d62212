"""A model's speed as another program measured it (llama-bench, Ollama, MLX LM, vLLM): as a record, and beside the prediction."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.cpus import Cpu
from gpuwise.facts.models.architecture import Architecture
from gpuwise.predict.coefficients import load_json
from gpuwise.predict.estimate import Estimate
from gpuwise.records.record import Record, Value
from gpuwise.serve import processor, streams
from gpuwise.serve.engines.engine import ENGINES, LOCAL_ENGINE
from gpuwise.workload.transformer.parameters import count_parameters

KINDS = ("decode", "prompt", "total")
"""What was timed: writing tokens, reading a prompt, all tokens of many requests together. They are families of records."""


@dataclass(frozen=True, slots=True)
class MeasuredSpeed:
    """One speed of one model. Rates are of one sequence, but the ``total``."""

    kind: str
    """One of :data:`KINDS`."""
    program: str
    """``llama-bench``, ``ollama``, ``mlx_lm``, ``vllm bench``."""
    engine: str
    """In :data:`gpuwise.serve.engines.ENGINES`."""
    tokens_per_s: float
    tokens: int
    """Written, or of the prompt."""
    before: int = 0
    """In the cache when it began."""
    sigma_tokens_per_s: float = 0.0
    """Standard deviation of the samples; 0 for one sample."""
    samples: int = 1
    sequences: int = 1
    """At once."""
    model: str = ""
    """As the program names it: a file or a name; empty where it names none."""
    weights: str = ""
    """Format as the program names it; empty where it names none."""
    on_processor: bool = False
    gpus: tuple[str, ...] = ()
    """Names of the GPUs; empty where the program names none."""
    processor: str = ""
    """Its name, of a program that reports it."""
    whole: bool = True
    """All of it on the device, with a cache of 16 bits: as it is predicted."""
    build: str = ""

    @property
    def context(self) -> float:
        """Tokens in the cache, on the average over what was written."""
        return self.before + self.tokens / 2 if self.kind == "decode" else float(self.before)

    @property
    def time_s(self) -> float:
        """Seconds of a token, or of the prompt."""
        return (1 if self.kind == "decode" else self.tokens) / self.tokens_per_s


def plain(device: Accelerator | Cpu) -> Accelerator | Cpu:
    """``device`` as one of its kind, without this machine's corrections."""
    return replace(device, corrections={})


def predicted(
    speed: MeasuredSpeed, arch: Architecture, device: Accelerator | Cpu, weights: str, n_devices: int = 1
) -> Estimate | None:
    """Tokens a second that ``device`` is predicted to have; None for what is not predicted: several sequences, engines without a
    prediction of one sequence, a part in the host's memory, prompts on a processor."""
    engine = ENGINES.get(speed.engine)
    if engine is None or not engine.streams or speed.kind == "total" or speed.sequences > 1 or not speed.whole:
        return None
    try:
        if isinstance(device, Cpu):
            if speed.kind != "decode" or engine.name != LOCAL_ENGINE:
                return None
            return processor.token_time(device, arch, weights, context=max(speed.context, 1.0)).time_s.inverse()
        if speed.kind == "decode":
            context = max(speed.context, 1.0)
            time = streams.token_time(arch, device, weights, context=context, n_devices=n_devices, engine=engine)
            return time.inverse()
        form = load_json(engine.streams)["form"]
        seconds = streams.prompt_time(form, arch, device, weights, batch=engine.prompt_batch)(speed.tokens, float(speed.before))
        return Estimate.from_log_sigma(seconds, *streams.prompt_spread(device, engine)).inverse(speed.tokens)
    except GpuwiseError:
        return None


def shape_of(arch: Architecture) -> dict[str, Value]:
    """What makes two models the same for their speed."""
    return {"layers": arch.n_layers, "hidden": arch.hidden, "parameters": float(count_parameters(arch).total)}


def record_of(
    speed: MeasuredSpeed,
    arch: Architecture,
    weights: str,
    *,
    asked: str,
    device: str,
    device_name: str,
    accelerator: str | None,
    n_devices: int,
    at_s: float,
) -> Record:
    """``speed`` as a record of the device; ``asked`` is the model as it was named, by which it can be found again."""
    size = f"{speed.tokens}-d{speed.before}"
    more = (f"-x{speed.sequences}" if speed.sequences > 1 else "") + ("" if speed.whole else "-part")
    half = 1.96 * speed.sigma_tokens_per_s / speed.samples**0.5 if speed.samples > 1 else None
    return Record(
        at_s=at_s,
        measurement=f"{speed.kind}-{speed.engine}-{arch.id}-{weights}-{size}{more}",
        family=speed.kind,
        device=device,
        device_name=device_name,
        accelerator=accelerator,
        dtype=weights,
        parameters={
            "model": asked,
            **shape_of(arch),
            "engine": speed.engine,
            "tokens": speed.tokens,
            "before": speed.before,
            "sequences": speed.sequences,
            "devices": n_devices,
            "whole": speed.whole,
        },
        unit="1/s",
        value=speed.tokens_per_s,
        low=None if half is None else max(speed.tokens_per_s - half, 0.0),
        high=None if half is None else speed.tokens_per_s + half,
        samples=speed.samples,
        time_s=speed.time_s,
        conditions={"program": speed.program, "build": speed.build},
    )


def speed_of(record: Record) -> MeasuredSpeed:
    """The speed in a record that :func:`record_of` made."""
    p, c = record.parameters, record.conditions
    assert record.value is not None
    return MeasuredSpeed(
        record.family,
        str(c.get("program")),
        str(p.get("engine")),
        record.value,
        int(p.get("tokens") or 1),
        int(p.get("before") or 0),
        samples=record.samples,
        sequences=int(p.get("sequences") or 1),
        model=str(p.get("model")),
        weights=record.dtype,
        on_processor=record.device == "cpu",
        whole=bool(p.get("whole")),
        build=str(c.get("build")),
    )
