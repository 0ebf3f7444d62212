"""Serving on a real GPU beside what is predicted: large products under the power limit, decode steps and prompts of decoders in
CUDA graphs, batches of encoders, and ``transformers serve`` with continuous batching under ``gpuwise capacity --measure``.

python benchmarks/gpu/serving/serving.py --predict benchmarks/records/gpu/serving_predictions_DATE.json   (anywhere, beforehand)
python benchmarks/gpu/serving/serving.py --out serving.jsonl --budget 90 --only clock,steps,server         (on the GPU)
python benchmarks/gpu/serving/serving.py --learn serving.jsonl                                             (anywhere, afterwards)

Weights are random, of the shapes of the catalogue. Each line of the output is one item, written as soon as it is measured, with
the prediction that was written down beforehand; an item that fails is a line with its traceback. ``--tiny`` shrinks every shape
and runs on the CPU: a rehearsal, whose times say nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from clock import measure_clock, predict_clock
from steps import MIXED, STEPS, check_kernels, measure_mixed, measure_steps, predict_steps
from timing import OverTimeError, Rows, attempt, both, captured, device, free_memory, queued_s, torch_memory, wall_s
from transformers_server import await_server, save_flash, start_server, stop

ROOT = Path(__file__).parents[3]
ON = "H100-SXM"
PREDICTIONS = "serving_predictions_*.json"
DECODERS = ("llama-3.2-1b", "llama-3.1-8b")
CONTEXT = 1024
DECODE_BATCHES = (1, 8, 32, 64)
STOCK_BATCHES = (1, 32)
"""Batches that are also decoded with the attention of ``transformers`` as it is (sdpa under a mask, repeated key-value heads)."""
PROMPT = 2048
PROMPT_BATCHES = (1, 4)
ENCODERS = {"bert-base": 128, "vit-b-16": None, "resnet-50": None, "whisper-small": 100}
"""Tokens of a passage, and those written of a window of speech."""
ENCODER_BATCHES = (1, 8, 32)
SERVED = "llama-3.2-1b"
LENGTHS = "in=256,out=64"
SERVED_CONTEXT = 2048
LOADS = ((6.0, 5.0), (24.0, 3.0), (100.0, 2.5))
"""Requests a second and for how many seconds: the first is learnt from, the last is more than the server carries."""
STOCK_LOADS = (LOADS[0], LOADS[-1])
"""Of the server with the attention of ``transformers`` as it is."""
WARM_UP = (40.0, 1.5)
MOST_REQUESTS = 400
ITEM_S = {
    "clock": 20.0,
    "mixed": 12.0,
    "steps": 25.0,
    "fused": 25.0,
    "static": 45.0,
    "encoders": 12.0,
    "server": 45.0,
    "stock": 60.0,
}
"""Longest time of an item."""
TINY = {"hidden": 64, "ffn": 128, "n_layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "vocab": 512}


# --- what is predicted -------------------------------------------------------------------------------------------------------


def predict() -> dict[str, Any]:
    """Every item's prediction by its name, from the functions that the commands print."""
    from gpuwise.facts.hardware.naming import USUAL, find_cluster
    from gpuwise.facts.models.catalogue import find_model
    from gpuwise.facts.models.convnets import known_convnet
    from gpuwise.serve.engines.engine import EngineConfig
    from gpuwise.serve.iteration import iteration_time, one_iteration
    from gpuwise.serve.passes.capacity import kind_of

    cluster = find_cluster(ON, prefer=USUAL)
    system, config = cluster.system, EngineConfig()
    found: dict[str, Any] = {}

    def step(name: str, model: str, batch: int, q_len: int, kv_len: int) -> None:
        arch = find_model(model)
        device = one_iteration(arch, system, config, batch, q_len, kv_len)
        whole = iteration_time(arch, system, config, batch, q_len, kv_len)
        found[name] = {
            "kernels_s": float(device.kernels_s[0]),
            "attention_s": float(device.attention_s[0]),
            "engine_s": {"low": whole.low, "expected": whole.expected, "high": whole.high},
        }

    for model in DECODERS:
        for batch in DECODE_BATCHES:
            step(decode_name(model, batch), model, batch, 1, CONTEXT)
            if batch in STOCK_BATCHES:
                found[decode_name(model, batch, "sdpa")] = found[decode_name(model, batch)]
            command = ["op", "decode", model, "--on", ON, "--weights", "bf16", "--batch", str(batch), "--context", str(CONTEXT)]
            document = gpuwise([*command, "--json"])
            found[decode_name(model, batch)]["op_decode_s"] = document["rows"][0]["time_s"]
        for batch in PROMPT_BATCHES:
            step(prompt_name(model, batch), model, batch, PROMPT, PROMPT)
    for model, tokens in ENCODERS.items():
        net = known_convnet(model)
        arch = None if net is not None else find_model(model)
        for batch in ENCODER_BATCHES:
            name = encoder_name(model, batch)
            if net is not None:
                found[name] = {"batch_s": kind_of(net, "vision").times(net, cluster, 0, None).of(batch)}
            elif arch is not None and arch.encoder is not None:
                found[name] = {"batch_s": kind_of(arch, "speech").times(arch, cluster, tokens or 0, None).of(batch)}
            elif arch is not None:
                length = tokens or (arch.patches.n_tokens if arch.patches else 0)
                kernels = one_iteration(arch, system, config, batch, length, length)
                times = kind_of(arch, "embed").times(arch, cluster, length, None)
                found[name] = {"batch_s": times.of(batch), "kernels_s": float(kernels.kernels_s[0])}
    found |= predict_clock(system.accelerator) | predict_steps(system)
    for rate, seconds in LOADS:
        found[load_name("flash", rate)] = found[load_name("sdpa", rate)] = predicted_load(rate, seconds, 1.0)
    return found


def predicted_load(rate: float, seconds: float, slowdown: float) -> dict[str, Any]:
    """What ``gpuwise capacity`` predicts of vLLM under the load that is sent, where all its times are ``slowdown`` longer."""
    from gpuwise.cli.capacity.command import Constraints, Traffic, question, wanted_of
    from gpuwise.facts.hardware.naming import USUAL, find_cluster
    from gpuwise.facts.models.catalogue import find_model
    from gpuwise.serve.capacity.answer import Question, capacity_on
    from gpuwise.serve.capacity.rate import full_rate, operate, value_of
    from gpuwise.serve.measure.comparison import USUAL as FIGURES

    arch, held = find_model(SERVED), Constraints(weights="16", context=SERVED_CONTEXT)
    load, targets, demand = question(arch, Traffic(workload=LENGTHS, rate=f"{rate:g}/s"), held)
    wanted = replace(wanted_of(held, load), slowdown=slowdown)
    today = datetime.datetime.now(datetime.UTC).date()
    asked = Question(arch, find_cluster(ON, prefer=USUAL), load, targets, demand, today, wanted)
    answer = capacity_on(asked, explain=False)
    limit = answer.served.limit if answer.served is not None else answer.miss.limit if answer.miss is not None else None
    assert limit is not None
    n = sent_requests(rate, seconds)
    point = operate(limit.configuration, load, rate, targets, n)
    run = point.run
    return {
        "slowdown": slowdown,
        "saturated": point.saturated,
        "answered_per_s": n / float((run.arrival_s + run.e2e_s).max() - run.arrival_s.min()),
        "full_per_s": full_rate(limit.configuration, load, n),
        "latency_s": {f"{m}_p{p:g}": value_of(run, m, p) for m, p in FIGURES},
    }


def sent_requests(rate: float, seconds: float) -> int:
    return max(min(MOST_REQUESTS, round(rate * seconds)), 1)


def decode_name(model: str, batch: int, attention: str = "flash") -> str:
    return f"decode {model} batch {batch} context {CONTEXT}" + ("" if attention == "flash" else f" {attention}")


def prompt_name(model: str, batch: int) -> str:
    return f"prefill {model} {batch} x {PROMPT}"


def encoder_name(model: str, batch: int) -> str:
    return f"{model} batch {batch}"


def load_name(attention: str, rate: float) -> str:
    return f"serve {SERVED} {attention} {rate:g}/s"


def gpuwise(words: list[str], timeout: float = 60.0, home: Path | None = None) -> dict[str, Any]:
    """The JSON document of a command, whatever its exit code; one that says an error raises."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    if home is not None:
        env["GPUWISE_HOME"] = str(home)
    run = subprocess.run(
        [sys.executable, "-m", "gpuwise", *words], env=env, capture_output=True, text=True, timeout=timeout, check=False
    )
    lines = run.stdout.strip().splitlines()
    if not lines:
        raise RuntimeError(f"gpuwise {' '.join(words)}: exit code {run.returncode}: {run.stderr[-2000:]}")
    document: dict[str, Any] = json.loads(lines[-1])
    if "error" in document:
        raise RuntimeError(f"gpuwise {' '.join(words)}: {document}")
    return document


# --- decoders -----------------------------------------------------------------------------------------------------------------


def unmasked_attention(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, scaling: float | None = None, **_: Any
) -> tuple[Any, None]:
    """Attention without a mask: one query sees the whole cache, a token of a prompt what is before it, one of an encoder all;
    key-value heads are not repeated."""
    from torch.nn.functional import scaled_dot_product_attention

    grouped, causal = key.shape[1] != query.shape[1], query.shape[2] > 1 and bool(module.is_causal)
    found = scaled_dot_product_attention(query, key, value, scale=scaling, is_causal=causal, enable_gqa=grouped)
    return found.transpose(1, 2).contiguous(), None


def decoder(model: str, tiny: bool, attention: str) -> Any:
    """A causal model of the catalogue's shape with random weights in bf16 on the device, its configuration's eos left out."""
    import torch
    from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

    from gpuwise.facts.models.catalogue import find_model

    AttentionInterface.register("unmasked", unmasked_attention)
    arch = find_model(model)
    size = {name: TINY[name] if tiny else getattr(arch, name) for name in TINY}
    config = LlamaConfig(
        vocab_size=size["vocab"],
        hidden_size=size["hidden"],
        intermediate_size=size["ffn"],
        num_hidden_layers=size["n_layers"],
        num_attention_heads=size["heads"],
        num_key_value_heads=size["kv_heads"],
        head_dim=size["head_dim"],
        max_position_embeddings=131072,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        tie_word_embeddings=arch.tied_embeddings,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=None,
    )
    config._attn_implementation = attention
    torch.manual_seed(0)
    was = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device()):
            return LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(was)


def step_of(model: Any, batch: int, q_len: int, kv_len: int) -> Callable[[], Any]:
    """One forward pass of ``q_len`` new tokens of each of ``batch`` sequences, the last of ``kv_len``, and the next tokens."""
    import torch
    from transformers import StaticCache

    where = device()
    cache = StaticCache(config=model.config, max_cache_len=kv_len)
    ids = torch.randint(3, model.config.vocab_size, (batch, q_len), device=where)
    positions = torch.arange(kv_len - q_len, kv_len, device=where).unsqueeze(0)

    def run() -> Any:
        with torch.inference_mode():  # of the counter too: on a GPU it was made inside
            for layer in cache.layers:
                if layer.is_initialized:
                    layer.cumulative_length.fill_(kv_len - q_len)
            logits = model(input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            return logits.argmax(-1)

    # The first run allocates the cache at its beginning; later ones write its end.
    run()
    for layer in cache.layers:
        with torch.inference_mode():
            layer.keys.normal_()
            layer.values.normal_()
    run()
    return run


def measure_decoder(rows: Rows, name: str) -> None:
    """Decode steps and prompts of one decoder."""
    tiny = rows.tiny
    model = decoder(name, tiny, "unmasked")
    rows.add(f"{name} built", {"parameters": sum(p.numel() for p in model.parameters())})
    context, prompt = (64, 32) if tiny else (CONTEXT, PROMPT)
    with torch_memory():
        for batch in DECODE_BATCHES:
            attempt(rows, decode_name(name, batch), lambda batch=batch: both(step_of(model, batch, 1, context)))
        for batch in PROMPT_BATCHES:
            attempt(rows, prompt_name(name, batch), lambda batch=batch: both(step_of(model, batch, prompt, prompt), each=3))
        model.set_attn_implementation("sdpa")
        for batch in STOCK_BATCHES:
            attempt(rows, decode_name(name, batch, "sdpa"), lambda batch=batch: both(step_of(model, batch, 1, context)))


def measure_fused(rows: Rows, name: str) -> None:
    """Decode steps and prompts of one decoder as an engine runs them, in CUDA graphs: what is predicted of its kernels."""
    from fused_decoder import FusedDecoder, Shape

    from gpuwise.facts.models.catalogue import find_model

    shape = Shape.of(find_model(name))
    model = FusedDecoder(replace(shape, **TINY) if rows.tiny else shape, device())
    context, prompt = (64, 32) if rows.tiny else (CONTEXT, PROMPT)

    def one(batch: int, q_len: int, kv_len: int) -> dict[str, float]:
        graph = captured(model.step(batch, q_len, kv_len))
        return {"graph_s": queued_s(graph, 3 if q_len > 1 else 10), "graph_awaited_s": wall_s(graph)}

    for batch in DECODE_BATCHES:
        attempt(rows, decode_name(name, batch) + " fused", lambda batch=batch: one(batch, 1, context), decode_name(name, batch))
    for batch in PROMPT_BATCHES:
        attempt(
            rows, prompt_name(name, batch) + " fused", lambda batch=batch: one(batch, prompt, prompt), prompt_name(name, batch)
        )


# --- encoders -----------------------------------------------------------------------------------------------------------------


def encoder_run(name: str, batch: int, tiny: bool, models: dict[str, Any]) -> Callable[[], Any]:
    """A forward pass of a batch, in bf16."""
    import torch

    where = device()
    if name not in models:
        models[name] = build_encoder(name, tiny).to(where, torch.bfloat16).eval()
    model = models[name]
    if name == "bert-base":
        ids = torch.randint(3, model.config.vocab_size, (batch, 16 if tiny else ENCODERS[name]), device=where)
        run = lambda: model(input_ids=ids).last_hidden_state  # noqa: E731
    else:
        size = 32 if tiny else 224
        pixels = torch.randn(batch, 3, size, size, device=where, dtype=torch.bfloat16)
        if name == "resnet-50":
            model.to(memory_format=torch.channels_last)
            pixels = pixels.contiguous(memory_format=torch.channels_last)
            run = lambda: model(pixels)  # noqa: E731
        else:
            run = lambda: model(pixel_values=pixels).last_hidden_state  # noqa: E731

    def quiet() -> Any:
        with torch.inference_mode():
            return run()

    return quiet


def build_encoder(name: str, tiny: bool) -> Any:
    import torch
    from transformers import AttentionInterface, BertConfig, BertModel, ViTConfig, ViTModel

    torch.manual_seed(0)
    small: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    if name == "bert-base":
        AttentionInterface.register("unmasked", unmasked_attention)
        config = BertConfig(**(small if tiny else {}))
        config._attn_implementation = "unmasked"  # while a graph is captured transformers makes a mask of ones
        return BertModel(config)
    if name == "vit-b-16":
        return ViTModel(ViTConfig(**(small | {"image_size": 32} if tiny else {})), add_pooling_layer=False)
    import torchvision

    return torchvision.models.resnet18() if tiny else torchvision.models.resnet50()


def measure_encoder(rows: Rows, name: str) -> None:
    models: dict[str, Any] = {}

    def one(batch: int) -> dict[str, Any]:
        times = both(encoder_run(name, batch, rows.tiny, models))
        return times | {"items_per_s": batch / times["graph_awaited_s"]}

    for batch in ENCODER_BATCHES:
        attempt(rows, encoder_name(name, batch), lambda batch=batch: one(batch))


def measure_speech(rows: Rows, name: str) -> None:
    """The encoder over each window, and one step of the decoder half way; a batch is the encoder and all its steps."""
    import torch
    from transformers import EncoderDecoderCache, StaticCache, WhisperConfig, WhisperForConditionalGeneration
    from transformers.modeling_outputs import BaseModelOutput

    from gpuwise.facts.models.catalogue import find_model
    from gpuwise.serve.passes.speech import PROMPT_TOKENS

    where, arch, tokens = device(), find_model(name), ENCODERS[name] or 0
    layers, width, heads, ffn = (2, 64, 4, 128) if rows.tiny else (arch.n_layers, arch.hidden, arch.heads, arch.ffn)
    heard = 50 if rows.tiny else 1500
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=arch.vocab,
        d_model=width,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=ffn,
        decoder_ffn_dim=ffn,
        max_source_positions=heard,
    )
    config._attn_implementation = "sdpa"
    model = WhisperForConditionalGeneration(config).to(where, torch.bfloat16).eval()
    held = PROMPT_TOKENS + tokens
    half_way = PROMPT_TOKENS + tokens // 2

    def one(batch: int) -> dict[str, Any]:
        sound = torch.randn(batch, config.num_mel_bins, 2 * heard, device=where, dtype=torch.bfloat16)

        def listen() -> Any:
            with torch.inference_mode():
                return model.model.encoder(sound).last_hidden_state

        encoded = BaseModelOutput(last_hidden_state=listen())
        own, cross = StaticCache(config=config, max_cache_len=held), StaticCache(config=config, max_cache_len=heard)
        cache = EncoderDecoderCache(own, cross)
        ids = torch.randint(3, arch.vocab, (batch, 1), device=where)
        positions = torch.full((1, 1), half_way, device=where)

        def write() -> Any:
            with torch.inference_mode():
                for layer in own.layers:
                    if layer.is_initialized:
                        layer.cumulative_length.fill_(half_way)
                found = model(
                    encoder_outputs=encoded,
                    decoder_input_ids=ids,
                    decoder_position_ids=positions,
                    past_key_values=cache,
                    use_cache=True,
                )
                return found.logits.argmax(-1)

        write()
        write()
        first, step = both(listen), both(write)
        total = first["graph_awaited_s"] + tokens * step["graph_awaited_s"]
        return {"encoder": first, "step": step, "graph_s": total, "items_per_s": batch / total}

    for batch in ENCODER_BATCHES:
        attempt(rows, encoder_name(name, batch), lambda batch=batch: one(batch))


# --- a server -----------------------------------------------------------------------------------------------------------------


def save_served(folder: Path, tiny: bool) -> None:
    """A model folder: random weights, and a tokenizer that holds each word of a load test as one token."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from gpuwise.serve.measure.prompts import WORDS

    model = decoder(SERVED, tiny, "sdpa")
    vocabulary = {word: i for i, word in enumerate(("<unk>", "<s>", "</s>", *WORDS))}
    for i in range(len(vocabulary), model.config.vocab_size):
        vocabulary[f"word{i}"] = i
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>").save_pretrained(folder)
    model.save_pretrained(folder)


def send_load(url: str, model: str, rate: float, seconds: float, home: Path, *, keep: bool) -> dict[str, Any]:
    """``gpuwise capacity --measure`` as a person runs it."""
    words = ["capacity", SERVED, "--on", ON, "--weights", "16", "--workload", LENGTHS, "--context", str(SERVED_CONTEXT)]
    words += ["--rate", f"{rate:g}/s", "--measure", url, "--served-model", model, "--seconds", f"{seconds:g}s", "--stall", "20s"]
    words += ["--requests", str(MOST_REQUESTS), "--json"] + ([] if keep else ["--no-save"])
    return gpuwise(words, timeout=seconds + 45.0, home=home)


def kept_records(home: Path) -> list[dict[str, Any]]:
    """The records that a measured load left for ``--calibrated``."""
    import dataclasses

    from gpuwise.records.store import Records
    from gpuwise.serve.measure.comparison import FAMILY

    with Records(home / "records.db", create=False) as store:
        return [dataclasses.asdict(dataclasses.replace(record, run=None)) for record in store.query(family=FAMILY)]


def learn(out: Path) -> None:
    """What the predictor learns of the first load of each server, and what it predicts of all with and without it, beside what
    was measured: a line each."""
    from gpuwise.facts.hardware.naming import USUAL, find_cluster
    from gpuwise.records.record import Record
    from gpuwise.serve.measure.comparison import slowdown

    rows = {row["item"]: row for row in map(json.loads, out.read_text().splitlines())}
    accelerator = find_cluster(ON, prefer=USUAL).accelerator.id
    for attention, loads in (("flash", LOADS), ("sdpa", STOCK_LOADS)):
        first = rows.get(load_name(attention, loads[0][0]), {})
        if not first.get("records"):
            continue
        factor, requests = slowdown([Record(**record) for record in first["records"]], SERVED, "vllm", accelerator)
        for rate, seconds in loads:
            item = load_name(attention, rate)
            if item in rows:
                line = {"item": item, "learnt_of": requests, "measured": rows[item]["measured"]}
                both = {"plain": predicted_load(rate, seconds, 1.0), "learnt": predicted_load(rate, seconds, factor)}
                print(json.dumps(line | both))


class Servers:
    """Servers with each of some attentions, started together; each is loaded alone, after a warm-up in which it captures its
    graphs."""

    def __init__(self, attentions: tuple[str, ...], tiny: bool) -> None:
        self.attentions, self.tiny = attentions, tiny
        self.work = Path(tempfile.mkdtemp(prefix="serving-"))
        self.started: dict[str, tuple[subprocess.Popen[bytes], str]] = {}

    def begin(self) -> None:
        save_served(self.work / "model", self.tiny)
        free_memory()
        save_flash(self.work / "flash")
        for attention in self.attentions:
            self.started[attention] = start_server(self.work / "model", self.work, attention, self.tiny)

    def measure(self, rows: Rows) -> None:
        for attention, (process, url) in self.started.items():
            loads = LOADS if attention == "flash" else STOCK_LOADS
            try:
                await_server(process, url)
                one_server(rows, attention, url, self.work, loads)
            except OverTimeError:
                raise
            except Exception:  # noqa: BLE001 - a failure is a line of the record
                rows.add(f"serve {SERVED} {attention}", {}, error=traceback.format_exc()[-3000:])
            finally:
                stop(process)
                log = (self.work / f"{attention}.log").read_text(errors="replace")
                rows.add(f"serve {SERVED} {attention} log", {}, begin=log[:3000], end=log[-3000:])

    def end(self) -> None:
        for process, _ in self.started.values():
            stop(process)
        shutil.rmtree(self.work, ignore_errors=True)


def one_server(rows: Rows, attention: str, url: str, work: Path, loads: tuple[tuple[float, float], ...]) -> None:
    """A warm-up, then the loads; of the first the records are kept from which the predictor learns."""
    home, model, shrink = work / f"home-{attention}", str(work / "model"), 20.0 if rows.tiny else 1.0
    rate, seconds = WARM_UP
    rows.add(f"serve {SERVED} {attention} warm-up", short(send_load(url, model, rate / shrink, seconds, home, keep=False)))
    for i, (rate, seconds) in enumerate(loads):
        document = send_load(url, model, rate / shrink, seconds, home, keep=i == 0)
        kept = kept_records(home) if i == 0 else None
        rows.add(load_name(attention, rate), short(document), latency=document["latency"], records=kept)


def short(document: dict[str, Any]) -> dict[str, Any]:
    """What a measured load says, without its latencies' intervals."""
    names = ("requests_per_s", "requests", "answered", "failures", "stopped", "seconds", "late_share", "answered_per_s")
    return {
        **{name: document[name] for name in (*names, "output_tokens_per_s", "predicted_saturated")},
        "latency_s": {r["latency"]: r["measured_s"] for r in document["latency"]},
    }


# --- all of it ----------------------------------------------------------------------------------------------------------------


def items(only: set[str], servers: Servers | None) -> list[tuple[str, str, Callable[[Rows], None]]]:
    """Name, group and function of what is measured, in order of worth."""
    found: list[tuple[str, str, Callable[[Rows], None]]] = [("small kernels", "steps", check_kernels)]
    found.append(("products", "clock", measure_clock))
    found.append((MIXED[0], "mixed", measure_mixed))
    steps = [(item, "steps", lambda rows, item=item: measure_steps(rows, item)) for item in STEPS]
    served = [(SERVED, "server", servers.measure)] if servers is not None else []
    found += [*steps[:2], *served, *steps[2:]]
    for model in ENCODERS:
        measure = measure_speech if model.startswith("whisper") else measure_encoder
        found.append((model, "encoders", lambda rows, model=model, measure=measure: measure(rows, model)))
    for model in DECODERS:
        found.append((model, "fused", lambda rows, model=model: measure_fused(rows, model)))
    for model in DECODERS:
        found.append((model, "static", lambda rows, model=model: measure_decoder(rows, model)))
    return [item for item in found if item[1] in only or item[0] in only]


def over_time(_: int, __: FrameType | None) -> None:
    raise OverTimeError


def measure_all(rows: Rows, only: set[str], budget_s: float) -> None:
    """Each item within its time and all within the budget."""
    import torch

    if rows.tiny:
        torch.set_num_threads(1)
    end = time.perf_counter() + budget_s
    about: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda, "python": sys.version.split()[0]}
    with contextlib.suppress(Exception):
        import transformers

        about["transformers"] = transformers.__version__
    rows.add("machine", about)
    signal.signal(signal.SIGALRM, over_time)
    servers = Servers(("flash", "sdpa") if "stock" in only else ("flash",), rows.tiny) if only & {"server", "stock"} else None
    try:
        if servers is not None:
            try:
                servers.begin()
            except Exception:  # noqa: BLE001 - a failure is a line of the record
                rows.add("servers", {}, error=traceback.format_exc()[-3000:])
        for name, group, measure in items(only | ({"server"} if servers else set()), servers):
            left = min(ITEM_S[group] * (5 if rows.tiny else 1), end - time.perf_counter())
            if left < 3.0:
                rows.add(f"{group} {name}", {}, error="the budget is over")
                continue
            measure_one(rows, f"{group} {name}", measure, left)
    finally:
        if servers is not None:
            servers.end()


def measure_one(rows: Rows, name: str, measure: Callable[[Rows], None], left_s: float) -> None:
    """One item within its time, whatever comes of it."""
    begin = time.perf_counter()
    signal.setitimer(signal.ITIMER_REAL, left_s)
    try:
        measure(rows)
    except OverTimeError:
        rows.add(name, {}, error=f"over its {left_s:.0f} s")
    except Exception:  # noqa: BLE001 - a failure is a line of the record
        rows.add(name, {}, error=traceback.format_exc()[-3000:])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        free_memory()
    rows.add(f"{name} done", {"seconds": time.perf_counter() - begin})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--predict", type=Path, help="write the predictions to this file and end")
    parser.add_argument("--learn", type=Path, help="read these lines and say what the predictor learns of them")
    parser.add_argument("--out", type=Path, default=Path("serving.jsonl"))
    parser.add_argument("--budget", type=float, default=110.0, help="seconds")
    parser.add_argument(
        "--only",
        default="clock,steps,server,encoders",
        help="clock, mixed, steps, server, stock, encoders, fused, static, or items",
    )
    parser.add_argument("--tiny", action="store_true", help="small shapes, on the CPU")
    parsed = parser.parse_args()
    sys.path.insert(0, str(ROOT / "src"))
    if parsed.learn is not None:
        learn(parsed.learn)
        return
    if parsed.predict is not None:
        today = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        document = {"predicted_at": today, "on": ON, "items": predict()}
        parsed.predict.write_text(json.dumps(document, indent=1) + "\n")
        return
    files = sorted((ROOT / "benchmarks/records/gpu").glob(PREDICTIONS))
    predicted = json.loads(files[-1].read_text())["items"] if files else {}
    budget = parsed.budget if math.isfinite(parsed.budget) else 110.0
    measure_all(Rows(parsed.out, predicted, parsed.tiny), set(parsed.only.split(",")), budget)


if __name__ == "__main__":
    main()
