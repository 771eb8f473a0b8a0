"""decode_attention: against float64 for any sharing of rows, its ends, and what it refuses."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_compress import _native, native
from hvd_compress.errors import ConfigError, MismatchError, UnsupportedError
from hvd_compress.native.attention import DecodePlan, decode_attention
from tests.native.cases import examples

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2.0**-11 + 2e-6, torch.bfloat16: 2.0**-8 + 2e-6}
"""Of what is summed, relative: the order of sums, and one rounding."""
DIMS = (0, 1, 3, 15, 16, 17, 31, 48, 64, 80, 96, 128, 129, 200, 272)
"""Around vectors, the loops for 64 and 128, and the 128 columns of values that are summed together."""
TOKENS = (0, 1, 2, 15, 16, 17, 255, 256, 257, 511, 512, 513, 1030)
"""Around vectors, the tokens that are summed together, and the pieces of a row."""


@dataclass
class Case:
    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    asked: list[list[int]]
    weighed: list[list[tuple[int, int]]]
    mask: torch.Tensor | None

    def run(self) -> torch.Tensor:
        plan = DecodePlan.of(self.asked, self.weighed)
        return decode_attention(self.query, self.keys, self.values, plan, 0.3, self.mask)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any rows that lie apart, up to 6 queries a row of keys and 40 outputs a row of values, scores without outputs."""
    dtype = draw(st.sampled_from(native.FLOATS))
    choose = random.Random(draw(st.integers(0, 2**32 - 1)))
    generator = torch.Generator().manual_seed(choose.randrange(2**32))
    batch, heads = draw(st.integers(1, 3)), draw(st.integers(1, 14))
    tokens, dim, value_dim = (draw(st.sampled_from(each)) for each in (TOKENS, DIMS, DIMS))

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    key_rows, value_rows = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    asked = [[choose.randrange(batch * heads) for _ in range(choose.randint(0, 6))] for _ in range(key_rows)]
    asked[0] = asked[0] or [0]
    weighed: list[list[tuple[int, int]]] = [[] for _ in range(value_rows)]
    for output in range(batch * heads):
        weighed[choose.randrange(value_rows)].append((choose.randrange(sum(map(len, asked))), output))
    return Case(
        normal(batch, 2, heads, dim + 3)[:, 1:, :, 1 : dim + 1].transpose(1, 2),
        normal(key_rows, tokens + choose.randrange(3), dim)[:, :tokens],
        normal(value_rows, tokens + choose.randrange(3), value_dim)[:, :tokens],
        asked,
        [sorted(row) if choose.random() < 0.8 else row for row in weighed],
        draw(st.none() | st.just(torch.rand(batch, tokens + 2, generator=generator)[:, 1:-1] < choose.random())),
    )


def reference(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the outputs in float64, and the same of the values' magnitudes."""
    heads, queries = case.query.shape[1], case.query.double().flatten(0, 2)
    scores = [
        torch.mv(keys.double(), queries[query]) * 0.3
        if case.mask is None
        else (torch.mv(keys.double(), queries[query]) * 0.3).masked_fill(~case.mask[query // heads], -torch.inf)
        for keys, row in zip(case.keys, case.asked, strict=True)
        for query in row
    ]
    outputs = torch.full((2, len(queries), case.values.shape[2]), torch.nan, dtype=torch.float64)
    for values, row in zip(case.values.double(), case.weighed, strict=True):
        for number, output in row:
            weights = scores[number].softmax(0).nan_to_num(0.0)
            outputs[0, output], outputs[1, output] = weights @ values, weights @ values.abs()
    return outputs[0], outputs[1]


@examples(400)
@given(case=cases())
def test_outputs_are_those_of_float64(case: Case) -> None:
    found = case.run()
    assert found.dtype == case.query.dtype
    assert found.shape == (*case.query.shape[:3], case.values.shape[2])
    expected, magnitudes = reference(case)
    error = (found.double().flatten(0, 2) - expected).abs()
    # of fp16 below its normal numbers, rounding is absolute
    assert (error <= TOLERANCE[found.dtype] * (magnitudes + expected.abs()) + 1e-7).all()


@examples(100)
@given(case=cases())
def test_the_same_bits_at_every_level_and_with_any_threads(case: Case) -> None:
    found = case.run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HVD_COMPRESS_NUM_THREADS", "1")
        for level in native.simd_levels():
            before = _native_level()
            native.set_simd_level(level)
            try:
                assert torch.equal(case.run(), found)
            finally:
                native.set_simd_level(before)


def _native_level() -> str:
    return native.SIMD_LEVELS[_native.simd_level_of_kernels()]


def of_one_row(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, **options: Any) -> torch.Tensor:
    """Attend with one head to one row (tokens, dim)."""
    plan = DecodePlan.of([[0]], [[(0, 0)]])
    return decode_attention(query.view(1, 1, 1, -1), keys[None], values[None], plan, 1.0, **options).flatten()


def test_exponentials_are_exact_to_fp32() -> None:
    """Of two tokens, that with the value 1 has a score of x less: the output is e^-x / (1 + e^-x)."""
    for x in torch.linspace(0, 86, 3001).tolist():
        keys, values = torch.tensor([[0.0], [-x]]), torch.tensor([[0.0], [1.0]])
        weight = torch.tensor(-x).double().exp()
        assert of_one_row(torch.ones(1), keys, values).item() == pytest.approx((weight / (1 + weight)).item(), rel=4e-7)


@pytest.mark.parametrize("at", [0, 7, 16, 299])
def test_large_scores_do_not_overflow(at: int) -> None:
    """And what lies far below the largest weighs nothing."""
    keys, values = torch.full((300, 1), -3e4), torch.full((300, 5), 7.0)
    keys[at], values[at] = 3e4, torch.arange(5.0)
    assert of_one_row(torch.ones(1), keys, values).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert of_one_row(torch.full((1,), 1e4), keys, values).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("tokens", [1, 16, 40])
def test_where_nothing_is_seen_the_output_is_zero(tokens: int) -> None:
    """As torch has it."""
    query, keys, values = torch.ones(4), torch.randn(tokens, 4), torch.randn(tokens, 3)
    hidden = torch.zeros(1, tokens, dtype=torch.bool)
    assert of_one_row(query, keys, values, mask=hidden).tolist() == [0.0] * 3
    shaped = query.view(1, 1, 1, 4), keys[None, None], values[None, None]
    assert not torch.nn.functional.scaled_dot_product_attention(*shaped, attn_mask=hidden[None, None]).any()


@pytest.mark.parametrize("at", [0, 20])
def test_nan_is_passed_on_where_it_is_seen(at: int) -> None:
    keys, values = torch.randn(21, 4), torch.ones(21, 3)
    keys[at, 2] = torch.nan
    assert of_one_row(torch.ones(4), keys, values).isnan().all()
    alone = torch.arange(21)[None] == at
    assert of_one_row(torch.ones(4), keys, values, mask=alone).isnan().all()
    assert torch.allclose(of_one_row(torch.ones(4), keys, values, mask=~alone), torch.ones(3))
    keys[at, 2] = torch.inf
    assert of_one_row(torch.ones(4), keys, values).isnan().all()
    keys[at, 2] = -torch.inf
    assert torch.allclose(of_one_row(torch.ones(4), keys, values), torch.ones(3))
    assert not of_one_row(torch.ones(4), keys, values, mask=alone).any()


def test_nothing_around_the_rows_counts() -> None:
    """Neither what lies behind the last element, nor the tokens for which there is only room."""
    memory = torch.full((3, 19, 5), torch.nan)
    memory[1, :17] = 1.0
    mask = torch.ones(3, 17, dtype=torch.bool)
    found = of_one_row(torch.ones(5), memory[1, :17], memory[1, :17], mask=mask[1:2])
    assert torch.allclose(found, torch.ones(5))


QUERY, KEYS, VALUES = torch.ones(1, 2, 1, 4), torch.ones(2, 3, 4), torch.ones(2, 3, 5)
PLAN = DecodePlan.of([[0], [1]], [[(0, 0)], [(1, 1)]])


@pytest.mark.parametrize(
    ("changed", "error", "match"),
    [
        ({"query": [1.0]}, ConfigError, r"query must be a torch.Tensor, got list"),
        ({"query": QUERY.double()}, ConfigError, r"query must be of torch.float32 or .*got torch.float64"),
        ({"keys": KEYS.half()}, ConfigError, r"keys must be of torch.float32, got torch.float16"),
        ({"values": VALUES.bfloat16()}, ConfigError, r"values must be of torch.float32, got torch.bfloat16"),
        ({"query": QUERY[0]}, ConfigError, r"query must have 4 dimensions, got shape \(2, 1, 4\)"),
        ({"keys": KEYS[0]}, ConfigError, r"keys must have 3 dimensions"),
        ({"keys": KEYS.to("meta")}, ConfigError, r"keys must be on the CPU, got meta"),
        ({"keys": KEYS.to_sparse()}, ConfigError, r"keys must be a plain tensor of torch.strided"),
        ({"keys": torch.ones(2, 4, 3).mT}, ConfigError, r"keys \(2, 3, 4\) with strides .* does not lie together"),
        ({"values": torch.ones(2, 3, 6)[..., :5]}, ConfigError, r"values .* does not lie together"),
        ({"query": torch.ones(1, 2, 1, 8)[..., ::2]}, ConfigError, r"query .* does not lie together"),
        ({"query": torch.ones(1, 2, 2, 4)}, MismatchError, r"do not fit: \(batch, heads, 1, head_dim\)"),
        ({"keys": torch.ones(2, 3, 3)}, MismatchError, "do not fit"),
        ({"values": torch.ones(2, 2, 5)}, MismatchError, "do not fit"),
        ({"query": torch.ones(1, 3, 1, 4)}, MismatchError, r"2 of values and 2 queries, got 2, 2 and 3"),
        ({"keys": torch.ones(1, 3, 4)}, MismatchError, r"the plan is for 2 rows of keys, .*got 1, 2 and 2"),
        ({"values": torch.ones(1, 3, 5)}, MismatchError, r"got 2, 1 and 2"),
        ({"mask": torch.ones(1, 3)}, ConfigError, r"mask must be of torch.bool"),
        ({"mask": torch.ones(1, 2).bool()}, MismatchError, r"mask must be of shape \(1, 3\), got \(1, 2\)"),
        ({"mask": torch.ones(1, 6).bool()[:, ::2]}, ConfigError, r"mask .* does not lie together"),
        ({"scaling": "half"}, ConfigError, "scaling must be a number"),
    ],
)
def test_refused(changed: dict[str, Any], error: type[Exception], match: str) -> None:
    arguments = {"query": QUERY, "keys": KEYS, "values": VALUES, "plan": PLAN, "scaling": 1.0} | changed
    with pytest.raises(error, match=match):
        decode_attention(**arguments)


def test_memory_that_is_not_there_is_refused() -> None:
    gone = torch.ones(2, 3, 4)
    gone.untyped_storage().resize_(4)
    with pytest.raises(ConfigError, match="keys has no memory behind it"):
        decode_attention(QUERY, gone, VALUES, PLAN, 1.0)
    odd = torch.frombuffer(bytearray(97), dtype=torch.float32, offset=1, count=24).view(2, 3, 4)
    with pytest.raises(ConfigError, match="keys does not start at a multiple of its element size"):
        decode_attention(QUERY, odd, VALUES, PLAN, 1.0)


def test_a_tensor_without_memory_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="query only stands for a tensor"):
        decode_attention(torch._efficientzerotensor(QUERY.shape), KEYS, VALUES, PLAN, 1.0)


@pytest.mark.parametrize("number", [-1, 3, 2**40, -(2**63)])
def test_a_plan_that_was_spoilt_reads_nothing_outside(number: int) -> None:
    for position in range(PLAN.index.numel()):
        index = PLAN.index.clone()
        index[position] = number
        with pytest.raises(MismatchError, match=rf"the plan has {number} at position {position}, which is not there"):
            decode_attention(QUERY, KEYS, VALUES, dataclasses.replace(PLAN, index=index), 1.0)


def test_plans_that_are_none() -> None:
    with pytest.raises(MismatchError, match="of 2 outputs each must be there once, got"):
        DecodePlan.of([[0], [1]], [[(0, 0), (1, 0)]])
    with pytest.raises(MismatchError, match=r"scores lie outside 0\.\.1"):
        DecodePlan.of([[0], [1]], [[(0, 0), (2, 1)]])
