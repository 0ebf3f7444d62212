# pyright: basic
"""``hf:path/to/config.json``: a causal model of Transformers from a file on this disk, trained on text or tokens from another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from gpuwise.errors import InputError
from gpuwise.files import GIB, check_file, read_bytes
from gpuwise.workload.capture.hugging_face import read_configuration
from gpuwise.workload.capture.packages import transformers

PREFIX = "hf:"
KEYWORDS = {"data": "", "seq_len": "512", "lr": "3e-4"}
"""Keys of --set, with defaults; ``data`` is required."""
MOST_DATA, MOST_TEXT = 1024 * GIB, 8 * GIB
"""Maximum bytes of tokens, which are memory-mapped, and of text, which is read."""
FORM = "--set data=corpus.txt (text), or tokens.npy (numbers of tokens); --set seq_len=512, --set lr=3e-4"


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    """Rows of ``seq_len`` tokens, one after the other; an incomplete last row is dropped."""

    def __init__(self, tokens: Any, seq_len: int) -> None:
        self._tokens, self._seq_len = tokens, seq_len

    def __len__(self) -> int:
        return len(self._tokens) // self._seq_len

    def __getitem__(self, index: int) -> torch.Tensor:
        row = self._tokens[index * self._seq_len : (index + 1) * self._seq_len]
        return torch.as_tensor(row.astype("int64"))


def values_of(settings: list[str]) -> dict[str, str]:
    """Values of --set. Raises InputError for a key outside :data:`KEYWORDS`, and without data."""
    found = dict(KEYWORDS)
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals or name not in KEYWORDS:
            raise InputError(f"--set {text}: a model from its configuration takes {', '.join(KEYWORDS)}", hint=FORM)
        found[name] = value
    if not found["data"]:
        raise InputError("there are no data", hint=FORM)
    check_file(Path(found["data"]), most=MOST_DATA, hint=FORM)
    try:
        if int(found["seq_len"]) < 2 or not 0 < float(found["lr"]) < 1e3:
            raise ValueError
    except ValueError:
        raise InputError(f"seq_len={found['seq_len']}, lr={found['lr']}", hint=FORM) from None
    return found


def make_task(text: str, settings: list[str]) -> dict[str, Any]:
    """Model, data and optimizer, as a person's function would return them. Weights are those of the folder where it has any,
    else new. Raises InputError."""
    words, place = values_of(settings), Path(text.removeprefix(PREFIX))
    config = read_configuration(place)
    folder = place if place.is_dir() else place.parent
    hf: Any = transformers()
    if type(config) not in hf.AutoModelForCausalLM._model_mapping:
        raise InputError(
            f"{config.model_type} is not a causal language model", hint="give a function of your own: train.py:make_step"
        )
    if any(folder.glob("*.safetensors")):
        model = hf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    else:
        model = hf.AutoModelForCausalLM.from_config(config)
    tokens = _tokens(Path(words["data"]), folder, hf)
    largest = int(tokens.max()) if len(tokens) else 0
    if largest >= config.vocab_size:
        raise InputError(f"{words['data']} has token {largest}, and the model {config.vocab_size}", hint="give its own tokens")
    rate = float(words["lr"])
    return {
        "model": model,
        "data": Rows(tokens, int(words["seq_len"])),
        "optimizer": lambda model: torch.optim.AdamW(model.parameters(), lr=rate),
        "clip": 1.0,
    }


def _tokens(file: Path, folder: Path, hf: Any) -> Any:
    """Numbers of tokens: from a file of them, by the folder's tokenizer, or the bytes themselves where it has none."""
    import numpy as np

    if file.suffix == ".npy":
        try:
            tokens = np.load(check_file(file, most=MOST_DATA, hint=FORM), mmap_mode="r", allow_pickle=False)
        except (ValueError, OSError) as error:
            raise InputError(f"{file} contains no tokens: {error}", hint=FORM) from None
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise InputError(f"{file} holds {tokens.dtype} of {tokens.ndim} dimensions", hint="one row of whole numbers")
        return tokens
    content = read_bytes(file, most=MOST_TEXT, hint=FORM)
    if not (folder / "tokenizer.json").is_file():
        return np.frombuffer(content, np.uint8)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not a text file: {error}", hint=FORM) from None
    tokenizer = hf.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    return np.asarray(tokenizer(text, verbose=False)["input_ids"], dtype=np.int64)
