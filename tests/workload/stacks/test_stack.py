"""Stacks are read from their files, one at a time, strictly."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
import pytest

from gpuwise.errors import DataError, UnknownNameError
from gpuwise.workload.stacks import FOLDER
from gpuwise.workload.stacks import stack as stacks_module
from gpuwise.workload.stacks.stack import Stack, find_stack
from gpuwise.workload.strategy import STACKS


@pytest.mark.parametrize("name", STACKS)
def test_every_file_has_values_of_the_fields_types(name: str) -> None:
    msgspec.convert(find_stack(name), Stack, from_attributes=True, strict=True)
    facts = find_stack(name)
    assert facts.name == name
    named = [facts.like, *facts.instead.asked, facts.instead.before_fused, facts.instead.compiled, facts.instead.own_script]
    assert {n for n in named if n} <= set(STACKS)


def test_every_tool_named_is_one_of_export() -> None:
    from gpuwise.export.targets import TOOLS

    tools = {t for name in STACKS for t in (find_stack(name).export.tool, find_stack(name).export.tool_with_adapters) if t}
    assert tools <= set(TOOLS) and {t.stack for t in TOOLS.values()} <= set(STACKS)


def test_a_stack_takes_the_facts_of_the_one_it_is_like() -> None:
    script, deepspeed = find_stack("deepspeed-script"), find_stack("deepspeed")
    assert (script.like, script.fused_since, script.bucket_elements) == ("deepspeed", 2023, deepspeed.bucket_elements)
    assert script.memory.keeps_gathered and not deepspeed.memory.keeps_gathered
    assert script.memory.live_elements == deepspeed.memory.live_elements
    assert script.export.tool == ""  # sections are inherited by their own ``like`` only


def test_an_unknown_stack_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(UnknownNameError, match="megatron-cor") as caught:
        find_stack("megatron-cor")
    assert "megatron-core" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fused_everything = true", "fused_everything"),
        ("[memory]\nlike = 'eager'\nholds = 1", r"\[memory\].*holds"),
        ("[memory]\nlike = 'eager'\ngradients = 'sometimes'", "gradients must be one of"),
    ],
)
def test_a_new_file_is_a_stack_and_a_malformed_one_is_refused(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    like = "source = 'a test'\nlike = 'eager'\n"
    sections = "".join(f"[{section}]\nlike = 'eager'\n" for section in ("memory", "layout") if f"[{section}]" not in text)
    for name in STACKS:
        (tmp_path / f"{name}.toml").write_bytes((FOLDER / f"{name}.toml").read_bytes())
    (tmp_path / "good.toml").write_text(like + "[memory]\nlike = 'eager'\n[layout]\nlike = 'eager'\n")
    bad = like + (text + "\n" + sections if not text.startswith("[") else sections + text)
    tomllib.loads(bad)
    (tmp_path / "bad.toml").write_text(bad)
    monkeypatch.setattr(stacks_module, "FOLDER", tmp_path)
    monkeypatch.setattr(stacks_module, "STACKS", (*STACKS, "bad", "good"))
    find_stack.cache_clear()
    try:
        assert find_stack("good").layout == find_stack("eager").layout
        with pytest.raises(DataError, match=message):
            find_stack("bad")
    finally:
        find_stack.cache_clear()
