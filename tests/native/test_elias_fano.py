"""The code of ascending indices: there and back, its length, and codes that are none."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_compress import _native, native
from hvd_compress.errors import ConfigError, MismatchError
from tests.native.cases import examples

NUMELS = st.one_of(st.integers(1, 70), st.sampled_from([4096, 70_001, 1_000_003, 2**31 - 1]))


@st.composite
def lists(draw: st.DrawFn) -> tuple[torch.Tensor, int]:
    """Indices (count,) and numel: spread evenly, at random, or all at one end."""
    numel = draw(NUMELS)
    count = draw(st.sampled_from(sorted({min(c, numel) for c in (0, 1, 2, 33, numel // 100, 70_001, numel)} - {2**31})))
    count = min(count, 200_000)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["random", "low", "high"]))
    if kind == "low":
        return torch.arange(count, dtype=torch.int32), numel
    if kind == "high":
        return torch.arange(numel - count, numel).int(), numel
    drawn = torch.randint(numel, (2 * count,), generator=generator).unique()
    return drawn[:count].int(), numel


def reference(indices: list[int], numel: int) -> list[int]:
    """Return the words, bit by bit, as csrc/include/hvd_compress/elias_fano.hpp says."""
    if not indices:
        return []
    low_bits = math.floor(math.log2(numel // len(indices)))
    high = ["0"] * (len(indices) + (numel - 1 >> low_bits))
    for i, index in enumerate(indices):
        high[(index >> low_bits) + i] = "1"
    low = [bit for index in indices for bit in f"{index % 2**low_bits:0{low_bits}b}"[::-1]] if low_bits else []
    words = []
    for bits in (high, low):
        bits = bits + ["0"] * (-len(bits) % 32)
        words += [int("".join(reversed(bits[at : at + 32])), 2) for at in range(0, len(bits), 32)]
    return words


def checked(call: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Return what the call does; on a GPU a bad index is told later."""
    native.forget_pending()
    found = call()
    native.check_pending()
    return found


@given(case=lists())
@examples(150)
def test_what_was_encoded_is_decoded(case: tuple[torch.Tensor, int]) -> None:
    indices, numel = case
    words = checked(lambda: native.elias_fano_encode(indices, numel))
    assert words.numel() == native.EliasFano(numel, indices.numel()).words
    assert torch.equal(checked(lambda: native.elias_fano_decode(words, numel, indices.numel())), indices)


@given(data=st.data(), numel=st.integers(1, 300))
@examples(100)
def test_the_words_are_those_of_the_format(data: st.DataObject, numel: int) -> None:
    indices = sorted(data.draw(st.sets(st.integers(0, numel - 1))))
    words = native.elias_fano_encode(torch.tensor(indices, dtype=torch.int32), numel)
    assert [word % 2**32 for word in words.tolist()] == reference(indices, numel)


@pytest.mark.parametrize(("numel", "count", "most"), [(10**8, 10**6, 8.6), (10**6, 10**4, 8.6), (1000, 10, 10)])
def test_at_one_of_a_hundred_an_index_takes_less_than_ten_bits(numel: int, count: int, most: float) -> None:
    assert 8 * native.EliasFano(numel, count).nbytes / count < most


def test_many_indices_over_several_parts() -> None:
    """Of 2048 high words, of 32,768 indices, of 1024 words a tile; with long gaps between."""
    gaps = torch.randint(1, 4000, (200_000,), generator=torch.Generator().manual_seed(1))
    gaps[torch.arange(0, 200_000, 5)] = 1
    indices = gaps.cumsum(0).int()
    numel = int(indices[-1]) + 1
    words = native.elias_fano_encode(indices, numel)
    assert torch.equal(native.elias_fano_decode(words, numel, 200_000), indices)


@pytest.mark.parametrize(
    ("indices", "position"), [([-1, 3], 0), ([2, 10], 1), ([2, 2], 1), ([5, 4], 1), ([0, 2**31 - 1], 1)]
)
def test_a_list_that_does_not_ascend_in_range_is_refused(indices: list[int], position: int) -> None:
    with pytest.raises(MismatchError, match=f"at position {position}.* lies outside 0..9, or does not lie above"):
        checked(lambda: native.elias_fano_encode(torch.tensor(indices, dtype=torch.int32), 10))


def flipped(words: torch.Tensor, bit: int) -> torch.Tensor:
    changed = words.clone()
    changed.view(torch.uint8)[bit // 8] ^= 1 << bit % 8
    return changed


@given(data=st.data(), case=lists())
@examples(100)
def test_words_that_are_not_the_code_of_anything_reach_nothing_outside(
    data: st.DataObject, case: tuple[torch.Tensor, int]
) -> None:
    """They are refused, or are the code of other indices, which are then good; more than these are never written."""
    indices, numel = case
    count = indices.numel()
    words = native.elias_fano_encode(indices, numel)
    if count == 0:
        return
    kind = data.draw(st.sampled_from(["flip", "zeros", "ones", "random"]))
    if kind == "flip":
        words = flipped(words, data.draw(st.integers(0, 32 * words.numel() - 1)))
    elif kind == "random":
        generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32 - 1)))
        words = torch.randint(-(2**31), 2**31, (words.numel(),), generator=generator).int()
    else:
        words = torch.full_like(words, 0 if kind == "zeros" else -1)
    try:
        found = checked(lambda: native.elias_fano_decode(words, numel, count))
    except MismatchError:
        return
    assert int(found[0]) >= 0
    assert int(found[-1]) < numel
    assert bool((found.diff() > 0).all())
    # What is left of the last words is not looked at.
    again = native.elias_fano_encode(found, numel)
    assert torch.equal(native.elias_fano_decode(again, numel, count), found)


def high_words(numel: int, count: int, indices: list[int]) -> torch.Tensor:
    """The code of indices that need not be good, nor so many, where no low bits are stored."""
    assert native.EliasFano(numel, count).low_bits == 0
    words = [0] * native.EliasFano(numel, count).words
    for i, index in enumerate(indices):
        words[(index + i) // 32] |= 1 << (index + i) % 32
    return torch.tensor([word - 2**32 if word >= 2**31 else word for word in words], dtype=torch.int32)


@pytest.mark.parametrize(
    ("words", "numel", "count", "position"),
    [
        (high_words(20, 12, list(range(11))), 20, 12, 11),  # one too few
        (high_words(20, 13, list(range(14))), 20, 13, 13),  # one too many
        (high_words(20, 12, [*range(11), 20]), 20, 12, 11),  # outside
        (high_words(20, 12, [0, *range(11)]), 20, 12, 1),  # 0 twice
        (torch.zeros(1, dtype=torch.int32), 20, 12, 0),
        (torch.tensor([0b11, 0b10_11], dtype=torch.int32), 9, 2, 1),  # 3 and then 2, which have the same high part
    ],
)
def test_the_first_bad_index_of_a_code(level: str, words: torch.Tensor, numel: int, count: int, position: int) -> None:
    words_of = "the code has more than" if position == count else f"at position {position} of"
    if level == "tiles":
        words_of = f"the index at position {position} lies outside 0..{numel - 1}, or does not lie above the one before"
    with pytest.raises(MismatchError, match=words_of):
        checked(lambda: native.elias_fano_decode(words, numel, count))


def test_on_a_gpu_bad_indices_are_none(level: str) -> None:
    """So whoever uses them before somebody asks leaves them out."""
    if level != "tiles":
        return  # there they are refused at once
    found = native.elias_fano_decode(high_words(20, 12, [*range(11), 20]), 20, 12)
    assert found.tolist() == [*range(11), -1]
    found = native.elias_fano_decode(high_words(20, 12, list(range(11))), 20, 12)
    assert found.tolist() == [*range(11), -1]
    native.forget_pending()


def test_a_code_of_another_length() -> None:
    with pytest.raises(MismatchError, match="4 words for 10 indices of 1000, expected 3"):
        native.elias_fano_decode(torch.zeros(4, dtype=torch.int32), 1000, 10)


@pytest.mark.parametrize(("numel", "count"), [(-1, 0), (3, 4), (2**31, 1), (3.0, 1), (3, -1), (3, True)])
def test_sizes_that_are_none(numel: int, count: int) -> None:
    with pytest.raises(ConfigError, match=r"(numel|count) = .* is not a whole number in"):
        native.EliasFano(numel, count)


def test_nothing_is_written_beyond_the_ends(level: str) -> None:
    """By the compiled module itself, as a wrapper makes tensors of the right size."""
    if level == "tiles":
        return
    indices, numel = torch.arange(0, 3000, 3, dtype=torch.int32), 3000
    code = native.EliasFano(numel, 1000)
    words, found = torch.full((code.words + 8,), 7, dtype=torch.int32), torch.full((1008,), 7, dtype=torch.int32)
    workspace = torch.zeros(_native.elias_fano_workspace_bytes(numel, 1000), dtype=torch.uint8)
    assert _native.elias_fano_encode(indices.data_ptr(), 1000, numel, words.data_ptr()) == -1
    words[code.words :] = 7
    for start in (words, torch.full_like(words, -1)):
        _native.elias_fano_decode(
            start.data_ptr(), 1000, numel, found.data_ptr(), workspace.data_ptr(), workspace.numel()
        )
        assert (found[1000:] == 7).all()
