"""The zoo's names and refusals, and what a measured step says of a card; no torch needed for these."""

from __future__ import annotations

import pytest

from gpuwise.errors import InputError, UnknownNameError
from studies.capture_time.rows import NETWORKS, SAMPLE, family_of_network, is_check
from studies.networks import zoo


def test_every_own_network_has_a_builder() -> None:
    from importlib.util import find_spec

    for own in zoo.LOCAL.values():
        assert find_spec(f"studies.networks.{own.module}") is not None


@pytest.mark.parametrize(("name", "source"), [("resnet50", "somewhere"), ("no-such-net", "own"), ("no-such-net", "transformers")])
def test_unknown_names_are_refused(name: str, source: str) -> None:
    with pytest.raises(UnknownNameError):
        zoo.build(name, source)


def test_sizes_must_be_positive() -> None:
    with pytest.raises(InputError, match="image_size"):
        zoo.build("vae", "own", image_size=0)


def test_families_of_networks_are_on_one_side_of_the_split() -> None:
    assert family_of_network("tf_efficientnet_b4") == "efficientnet"
    assert is_check("convnext_tiny") == is_check("convnext_base")
    assert {is_check(n) for n in SAMPLE} == {True, False}
    assert len({family_of_network(n) for n in NETWORKS}) >= 25
