"""Sizes of the four models: those of Bagpipe's Table 5.2, and small ones for a laptop."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Widths of a model's layers.

    Attributes:
        bottom: outputs of the hidden layers over the numerical features; DLRM and Deep&Cross add one of `dim` outputs.
        top: outputs of the hidden layers that follow; a last one gives the logits.
        features: categorical features, each with a vector.
        numerical: numerical features.
        dim: elements of a feature's vector.
        cross_layers: of Deep&Cross.
        cross_rank: of the matrices of a cross layer.
        outputs: logits of an example: 1 for a probability, else one for each class.
    """

    bottom: tuple[int, ...]
    top: tuple[int, ...]
    features: int = 26
    numerical: int = 13
    dim: int = 16
    cross_layers: int = 2
    cross_rank: int = 4
    outputs: int = 1


FULL = {
    "dlrm": Sizes((512, 256, 64), (1024, 1024, 1024, 256, 128), dim=48),
    "wide_deep": Sizes((256, 256, 256), (), dim=48),
    "deep_cross": Sizes((1024, 512, 256, 64), (1024, 512, 256), dim=48, cross_layers=2, cross_rank=8),
    "deepfm": Sizes((), (64, 64, 64), dim=48),
}
"""Table 5.2, with 26 features of 48 elements. "FC - 13-512-256-64-48" is an input and the outputs of four layers; the
second list of a model is outputs alone. The table's numbers of parameters confirm this (models.py)."""

SMALL = {
    "dlrm": Sizes((64, 32), (128, 64)),
    "wide_deep": Sizes((128, 128, 128), ()),
    "deep_cross": Sizes((64,), (128, 64)),
    "deepfm": Sizes((), (64, 64, 64)),
}
"""35,000 to 75,000 dense parameters with 26 features of 16 elements."""
