"""gather, take, scatter_add, scatter_set: an element at a time in Python is the reference."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_compress import native
from hvd_compress.errors import MismatchError
from tests.native.cases import DTYPES, assert_same, examples, tensors

VALUE_PAIRS = [(out, value) for out in DTYPES for value in dict.fromkeys((torch.float32, out))]
SCALES = st.sampled_from([1.0, 0.25, 1 / 3, -3.0, 0.0])


def checked(call: Callable[[], object]) -> None:
    """CUDA kernels tell of bad indices later."""
    call()
    native.check_pending()


@st.composite
def index_lists(draw: st.DrawFn, n: int) -> torch.Tensor:
    """Any order, repeated or not."""
    return torch.tensor(draw(st.lists(st.integers(0, n - 1), max_size=60)) if n else [], dtype=torch.int32)


def as_written(indices: torch.Tensor, level: str) -> torch.Tensor:
    """What may be written by: on CUDA, an ascending list."""
    return indices.unique() if level == "tiles" else indices


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
@examples(100)
def test_gather(dtype: torch.dtype, data: st.DataObject) -> None:
    x = data.draw(tensors(dtype))
    indices = data.draw(index_lists(x.numel()))
    assert_same(native.gather(x, indices), x[indices.long()])


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
@examples(100)
def test_take_clears_what_it_took(level: str, dtype: torch.dtype, data: st.DataObject) -> None:
    x = data.draw(tensors(dtype))
    indices = as_written(data.draw(index_lists(x.numel())), level)
    expected, left = torch.empty(indices.numel()), x.clone()
    for position, index in enumerate(indices.tolist()):
        expected[position] = left[index].float()
        left[index] = 0
    assert_same(native.take(x, indices), expected)
    assert_same(x, left)


@pytest.mark.parametrize("dtypes", VALUE_PAIRS)
@given(data=st.data(), scale=SCALES)
@examples(100)
def test_scatter_add_adds_in_order(
    level: str, dtypes: tuple[torch.dtype, torch.dtype], data: st.DataObject, scale: float
) -> None:
    out = data.draw(tensors(dtypes[0]))
    indices = as_written(data.draw(index_lists(out.numel())), level)
    values = data.draw(tensors(dtypes[1], indices.numel()))
    expected = out.clone()
    for index, value in zip(indices.tolist(), values.float(), strict=True):
        expected[index] = (expected[index].float() + torch.tensor(scale) * value).to(out.dtype)
    native.scatter_add(indices, values, out, scale)
    assert_same(out, expected)


@pytest.mark.parametrize("dtypes", VALUE_PAIRS)
@given(data=st.data(), scale=SCALES)
@examples(50)
def test_scatter_set_keeps_the_last(
    level: str, dtypes: tuple[torch.dtype, torch.dtype], data: st.DataObject, scale: float
) -> None:
    out = data.draw(tensors(dtypes[0]))
    indices = as_written(data.draw(index_lists(out.numel())), level)
    values = data.draw(tensors(dtypes[1], indices.numel()))
    expected = out.clone()
    for index, value in zip(indices.tolist(), values.float(), strict=True):
        expected[index] = (torch.tensor(scale) * value).to(out.dtype)
    native.scatter_set(indices, values, out, scale)
    assert_same(out, expected)


def test_scatter_undoes_topk() -> None:
    x = torch.randn(10_001, generator=torch.Generator().manual_seed(5))
    residual = torch.zeros_like(x)
    indices, values = native.topk_accumulate(x, residual, 100)
    native.scatter_add(indices, values, residual, 1.0)
    assert_same(residual, x)


CALLS: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "gather": lambda indices, out: native.gather(out, indices),
    "take": lambda indices, out: native.take(out, indices),
    "scatter_add": lambda indices, out: native.scatter_add(indices, torch.ones(indices.numel()), out, 1.0),
    "scatter_set": lambda indices, out: native.scatter_set(indices, torch.ones(indices.numel()), out, 1.0),
}


@pytest.mark.parametrize("name", CALLS)
@given(data=st.data(), n=st.integers(0, 50), length=st.integers(1, 50))
@examples(100)
def test_an_index_out_of_range_is_named_and_nothing_is_written(
    level: str, name: str, data: st.DataObject, n: int, length: int
) -> None:
    bad = st.sampled_from([-1, n, n + 1, -(2**31), 2**31 - 1])
    good = st.integers(0, n - 1) if n else bad
    indices = data.draw(st.lists(st.one_of(good, bad), min_size=length, max_size=length))
    indices[data.draw(st.integers(0, length - 1))] = data.draw(bad)
    ascending = level == "tiles" and name != "gather"
    first = next(
        j for j, index in enumerate(indices) if not 0 <= index < n or (ascending and j > 0 and index <= indices[j - 1])
    )
    guarded = torch.full((n + 16,), 5.0)
    out = guarded[8 : 8 + n]
    message = rf"index {indices[first]} at position {first} of {length} lies outside 0\.\.{n - 1}"
    if level == "tiles":
        message = rf"^the index at position {first} lies outside 0\.\.{n - 1}, or does not .* \({name} on cpu\)"
    with pytest.raises(MismatchError, match=message):
        checked(lambda: CALLS[name](torch.tensor(indices, dtype=torch.int32), out))
    native.check_pending()  # it is forgotten
    assert (guarded[:8] == 5.0).all()
    assert (guarded[8 + n :] == 5.0).all()
    assert level == "tiles" or (out == 5.0).all()


def test_a_call_after_a_bad_one_is_done(level: str) -> None:
    """What is bad is told later, but stops nothing."""
    if level != "tiles":
        return  # there it is told at once
    x = torch.arange(4.0)
    bad, good = torch.tensor([1, 9], dtype=torch.int32), torch.tensor([2, 3], dtype=torch.int32)
    with native.about("payload from rank 3"):
        assert native.gather(x, bad).tolist() == [1.0, 0.0]
    assert native.gather(x, good).tolist() == [2.0, 3.0]
    with pytest.raises(MismatchError, match=r"^payload from rank 3: the index at position 1 lies outside 0\.\.3"):
        native.check_pending()


def test_what_was_given_up_is_not_told(level: str) -> None:
    if level != "tiles":
        return  # there it is told at once
    native.gather(torch.arange(4.0), torch.tensor([9], dtype=torch.int32))
    native.forget_pending()
    native.check_pending()


@st.composite
def sorted_lists(draw: st.DrawFn, n: int, dtype: torch.dtype) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Up to 70 lists (more than the kernel takes at once), each ascending without repetition."""
    lists = []
    for _ in range(draw(st.sampled_from([0, 1, 2, 3, 8, 70]))):
        generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
        count = draw(st.sampled_from(sorted({0, min(1, n), min(60, n), n // 2, n})))
        indices = torch.randperm(n, generator=generator)[:count].sort().values.int()
        lists.append((indices, torch.randn(count, generator=generator).to(dtype)))
    return lists


@pytest.mark.parametrize("dtypes", VALUE_PAIRS)
@given(data=st.data(), scale=SCALES, clear=st.booleans())
@examples(60)
def test_lists_are_added_one_after_the_other(
    dtypes: tuple[torch.dtype, torch.dtype], data: st.DataObject, scale: float, clear: bool
) -> None:
    out = data.draw(tensors(dtypes[0]))
    lists = data.draw(sorted_lists(out.numel(), dtypes[1]))
    expected = torch.zeros_like(out) if clear else out.clone()
    for indices, values in lists:
        native.scatter_add(indices, values, expected, scale)
    native.scatter_lists(lists, out, scale, clear)
    assert_same(out, expected)


@pytest.mark.parametrize("clear", [True, False])
def test_lists_over_many_blocks(clear: bool) -> None:
    n = 600_001  # five parts of 131,072 for the threads, the last one short; 74 tiles
    generator = torch.Generator().manual_seed(4)
    drawn = [torch.randint(n, (n // 50,), generator=generator).unique().int() for _ in range(8)]
    lists = [(indices, torch.randn(indices.numel(), generator=generator)) for indices in drawn]
    out = torch.randn(n, generator=generator)
    expected = torch.zeros(n) if clear else out.clone()
    for indices, values in lists:
        native.scatter_add(indices, values, expected, 0.125)
    native.scatter_lists(lists, out, 0.125, clear)
    assert_same(out, expected)


@pytest.mark.parametrize(
    ("indices", "words"),
    [
        ([-1, 2], "list 1: index -1 at position 0"),
        ([2, 10], "list 1: index 10 at position 1"),
        ([2, 2], "list 1: index 2 at position 1"),
        ([5, 4], "list 1: index 4 at position 1"),
    ],
)
def test_a_list_that_does_not_ascend_in_range_changes_nothing(level: str, indices: list[int], words: str) -> None:
    out = torch.ones(10)
    good = (torch.tensor([1], dtype=torch.int32), torch.ones(1))
    if level == "tiles":
        words = f"list 1: the index at {words.partition(' at ')[2]} lies outside 0..9, or does not"
    with pytest.raises(MismatchError, match=words):
        checked(
            lambda: native.scatter_lists([good, (torch.tensor(indices, dtype=torch.int32), torch.ones(2))], out, 1.0)
        )
    assert level == "tiles" or torch.equal(out, torch.ones(10))


@given(data=st.data(), n=st.sampled_from([1, 7000, 40_000]), change=st.sampled_from(["any", "swap", "twice"]))
@examples(60)
def test_the_first_bad_index_of_a_list_over_several_tiles(level: str, data: st.DataObject, n: int, change: str) -> None:
    """Tiles search for their parts, and what a search finds in a list that is not sorted may be anything."""
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32 - 1)))
    count = data.draw(st.integers(1, min(n, 300)))
    indices = torch.randperm(n, generator=generator)[:count].sort().values.int()
    at, other = (data.draw(st.integers(0, count - 1)) for _ in range(2))
    if change == "any":
        indices[at] = data.draw(st.sampled_from([-1, n, -(2**31), 2**31 - 1, 0, n - 1]))
    elif change == "swap":
        indices[at], indices[other] = int(indices[other]), int(indices[at])
    else:
        indices[at] = indices[other]
    above = torch.cat([torch.tensor([-1]), indices[:-1].long().cummax(0).values])
    good = (indices >= 0) & (indices < n) & (indices > above)

    def call() -> None:
        native.scatter_lists([(indices, torch.ones(count))], torch.ones(n), 1.0)

    if good.all():
        checked(call)
        return
    with pytest.raises(MismatchError, match=rf"list 0: .*index .*at position {int((~good).nonzero()[0])}\b"):
        checked(call)


def test_the_position_of_a_bad_index_far_down_a_list() -> None:
    indices = torch.arange(200_000, dtype=torch.int32)
    indices[150_000] = 3
    with pytest.raises(MismatchError, match="at position 150000"):
        checked(lambda: native.scatter_lists([(indices, torch.ones(200_000))], torch.ones(200_000), 1.0))
