"""hvd-compress chai analyse: how the heads of a model cluster, by samples."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hvd_compress.attention.cli.options import DEVICE, DOWNLOAD, FILE, device_of, plateau_of, require_files, share_of
from hvd_compress.cli.numbers import size
from hvd_compress.cli.outputs import PICTURES
from hvd_compress.cli.suggesting import Choice
from hvd_compress.errors import ConfigError

if TYPE_CHECKING:
    from hvd_compress.attention.counts import ClusterCounts, LayerClusters
    from hvd_compress.attention.families import Geometry
    from hvd_compress.attention.losses import Perplexities

ALIKE = 0.95
"""The correlation above which two heads count as alike."""
LENGTH, LIMIT = 256, 1024
"""Tokens of a sample; and samples, as the paper has them."""
COSTLY = 0.01
"""An increase of perplexity from which on advice is given."""
COUNT = click.IntRange(1, 1 << 20)


@click.command(short_help="Find how many clusters the heads of each layer form.")
@click.argument("model")
@click.option(
    "--samples", type=FILE, required=True, help='Text, or .jsonl with {"text": ...} or {"ids": [...]} a line.'
)
@click.option("--plateau", type=plateau_of, metavar="SHARE", help="Of the error of one cluster, left in a layer.  "
              "[default: 0.05]")  # fmt: skip
@click.option("--cache-share", type=share_of, metavar="SHARE", help="Of the cache's bytes, left at most: 0.8 or 80%, "
              "in the place of a plateau.")  # fmt: skip
@click.option("--out", type=FILE, help="Write the counts, for apply() and `chai bench`, as JSON.")
@click.option("--plot", type=FILE, help=f"Write a picture: correlation of heads, and errors. {PICTURES}")
@click.option("--length", type=click.IntRange(2, 1 << 20), help=f"Tokens of a sample.  [default: {LENGTH}, or what the "
              "model has]")  # fmt: skip
@click.option("--limit", type=COUNT, default=LIMIT, show_default=True, help="Samples at most.")
@click.option("--tokens", type=Choice(["tokenizer", "bytes"]), default="tokenizer", show_default=True,
              help="How text becomes token ids: by the model's tokenizer, or a byte each.")  # fmt: skip
@click.option("--perplexity/--no-perplexity", default=True, show_default=True, help="Measure what the clusters cost, "
              "on 64 of the samples.")  # fmt: skip
@DEVICE
@DOWNLOAD
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def analyse(
    model: str,
    samples: Path,
    plateau: float | None,
    cache_share: float | None,
    out: Path | None,
    plot: Path | None,
    length: int | None,
    limit: int,
    tokens: str,
    perplexity: bool,
    device: str,
    download: bool,
    as_json: bool,
) -> None:
    """Find how many clusters the heads of each layer of MODEL form, and what cache they leave.

    MODEL is a folder of save_pretrained(), or a model of the Hub that is on this machine. The file of samples is plain
    text, which is cut into samples, or .jsonl with a sample a line, which is cut to --length: {"text": ...} or {"ids":
    [...]}; other fields are not looked at.

    Below the table stands what the clusters cost: the perplexity of samples, by clusters of their first five tokens
    (CHAI) and by those that were found (CHAI-static), beside that of the model itself.

    Of each layer the table has the mean correlation of two heads' scores, the share of pairs above 0.95, the clusters,
    the error that they leave of that of one cluster, and the bytes of the cache for a token, of those of a full one.

    Needs transformers: pip install 'hvd_compress[attention]'.
    """
    if plateau is not None and cache_share is not None:
        raise click.UsageError("--cache-share says what --plateau is to be: give one of them")
    require_files(out, plot, [samples], "hvd-compress chai analyse")
    from hvd_compress.attention.families import geometry
    from hvd_compress.attention.finding import find_clusters
    from hvd_compress.attention.loading import load_config, load_model
    from hvd_compress.attention.losses import perplexities

    place = device_of(device)
    config = load_config(model, download=download)
    read = _read(samples, model, config, length, limit, tokens, download)
    loaded, has_head = load_model(model, config, download=download, device=place)
    counts = find_clusters(loaded, _shown(read), plateau=plateau, cache_share=cache_share)
    if out is not None:
        counts.save(out)
    cost = perplexities(loaded, counts, read) if perplexity and has_head else None
    if plot is not None:
        from hvd_compress.attention.plot import draw

        draw(counts, plot)
    shape, itemsize = geometry(loaded), loaded.dtype.itemsize
    rows = [_row(index, layer, shape, itemsize) for index, layer in enumerate(counts.layers)]
    if as_json:
        click.echo(
            json.dumps(
                {**_facts(counts, shape), "perplexity": cost and asdict(cost), "layers": [asdict(row) for row in rows]},
                indent=1,
            )
        )
        return
    _print(rows, counts, shape)
    if cost is not None:
        click.echo(_told(cost))
    elif perplexity:
        click.echo(f"{model} has no head (lm_head), so that what the clusters cost is not measured")
    for path in (out, plot):
        if path is not None:
            click.echo(f"wrote {path}")


def _read(
    path: Path, model: str, config: object, length: int | None, limit: int, tokens: str, download: bool
) -> list[list[int]]:
    from hvd_compress.attention.samples import Cut, read_samples
    from hvd_compress.attention.tokens import ByteTokens, ModelTokens

    positions, vocabulary = config.max_position_embeddings, config.vocab_size  # type: ignore[attr-defined]
    if length is not None and length > positions:
        raise ConfigError(f"--length {length} is more than {model} has positions: {positions}")
    otherwise = 'pass --tokens bytes for a model of bytes, or a .jsonl file of {"ids": [...]} a line'
    encoding = ByteTokens() if tokens == "bytes" else ModelTokens(model, download, otherwise)
    return read_samples(path, encoding, Cut(length or min(LENGTH, positions), limit, vocabulary))


def _shown(samples: list[list[int]]) -> Iterator[list[int]]:
    """Yield samples, and say on a terminal which."""
    for number, sample in enumerate(samples, 1):
        if sys.stderr.isatty():
            click.echo(f"\r\x1b[Ksample {number} of {len(samples)}", err=True, nl=False)
        yield sample
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", err=True, nl=False)


@dataclass(frozen=True)
class Row:
    """What was found of a layer.

    Attributes:
        mean_correlation: of two heads; None of one head, as is the next.
        alike: the share of pairs whose correlation is above ALIKE.
        clusters: k.
        error_left: E(k) / E(1).
        cache_bytes: of a token, at most.
        full_bytes: of a token, in a full cache.
    """

    layer: int
    mean_correlation: float | None
    alike: float | None
    clusters: int
    error_left: float
    cache_bytes: int
    full_bytes: int


def _row(index: int, layer: LayerClusters, shape: Geometry, itemsize: int) -> Row:
    from hvd_compress.attention.elbow import errors_left

    pairs = [r for head, row in enumerate(layer.correlation) for r in row[head + 1 :]]
    head_bytes = shape.head_dim * itemsize
    return Row(
        index,
        sum(pairs) / len(pairs) if pairs else None,
        sum(r > ALIKE for r in pairs) / len(pairs) if pairs else None,
        layer.clusters,
        errors_left(layer.errors)[layer.clusters - 1],
        (min(layer.clusters, shape.key_heads) + shape.key_heads) * head_bytes,
        2 * shape.key_heads * head_bytes,
    )


def _facts(counts: ClusterCounts, shape: Geometry) -> dict[str, object]:
    from hvd_compress.attention.shares import cache_share

    return {
        "model": counts.model,
        "heads": shape.heads,
        "key_heads": shape.key_heads,
        "samples": counts.samples,
        "tokens": counts.tokens,
        "plateau": counts.plateau,
        "cache_share": cache_share(counts.clusters, shape.key_heads),
    }


def _print(rows: list[Row], counts: ClusterCounts, shape: Geometry) -> None:
    shared = shape.key_heads < shape.heads
    heads = f"{shape.heads} heads{f', which share the keys of {shape.key_heads}' if shared else ''}"
    console = Console(highlight=False)
    console.print(
        Text(f"{counts.model}: {len(rows)} layers of {heads}; {counts.samples} samples, {counts.tokens:,} tokens")
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    cache = f"cache, B\na token{', at most' if shared else ''}"
    for heading in ("layer", "mean\ncorrelation", f"pairs\nabove {ALIKE}", "clusters\nk", "E(k) /\nE(1)",
                    cache, "of a\nfull one"):  # fmt: skip
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            str(row.layer),
            "" if row.mean_correlation is None else f"{row.mean_correlation:.3f}",
            "" if row.alike is None else f"{row.alike:.1%}",
            f"{row.clusters} of {shape.heads}",
            f"{row.error_left:.4f}",
            f"{row.cache_bytes:,}",
            f"{row.cache_bytes / row.full_bytes:.1%}",
        )
    console.print(table)
    kept, full = sum(row.cache_bytes for row in rows), sum(row.full_bytes for row in rows)
    console.print(
        Text(
            f"plateau {counts.plateau:.4g}: the cache keeps {'at most ' if shared else ''}{kept / full:.1%} of its "
            f"bytes, {size(kept)} a token of {size(full)}"
        )
    )
    if all(row.clusters == shape.heads for row in rows):
        console.print(
            Text("no heads are alike enough by this plateau, a share of E(1): see what --cache-share 0.8 costs")
        )


def _told(cost: Perplexities) -> str:
    chai, static = cost.chai / cost.own - 1, cost.static / cost.own - 1
    lines = [f"perplexity of {cost.samples} samples {cost.own:.4g}: CHAI {chai:+.1%}, CHAI-static {static:+.1%}"]
    if min(chai, static) > COSTLY:
        lines.append("a larger --cache-share, or a smaller --plateau, costs less; heads that differ save nothing")
    elif chai > COSTLY:
        lines.append("five tokens do not tell these clusters: apply(model, counts, static=True)")
    return "\n".join(lines)
