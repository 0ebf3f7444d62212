import pytest

from gpuwise.errors import DataError
from gpuwise.facts.loading import shipped_text
from gpuwise.facts.offers.seal import SEALED_FILES, add_seal, check_seal


@pytest.mark.parametrize("name", SEALED_FILES)
def test_shipped_price_files_are_sealed(name):
    text = shipped_text(name)
    assert check_seal(text, name) == add_seal(text) == text


def test_sealing_again_changes_nothing():
    assert add_seal(add_seal("a,b\n1,2")) == add_seal("a,b\n1,2\n")


@pytest.mark.parametrize("damage", [("1", "7"), ("2\n", "2"), ("sha256 ", "sha256 0"), ("# sha256", "# sha"), ("1,2\n", "")])
def test_a_damaged_file_is_refused(damage):
    text = add_seal("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"prices.csv"):
        check_seal(text.replace(*damage, 1), "prices.csv")


def test_a_line_after_the_seal_is_refused():
    with pytest.raises(DataError):
        check_seal(add_seal("a,b\n1,2\n") + "3,4\n", "prices.csv")
