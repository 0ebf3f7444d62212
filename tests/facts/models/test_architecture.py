"""The catalogue of models, and the names people give them."""

import re
import tomllib
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuwise.errors import AmbiguousNameError, DataError, FieldError, InputError, UnknownNameError
from gpuwise.facts.loading import shipped_text
from gpuwise.facts.models import catalogue as model_files
from gpuwise.facts.models.architecture import Encoder, Moe, Patches
from gpuwise.facts.models.catalogue import find_model, models, read_catalogue
from gpuwise.facts.models.checks import check_architecture

ALL = sorted(models())

TYPED = {
    "llama-3.1-8b": "llama-3.1-8b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "Meta-Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "Llama3-8B": "llama-3-8b",
    "llama3 8b": "llama-3-8b",
    "llama3_8b": "llama-3-8b",
    "LLAMA 3.1 405B": "llama-3.1-405b",
    "llama-405b": "llama-3.1-405b",
    "Llama-3.1-405B-Instruct-FP8": "llama-3.1-405b",
    "llama2-7b": "llama-2-7b",
    "Llama-2-7b-chat-hf": "llama-2-7b",
    "code llama 34b": "codellama-34b",
    "gpt2": "gpt2",
    "GPT-2 XL": "gpt2-xl",
    "gpt3-175b": "gpt3-175b",
    "gpt-3 175B": "gpt3-175b",
    "gpt-j": "gpt-j-6b",
    "neox 20b": "gpt-neox-20b",
    "mixtral 8x7b": "mixtral-8x7b",
    "mistralai/Mixtral-8x7B-Instruct-v0.1": "mixtral-8x7b",
    "mixtral-8x22b-instruct-v0.1": "mixtral-8x22b-instruct",
    "mistral-7b-instruct-v0.2": "mistral-7b-v0.2",
    "Mistral-7B-v0.3": "mistral-7b-v0.3",
    "mistral nemo": "mistral-nemo-12b",
    "Mistral-Large-Instruct-2407": "mistral-large-123b",
    "qwen2.5-7b": "qwen2.5-7b",
    "Qwen/Qwen2.5-7B-Instruct": "qwen2.5-7b",
    "Qwen2 7B": "qwen2-7b",
    "qwen3-235b-a22b": "qwen3-235b-a22b",
    "Qwen/Qwen3-8B-Base": "qwen3-8b",
    "Qwen3-235B-A22B-Instruct-2507": "qwen3-235b-a22b-2507",
    "deepseek-r1-distill-llama-8b": "llama-3.1-8b",
    "DeepSeek V3": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3-0324": "deepseek-v3",
    "phi-1_5": "phi-1.5",
    "microsoft/Phi-3-mini-4k-instruct": "phi-3-mini",
    "gemma2 9b it": "gemma-2-9b",
    "google/gemma-3-27b-it": "gemma-3-27b",
    "bigscience/bloom": "bloom-176b",
    "bloom-7b1": "bloom-7.1b",
    "facebook/opt-66b": "opt-66b",
    "falcon 40b": "falcon-40b",
    "stabilityai/stablelm-2-1_6b": "stablelm-2-1.6b",
    "command-r+": "command-r-plus-104b",
    "maverick": "llama-4-maverick",
    "tiny llama": "tinyllama-1.1b",
    "bert-base-uncased": "bert-base",
    "t5-base": "t5-base",
    "google/flan-t5-xxl": "flan-t5-xxl",
    "ViT-B/16": "vit-b-16",
    "whisper large v3 turbo": "whisper-large-v3-turbo",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "grok 1": "grok-1",
    "kimi k2": "kimi-k2",
    "glm 4.5 air": "glm-4.5-air",
}
FAMILIES = [
    "gpt2",
    "gpt3",
    "gpt-j",
    "gpt-neox",
    "pythia",
    "opt",
    "bloom",
    "falcon",
    "mpt",
    "llama",
    "codellama",
    "mistral",
    "mixtral",
    "gemma",
    "phi",
    "qwen",
    "deepseek",
    "dbrx",
    "grok",
    "yi",
    "internlm",
    "starcoder",
    "stablelm",
    "olmo",
    "smollm2",
    "tinyllama",
    "nemotron",
    "gpt-oss",
    "kimi",
    "glm",
    "minimax",
    "bert",
    "roberta",
    "deberta",
    "t5",
    "flan-t5",
    "bart",
    "vit",
    "whisper",
    "clip",
]


@pytest.mark.parametrize("typed", TYPED)
def test_usual_spellings(typed: str) -> None:
    assert find_model(typed).id == TYPED[typed]


@pytest.mark.parametrize("name", ALL)
def test_own_names(name: str) -> None:
    arch = models()[name]
    assert find_model(name) is arch
    assert find_model(name.upper().replace("-", " ")).id == name
    for alias in arch.aliases:
        found = find_model(alias)
        assert found.id == name and (not found.assumption or arch.name in found.assumption)


@pytest.mark.parametrize("typed", ["1,5", "1.5", "70", "3"])
def test_numbers_alone_are_no_model(typed: str) -> None:
    with pytest.raises(UnknownNameError) as error:
        find_model(typed)
    assert error.value.hint and "gpuwise models" in error.value.hint


@pytest.mark.parametrize("typed", ["llama 8b", "r1", "gpt-3", "xlm", "7b", "ViT-14"])
def test_ambiguous_names_list_candidates(typed: str) -> None:
    with pytest.raises(AmbiguousNameError) as caught:
        find_model(typed)
    assert len(caught.value.candidates) >= 2
    assert caught.value.candidates[0] in str(caught.value.hint)


@pytest.mark.parametrize(
    ("typed", "usual"),
    [
        ("mistral", "mistral-7b"),
        ("mistral:latest", "mistral-7b"),
        ("mixtral", "mixtral-8x7b"),
        ("qwen", "qwen3-8b"),
        ("qwen3", "qwen3-8b"),
        ("llama", "llama-3.1-8b"),
        ("Llama3.2", "llama-3.2-3b"),
        ("library/gemma3", "gemma-3-4b"),
        ("codellama", "codellama-7b"),
    ],
)
def test_of_several_the_one_that_people_run_is_taken_and_named(typed: str, usual: str) -> None:
    found = find_model(typed)
    assert found.id == usual
    assert found.assumption == f"{typed.removeprefix('library/')} is read as {found.name}, which most people mean"


@pytest.mark.parametrize(
    ("typed", "model", "noted"),
    [
        ("mistralai/Codestral-22B-v0.1", "mistral-small-22b", True),
        ("kimi-k2.6", "kimi-k2-thinking", True),
        ("bge-base-en-v1.5", "bert-base", True),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b", False),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-r1", False),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b-2507", False),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "qwen3-coder-30b-a3b", False),
        ("qwen3-30b", "qwen3-30b-a3b", False),
    ],
)
def test_an_answer_under_another_name_says_so(typed: str, model: str, noted: bool) -> None:
    found = find_model(typed)
    assert found.id == model and bool(found.assumption) == noted


def test_a_vision_model_by_its_bare_name_has_its_language_model_as_a_hint() -> None:
    with pytest.raises(UnknownNameError, match="'mistral-7b'"):
        find_model("llava")


def test_each_usual_name_is_asked_for_and_means_a_model() -> None:
    for name, row in tomllib.loads(shipped_text("usual.toml")).items():
        assert row["model"] in models() and row["from"] in ("ollama", "family", "language", "base"), name
        try:
            found = find_model(name)
        except UnknownNameError as error:
            assert row["model"] in str(error.hint)
        else:
            assert found.id == row["model"] and "which most people mean" in found.assumption, (
                f"{name} means it alone: leave it out"
            )


@pytest.mark.parametrize(
    ("typed", "model"),
    [
        ("library/llama3.1:8b", "llama-3.1-8b"),
        ("ollama.com/library/qwen3:8b", "qwen3-8b"),
        ("registry.ollama.ai/library/gemma3:12b", "gemma-3-12b"),
        ("hf.co/bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M", "llama-3.1-8b"),
        ("https://huggingface.co/Qwen/Qwen3-8B", "qwen3-8b"),
        ("gemma3n:e4b", "gemma-3n-e4b"),
        ("deepseek-v4", "deepseek-v4-flash"),
        ("mistral-7b-v0.1", "mistral-7b"),
    ],
)
def test_names_with_an_address_a_user_or_a_tag(typed: str, model: str) -> None:
    assert find_model(typed).id == model


def test_an_unknown_name_of_ollama_is_not_asked_for_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(text: str) -> None:
        raise AssertionError(text)

    monkeypatch.setattr("gpuwise.facts.models.hub.fetch_model", never)
    with pytest.raises(UnknownNameError, match="ollama pull someone/thing:mine"):
        find_model("someone/thing:mine")


def test_unknown_name_suggests() -> None:
    with pytest.raises(UnknownNameError) as caught:
        find_model("lama-3.1-8b")
    assert caught.value.nearest[0] == "llama-3.1-8b"
    with pytest.raises(UnknownNameError, match="hint"):
        find_model("zzzz")


@pytest.mark.parametrize("typed", ["llama-4-8b", "gpt-4", "claude", "deepseek-r1-distill-llama-3b", "qwen2.5-8b"])
def test_what_we_do_not_have_is_not_guessed(typed: str) -> None:
    with pytest.raises(UnknownNameError):
        find_model(typed)


@pytest.mark.parametrize("bad", ["", "   ", "x" * 500, "\x00"])
def test_no_name(bad: str) -> None:
    with pytest.raises(InputError):
        find_model(bad)


@given(st.text(max_size=60))
@example("a=")
@example("=,=")
@example("~")
@example("./")
@example("~nobody/x")
def test_any_text_is_a_model_or_an_input_error(text: str) -> None:
    try:
        arch = find_model(text)
    except InputError:
        return
    assert check_architecture(arch) is arch


@given(st.sampled_from(ALL), st.sampled_from(["", "-", " ", "_", "/"]))
@example("granite-3-2b", "")
def test_separators_never_lead_to_another_model(name: str, separator: str) -> None:
    try:
        found = find_model(name.replace("-", separator))
    except InputError:
        return
    assert found.id == name


def test_families() -> None:
    assert [f for f in FAMILIES if not any(name.startswith(f) for name in ALL)] == []


@pytest.mark.parametrize("name", ALL)
def test_entry_is_sourced_and_sound(name: str) -> None:
    arch = models()[name]
    assert re.search(r"https://|timm ", arch.source), "no source"
    assert arch.name and arch.family
    assert check_architecture(arch) is arch
    assert arch.extra_parameters == sum(e.parameters for e in arch.extras)
    assert all(e.what and e.parameters > 0 for e in arch.extras)
    if arch.kind == "vision":
        assert arch.patches is not None and arch.max_seq_len == arch.patches.n_tokens


def test_names_are_unique() -> None:
    seen: dict[str, str] = {}
    for arch in models().values():
        for spelling in {arch.id, arch.name, *arch.aliases}:
            assert seen.setdefault(spelling.lower(), arch.id) == arch.id, spelling


def test_global_layers() -> None:
    assert models()["gemma-3-4b"].n_global_layers == 5
    assert models()["mistral-7b"].n_global_layers == 0
    assert models()["llama-3-8b"].n_global_layers == 32
    assert models()["deepseek-v3"].n_moe_layers == 58
    assert models()["llama-4-maverick"].n_moe_layers == 24


GOOD = 'n_layers = 2, hidden = 64, ffn = 128, heads = 4, vocab = 100, max_seq_len = 64, name = "x"'


@pytest.mark.parametrize(
    "row",
    [
        "",
        "name = 'x'",
        GOOD.replace("hidden", "hiden"),
        GOOD.replace("n_layers = 2", "n_layers = 0"),
        GOOD.replace("n_layers = 2", "n_layers = -2"),
        GOOD.replace("n_layers = 2", "n_layers = nan"),
        GOOD.replace("n_layers = 2", "n_layers = inf"),
        GOOD.replace("n_layers = 2", "n_layers = 2.5"),
        GOOD.replace("n_layers = 2", "n_layers = true"),
        GOOD.replace("heads = 4", "heads = '4'"),
        GOOD.replace("heads = 4", "heads = 0"),
        GOOD + ", kv_heads = 3",
        GOOD + ", norm = 'rmsnorm'",
        GOOD + ", qk_norm = 'yes'",
        GOOD + ", kind = 'encoder-decoder'",
        GOOD + ", moe = { n_experts = 4 }",
        GOOD + ", moe = { n_experts = 4, n_active = 5, expert_ffn = 8 }",
        GOOD + ", extra = [{ what = 'x' }]",
    ],
)
def test_broken_catalogue_never_yields_a_model(row: str) -> None:
    with pytest.raises(DataError):
        read_catalogue(f"[f]\n[f.models]\nm = {{ {row} }}\n", "models_x.toml")


def test_good_row_and_broken_files() -> None:
    (arch,) = read_catalogue(f"[f]\n[f.models]\nm = {{ {GOOD} }}\n", "models_x.toml")
    assert (arch.head_dim, arch.kv_heads, arch.kind) == (16, 4, "decoder")
    for text in ("[f", "f = 1", "[f]\nx = 1", "[f]\nmodels = 1", "\x00"):
        with pytest.raises(DataError):
            read_catalogue(text, "models_x.toml")


def test_repeated_id(monkeypatch: pytest.MonkeyPatch) -> None:
    model_files.models.cache_clear()
    model_files._names.cache_clear()
    monkeypatch.setattr(model_files, "CATALOGUE_FILES", ("models_gpt.toml", "models_gpt.toml"))
    with pytest.raises(DataError, match="twice"):
        model_files.models()
    model_files.models.cache_clear()
    model_files._names.cache_clear()


def test_checks_name_the_field() -> None:
    arch = models()["llama-3-8b"]
    t5 = models()["t5-small"]
    assert t5.encoder is not None
    bad = {
        "hidden": replace(arch, hidden=2**40),
        "kv_heads": replace(arch, kv_heads=5),
        "norm": replace(arch, norm="batch"),
        "position": replace(arch, position="absolute"),
        "first_dense": replace(arch, moe=Moe(8, 2, 64, first_dense=32)),
        "kind": replace(arch, encoder=Encoder(2, 4096, 64, 4, 1024, 128)),
        "global_every": replace(arch, global_every=2),
        "patch_size": replace(arch, patches=Patches(224, 15)),
    }
    for field, broken in bad.items():
        with pytest.raises(FieldError) as caught:
            check_architecture(broken)
        assert caught.value.field == field
    with pytest.raises(FieldError):
        check_architecture(replace(t5, encoder=replace(t5.encoder, hidden=256)))


@pytest.mark.parametrize(("typed", "gpu"), [("h100", "h100-sxm-80gb"), ("8xH100", "h100-sxm-80gb"), ("rtx 4090", "rtx-4090")])
def test_a_gpu_in_the_place_of_a_model_is_said_to_be_one(typed: str, gpu: str) -> None:
    with pytest.raises(InputError, match="is a GPU, and a model is expected") as caught:
        find_model(typed)
    assert caught.value.hint is not None and caught.value.hint.endswith(f"--on {gpu}")


@pytest.mark.parametrize("value", [0, -1, 2**23, True, 1.5])
def test_whole_numbers_of_parts_without_a_limit_of_their_own_are_checked(value: object) -> None:
    arch = find_model("deepseek-v3")
    assert arch.moe is not None
    with pytest.raises(FieldError, match="top_groups"):
        check_architecture(replace(arch, moe=replace(arch.moe, top_groups=value)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("llama-3.1-8b-instruct-abliterated", "llama-3.1-8b"),
        ("DeepHermes-3-Llama-3-8B", "llama-3-8b"),
        ("someone/Qwen3.6-27B-FP8-dynamic", "qwen3.6-27b"),
        ("gemma3:27b-it-qat", "gemma-3-27b"),
    ],
)
def test_a_fine_tune_is_read_as_its_base_and_says_so(name: str, model: str) -> None:
    arch = find_model(name)
    assert arch.id == model and f"{name} is read as a fine-tune of" in arch.assumption
    assert find_model(model).assumption == ""


@pytest.mark.parametrize(
    "name",
    ["Qwen3.6-35B-A3B-REAP", "Qwen4-7B", "Qwen3-VL-8B", "Qwen3-8B-Embedding", "llava-llama-3-8b", "my-70b", "llama-3.1-9b-x"],
)
def test_a_name_whose_model_has_other_sizes_is_not_read_as_a_base(name: str) -> None:
    with pytest.raises(UnknownNameError):
        find_model(name)
