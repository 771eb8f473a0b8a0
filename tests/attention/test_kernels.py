"""decode_attention: against float64 for any sharing of rows, its ends, and what it refuses.

Of the second level (level2) where vector instructions are not the best that the machine has.
"""

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
from hvd_compress.attention.kernels import DecodePlan, DecodeRows, append_token, decode_attention
from hvd_compress.errors import ConfigError, MismatchError, UnsupportedError
from tests.native.cases import examples
from tests.native.conftest import level  # noqa: F401 (of each test here)

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
    tokens: int
    asked: list[list[int]]
    weighed: list[list[tuple[int, int]]]
    mask: torch.Tensor | None

    def run(self) -> torch.Tensor:
        rows = rows_of(self.keys, self.values, DecodePlan.of(self.asked, self.weighed))
        return decode_attention(self.query, rows, self.tokens, 0.3, self.mask)


def rows_of(keys: torch.Tensor, values: torch.Tensor, plan: DecodePlan) -> DecodeRows:
    return DecodeRows(keys, values, torch.arange(len(keys)), torch.arange(len(values)), plan)


def with_room(rows: torch.Tensor, more: int) -> torch.Tensor:
    """Add tokens that may not count."""
    return torch.nn.functional.pad(rows, (0, 0, 0, more), value=torch.nan)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Up to 6 queries a row of keys, and all outputs at one row of values; scores without outputs, too."""
    dtype = draw(st.sampled_from(native.FLOATS))
    choose = random.Random(draw(st.integers(0, 2**32 - 1)))
    generator = torch.Generator().manual_seed(choose.randrange(2**32))
    batch, heads = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 3, 5, 14, 50]))
    tokens, dim, value_dim = (draw(st.sampled_from(each)) for each in (TOKENS, DIMS, DIMS))

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    key_rows, value_rows = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    asked = [[choose.randrange(batch * heads) for _ in range(choose.randint(0, 6))] for _ in range(key_rows)]
    asked[0] = asked[0] or [0]
    weighed: list[list[tuple[int, int]]] = [[] for _ in range(value_rows)]
    for output in range(batch * heads):
        weighed[choose.randrange(value_rows)].append((choose.randrange(sum(map(len, asked))), output))
    more = choose.randrange(3)
    return Case(
        normal(batch, 2, heads, dim + 3)[:, 1:, :, 1 : dim + 1].transpose(1, 2),
        with_room(normal(key_rows, tokens, dim), more),
        with_room(normal(value_rows, tokens, value_dim), more),
        tokens,
        asked,
        [sorted(row) if choose.random() < 0.8 else row for row in weighed],
        draw(st.none() | st.just(torch.rand(batch, tokens + 2, generator=generator)[:, 1:-1] < choose.random())),
    )


def reference(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the outputs in float64, and the same of the values' magnitudes."""
    heads, queries = case.query.shape[1], case.query.double().flatten(0, 2)
    seen = torch.ones(len(case.query), case.tokens, dtype=torch.bool) if case.mask is None else case.mask
    scores = [
        torch.mv(keys, queries[query]).mul(0.3).masked_fill(~seen[query // heads], -torch.inf)
        for keys, row in zip(case.keys[:, : case.tokens].double(), case.asked, strict=True)
        for query in row
    ]
    outputs = torch.full((2, len(queries), case.values.shape[2]), torch.nan, dtype=torch.float64)
    for values, row in zip(case.values[:, : case.tokens].double(), case.weighed, strict=True):
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
    rows = rows_of(keys[None], values[None], DecodePlan.of([[0]], [[(0, 0)]]))
    return decode_attention(query.view(1, 1, 1, -1), rows, len(keys), 1.0, **options).flatten()


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


@pytest.mark.parametrize("dtype", native.FLOATS)
def test_a_token_is_appended_from_its_sources(dtype: torch.dtype) -> None:
    """Of sequences and heads that lie apart; nothing else is written."""
    states = torch.randn(3, 2, 4, 7).to(dtype).transpose(1, 2)[:, 1:, 1:2, 1:6]
    keys, values = torch.zeros(2, 5, 5, dtype=dtype), torch.zeros(4, 5, 5, dtype=dtype)
    plan = DecodePlan.of([[], []], [[], [], [], []])
    sources = torch.tensor([8, 3]), torch.tensor([0, 7, 7, 1])
    append_token(states, -states, DecodeRows(keys, values, *sources, plan), 3)
    assert torch.equal(keys[:, 3], states.flatten(0, 2)[sources[0]])
    assert torch.equal(values[:, 3], -states.flatten(0, 2)[sources[1]])
    assert torch.cat([keys, values])[:, [0, 1, 2, 4]].eq(0).all()


QUERY, KEYS, VALUES = torch.ones(1, 2, 1, 4), torch.ones(2, 3, 4), torch.ones(2, 3, 5)
PLAN = DecodePlan.of([[0], [1]], [[(0, 0)], [(1, 1)]])
SOURCE = torch.arange(2)
ROWS = DecodeRows(KEYS, VALUES, SOURCE, SOURCE, PLAN)


@pytest.mark.parametrize(
    ("changed", "error", "match"),
    [
        ({"keys": [1.0]}, ConfigError, r"keys must be a torch.Tensor, got list"),
        ({"keys": KEYS.double()}, ConfigError, r"keys must be of torch.float32 or .*got torch.float64"),
        ({"values": VALUES.bfloat16()}, ConfigError, r"values must be of torch.float32, got torch.bfloat16"),
        ({"keys": KEYS[0]}, ConfigError, r"keys must have 3 dimensions, got shape \(3, 4\)"),
        ({"keys": KEYS.to("meta")}, ConfigError, r"keys must be on the CPU, got meta"),
        ({"keys": KEYS.to_sparse()}, ConfigError, r"keys must be a plain tensor of torch.strided"),
        ({"keys": torch.ones(2, 4, 3).mT}, ConfigError, r"keys \(2, 3, 4\) with strides .* does not lie together"),
        ({"values": torch.ones(2, 3, 6)[..., :5]}, ConfigError, r"values .* must be contiguous"),
        ({"values": torch.ones(2, 2, 5)}, MismatchError, r"keys \(2, 3, 4\) and values \(2, 2, 5\) do not fit"),
        ({"plan": DecodePlan.of([[0]], [[(0, 0)], [(0, 1)]])}, MismatchError, r"the plan for 1 and 2 rows"),
        ({"plan": DecodePlan.of([[0], []], [[(0, 0), (0, 1)]])}, MismatchError, r"the plan for 2 and 1 rows"),
        ({"key_source": SOURCE.int()}, ConfigError, r"key_source must be of torch.int64"),
        ({"key_source": SOURCE[:1]}, MismatchError, r"keys has 2 rows, and 1 sources"),
        ({"value_source": torch.arange(4)[::2]}, ConfigError, r"value_source .* does not lie together"),
    ],
)
def test_rows_are_refused(changed: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        dataclasses.replace(ROWS, **changed)


@pytest.mark.parametrize(
    ("changed", "error", "match"),
    [
        ({"query": [1.0]}, ConfigError, r"query must be a torch.Tensor, got list"),
        ({"query": QUERY.half()}, ConfigError, r"query must be of torch.float32, got torch.float16"),
        ({"query": QUERY[0]}, ConfigError, r"query must have 4 dimensions, got shape \(2, 1, 4\)"),
        ({"query": QUERY.to("meta")}, ConfigError, r"query must be on the CPU, got meta"),
        ({"query": torch.ones(1, 2, 1, 8)[..., ::2]}, ConfigError, r"query .* does not lie together"),
        ({"query": torch.ones(1, 2, 2, 4)}, MismatchError, r"expected \(batch, heads, 1, 4\) with batch \* heads = 2"),
        ({"query": torch.ones(1, 2, 1, 3)}, MismatchError, r"expected \(batch, heads, 1, 4\)"),
        ({"query": torch.ones(1, 3, 1, 4)}, MismatchError, r"expected \(batch, heads, 1, 4\)"),
        ({"tokens": 4}, MismatchError, r"tokens = 4 lies outside 0\.\.3"),
        ({"tokens": -1}, MismatchError, r"tokens = -1 lies outside 0\.\.3"),
        ({"mask": torch.ones(1, 3)}, ConfigError, r"mask must be of torch.bool"),
        ({"mask": torch.ones(1, 2).bool()}, MismatchError, r"mask must be of shape \(1, 3\), got \(1, 2\)"),
        ({"mask": torch.ones(1, 6).bool()[:, ::2]}, ConfigError, r"mask .* does not lie together"),
        ({"scaling": "half"}, ConfigError, "scaling must be a number"),
    ],
)
def test_attention_is_refused(changed: dict[str, Any], error: type[Exception], match: str) -> None:
    arguments = {"query": QUERY, "rows": ROWS, "tokens": 3, "scaling": 1.0} | changed
    with pytest.raises(error, match=match):
        decode_attention(**arguments)


def test_a_token_is_refused() -> None:
    keys, values = torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 5)
    with pytest.raises(ConfigError, match=r"key_states must be of torch.float32, got torch.float16"):
        append_token(keys.half(), values, ROWS, 0)
    for at in (-1, 3):
        with pytest.raises(MismatchError, match=rf"do not fit token {at} of rows \(2, 3, 4\)"):
            append_token(keys, values, ROWS, at)
    with pytest.raises(MismatchError, match=r"key_states \(1, 2, 1, 5\) do not fit token 0"):
        append_token(values, values, ROWS, 0)
    with pytest.raises(ConfigError, match=r"key_states .* does not lie together"):
        append_token(torch.ones(1, 2, 1, 8)[..., ::2], values, ROWS, 0)
    for source in (-1, 2, 2**40):
        rows = dataclasses.replace(ROWS, keys=KEYS.clone(), key_source=torch.tensor([0, source]))
        where = rf"source {source} at position 1 of 2 lies outside 0\.\.1, the rows of key_states"
        with pytest.raises(MismatchError, match=where):
            append_token(keys, values, rows, 0)
        assert rows.keys.eq(1).all()


def test_memory_that_is_not_there_is_refused() -> None:
    gone = torch.ones(2, 3, 4)
    gone.untyped_storage().resize_(4)
    with pytest.raises(ConfigError, match="keys has no memory behind it"):
        dataclasses.replace(ROWS, keys=gone)
    odd = torch.frombuffer(bytearray(97), dtype=torch.float32, offset=1, count=24).view(2, 3, 4)
    with pytest.raises(ConfigError, match="keys does not start at a multiple of its element size"):
        dataclasses.replace(ROWS, keys=odd)
    with pytest.raises(UnsupportedError, match="query only stands for a tensor"):
        decode_attention(torch._efficientzerotensor(QUERY.shape), ROWS, 3, 1.0)


@pytest.mark.parametrize("number", [-1, 3, 2**40, -(2**63)])
def test_a_plan_that_was_spoilt_reads_nothing_outside(number: int) -> None:
    for position in range(PLAN.index.numel()):
        index = PLAN.index.clone()
        index[position] = number
        rows = dataclasses.replace(ROWS, plan=dataclasses.replace(PLAN, index=index))
        with pytest.raises(MismatchError, match=rf"the plan has {number} at position {position}, which is not there"):
            decode_attention(QUERY, rows, 3, 1.0)


def test_plans_that_are_none() -> None:
    with pytest.raises(MismatchError, match="of 2 outputs each must be there once, got"):
        DecodePlan.of([[0], [1]], [[(0, 0), (1, 0)]])
    with pytest.raises(MismatchError, match=r"scores lie outside 0\.\.1"):
        DecodePlan.of([[0], [1]], [[(0, 0), (2, 1)]])


def one_token(query: torch.Tensor) -> torch.Tensor:
    """Attention of one head of one sequence to one token."""
    rows = rows_of(torch.ones(1, 1, 4), torch.ones(1, 1, 4), DecodePlan.of([[0]], [[(0, 0)]]))
    return decode_attention(query, rows, 1, 1.0)


def test_a_negated_view_is_refused() -> None:
    query = torch.ones(1, 1, 1, 4, dtype=torch.complex64).mul(1j).conj().imag
    assert query.is_neg()
    with pytest.raises(ConfigError, match="resolve_neg"):
        one_token(query.as_strided((1, 1, 1, 4), (8, 8, 8, 2)))


def test_a_query_that_ends_behind_its_storage_is_refused() -> None:
    """By the last element alone."""
    query = torch.ones(3, 1, 2, 4)[:, :, :1]  # 24 elements, of which the last one that counts is the 20th
    query.untyped_storage().resize_(20 * 4)
    plan = DecodePlan.of([[0, 1, 2]], [[(0, 0), (1, 1), (2, 2)]])
    rows = rows_of(torch.ones(1, 1, 4), torch.ones(1, 1, 4), plan)
    assert decode_attention(query, rows, 1, 1.0).shape == (3, 1, 1, 4)
    query.untyped_storage().resize_(19 * 4)
    with pytest.raises(ConfigError, match="no memory behind it"):
        decode_attention(query, rows, 1, 1.0)


def test_scores_of_a_plan_are_there() -> None:
    for scores in (-1, 1):
        with pytest.raises(MismatchError, match=r"outside 0\.\.0"):
            DecodePlan.of([[0]], [[(scores, 0)]])
