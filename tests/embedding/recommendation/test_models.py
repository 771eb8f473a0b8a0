"""The four models: numbers of parameters, shapes, gradients, and arithmetic against a plain form."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
import torch
from recommendation.metrics import BINS, Score, auc, loss_of
from recommendation.models import MODELS, Cross, second_order
from recommendation.sizes import FULL, SMALL

TABLE_5_2 = {"dlrm": 2_962_289, "wide_deep": 136_673, "deep_cross": 2_718_609, "deepfm": 33_851_283}
CRITEO_IDS = 33_762_577


def parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def inputs(sizes, batch: int = 6) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (batch, sizes.numerical), (batch, sizes.features, sizes.dim), (batch, sizes.features, sizes.outputs)
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


@pytest.mark.parametrize("name", MODELS)
def test_full_sizes_have_the_parameters_of_the_paper(name):
    count = parameters(MODELS[name](FULL[name]))
    if name == "deepfm":  # the table counts the linear embedding, and has no weights of numerical features
        count += CRITEO_IDS - 13
    assert count == TABLE_5_2[name]


@pytest.mark.parametrize("name", MODELS)
def test_small_sizes_fit_a_laptop(name):
    assert 20_000 < parameters(MODELS[name](SMALL[name])) < 150_000


@pytest.mark.parametrize("outputs", [1, 5])
@pytest.mark.parametrize("name", MODELS)
def test_logits_depend_on_all_inputs_and_parameters(name, outputs):
    torch.manual_seed(0)
    sizes = replace(SMALL[name], features=4, numerical=3, dim=8, outputs=outputs)
    model = MODELS[name](sizes)
    dense, vectors, linear = (each.requires_grad_() for each in inputs(sizes))
    logits = model(dense, vectors, linear)
    assert logits.shape == ((6,) if outputs == 1 else (6, outputs))
    assert logits.dtype == torch.float32
    labels = torch.tensor([0, 1, 0, 1, 1, 0])
    loss_of(logits, labels.float() if outputs == 1 else labels).backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in model.parameters())
    assert sum(parameter.grad.abs().sum() > 0 for parameter in model.parameters()) >= 0.75 * len([*model.parameters()])
    for used, each in ((True, dense), (True, vectors), (model.takes_linear, linear)):
        assert (each.grad is not None and bool((each.grad != 0).any())) == used


@pytest.mark.parametrize("name", ["wide_deep", "deepfm"])
def test_linear_weights_are_added(name):
    model = MODELS[name](SMALL[name]).eval()
    dense, vectors, linear = inputs(SMALL[name])
    torch.testing.assert_close(model(dense, vectors, linear), model(dense, vectors) + linear.sum(dim=(1, 2)))


def test_products_of_pairs_are_those_of_the_sum_over_pairs():
    _, vectors, _ = inputs(replace(SMALL["deepfm"], features=5))
    expected = sum(vectors[:, i] * vectors[:, j] for i, j in combinations(range(5), 2))
    torch.testing.assert_close(second_order(vectors), expected)


def test_dlrm_takes_each_pair_once():
    sizes = replace(SMALL["dlrm"], features=3)
    model = MODELS["dlrm"](sizes)
    pairs = {tuple(pair) for pair in model.pairs.T.tolist()}
    assert pairs == {(i, j) for j, i in combinations(range(4), 2)}
    assert model.top[0].in_features == sizes.dim + len(pairs)
    assert "pairs" not in model.state_dict()


def test_a_cross_layer_is_a_matrix_of_low_rank():
    layer = Cross(6, 2)
    first, last = torch.randn(3, 6), torch.randn(3, 6)
    matrix = layer.up.weight @ layer.down.weight
    torch.testing.assert_close(layer(first, last), first * (last @ matrix.T + layer.up.bias) + last)


class TestScore:
    def test_auc_is_that_of_scikit_learn(self):
        metrics = pytest.importorskip("sklearn.metrics")
        generator = torch.Generator().manual_seed(1)
        labels = (torch.rand(2000, generator=generator) < 0.3).float()
        logits = torch.randn(2000, generator=generator) + labels
        parts = Score(), Score()  # as of two ranks
        for score, half in zip(parts, (slice(0, 700), slice(700, None)), strict=True):
            score.add(logits[half], labels[half], loss_of(logits[half], labels[half]))
        other = []
        parts[1].text(lambda tensor: other.append(tensor) or tensor)
        text = parts[0].text(lambda tensor: tensor + other[0])
        loss, value = (float(part.split()[1]) for part in text.split(", "))
        assert loss == pytest.approx(loss_of(logits, labels).item(), abs=1e-4)
        assert value == pytest.approx(metrics.roc_auc_score(labels, logits), abs=2e-4)

    def test_equal_scores_count_half(self):
        assert auc(torch.tensor([1.0, 0, 3]), torch.tensor([1.0, 0, 3])) == 0.5
        assert auc(torch.tensor([0.0, 2]), torch.tensor([5.0, 0])) == 1.0

    def test_the_highest_probability_has_a_bin(self):
        score = Score()
        logits = torch.tensor([100.0, -100.0])
        score.add(logits, torch.tensor([1.0, 0.0]), torch.tensor(0.0))
        assert score._bins[1, BINS - 1] == 1
        assert score.text(lambda tensor: tensor) == "loss 0.0000, AUC 1.0000"

    def test_classes_have_an_accuracy(self):
        score = Score()
        logits = torch.eye(4)
        score.add(logits, torch.tensor([0, 1, 2, 0]), torch.tensor(0.5))
        assert score.text(lambda tensor: tensor) == "loss 0.5000, accuracy 75.00%"
