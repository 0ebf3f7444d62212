"""Data for foreign scripts, made on this machine: the files that a script would download, small, from a fixed seed.

    python benchmarks/foreign_data.py mnist FOLDER n=2000

Run with the Python of the scripts. Contents are noise or Python's own documentation; only formats and sizes are those of
the real thing.
"""

from __future__ import annotations

import json
import pickle
import random
import shutil
import struct
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

SEED = 20261123
MAKERS: dict[str, Callable[..., None]] = {}


def maker(function: Callable[..., None]) -> Callable[..., None]:
    """Known by its name to the list of scripts."""
    MAKERS[function.__name__] = function
    return function


def documentation() -> str:
    """English text that every Python carries: 0.4 MB. Where a distribution has left it out, the source of the library."""
    try:
        from pydoc_data import topics
    except ImportError:
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:30]
        return "\n".join(f.read_text("utf-8", "replace") for f in files)
    return "\n".join(topics.topics.values())


def sentences() -> Iterator[str]:
    """Of the documentation, without end."""
    found = [" ".join(s.split()) for s in documentation().split(".")]
    found = [s for s in found if 20 < len(s) < 200]
    while True:
        yield from found


# --- images ---


@maker
def mnist(at: Path, n: int = 2000, test: int = 500, name: str = "MNIST") -> None:
    """As torchvision keeps it unpacked, under ``at/MNIST/raw``: ``name`` is the class that reads it."""
    raw = at / name / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(SEED)
    for part, count in (("train", n), ("t10k", test)):
        labels = rng.integers(0, 10, count).astype(np.uint8)
        # a bright patch says the class, so that something can be learnt
        images = rng.integers(0, 60, (count, 28, 28)).astype(np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[2 * label : 2 * label + 6, 4:24] = 220
        (raw / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 0x803, count, 28, 28) + images.tobytes())
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, count) + labels.tobytes())


@maker
def images(at: Path, n: int = 200, size: int = 256, classes: int = 2, splits: str = "train,val", flat: int = 0) -> None:
    """JPEG files, a folder for each split and class; with ``flat`` all in one folder a split."""
    from PIL import Image

    rng = np.random.default_rng(SEED)
    for split in splits.split(","):
        for number in range(n if split == splits.split(",")[0] else max(n // 4, classes)):
            folder = at / split if flat else at / split / f"class{number % classes}"
            folder.mkdir(parents=True, exist_ok=True)
            coarse = rng.integers(0, 256, (size // 16, size // 16, 3)).astype(np.uint8)
            Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC).save(folder / f"{number:04d}.jpg", quality=90)


@maker
def masks(at: Path, n: int = 40, size: int = 256) -> None:
    """Images and masks of the same names."""
    from PIL import Image

    rng = np.random.default_rng(SEED)
    for name in ("imgs", "masks"):
        (at / name).mkdir(parents=True, exist_ok=True)
    for number in range(n):
        coarse = rng.integers(0, 256, (size // 16, size // 16, 3)).astype(np.uint8)
        picture = Image.fromarray(coarse).resize((size, size))
        picture.save(at / "imgs" / f"{number:03d}.jpg")
        Image.fromarray((np.asarray(picture)[..., 0] > 127).astype(np.uint8)).save(at / "masks" / f"{number:03d}.png")


@maker
def boxes(at: Path, n: int = 80, size: int = 96) -> None:
    """Images with a bright box or two, in the folders that Ultralytics reads, under ``at/data.yaml``."""
    from PIL import Image

    rng = np.random.default_rng(SEED)
    for split, count in (("train", n), ("val", max(n // 8, 4))):
        for name in ("images", "labels"):
            (at / name / split).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            picture, lines = rng.integers(0, 60, (size, size, 3)).astype(np.uint8), list[str]()
            for kind in range(int(rng.integers(1, 3))):
                x, y = rng.integers(0, size // 2, 2).tolist()
                w, h = rng.integers(size // 8, size // 2, 2).tolist()
                picture[y : y + h, x : x + w, kind] = 230
                lines.append(f"{kind} {(x + w / 2) / size:.4f} {(y + h / 2) / size:.4f} {w / size:.4f} {h / size:.4f}")
            Image.fromarray(picture).save(at / "images" / split / f"{number:03d}.jpg")
            (at / "labels" / split / f"{number:03d}.txt").write_text("\n".join(lines), "utf-8")
    described = f"path: {at.resolve()}\ntrain: images/train\nval: images/val\nnames: {{0: red, 1: green}}\n"
    (at / "data.yaml").write_text(described, "utf-8")


# --- text ---


@maker
def text(at: Path, n: int = 200_000) -> None:
    """A file of so many characters."""
    at.parent.mkdir(parents=True, exist_ok=True)
    whole = documentation()
    at.write_text((whole * (n // len(whole) + 1))[:n], "utf-8")


@maker
def names(at: Path, n: int = 5000) -> None:
    """A file of invented names, one a line."""
    rng = random.Random(SEED)
    at.parent.mkdir(parents=True, exist_ok=True)
    made = ("".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(rng.randint(1, 5))) for _ in range(n))
    at.write_text("\n".join(made), "utf-8")


@maker
def wikitext(at: Path, n: int = 60_000) -> None:
    """``train.txt``, ``valid.txt`` and ``test.txt`` of words."""
    for name, share in (("train", 1.0), ("valid", 0.1), ("test", 0.1)):
        text(at / f"{name}.txt", int(n * share))


@maker
def characters(at: Path, n: int = 200_000) -> None:
    """``train.bin``, ``val.bin`` and ``meta.pkl`` of a model of characters."""
    at.mkdir(parents=True, exist_ok=True)
    whole = documentation()[:n]
    known = sorted(set(whole))
    place = {c: i for i, c in enumerate(known)}
    ids = np.array([place[c] for c in whole], np.uint16)
    ids[: 9 * n // 10].tofile(at / "train.bin")
    ids[9 * n // 10 :].tofile(at / "val.bin")
    (at / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": len(known), "itos": dict(enumerate(known)), "stoi": place}))


@maker
def instructions(at: Path, n: int = 400) -> None:
    """Questions with answers, a JSON list of ``instruction``, ``input`` and ``output``."""
    said = sentences()
    rows = [{"instruction": next(said), "input": next(said) if i % 3 else "", "output": next(said)} for i in range(n)]
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_text(json.dumps(rows), "utf-8")


@maker
def pairs(at: Path, kind: str = "mrpc", n: int = 400) -> None:
    """A folder that ``load_dataset`` reads: pairs of sentences with a label, in three splits."""
    said, rng = sentences(), random.Random(SEED)
    at.mkdir(parents=True, exist_ok=True)
    files: list[str] = []
    for split, count in (("train", n), ("validation", max(n // 8, 16)), ("test", max(n // 8, 16))):
        lines: list[str] = []
        for i in range(count):
            one, two = next(said), next(said)
            row: dict[str, object] = {"sentence1": one, "sentence2": two, "label": i % 2, "idx": i}
            if kind == "stsb":
                row = {"sentence1": one, "sentence2": two, "score": rng.random()}
            if kind in ("text", "imdb"):
                row = {"text": f"{one}. {two}.", **({"label": i % 2} if kind == "imdb" else {})}
            if kind == "chat":
                row = {"messages": [{"role": "user", "content": one}, {"role": "assistant", "content": two}]}
            if kind == "preferences":
                row = {"prompt": one, "chosen": two, "rejected": next(said)}
            lines.append(json.dumps(row))
        (at / f"{split}.jsonl").write_text("\n".join(lines), "utf-8")
        files.append(f"  - split: {split}\n    path: {split}.jsonl\n")
    name = "default" if kind in ("stsb", "text", "imdb", "chat", "preferences") else kind
    (at / "README.md").write_text(f"---\nconfigs:\n- config_name: {name}\n  data_files:\n{''.join(files)}---\n", "utf-8")


@maker
def labelled(at: Path, n: int = 800, test: int = 64) -> None:
    """``train.json`` and ``validation.json`` of lines with a sentence and a label, as run_glue's ``--train_file`` reads them."""
    said = sentences()
    at.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", n), ("validation", test)):
        rows = (json.dumps({"label": ("no", "yes")[i % 2], "sentence1": next(said)}) for i in range(count))
        (at / f"{split}.json").write_text("\n".join(rows), "utf-8")


@maker
def questions(at: Path, n: int = 1200, test: int = 100, classes: int = 6) -> None:
    """TREC's two files of questions, a label before each, under ``at``."""
    said = sentences()
    at.mkdir(parents=True, exist_ok=True)
    for name, count in (("train_5500.label", n), ("TREC_10.label", test)):
        lines = [f"CLASS{i % classes}:part {next(said)}".encode("ascii", "ignore") for i in range(count)]
        (at / name).write_bytes(b"\n".join(lines))


# --- models with a tokenizer, weights from a seed ---


@maker
def model(at: Path, kind: str = "bert", width: int = 128, layers: int = 2, words: int = 2000) -> None:
    """A folder that ``from_pretrained`` reads: ``bert``, ``llama`` or ``opt``."""
    import torch
    import transformers

    torch.manual_seed(SEED)
    shape = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": max(width // 32, 1), "vocab_size": words}
    if kind == "bert":
        _word_tokenizer(at, words)
        config = transformers.BertConfig(**shape, intermediate_size=4 * width, max_position_embeddings=512)
        transformers.BertModel(config).save_pretrained(at)
        return
    _byte_tokenizer(at, words)
    if kind == "opt":
        made = transformers.OPTConfig(**shape, ffn_dim=4 * width, word_embed_proj_dim=width, max_position_embeddings=512)
        transformers.OPTForCausalLM(made).save_pretrained(at)
    else:
        made = transformers.LlamaConfig(**shape, intermediate_size=3 * width, max_position_embeddings=512)
        transformers.LlamaForCausalLM(made).save_pretrained(at)


def _word_tokenizer(at: Path, words: int) -> None:
    import transformers
    from tokenizers import BertWordPieceTokenizer

    at.mkdir(parents=True, exist_ok=True)
    made = BertWordPieceTokenizer(lowercase=True)
    made.train_from_iterator([documentation()], vocab_size=words, show_progress=False)
    made.save_model(str(at))
    transformers.BertTokenizer(str(at / "vocab.txt")).save_pretrained(at)


def _byte_tokenizer(at: Path, words: int) -> None:
    import transformers
    from tokenizers import ByteLevelBPETokenizer

    at.mkdir(parents=True, exist_ok=True)
    made = ByteLevelBPETokenizer()
    marks = ["<s>", "</s>", "<pad>", "<unk>"]
    made.train_from_iterator([documentation()], vocab_size=words, special_tokens=marks, show_progress=False)
    whole = at / "tokenizer.json"
    made.save(str(whole))
    transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(whole), bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    ).save_pretrained(at)


@maker
def unet(at: Path) -> None:
    """The configuration of a small diffusion model."""
    import diffusers

    blocks = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    diffusers.UNet2DModel(sample_size=32, block_out_channels=(32, 64), layers_per_block=1, **blocks).save_config(at)


@maker
def stable_diffusion(at: Path) -> None:
    """A pipeline of text to image that is small in every part, with a tokenizer of single bytes."""
    import diffusers
    import transformers

    at.mkdir(parents=True, exist_ok=True)
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    letters = [*map(chr, printable), *(chr(256 + i) for i in range(len(others)))]
    words = [*letters, *(f"{c}</w>" for c in letters), "<|startoftext|>", "<|endoftext|>"]
    (at / "vocab.json").write_text(json.dumps({w: i for i, w in enumerate(words)}), "utf-8")
    (at / "merges.txt").write_text("#version: 0.2\n", "utf-8")
    tokenizer = transformers.CLIPTokenizer(str(at / "vocab.json"), str(at / "merges.txt"), model_max_length=77)
    text = transformers.CLIPTextConfig(
        vocab_size=len(words), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        bos_token_id=len(words) - 2, eos_token_id=len(words) - 1, pad_token_id=len(words) - 1,
    )  # fmt: skip
    blocks = {"down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"), "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D")}
    diffusers.StableDiffusionPipeline(
        vae=diffusers.AutoencoderKL(
            block_out_channels=(32, 64), down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2
        ),
        text_encoder=transformers.CLIPTextModel(text),
        tokenizer=tokenizer,
        unet=diffusers.UNet2DConditionModel(
            sample_size=32, block_out_channels=(64, 128), layers_per_block=1, cross_attention_dim=64, **blocks
        ),
        scheduler=diffusers.DDPMScheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    ).save_pretrained(at)


@maker
def captions(at: Path, n: int = 48, size: int = 64) -> None:
    """A folder of images with ``metadata.jsonl`` of their captions."""
    images(at, n, size, 1, "train", 1)
    said = sentences()
    names = sorted(p.name for p in (at / "train").glob("*.jpg"))
    rows = (json.dumps({"file_name": name, "text": next(said)}) for name in names)
    (at / "train" / "metadata.jsonl").write_text("\n".join(rows), "utf-8")


@maker
def cifar(at: Path, n: int = 2000, test: int = 200) -> None:
    """CIFAR-10 as torchvision keeps it unpacked; its own check of the files is of the real ones, so the list of them is
    changed by nobody: scripts that check end with an error."""
    folder = at / "cifar-10-batches-py"
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(SEED)
    for name, count in (*((f"data_batch_{i}", n // 5) for i in range(1, 6)), ("test_batch", test)):
        rows = {"data": rng.integers(0, 256, (count, 3072)).astype(np.uint8), "labels": rng.integers(0, 10, count).tolist()}
        (folder / name).write_bytes(pickle.dumps(rows))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [str(i) for i in range(10)]}))


@maker
def digits(at: Path, n: int = 4000, test: int = 400) -> None:
    """The one file of MNIST that Keras keeps."""
    at.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(SEED)
    parts = {f"{k}_{s}": v for s, c in (("train", n), ("test", test)) for k, v in (
        ("x", rng.integers(0, 256, (c, 28, 28)).astype(np.uint8)), ("y", rng.integers(0, 10, c).astype(np.uint8)))}  # fmt: skip
    np.savez(at, **parts)


@maker
def metric(at: Path) -> None:
    """A metric that ``evaluate.load`` reads: accuracy."""
    at.mkdir(parents=True, exist_ok=True)
    (at / f"{at.name}.py").write_text(
        "import datasets\nimport evaluate\n\n\nclass Accuracy(evaluate.Metric):\n"
        "    def _info(self):\n        of = datasets.Value('int64')\n"
        "        return evaluate.MetricInfo(description='', citation='', inputs_description='', "
        "features=datasets.Features({'predictions': of, 'references': of}))\n\n"
        "    def _compute(self, predictions, references):\n"
        "        return {'accuracy': sum(p == r for p, r in zip(predictions, references)) / len(references)}\n",
        "utf-8",
    )


@maker
def chat_tokens(at: Path, words: int = 1000, documents: int = 3000) -> None:
    """nanochat's folder: a tokenizer, bytes a token, and two Parquet files of documents."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import tiktoken
    import torch

    ranks = {bytes([b]): b for b in range(256)}
    for word in sorted({w for s in documentation().split() for w in (s, " " + s)}):
        if len(ranks) < words and word.isascii():
            ranks.setdefault(word.encode(), len(ranks))
    marks = ("bos", "user_start", "user_end", "assistant_start", "assistant_end", "python_start", "python_end")
    special = {f"<|{m}|>": len(ranks) + i for i, m in enumerate((*marks, "output_start", "output_end"))}
    coding = tiktoken.Encoding("made", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens=special)
    (at / "tokenizer").mkdir(parents=True, exist_ok=True)
    (at / "tokenizer" / "tokenizer.pkl").write_bytes(pickle.dumps(coding))
    sizes = [len(t) for t in ranks] + [0] * len(special)
    torch.save(torch.tensor(sizes, dtype=torch.int32), at / "tokenizer" / "token_bytes.pt")
    said = sentences()
    for folder in ("base_data_climbmix", "base_data"):
        (at / folder).mkdir(exist_ok=True)
        for shard in range(2):
            rows = pa.table({"text": [". ".join(next(said) for _ in range(12)) for _ in range(documents)]})
            pq.write_table(rows, at / folder / f"shard_{shard:05d}.parquet", row_group_size=1000)


@maker
def chat_model(at: Path, stage: str = "base", layers: int = 2, width: int = 128, n: int = 400) -> None:
    """nanochat's folder with a model of ``stage`` from a seed and the conversations, choices and sums of its later stages;
    the repository lies beside it."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import torch

    chat_tokens(at)
    sys.path.insert(0, str(at.parent / "nanochat"))
    from nanochat.gpt import GPT, GPTConfig

    torch.manual_seed(SEED)
    with (at / "tokenizer" / "tokenizer.pkl").open("rb") as file:
        words = pickle.load(file).n_vocab
    shape = {"sequence_len": 256, "vocab_size": words, "n_layer": layers, "n_head": 4, "n_kv_head": 4, "n_embd": width}
    made = GPT(GPTConfig(**shape, window_pattern="L"))
    made.init_weights()
    folder = at / {"base": "base_checkpoints", "sft": "chatsft_checkpoints"}[stage] / f"d{layers}"
    folder.mkdir(parents=True)
    torch.save(made.state_dict(), folder / "model_000001.pt")
    (folder / "meta_000001.json").write_text(json.dumps({"model_config": {**shape, "window_pattern": "L"}, "user_config": {}}))
    said = sentences()
    talks = {"messages": lambda i: [{"role": r, "content": next(said)} for r in ("user", "assistant")]}
    choices = {"question": lambda i: next(said), "choices": lambda i: ["yes", "no", "both", "none"],
               "answer": lambda i: i % 4, "subject": lambda i: "law"}  # fmt: skip
    sums = {
        "question": lambda i: f"What is {i} and {i % 7}?",
        "answer": lambda i: f"<<{i}+{i % 7}={i + i % 7}>>.\n#### {i + i % 7}",
    }
    for name, columns, splits in (
        ("HuggingFaceTB--smol-smoltalk/default", talks, ("train", "test")),
        ("cais--mmlu/all", choices, ("auxiliary_train", "test")),
        ("openai--gsm8k/main", sums, ("train", "test")),
    ):
        for split in splits:
            shards = at / "task_data" / name / split
            shards.mkdir(parents=True)
            count = n if split == "train" else 16 if "auxiliary" in split else 5200 if "mmlu" in name else 420
            pq.write_table(pa.table({c: [v(i) for i in range(count)] for c, v in columns.items()}), shards / "00000.parquet")
            (shards / "manifest.json").write_text('["00000.parquet"]', "utf-8")


# --- tables and graphs ---


@maker
def series(at: Path, n: int = 3000, columns: int = 7) -> None:
    """A table of hourly values, as ETTh1 has it."""
    rng = np.random.default_rng(SEED)
    hours = np.arange(n)
    values = np.sin(hours[:, None] / 24 * 2 * np.pi + np.arange(columns)) + 0.1 * rng.standard_normal((n, columns))
    days = np.datetime64("2016-07-01T00:00:00") + hours.astype("timedelta64[h]")
    heads = [*(f"c{i}" for i in range(columns - 1)), "OT"]
    lines = [",".join(["date", *heads])]
    lines += [",".join([str(d).replace("T", " "), *(f"{v:.4f}" for v in row)]) for d, row in zip(days, values, strict=True)]
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_text("\n".join(lines), "utf-8")


@maker
def waves(at: Path, n: int = 30, length: int = 300) -> None:
    """A saved array of sine waves in double precision."""
    import torch

    rng = np.random.default_rng(SEED)
    x = np.arange(length) + rng.integers(-80, 80, (n, 1))
    torch.save(np.sin(x / 20.0), at)


@maker
def adult(at: Path, n: int = 3000) -> None:
    """The census table of the fastai course."""
    rng = random.Random(SEED)
    kinds = ("workclass", "education", "marital-status", "occupation", "relationship", "race")
    lines = ["age,fnlwgt,education-num," + ",".join(kinds) + ",salary"]
    for _ in range(n):
        numbers = [rng.randint(17, 90), rng.randint(10_000, 900_000), rng.randint(1, 16)]
        lines.append(",".join(map(str, [*numbers, *(f" {k}{rng.randint(0, 8)}" for k in kinds), rng.choice(["<50k", ">=50k"])])))
    at.mkdir(parents=True, exist_ok=True)
    (at / "adult.csv").write_text("\n".join(lines), "utf-8")


@maker
def citations(at: Path, n: int = 2708, words: int = 1433, classes: int = 7) -> None:
    """``cora.content`` and ``cora.cites``."""
    rng = np.random.default_rng(SEED)
    at.mkdir(parents=True, exist_ok=True)
    topics = rng.integers(0, classes, n)
    content: list[str] = []
    for i in range(n):
        row = (rng.random(words) < 0.013).astype(int)
        row[200 * int(topics[i]) : 200 * int(topics[i]) + 8] = 1
        content.append("\t".join([str(i), *map(str, row), f"Topic{topics[i]}"]))
    (at / "cora.content").write_text("\n".join(content) + "\n", "utf-8")
    cites = rng.integers(0, n, (2 * n, 2))
    (at / "cora.cites").write_text("".join(f"{a}\t{b}\n" for a, b in cites if a != b), "utf-8")


@maker
def graphs(at: Path, name: str = "MUTAG", n: int = 188) -> None:
    """A set of small graphs in the format of TU Dortmund, under ``at/NAME/raw``."""
    rng = random.Random(SEED)
    raw = at / name / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    edges, of_graph, node_labels, labels, first = [], [], [], [], 1
    for graph in range(1, n + 1):
        nodes = rng.randint(10, 28)
        for i in range(nodes):
            of_graph.append(graph)
            node_labels.append(rng.randint(0, 6))
            other = rng.randint(0, i) if i else 0
            if i != other:
                edges += [(first + i, first + other), (first + other, first + i)]
        labels.append(rng.choice([-1, 1]))
        first += nodes
    (raw / f"{name}_A.txt").write_text("".join(f"{a}, {b}\n" for a, b in edges), "utf-8")
    for suffix, values in (("graph_indicator", of_graph), ("node_labels", node_labels), ("graph_labels", labels)):
        (raw / f"{name}_{suffix}.txt").write_text("".join(f"{v}\n" for v in values), "utf-8")
    (raw / f"{name}_edge_labels.txt").write_text("".join(f"{rng.randint(0, 3)}\n" for _ in edges), "utf-8")


@maker
def planetoid(at: Path, name: str = "cora", n: int = 2708, words: int = 1433, classes: int = 7) -> None:
    """A citation graph as PyTorch Geometric reads it, under ``at/Cora/raw``."""
    import scipy.sparse as sp

    rng = np.random.default_rng(SEED)
    raw = at / name.capitalize() / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    topics, n_test = rng.integers(0, classes, n), 1000
    x = sp.csr_matrix((rng.random((n, words)) < 0.013).astype(np.float32))
    y = np.eye(classes, dtype=np.int32)[topics]
    known, rest = 140, n - n_test
    parts = {"x": x[:known], "tx": x[rest:], "allx": x[:rest], "y": y[:known], "ty": y[rest:], "ally": y[:rest]}
    parts["graph"] = {i: rng.integers(0, n, 4).tolist() for i in range(n)}
    for suffix, value in parts.items():
        (raw / f"ind.{name}.{suffix}").write_bytes(pickle.dumps(value))
    (raw / f"ind.{name}.test.index").write_text("\n".join(map(str, range(rest, n))), "utf-8")


@maker
def shards(at: Path, words: int = 512, n: int = 200_000, files: int = 2) -> None:
    """Ids in 16 bits, one file a shard, as llama2.c keeps what it has tokenized."""
    at.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(SEED)
    for i in range(files):
        rng.integers(1, words, n).astype(np.uint16).tofile(at / f"data{i:02d}.bin")


@maker
def adjacency(at: Path, n: int = 188, tags: int = 7) -> None:
    """Graphs of about 18 nodes as lines of neighbours, as powerful-gnns keeps MUTAG: rings with chords."""
    at.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(SEED)
    lines = [str(n)]
    for i in range(n):
        size = int(rng.integers(10, 29))
        lines.append(f"{size} {i % 2}")
        for node in range(size):
            near = {(node - 1) % size, (node + 1) % size} | ({(node + size // 2) % size} if node % 7 == 0 else set())
            lines.append(" ".join(map(str, (int(rng.integers(0, tags)), len(near), *sorted(near)))))
    at.write_text("\n".join(lines) + "\n", "utf-8")


@maker
def faces(at: Path, n: int = 64, size: int = 178, lines: int = 2300) -> None:
    """Photographs of noise with a file of attributes, as CelebA has them; the file names each several times."""
    from PIL import Image

    folder = at / "images"
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(SEED)
    for i in range(n):
        Image.fromarray(rng.integers(0, 256, (size, size, 3), dtype=np.uint8)).save(folder / f"{i:06d}.jpg")
    names = ["Black_Hair", "Blond_Hair", "Brown_Hair", "Male", "Young"]
    rows = [f"{i % n:06d}.jpg " + " ".join("1" if v else "-1" for v in rng.random(5) < 0.5) for i in range(lines)]
    (at / "list_attr_celeba.txt").write_text("\n".join([str(lines), " ".join(names), *rows]) + "\n", "utf-8")


@maker
def font(at: Path) -> None:
    """A font, for programs that would fetch one to draw with."""
    from matplotlib import font_manager

    at.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(font_manager.findfont("DejaVu Sans"), at)


@maker
def gym(at: Path) -> None:
    """The name that gymnasium had before, for scripts that import it."""
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_text("from gymnasium import *\nfrom gymnasium import make, spaces, wrappers\n", "utf-8")


@maker
def resnet(at: Path) -> None:
    """The file of weights that torchvision would fetch for its ResNet-18, from a seed."""
    import torch
    import torchvision

    torch.manual_seed(SEED)
    at.parent.mkdir(parents=True, exist_ok=True)
    torch.save(torchvision.models.resnet18().state_dict(), at)


@maker
def yolo(at: Path) -> None:
    """Weights of the YOLO that the file's name says, from a seed."""
    import torch
    import ultralytics

    torch.manual_seed(SEED)
    at.parent.mkdir(parents=True, exist_ok=True)
    ultralytics.YOLO(f"{at.stem}.yaml").save(at)


def main(arguments: list[str]) -> int:
    """One maker, a place, and values by name."""
    name, at, *values = arguments
    given = dict(v.split("=", 1) for v in values)
    MAKERS[name](Path(at), **{k: int(v) if v.isdigit() else v for k, v in given.items()})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
