"""k-means over the heads of a layer, from the squared distances between their scores alone.

A centre is the mean of its members, so its squared distance to a head follows from those between heads:
|x - mean(C)|^2 = mean over j in C of D(x, j) - 1/2 mean over i, j in C of D(i, j). Scores themselves need not be kept,
and what is batched are matrices of H x H. Everything is deterministic; of heads that are equally near but for rounding,
the first is taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

TIE = 1e-6
"""Squared distances are equal if they differ by less than this share of the largest one of the layer."""
MOST_ROUNDS = 100
"""Lloyd's iterations: a handful is usual."""


@dataclass(frozen=True)
class Clusters:
    """Clusters of the heads of a layer, for each sequence of a batch.

    Attributes:
        source: int64 (batch, heads): the representative of each head's cluster, which is the member nearest to the
            centre; source[representative] is itself.
        error: float64 (batch,): the sum over heads of the squared distance to their centre.
    """

    source: torch.Tensor
    error: torch.Tensor


def squared_distances(products: torch.Tensor) -> torch.Tensor:
    """Return the squared distances (..., heads, heads) between vectors, from their inner products, float64."""
    squares = products.diagonal(dim1=-2, dim2=-1)
    return (squares.unsqueeze(-1) + squares.unsqueeze(-2) - 2 * products).clamp_min(0)


def k_means(distances: torch.Tensor, k: int) -> Clusters:
    """Divide heads into k clusters, none of which is empty.

    1. The first centre is the head nearest to the mean of all, each other the head farthest from those before it.
    2. Lloyd's iterations until no head changes its cluster; an empty cluster takes the head farthest from its centre.

    Args:
        distances: squared, float64 (batch, heads, heads).
        k: from 1 to heads.
    """
    batch, heads, _ = distances.shape
    assert 1 <= k <= heads
    tie = TIE * distances.amax((-2, -1))[:, None, None]
    if k == heads:
        own = torch.arange(heads, device=distances.device).expand(batch, heads)
        return Clusters(own.clone(), distances.new_zeros(batch))
    seeds = _farthest_first(distances, k, tie[..., 0])
    member = _filled(_first_smallest(distances.gather(2, seeds.unsqueeze(1).expand(-1, heads, -1)), tie), distances, k)
    to_centres = _to_centres(distances, member, k)
    for _ in range(MOST_ROUNDS):
        moved = _filled(_first_smallest(to_centres, tie), distances, k)
        if torch.equal(moved, member):
            break
        member, to_centres = moved, _to_centres(distances, moved, k)
    own_centre = to_centres.gather(2, member.unsqueeze(2)).squeeze(2)
    return Clusters(_representatives(to_centres, member, tie).gather(1, member), own_centre.sum(1))


def _farthest_first(distances: torch.Tensor, k: int, tie: torch.Tensor) -> torch.Tensor:
    """Return the first centres, int64 (batch, k); tie is (batch, 1)."""
    chosen = [_first_smallest(distances.mean(2), tie)]
    nearest = distances.gather(2, chosen[0][:, None, None].expand(-1, distances.shape[1], 1)).squeeze(2)
    for _ in range(1, k):
        chosen.append(_first_smallest(-nearest, tie))
        reached = distances.gather(2, chosen[-1][:, None, None].expand(-1, distances.shape[1], 1)).squeeze(2)
        nearest = torch.minimum(nearest, reached)
    return torch.stack(chosen, 1)


def _first_smallest(values: torch.Tensor, tie: torch.Tensor) -> torch.Tensor:
    """Return the first position along the last dimension whose value is the smallest, within `tie`."""
    return (values <= values.amin(-1, keepdim=True) + tie).to(torch.uint8).argmax(-1)


def _to_centres(distances: torch.Tensor, member: torch.Tensor, k: int) -> torch.Tensor:
    """Return the squared distance (batch, heads, k) of each head to each cluster's mean (that to an empty one
    means nothing)."""
    one_hot = torch.nn.functional.one_hot(member, k).to(distances.dtype)
    size = one_hot.sum(1, keepdim=True).clamp_min(1)
    means = distances @ one_hot / size
    within = (means * one_hot).sum(1, keepdim=True) / size
    return (means - within / 2).clamp_min(0)


def _filled(member: torch.Tensor, distances: torch.Tensor, k: int) -> torch.Tensor:
    """Return clusters of which none is empty: one that is takes the head farthest from its centre, if not alone."""
    sizes = torch.nn.functional.one_hot(member, k).sum(1)
    lacking = (sizes == 0).any(1).nonzero().flatten().tolist()
    filled = member.clone() if lacking else member
    for row in lacking:
        for empty in (sizes[row] == 0).nonzero().flatten().tolist():
            clusters = filled[row].unsqueeze(0)
            far = _to_centres(distances[row].unsqueeze(0), clusters, k).gather(2, clusters.unsqueeze(2)).flatten()
            alone = (filled[row].unsqueeze(0) == filled[row].unsqueeze(1)).sum(1) == 1
            filled[row, int(far.masked_fill(alone, -1.0).argmax())] = empty
    return filled


def _representatives(to_centres: torch.Tensor, member: torch.Tensor, tie: torch.Tensor) -> torch.Tensor:
    """Return the head (batch, k) of each cluster that is nearest to its centre."""
    others = member.unsqueeze(2) != torch.arange(to_centres.shape[2], device=member.device)
    return _first_smallest(to_centres.masked_fill(others, torch.inf).transpose(1, 2), tie)
