import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.errors import FieldError
from gpuwise.predict.memory.allocator.settings import MIB, AllocatorSettings

GOOD = [
    "",
    "expandable_segments:True",
    "expandable_segments:True,",
    " max_split_size_mb : 128 , expandable_segments:False",
    "max_split_size_mb:20",
    "large_segment_size_mb:11",
    "roundup_power2_divisions:[256:1,512:2,>:4]",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:[]",
    "garbage_collection_threshold:0.8",
    "max_non_split_rounding_mb:30",
    "pinned_use_background_threads:True",
]
BAD = [
    "max_split_size_mb:19",
    "max_split_size_mb:abc",
    "max_split_size_mb:[30]",
    "large_segment_size_mb:10",
    "large_segment_size_mb:40,max_split_size_mb:30",
    "roundup_power2_divisions:3",
    "roundup_power2_divisions:0",
    "roundup_power2_divisions:[256:3]",
    "roundup_power2_divisions:[200:2]",
    "garbage_collection_threshold:1.0",
    "garbage_collection_threshold:0",
    "expandable_segments:true",
    "expandable_segments",
    "max_non_split_rounding_mb:10",
    "expandable_segments:True max_split_size_mb:30",
    "roundup_power2_divisions:[256:1,512:2,>:4",
]
STRICTER = [
    "max_split_size_mb:30x",
    "max_split_size_mb:-5",
    "max_split_size_mb:30.5",
    "foo:1",
    "backend:foo",
    "backend:cudaMallocAsync",
    "per_process_memory_fraction:1.5",
    "max_split_size_mb:30,,backend:native",
]


@pytest.mark.parametrize("text", GOOD)
def test_what_torch_accepts_is_accepted(text):
    assert AllocatorSettings.parse(text).text == text


@pytest.mark.parametrize("text", BAD + STRICTER)
def test_bad_settings_are_refused_with_a_hint(text):
    with pytest.raises(FieldError) as error:
        AllocatorSettings.parse(text)
    assert error.value.hint and text in str(error.value)


def test_torch_itself_agrees():
    torch = pytest.importorskip("torch")
    apply = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if apply is None:
        pytest.skip("this torch cannot set allocator settings without a GPU")
    try:
        for text in GOOD:
            apply("large_segment_size_mb:20")
            apply(text)
        for text in BAD:
            apply("large_segment_size_mb:20")
            with pytest.raises((ValueError, RuntimeError)):
                apply(text)
    finally:
        apply(
            "large_segment_size_mb:20,max_non_split_rounding_mb:20,expandable_segments:False,pinned_use_background_threads:False"
        )


def test_a_version_refuses_what_it_does_not_have():
    with pytest.raises(FieldError, match=r"torch 2\.7 has no allocator setting 'large_segment_size_mb'"):
        AllocatorSettings.parse("large_segment_size_mb:40", torch_version="2.7.1+cu126")
    with pytest.raises(FieldError, match="at least 21 MiB"):
        AllocatorSettings.parse("max_split_size_mb:20", torch_version="2.7.1")
    with pytest.raises(FieldError, match="version of torch"):
        AllocatorSettings.parse("", torch_version="nightly")


def test_divisions_by_size_as_torch_fills_its_table():
    new = AllocatorSettings.parse("roundup_power2_divisions:[256:1,512:2,>:4]").roundup_power2_divisions
    assert new == (1,) * 9 + (2,) + (4,) * 6
    old = AllocatorSettings.parse("roundup_power2_divisions:[256:1,512:2,>:4]", torch_version="2.5").roundup_power2_divisions
    assert old == (1,) * 9 + (4,) * 7
    skipping = AllocatorSettings.parse("roundup_power2_divisions:[64:8,256:4]").roundup_power2_divisions
    assert skipping == (8,) * 7 + (0, 4) + (0,) * 7


def test_rounding():
    plain = AllocatorSettings()
    assert plain.rounded(np.array([0, 1, 512, 513, 1200])).tolist() == [512, 512, 512, 1024, 1536]
    four = AllocatorSettings.parse("roundup_power2_divisions:4")
    assert four.rounded(np.array([1200 * 1024, 2048, 5 * MIB, 5 * MIB + 1])).tolist() == [1280 * 1024, 2048, 5 * MIB, 6 * MIB]


@given(st.integers(1, 1 << 40), st.sampled_from([1, 2, 4, 16, 64]))
def test_rounding_never_shrinks_and_stays_within_a_division(size, divisions):
    conf = AllocatorSettings.parse(f"roundup_power2_divisions:{divisions}")
    rounded = int(conf.rounded(np.array([size]))[0])
    assert size <= rounded and rounded % 512 == 0
    step = max(512, (1 << (size.bit_length() - 1)) // divisions) if divisions > 1 and size > 512 * divisions else 512
    assert rounded - size < step
    assert int(conf.rounded(np.array([rounded]))[0]) == rounded


def test_segments():
    conf = AllocatorSettings.parse("large_segment_size_mb:40")
    assert [conf.segment_bytes(n) // MIB for n in (512, MIB, MIB + 512, 10 * MIB - 512, 10 * MIB, 11 * MIB)] == [
        2,
        2,
        40,
        40,
        10,
        12,
    ]
