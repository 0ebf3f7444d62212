"""Rows of ``local/speed.parquet``, a table of measured local inference, with the model, device and format that each names.

Rows are split by cell of machine and model family, never by row: :attr:`Row.fold`. A row's ``weight`` is one over the rows of the
same cell and setting. Contexts of some sources are what was reserved, not what was filled (:attr:`Row.filled`).
"""

from __future__ import annotations

import math
import re
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gpuwise.calibrate.tables import read_columns
from gpuwise.errors import GpuwiseError
from gpuwise.facts.hardware.accelerators import Accelerator
from gpuwise.facts.hardware.cpus import Cpu, find_cpu
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.architecture import Architecture
from gpuwise.facts.models.catalogue import find_model
from gpuwise.serve.formats import find_format

FOLDS = 5
SHORT = 300
"""Tokens in the cache where a source does not say."""
WITH_PROMPT = 1.08
"""llmfit divides by a time that holds the prompt's: so much on devices that share the host's memory, which read prompts slowly;
ggml's own figures of a DGX Spark and of Apple's chips are that much higher. On others both agree."""
TEXTS = (
    *("engine", "quant", "spec_decode", "confidence", "machine", "gpu_list", "family", "base_model", "model_hf_id", "model_name"),
    *("source", "backend", "metric_kind", "is_offload", "offload_note", "cpu", "ram_type_and_channels", "date", "note"),
)
NUMBERS = (
    *("decode_tok_s", "prompt_tok_s", "prompt_tokens", "gen_tokens", "context_tokens", "n_gpu", "n_gpu_layers"),
    *("batch_users", "active_params_b", "model_params_b", "weight", "ram_gib", "threads"),
)
USUAL = "Q4_K_M"
_RESERVED = re.compile("llama-bench|reported decode")


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement; ``arch`` is None where the catalogue has no such model, ``device`` where no such device."""

    arch: Architecture | None
    device: Accelerator | Cpu | None
    weights: str
    text: dict[str, str]
    number: dict[str, float]
    """Without those that the source does not say."""

    @property
    def group(self) -> tuple[str, str]:
        return self.text["machine"], self.text["family"]

    @property
    def fold(self) -> int:
        return fold_of("|".join(self.group))

    @property
    def users(self) -> int:
        return int(self.number.get("batch_users", 1))

    @property
    def n_devices(self) -> int:
        return max(int(self.number.get("n_gpu", 1)), 1)

    @property
    def offloaded(self) -> bool:
        return self.text["is_offload"] == "1"

    @property
    def engine(self) -> str:
        """``llamafile``, ``mlx``, ``llama.cpp`` (ollama too) or the name as it stands."""
        name = self.text["engine"].lower()
        short = ("llamafile", "ik_llama", "vllm", "mlx")
        return next((s for s in short if s in name), "llama.cpp" if "llama" in name else name)

    @property
    def written_per_s(self) -> float:
        """Tokens a second without the prompt's time."""
        prompt = "llmfit" in self.text["source"] and isinstance(self.device, Accelerator) and self.device.unified_memory
        return self.number["decode_tok_s"] * (WITH_PROMPT if prompt else 1.0)

    @property
    def context(self) -> float:
        """Tokens in the cache, on the average over what was written, as far as the model goes."""
        assert self.arch is not None
        tokens = self.number.get("context_tokens", SHORT) - self.number.get("gen_tokens", 0) / 2
        return min(max(tokens, 16.0), float(self.arch.max_seq_len))

    @property
    def filled(self) -> bool:
        """Whether the context is what the cache held: a preset table states what was reserved, and a rate over the wall clock
        holds the prompt."""
        longer = self.arch is not None and self.number.get("context_tokens", 0) > self.arch.max_seq_len
        reserved = self.text["source"].startswith("localmaxxing") and bool(_RESERVED.fullmatch(self.text["metric_kind"]))
        stated = "allocated context" in self.text["note"]
        return not (
            longer or stated or "wall" in self.text["metric_kind"] or (reserved and self.number.get("context_tokens", 0) >= 2048)
        )


def fold_of(text: str) -> int:
    """One of :data:`FOLDS`, always the same."""
    return zlib.crc32(text.encode()) % FOLDS


def read_rows(folder: Path) -> list[Row]:
    """Rows with a known format, neither speculative nor guessed."""
    columns = (
        read_columns(folder / "local" / "speed.parquet", dict.fromkeys(TEXTS, "str") | dict.fromkeys(NUMBERS, "float")) or {}
    )
    rows: list[Row] = []
    for i in range(len(columns["engine"])):
        text = {name: str(columns[name][i]) for name in TEXTS}
        number = {name: v for name in NUMBERS if not math.isnan(v := float(columns[name][i]))}
        weights = _format(text["quant"] or USUAL)
        if weights is not None and text["spec_decode"] != "yes" and text["confidence"] in ("A", "B"):
            device = _device(text["machine"], cpu=number.get("n_gpu", 0) == 0)
            rows.append(
                Row(find_arch(text["base_model"] or text["model_hf_id"] or text["model_name"]), device, weights, text, number)
            )
    return rows


@cache
def _format(text: str) -> str | None:
    try:
        return find_format(text).name
    except GpuwiseError:
        return None


@cache
def _device(machine: str, *, cpu: bool) -> Accelerator | Cpu | None:
    try:
        return find_cpu(machine.removeprefix("CPU: ")) if cpu else find_cluster(machine).accelerator
    except GpuwiseError:
        return None


@cache
def find_arch(name: str) -> Architecture | None:
    try:
        found = find_model(name.rpartition("/")[2])
    except GpuwiseError:
        return None
    return found if found.kind == "decoder" and not found.open_log_sigma else None
