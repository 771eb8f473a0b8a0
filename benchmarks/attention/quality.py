r"""What does a smaller cache cost in perplexity: CHAI beside CHAI-static, random clusters and dropping of heads?

    python benchmarks/attention/train.py --out build/attention-model
    python benchmarks/attention/quality.py build/attention-model --out build/attention-quality.json
    python benchmarks/attention/quality_page.py build/attention-quality.json

All methods see the same windows of held-out text, each of which is one sequence of the whole context. Kept is the loss
of each window; quality_page.py makes a table and a picture of it. One thread, 8 minutes of a core.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import torch
import transformers
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TimeElapsedColumn
from sklearn.metrics import adjusted_rand_score

sys.path += [str(Path(__file__).resolve().parents[1] / "time_to_accuracy"), str(Path(__file__).resolve().parent)]
from allocation import alike, by_plateau, by_total_error, clusters_of, share_of
from dropping import importance, least, without
from memberships import nearest, random_heads, score_products
from text import Text
from transformers import GPT2LMHeadModel
from windows import held_out, losses, samples

from hvd_compress.attention import ClusterCounts, apply, find_clusters, remove
from hvd_compress.attention.first_tokens import FIRST

SHARES = (0.98, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6)
"""Of the bytes of a full cache, that stay."""
ASKED = 0.8
SEEDS = 5
"""Of random clusters."""
SEEN = (16, 64)
"""From how many first tokens clusters are told, beside five and all."""
WHOLE = "told by all tokens"
"""A bound: a request does not know them in advance."""
LOSSES = "least sum of losses"
"""Measured on samples with clusters in one layer alone."""


@dataclass(frozen=True)
class Row:
    """The losses of a method.

    Attributes:
        share: of the cache's bytes, that stays.
        clusters: k of each layer; empty where there are none.
        windows, late: of each window the mean loss of its bytes, and of those in its second half, nats.
        plateau: by which k was found, if it was.
    """

    method: str
    share: float
    windows: list[float]
    late: list[float]
    clusters: list[int] = field(default_factory=list)
    plateau: float | None = None


@dataclass(frozen=True)
class Setting:
    """A model with what is known of its heads from samples.

    Attributes:
        text: held-out windows.
        seen: windows that were trained on: samples.
        products: of the scores of all samples, (layers, heads, heads).
    """

    model: Any
    text: torch.Tensor
    seen: torch.Tensor
    counts: ClusterCounts
    products: torch.Tensor
    importances: torch.Tensor

    @classmethod
    def of(cls, model: Any, text: torch.Tensor, seen: torch.Tensor) -> Setting:
        products = score_products(model, seen).sum(0)
        return cls(model, text, seen, find_clusters(model, list(seen)), products, importance(model, seen))

    @property
    def curves(self) -> list[tuple[float, ...]]:
        return [layer.errors for layer in self.counts.layers]

    def static_counts(self, clusters: Sequence[int]) -> ClusterCounts:
        """Return counts with so many clusters of each layer, and those of the samples for CHAI-static."""
        return ClusterCounts.of(nearest(self.products.unsqueeze(0), clusters)[0].tolist())


def full(at: Setting) -> Row:
    return _row("full", 1.0, losses(at.model, at.text))


def clustered(at: Setting, counts: ClusterCounts, static: bool, method: str, plateau: float | None = None) -> Row:
    """Measure with clusters told by the first five tokens, or with those of `counts`."""
    apply(at.model, counts, static=static)
    try:
        return _row(method, counts.cache_share, losses(at.model, at.text), counts.clusters, plateau)
    finally:
        remove(at.model)


def clustered_by(at: Setting, clusters: Sequence[int], products: torch.Tensor, method: str) -> Row:
    """Measure with clusters of each window's own, told by products (windows, layers, heads, heads) of its scores."""
    found = []
    for window, own in zip(at.text.split(1), nearest(products, clusters), strict=True):
        apply(at.model, ClusterCounts.of(own.tolist()), static=True)
        try:
            found.append(losses(at.model, window))
        finally:
            remove(at.model)
    return _row(method, share_of(clusters, at.counts.heads), torch.cat(found), clusters)


def dropped(at: Setting, clusters: Sequence[int]) -> Row:
    """Measure without the heads of least importance, as many as free the bytes that these clusters free, or one set of
    keys fewer."""
    heads = len(clusters) * at.counts.heads
    count = (heads - sum(clusters)) // 2
    with without(at.model, least(at.importances, count)):
        return _row("dropped heads", 1 - count / heads, losses(at.model, at.text))


def measured(at: Setting) -> Iterator[Row]:
    """Measure all methods, one after the other."""
    yield full(at)
    layers, heads = len(at.curves), at.counts.heads
    whole = score_products(at.model, at.text)
    for share in SHARES:
        plateau, clusters = by_plateau(at.curves, clusters_of(share, layers, heads))
        counts = at.static_counts(clusters)
        yield clustered(at, counts, False, "CHAI", plateau)
        yield clustered(at, counts, True, "CHAI-static", plateau)
        for seed in range(SEEDS):
            drawn = ClusterCounts.of(random_heads(heads, clusters, seed).tolist())
            yield clustered(at, drawn, True, f"random clusters {seed}")
        yield dropped(at, clusters)
        yield clustered_by(at, clusters, whole, WHOLE)
    _, clusters = by_plateau(at.curves, clusters_of(ASKED, layers, heads))
    for first in SEEN:
        yield clustered_by(at, clusters, score_products(at.model, at.text, first), f"told by {first} tokens")
    for name, others in _allocations(at, clusters).items():
        counts = at.static_counts(others)
        yield clustered(at, counts, False, f"CHAI, {name}")
        yield clustered(at, counts, True, f"CHAI-static, {name}")
        yield clustered_by(at, others, whole, f"{WHOLE}, {name}")
    for static, method in ((False, "CHAI"), (True, "CHAI-static")):
        others = by_total_error(loss_curves(at, static), clusters_of(ASKED, layers, heads))
        yield clustered(at, at.static_counts(others), static, f"{method}, {LOSSES}")


def loss_curves(at: Setting, static: bool) -> list[list[float]]:
    """Return for each layer the loss of the samples with k = 1 .. H clusters in this layer alone."""
    seen, heads = replace(at, text=at.seen), at.counts.heads

    def loss(layer: int, k: int) -> float:
        alone = [k if layer == each else heads for each in range(len(at.curves))]
        row = clustered(seen, at.static_counts(alone), static, "")
        return sum(row.windows) / len(row.windows)

    return [[loss(layer, k) for k in range(1, heads + 1)] for layer in range(len(at.curves))]


def _allocations(at: Setting, clusters: Sequence[int]) -> dict[str, list[int]]:
    """Return k of each layer at ASKED, found in other ways; and with clusters in one layer alone."""
    heads, most = at.counts.heads, clusters_of(ASKED, len(clusters), at.counts.heads)
    alone = {
        f"layer {layer} alone": [k if layer == each else heads for each in range(len(clusters))]
        for layer, k in enumerate(clusters)
    }
    return {"least sum of E": by_total_error(at.curves, most), "the same k": alike(at.curves, most), **alone}


def _row(
    method: str, share: float, found: torch.Tensor, clusters: Sequence[int] = (), plateau: float | None = None
) -> Row:
    late = found[:, found.shape[1] // 2 :]
    return Row(method, share, found.mean(1).tolist(), late.mean(1).tolist(), list(clusters), plateau)


def layers_of(at: Setting) -> list[dict[str, Any]]:
    """Return of each layer how alike its heads are, and how far memberships agree with those of a whole window: the
    adjusted Rand index (1: they are the same, 0: as by chance), mean over windows."""
    _, clusters = by_plateau(at.curves, clusters_of(ASKED, len(at.curves), at.counts.heads))
    whole = nearest(score_products(at.model, at.text), clusters)
    told = {
        "five": nearest(score_products(at.model, at.text, FIRST), clusters),
        "static": nearest(at.products.unsqueeze(0), clusters).expand_as(whole),
    }
    return [
        {
            "clusters": k,
            "correlation": at.counts.layers[layer].correlation,
            "errors": at.counts.layers[layer].errors,
            "agreement": {name: _agreement(own[:, layer], whole[:, layer]) for name, own in told.items()},
        }
        for layer, k in enumerate(clusters)
    ]


def _agreement(one: torch.Tensor, other: torch.Tensor) -> float:
    found = [adjusted_rand_score(a, b) for a, b in zip(one.tolist(), other.tolist(), strict=True)]
    return sum(found) / len(found)


@click.command(help=__doc__)
@click.argument("model", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), default=Path("build/attention-quality.json"), show_default=True)
def main(model: Path, out: Path) -> None:
    torch.set_num_threads(1)
    network, text = GPT2LMHeadModel.from_pretrained(model).eval(), Text.read()
    context = network.config.n_positions
    at = Setting.of(network, held_out(text, context), samples(text, context))
    found = []
    with Progress(SpinnerColumn(), MofNCompleteColumn(), TimeElapsedColumn()) as progress:
        for row in progress.track(measured(at), description="methods"):
            found.append(asdict(row))
            progress.console.print(f"{row.method}, {row.share:.1%}: {sum(row.windows) / len(row.windows):.4f} nats")
    config = network.config
    about = {
        "parameters": network.num_parameters(),
        "shape": [config.n_layer, config.n_head, config.n_embd, context],
        "text": [len(text.train), len(text.validation), len(at.text), at.counts.samples],
        "versions": [torch.__version__, transformers.__version__],
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"about": about, "rows": found, "layers": layers_of(at)}))
    click.echo(f"wrote {out}")


if __name__ == "__main__":
    main()
