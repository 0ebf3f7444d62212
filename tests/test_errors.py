import sys

import pytest

from gpuwise.errors import (
    AmbiguousNameError,
    FieldError,
    LayoutError,
    MissingExtraError,
    UnknownNameError,
    require,
)


def test_unknown_name_suggests_the_nearest() -> None:
    error = UnknownNameError("model", "lama-3-8b", ["llama-3-8b", "gpt2", "mistral-7b"])
    assert error.nearest[0] == "llama-3-8b"
    assert "hint: did you mean 'llama-3-8b'" in str(error)


def test_ambiguous_name_lists_candidates() -> None:
    error = AmbiguousNameError("accelerator", "h100", ["h100-sxm", "h100-pcie"])
    assert "h100-sxm, h100-pcie" in str(error) and error.candidates == ("h100-sxm", "h100-pcie")


def test_field_error_says_where() -> None:
    assert str(FieldError("must be positive", file="a.toml", line=7, field="x")).startswith("a.toml:7: must be positive")


def test_layout_error_names_its_rule() -> None:
    assert "rule: tp-divides-heads" in str(LayoutError("tp-divides-heads", "tp 3 does not divide 32 heads"))


def test_a_missing_library_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError) as caught:
        require("pyarrow", "a figure")
    assert caught.value.message == "a figure needs pyarrow, which is not installed"
    assert caught.value.hint == "pip install 'gpuwise[parquet]'"
    with pytest.raises(MissingExtraError) as caught:
        require("no_such_library", "this", otherwise="do without")
    assert caught.value.hint == "pip install no_such_library, or do without"


def test_a_library_that_is_there_is_not_imported() -> None:
    assert "this" not in sys.modules
    require("this", "a poem")
    assert "this" not in sys.modules
