"""A model from its configuration, trained on bytes of a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuwise.cli.app import run

pytest.importorskip("torch")
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    document = {"model_type": "llama", "vocab_size": 256, "max_position_embeddings": 64, "tie_word_embeddings": False, **SIZES}
    (tmp_path / "config.json").write_text(json.dumps(document))
    (tmp_path / "corpus.txt").write_text("the same words again and again. " * 60)
    return tmp_path / "config.json"


@pytest.mark.slow
def test_a_configuration_is_trained_on_any_layout(config: Path, ranks: Callable[..., Any]) -> None:
    """60 rows of 32 bytes: tensor 2 x FSDP2 2 as one process, and the loss falls."""
    more = {"steps": 6, "settings": [f"data={config.parent / 'corpus.txt'}", "seq_len=32", "lr=0.01"]}
    alone = ranks("", 1, out="alone", target=f"hf:{config}", **more)
    assert alone.codes() == [0], alone.output
    four = ranks("", 4, target=f"hf:{config}", layout={"dp": 2, "tp": 2, "sharding": "zero3", "micro_batch": 2}, **more)
    assert four.codes() == [0] * 4, four.output
    losses = [[e["loss"] for e in r.lines(0)] for r in (alone, four)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-6) and losses[0][-1] < losses[0][0] - 1.0


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ([], "there are no data", "--set data=corpus.txt"),
        (["--set", "data=nowhere.txt"], "nowhere.txt: cannot be read", "tokens.npy"),
        (["--set", "width=3"], "takes data, seq_len, lr", "corpus.txt"),
        (["--set", "data=corpus.txt", "--set", "seq_len=one"], "seq_len=one", "seq_len=512"),
    ],
)
def test_what_is_no_data_is_refused(
    words: list[str], message: str, hint: str, config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(config.parent)
    assert run(["run", f"hf:{config}", "--ranks", "2", *words]) == 2
    told = capsys.readouterr().err
    assert message in told and hint in told.split("hint:")[1]
    assert not (config.parent / "gpuwise-run").exists()


def test_a_configuration_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", f"hf:{tmp_path}/none.json", "--ranks", "2"]) == 2
    assert "No such file" in capsys.readouterr().err


def test_tokens_are_rows_of_whole_numbers(tmp_path: Path) -> None:
    from gpuwise.errors import InputError
    from gpuwise.train.ranks.hugging_face import Rows, _tokens

    np.save(tmp_path / "tokens.npy", np.arange(10, dtype=np.uint16))
    rows = Rows(_tokens(tmp_path / "tokens.npy", tmp_path, None), 4)
    assert len(rows) == 2 and rows[1].tolist() == [4, 5, 6, 7]
    np.save(tmp_path / "wrong.npy", np.zeros((2, 2)))
    with pytest.raises(InputError, match="float64 of 2 dimensions"):
        _tokens(tmp_path / "wrong.npy", tmp_path, None)
    (tmp_path / "text.npy").write_text("not an array")
    with pytest.raises(InputError, match="contains no tokens"):
        _tokens(tmp_path / "text.npy", tmp_path, None)
