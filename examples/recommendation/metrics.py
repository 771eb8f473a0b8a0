"""Loss, and how well a model tells labels apart, over all examples of all ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

BINS = 10_000
"""Of the logits' probabilities, for the AUC: examples within one count as equal."""


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy: of probabilities where logits are (batch,), else of classes (batch, classes)."""
    if logits.dim() == 1:
        return functional.binary_cross_entropy_with_logits(logits, labels)
    return functional.cross_entropy(logits, labels)


def auc(positives: torch.Tensor, negatives: torch.Tensor) -> float:
    """Return the area under the ROC curve for the numbers of examples (bins,) by rising scores; NaN with one class.

    It is the probability that a positive example has a higher score than a negative one, where equal ones count half.
    """
    below = negatives.cumsum(0) - negatives / 2
    return float((positives * below).sum() / (positives.sum() * negatives.sum()))


class Score:
    """Adds up batches of this rank. Its memory does not depend on their number."""

    def __init__(self) -> None:
        self._sums = torch.zeros(3, dtype=torch.float64)  # examples, their losses, those of classes that are right
        self._bins = torch.zeros(2, BINS, dtype=torch.float64)

    @torch.no_grad()
    def add(self, logits: torch.Tensor, labels: torch.Tensor, loss: torch.Tensor) -> None:
        count = len(labels)
        right = 0.0
        if logits.dim() == 1:
            bins = (logits.sigmoid() * BINS).long().clamp(max=BINS - 1)
            for label, counts in enumerate(self._bins):
                counts += torch.bincount(bins[labels == label], minlength=BINS)
        else:
            right = float((logits.argmax(dim=1) == labels).sum())
        self._sums += torch.tensor([count, count * loss.item(), right], dtype=torch.float64)

    def text(self, total: Callable[[torch.Tensor], torch.Tensor]) -> str:
        """Return mean loss, and AUC or accuracy. Collective: `total` returns the sum of a tensor over the ranks."""
        sums = total(torch.cat([self._sums, self._bins.flatten()]))
        (count, losses, right), bins = sums[:3].tolist(), sums[3:].view(2, BINS)
        quality = f"AUC {auc(bins[1], bins[0]):.4f}" if bins.any() else f"accuracy {right / count:.2%}"
        return f"loss {losses / count:.4f}, {quality}"
