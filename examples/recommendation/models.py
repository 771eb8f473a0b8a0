"""The dense parts of four recommendation models (Bagpipe, Table 5.2). What gives them vectors is not theirs.

All take `dense`, float32 (batch, numerical), and `vectors`, float32 (batch, features, dim), the rows that were looked
up. They return logits: (batch,), or (batch, outputs) where there are several. Wide&Deep and DeepFM take `linear` as
well, float32 (batch, features, outputs): rows of a second embedding, whose width is the number of outputs.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from recommendation.sizes import Sizes


def mlp(*widths: int, norm: bool = False) -> nn.Sequential:
    """Linear layers, each but the last with a ReLU behind it, and batch normalisation before that if `norm`."""
    layers: list[nn.Module] = []
    for number, (inputs, outputs) in enumerate(pairwise(widths), start=1):
        layers.append(nn.Linear(inputs, outputs))
        if number < len(widths) - 1:
            layers += [nn.BatchNorm1d(outputs), nn.ReLU()] if norm else [nn.ReLU()]
    return nn.Sequential(*layers)


class Recommender(nn.Module):
    """What the models have in common.

    Attributes:
        takes_linear: the model uses `linear`.
    """

    takes_linear = False

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes

    def logits(self, outputs: torch.Tensor) -> torch.Tensor:
        return outputs.squeeze(1) if self.sizes.outputs == 1 else outputs


class DLRM(Recommender):
    """Products of all pairs of vectors, between two MLPs (Naumov et al. 2019).

    The full size has 2,962,289 parameters, as in Table 5.2.
    """

    pairs: torch.Tensor

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        count = sizes.features + 1
        self.bottom = mlp(sizes.numerical, *sizes.bottom, sizes.dim)
        self.top = mlp(sizes.dim + count * (count - 1) // 2, *sizes.top, sizes.outputs)
        self.register_buffer("pairs", torch.tril_indices(count, count, -1), persistent=False)

    def forward(self, dense: torch.Tensor, vectors: torch.Tensor, linear: torch.Tensor | None = None) -> torch.Tensor:
        numerical = self.bottom(dense).relu()
        all_vectors = torch.cat([numerical.unsqueeze(1), vectors], dim=1)
        products = (all_vectors @ all_vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.logits(self.top(torch.cat([numerical, products], dim=1)))


class WideDeep(Recommender):
    """A linear model over all vectors, beside an MLP over the numerical features (Cheng et al. 2016).

    The full size has 136,673 parameters, as in Table 5.2: its MLP does not see the vectors. `linear` is added where
    given: the weights of single ids, which Cheng et al. have in the wide part.
    """

    takes_linear = True

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.deep = mlp(sizes.numerical, *sizes.bottom)
        self.head = nn.Linear(sizes.bottom[-1] + sizes.features * sizes.dim, sizes.outputs)

    def forward(self, dense: torch.Tensor, vectors: torch.Tensor, linear: torch.Tensor | None = None) -> torch.Tensor:
        outputs = self.head(torch.cat([self.deep(dense).relu(), vectors.flatten(1)], dim=1))
        return self.logits(outputs if linear is None else outputs + linear.sum(dim=1))


class Cross(nn.Module):
    """x0 * (U V x + b) + x: a cross layer of low rank (Wang et al. 2021, equation 2)."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width)

    def forward(self, first: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = first * self.up(self.down(last))
        return product + last


class DeepCross(Recommender):
    """A cross network between two MLPs (Wang et al. 2017; 2021, "stacked").

    The full size has 2,718,609 parameters, as in Table 5.2. The table does not name the cross network's layers: two of
    rank 8 over 27 vectors of 48 elements have the 44,064 parameters that the MLPs leave. So have 17 layers as
    those of Wang et al. 2017.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        width = (sizes.features + 1) * sizes.dim
        self.bottom = mlp(sizes.numerical, *sizes.bottom, sizes.dim)
        self.cross = nn.ModuleList(Cross(width, sizes.cross_rank) for _ in range(sizes.cross_layers))
        self.top = mlp(width, *sizes.top, sizes.outputs)

    def forward(self, dense: torch.Tensor, vectors: torch.Tensor, linear: torch.Tensor | None = None) -> torch.Tensor:
        first = last = torch.cat([self.bottom(dense).relu(), vectors.flatten(1)], dim=1)
        for layer in self.cross:
            last = layer(first, last)
        return self.logits(self.top(last))


class DeepFM(Recommender):
    """A factorisation machine beside an MLP with batch normalisation, both over the vectors (Guo et al. 2017).

    The full size has 88,719 parameters. Table 5.2 has 33,851,283: it counts the 33,762,577 rows of `linear`, one for
    each of Criteo's ids, and has no weights for the 13 numerical features.
    """

    takes_linear = True

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.numerical = nn.Linear(sizes.numerical, sizes.outputs)
        self.deep = mlp(sizes.features * sizes.dim, *sizes.top, sizes.outputs, norm=True)
        # One sum would raise the logits of all classes alike, so each class has weights for the elements.
        self.classes = None if sizes.outputs == 1 else nn.Linear(sizes.dim, sizes.outputs, bias=False)

    def forward(self, dense: torch.Tensor, vectors: torch.Tensor, linear: torch.Tensor | None = None) -> torch.Tensor:
        products = second_order(vectors)
        second = products.sum(dim=1, keepdim=True) if self.classes is None else self.classes(products)
        outputs = self.numerical(dense) + second + self.deep(vectors.flatten(1))
        return self.logits(outputs if linear is None else outputs + linear.sum(dim=1))


def second_order(vectors: torch.Tensor) -> torch.Tensor:
    """Return the sum, over all pairs of features, of their vectors' products by element: (batch, features, dim) to
    (batch, dim). In linear time (Rendle 2010, lemma 3.1)."""
    return 0.5 * (vectors.sum(dim=1).square() - vectors.square().sum(dim=1))


MODELS: dict[str, type[Recommender]] = {
    "dlrm": DLRM,
    "wide_deep": WideDeep,
    "deep_cross": DeepCross,
    "deepfm": DeepFM,
}
