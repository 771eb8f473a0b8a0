"""One token at a time on the CPU: the kernel gives what SDPA gives, and is not asked where it cannot."""

from __future__ import annotations

import tests.supported_transformers  # noqa: F401

# isort: split

from collections.abc import Callable
from typing import Any

import pytest
import torch

from hvd_compress.attention import ClusterCounts, ClusteredCache, apply, remove
from hvd_compress.attention import attend as attend_module
from hvd_compress.attention.attend import attend
from hvd_compress.attention.decoding import decode_plan
from hvd_compress.attention.layout import clustered_layout
from tests.attention.models import FAMILIES, HEADS, LAYERS, build, logits, sequences

SOME = ClusterCounts.of([[0, 0, 2, 2, 4, 4, 2, 7], [0, 1, 1, 3, 3, 3, 3, 7]])
LENGTHS = (9, 15, 70, 11)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the queries for which the kernel was asked."""
    asked = []
    own = attend_module.decode_attention

    def counted(query: torch.Tensor, *arguments: Any) -> torch.Tensor:
        asked.append(tuple(query.shape))
        return own(query, *arguments)

    monkeypatch.setattr(attend_module, "decode_attention", counted)
    return asked


@pytest.fixture
def by_sdpa(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setattr(attend_module, "decodes", lambda *_: False)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("lengths", [LENGTHS, (90,)])
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_of_a_batch_are_those_of_sdpa(
    family: str,
    lengths: tuple[int, ...],
    static: bool,
    kernel: list[tuple[int, ...]],
    by_sdpa: Callable[[], None],
) -> None:
    """With padding and without, beyond a block of tokens."""
    model = build(family)
    rows = sequences(lengths)
    apply(model, SOME, static=static)
    cuts = range(66, max(lengths))
    found = logits(model, rows, cuts)
    assert set(kernel) == {(len(lengths), HEADS, 1, 4)}
    assert len(kernel) == LAYERS * (max(lengths) - 66)
    kernel.clear()
    by_sdpa()
    expected = logits(model, rows, cuts)
    assert kernel == []
    remove(model)
    for a, b in zip(found, expected, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", FAMILIES)
def test_other_dtypes(
    family: str, dtype: torch.dtype, kernel: list[tuple[int, ...]], by_sdpa: Callable[[], None]
) -> None:
    model = build(family).to(dtype)
    rows = sequences([40, 33])
    apply(model, SOME, static=True)
    found = logits(model, rows, range(30, 40))
    assert kernel
    by_sdpa()
    for a, b in zip(found, logits(model, rows, range(30, 40)), strict=True):
        assert (a - b).abs().mean() < 0.02 * b.abs().mean()


def filled(heads: int, key_heads: int, tokens: int = 20, dtype: torch.dtype = torch.float32) -> Any:
    """A layer with clusters, and the query of its last token."""
    generator = torch.Generator().manual_seed(heads + tokens)

    def normal(count: int) -> torch.Tensor:
        return torch.randn(1, count, tokens, 16, generator=generator, dtype=dtype)

    layer = ClusteredCache(ClusterCounts.of([[head // 2 * 2 for head in range(heads)]]), static=True).layers[0]
    query = normal(heads)
    layer.update(normal(key_heads), normal(key_heads))
    attend(layer, query, None, 0.25)
    assert layer.clustered
    return layer, query[:, :, -1:]


@pytest.mark.parametrize("key_heads", [8, 4, 1])
def test_what_the_kernel_does_not_know_goes_by_sdpa(key_heads: int, kernel: list[tuple[int, ...]]) -> None:
    layer, query = filled(8, key_heads)
    by_kernel = attend(layer, query, None, 0.25)
    assert len(kernel) == 1
    wanted = query.clone().requires_grad_()
    outputs = attend(layer, wanted, None, 0.25)
    assert torch.allclose(outputs, by_kernel, rtol=0, atol=1e-6)
    (gradient,) = torch.autograd.grad(outputs.sum(), wanted)
    assert gradient.abs().max() > 1e-3
    with torch.no_grad():
        assert torch.allclose(attend(layer, wanted, None, 0.25), by_kernel, rtol=0, atol=0)
    two = attend(layer, query.expand(-1, -1, 2, -1), torch.ones(1, 1, 2, 20, dtype=torch.bool), 0.25)
    assert torch.allclose(two, by_kernel.expand(-1, -1, 2, -1), rtol=0, atol=1e-6)
    layer, query = filled(8, key_heads, dtype=torch.float64)
    attend(layer, query, None, 0.25)
    assert len(kernel) == 2


def test_a_query_whose_elements_lie_apart() -> None:
    layer, query = filled(8, 8)
    apart = torch.empty(*query.shape, 2)[..., 0].copy_(query)
    mask = torch.ones(1, 1, 1, 40, dtype=torch.bool)[..., ::2]
    assert torch.equal(attend(layer, apart, mask, 0.25), attend(layer, query, None, 0.25))


def test_plan_of_clusters() -> None:
    """The layout of test_cache: keys lie in the order 6 | 0 1 | 5."""
    plan = decode_plan(clustered_layout([[0, 1, 1, 0], [2, 1, 2, 2]], key_heads=4))
    assert (plan.key_rows, plan.value_rows, plan.scores, plan.outputs) == (4, 8, 4, 8)
    scores, weighed, outputs = [0, 0, 0, 1, 1, 2, 2, 3], list(range(9)), [4, 6, 7, 0, 3, 1, 2, 5]
    assert plan.index.tolist() == [0, 1, 2, 3, 4, 6, 0, 1, 5, *weighed, *scores, *outputs]


def test_plan_under_grouped_queries() -> None:
    """A representative's scores are computed once, though they weigh values of both groups."""
    plan = decode_plan(clustered_layout([[0, 0, 0, 0], [0, 1, 1, 3]], key_heads=2))
    assert (plan.key_rows, plan.value_rows, plan.scores, plan.outputs) == (3, 4, 4, 8)
    asked = [0, 1, 3, 4, 0, 4, 5, 7]
    scores, outputs = [0, 0, 0, 0, 1, 2, 2, 3], [0, 1, 2, 3, 4, 5, 6, 7]
    assert plan.index.tolist() == [*asked, 0, 2, 4, 6, 8, *scores, *outputs]
