"""Projections of representatives alone: the same results, from fewer rows of weights."""

from __future__ import annotations

import tests.supported_transformers  # noqa: F401

# isort: split

import copy
import threading
from typing import Any

import pytest
import torch
from torch import nn

from hvd_compress.attention import ClusterCounts, apply, projections, remove
from hvd_compress.attention import attend as attend_module
from hvd_compress.attention.projections import Part, runs
from tests.attention.models import FAMILIES, build, logits, sequences

SOME = ClusterCounts.of([[0, 0, 2, 2, 4, 4, 2, 7], [0, 1, 1, 3, 3, 3, 3, 7]])
CUTS = range(10, 20)


@pytest.fixture
def needed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[int, int], ...]]:
    """The runs of outputs that were computed alone, however small the model is."""
    found: list[tuple[tuple[int, int], ...]] = []
    own = projections._project

    def noted(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, some: Any) -> torch.Tensor:
        found.append(some)
        return own(x, weight, bias, some)

    monkeypatch.setattr(projections, "RUN_BYTES", 0)
    monkeypatch.setattr(projections, "_project", noted)
    return found


@pytest.mark.parametrize("lengths", [(20,), (20, 13)])
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_they_change_nothing(
    family: str,
    static: bool,
    lengths: tuple[int, ...],
    needed: list[tuple[tuple[int, int], ...]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, rows = build(family), sequences(lengths)
    apply(model, SOME, static=static)
    found = logits(model, rows, CUTS)
    assert needed
    calls = len(needed)
    monkeypatch.setattr(projections, "RUN_BYTES", 1 << 40)
    for one, other in zip(found, logits(model, rows, CUTS), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert len(needed) == calls


@pytest.mark.parametrize("family", FAMILIES)
def test_of_others_no_weights_are_read(family: str, needed: list[tuple[tuple[int, int], ...]]) -> None:
    model, rows = build(family), sequences((20,))
    apply(model, SOME, static=True)
    logits(model, rows, CUTS)
    parts = {
        "gpt2": [(0, 4), (8, 12), (16, 20), (28, 36), (40, 44), (48, 52), (60, 96)],
        "llama": [(0, 4), (8, 12), (16, 20), (28, 32)],
        "llama-gqa": [(0, 4), (8, 12), (16, 20), (28, 32)],
    }
    assert tuple(parts[family]) in needed


def test_runs_of_neighbours() -> None:
    parts = (Part("query", 16, 4), Part("key", 8, 4), Part("value", 8, 4))
    assert runs(parts, (0, 1, 3), (0,)) == ((0, 8), (12, 20), (24, 32))
    assert runs(parts, (0, 1, 2, 3), (0, 1)) == ((0, 32),)
    assert runs(parts[:1], (2,), ()) == ((8, 12),)


def test_a_projection_that_is_called_by_itself_is_whole(
    needed: list[tuple[tuple[int, int], ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also behind a call that has failed, and in another thread while a call runs."""
    model, rows = build("llama"), sequences((20,))
    linear = model.model.layers[0].self_attn.q_proj
    x = torch.randn(1, 1, 32)
    whole = nn.functional.linear(x, linear.weight, linear.bias)
    apply(model, SOME)
    logits(model, rows, CUTS)
    assert torch.equal(linear(x), whole)

    elsewhere: list[torch.Tensor] = []

    def fail(*_: Any) -> torch.Tensor:
        thread = threading.Thread(target=lambda: elsewhere.append(linear(x)))
        thread.start()
        thread.join()
        raise RuntimeError("as asked")

    monkeypatch.setattr(attend_module, "decode_attention", fail)
    with pytest.raises(RuntimeError, match="as asked"):
        logits(model, rows, CUTS)
    assert needed
    assert torch.equal(linear(x), whole)
    assert torch.equal(elsewhere[0], whole)


class Adapted(nn.Linear):
    """As adapters replace layers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def test_other_layers_stay_as_they_are(needed: list[tuple[tuple[int, int], ...]]) -> None:
    model, rows = build("llama"), sequences((20,))
    for layer in model.model.layers:
        attention = layer.self_attn
        for name in ("q_proj", "k_proj"):
            adapted = Adapted(32, 32, bias=False)
            adapted.load_state_dict(getattr(attention, name).state_dict())
            setattr(attention, name, adapted.eval())
    apply(model, SOME)
    logits(model, rows, CUTS)
    assert not needed


def test_they_are_taken_out_and_copied(needed: list[tuple[tuple[int, int], ...]]) -> None:
    model, rows = build("gpt2"), sequences((20,))
    apply(model, SOME)
    expected = logits(model, rows, CUTS)
    other = copy.deepcopy(model)
    remove(model)
    assert all("forward" not in vars(module) for module in model.modules())
    needed.clear()
    logits(model, rows, CUTS)
    assert not needed
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    for one, own in zip(logits(other, rows, CUTS), expected, strict=True):
        torch.testing.assert_close(one, own)
    assert needed
