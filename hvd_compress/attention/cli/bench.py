"""hvd-compress chai bench: time to first and next token, and memory, beside the model's own attention."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import rich.box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hvd_compress.attention.cli.options import DEVICE, DOWNLOAD, FILE, device_of, require_files, share_of
from hvd_compress.cli.numbers import THREADS, size
from hvd_compress.cli.outputs import PICTURES
from hvd_compress.cli.suggesting import Choice

if TYPE_CHECKING:
    from hvd_compress.attention.bench.measuring import Figure, Ratio
    from hvd_compress.attention.families import Geometry

SHAPES = ("gpt2", "llama-1b", "llama-7b")
DTYPES = ("float32", "bfloat16", "float16")
LENGTHS = (1024, 2048, 4096)
SHARE = 0.8
MOST_TOKENS = 1 << 20
ROUNDS = click.IntRange(3, 100_000)
"""Fewer say nothing of noise."""


def lengths_of(text: str) -> list[int]:
    """Read numbers of tokens with commas between."""
    try:
        lengths = [int(each) for each in text.split(",")]
    except ValueError:
        lengths = []
    if not lengths or not all(1 <= length <= MOST_TOKENS for length in lengths):
        raise click.BadParameter(f"{text!r} are no lengths, such as 1024,2048, of up to {MOST_TOKENS} tokens")
    return sorted(set(lengths))


@click.command(short_help="Time tokens, and count memory, beside the model's own attention.")
@click.argument("model", required=False)
@click.option("--shape", type=Choice(SHAPES), help="Of a model with random weights.  [default: gpt2, without MODEL]")
@click.option("--counts", type=FILE, help="Clusters, by `chai analyse`; otherwise some of equal size are made.")
@click.option("--cache-share", type=share_of, metavar="SHARE", help="Of the cache's bytes, for which clusters are "
              f"made.  [default: {SHARE}]")  # fmt: skip
@click.option("--lengths", type=lengths_of, metavar="NUMBERS", help="Of tokens, multiples of 64.  "
              f"[default: {','.join(map(str, LENGTHS))}, as far as MODEL has positions]")  # fmt: skip
@click.option("--batch", type=click.IntRange(1, 4096), default=1, show_default=True, help="Sequences.")
@click.option("--dtype", type=Choice(DTYPES), help="Of weights and cache.  [default: MODEL's; float32]")
@DEVICE
@click.option("--threads", type=THREADS, help="Of torch.  [default: as many as it takes by itself]")
@click.option("--rounds", type=ROUNDS, default=15, show_default=True, help="Next tokens that are timed.")
@click.option("--prefills", type=ROUNDS, default=3, show_default=True, help="First tokens that are timed.")
@click.option("--plot", type=FILE, help=f"Write a picture: times and memory against length. {PICTURES}")
@DOWNLOAD
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def bench(
    model: str | None,
    shape: str | None,
    counts: Path | None,
    cache_share: float | None,
    lengths: list[int] | None,
    batch: int,
    dtype: str | None,
    device: str,
    threads: int | None,
    rounds: int,
    prefills: int,
    plot: Path | None,
    download: bool,
    as_json: bool,
) -> None:
    """Time clustered attention beside the attention of MODEL itself, in turns in one process.

    MODEL is a folder of save_pretrained(), or a model of the Hub that is on this machine; without it the weights are
    random, and CHAI's clusters have the sizes that random heads have. "full" is the model's own attention with the
    cache of transformers; "all keys" has our cache, and drops nothing; CHAI clusters by the first five tokens of each
    prompt, CHAI-static by the counts.

    First token: a prompt of random tokens in one piece. Next token: the step that has the last of so many tokens; the
    cache is cropped behind it. Our cache grows once in 64 tokens, by a copy that is not timed. Ratios are to full
    in the same round, with the 95 % interval of their median; of fewer than 6 rounds with the lowest and the highest.
    Beside them are the bytes of weights and cache that a step reads, of those of full. The cache of full is copied in
    each step, which is not in these bytes: what clusters save shows beside "all keys", which reads as many as full.

    Each of the four keeps a cache. On one core, gpt2 takes about six minutes by default.

    Needs transformers: pip install 'hvd_compress[attention]'.
    """
    if model is not None and shape is not None:
        raise click.UsageError("--shape takes the place of MODEL: give one of them")
    if counts is not None and cache_share is not None:
        raise click.UsageError("--cache-share makes clusters, and --counts has some: give one of them")
    require_files(None, plot, [] if counts is None else [counts], "hvd-compress chai bench")
    import torch

    from hvd_compress.attention.bench.measuring import longest_within, measure, require_lengths
    from hvd_compress.attention.bench.models import balanced_counts, weight_bytes
    from hvd_compress.attention.counts import ClusterCounts
    from hvd_compress.attention.families import geometry
    from hvd_compress.measuring import fixed_threads, machine

    given = None if counts is None else ClusterCounts.load(counts)
    with fixed_threads(threads or torch.get_num_threads()):
        loaded = _model(model, shape or SHAPES[0], max(lengths or LENGTHS), dtype, device, download)
        known = geometry(loaded)
        lengths = lengths or [each for each in LENGTHS if each <= known.positions] or longest_within(known)
        require_lengths(lengths, known)
        _announce(known, lengths, batch, loaded.dtype.itemsize, weight_bytes(loaded))
        clusters = given or balanced_counts(known, SHARE if cache_share is None else cache_share)
        figures = list(
            measure(loaded, clusters, lengths, batch=batch, prefills=prefills, rounds=rounds, progress=_progress)
        )
        _progress("")
        facts = {
            **{"machine": machine(), "device": device, "threads": torch.get_num_threads()},
            **{"model": model or shape or SHAPES[0], "dtype": str(loaded.dtype).removeprefix("torch.")},
            **{"attention": loaded.config._attn_implementation, "layers": known.layers, "heads": known.heads},
            **{"key_heads": known.key_heads, "weight_bytes": weight_bytes(loaded), "clusters": clusters.clusters},
            **{"batch": batch, "rounds": rounds, "prefills": prefills},
        }
    if plot is not None:
        from hvd_compress.attention.bench.plot import draw

        draw(figures, _title(facts), plot)
    if as_json:
        click.echo(json.dumps({**facts, "figures": [dataclasses.asdict(figure) for figure in figures]}, indent=1))
        return
    _print(figures, facts)
    if plot is not None:
        click.echo(f"wrote {plot}")


def _model(model: str | None, shape: str, longest: int, dtype: str | None, device: str, download: bool) -> Any:
    import torch

    from hvd_compress.attention.bench.models import shaped
    from hvd_compress.attention.loading import load_config, load_model

    place = device_of(device)
    if model is None:
        return shaped(shape, longest, getattr(torch, dtype or DTYPES[0]), place)
    config = load_config(model, download=download)
    kind = None if dtype is None else getattr(torch, dtype)
    loaded, _ = load_model(model, config, download=download, device=place, dtype=kind)
    return loaded


def _announce(shape: Geometry, lengths: Sequence[int], batch: int, itemsize: int, weights: int) -> None:
    from hvd_compress.attention.bench.measuring import KINDS

    cache = 2 * shape.layers * shape.key_heads * shape.head_dim * itemsize * batch * max(lengths)
    memory = f"caches of up to {size(KINDS * cache)}, beside {size(weights)} of weights"
    click.echo(f"{KINDS} kinds at {', '.join(map(str, lengths))} tokens: {memory}", err=True)


def _progress(words: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{words}", err=True, nl=False)


def _title(facts: dict[str, Any]) -> str:
    threads = "1 thread" if facts["threads"] == 1 else f"{facts['threads']} threads"
    shared = f" on {facts['key_heads']} of keys" if facts["key_heads"] < facts["heads"] else ""
    return (
        f"{facts['model']}: {facts['layers']} layers of {facts['heads']} heads{shared}, {facts['dtype']}, batch "
        f"{facts['batch']}, {threads}; {facts['machine']}, {facts['device']}"
    )


def _print(figures: Sequence[Figure], facts: dict[str, Any]) -> None:
    console = Console(highlight=False)
    console.print(Text(_title(facts)))
    from hvd_compress.attention.bench.measuring import ALL_KEYS, FULL

    numbers = sorted({min(facts["clusters"]), max(facts["clusters"])})
    console.print(
        Text(
            f"full is {facts['attention']} of transformers; {' to '.join(map(str, numbers))} "
            f"clusters a layer; a step reads {size(facts['weight_bytes'])} of weights"
        )
    )
    console.print(
        _table("first token", facts["prefills"], figures, _first),
        _table("next token", facts["rounds"], figures, _next, ("bytes\nof full", "cache", "of\nfull")),
    )
    clustered = [figure for figure in figures if figure.kind not in (FULL, ALL_KEYS)]
    console.print(
        _table("next token, beside all keys", facts["rounds"], clustered, _clusters, ("its\nbytes",), "all keys")
    )
    console.print(Text("~ within noise: 1 lies between the two. Bytes: of weights and cache, which a step reads"))


def _table(
    what: str,
    rounds: int,
    figures: Sequence[Figure],
    cells: Callable[[Figure], Sequence[str]],
    further: Sequence[str] = (),
    base: str = "full",
) -> Table:
    from hvd_compress.attention.bench.measuring import FOR_INTERVAL

    title = f"{what}, medians of {rounds}"
    table = Table(title=title, box=rich.box.SIMPLE_HEAD, title_justify="left", pad_edge=False, collapse_padding=True)
    between = "95 %\ninterval" if rounds >= FOR_INTERVAL else "lowest to\nhighest"
    for heading in ("tokens", "attention", "ms", f"time\nof {base}", between, *further):
        table.add_column(heading, justify="left" if heading == "attention" else "right", no_wrap=True)
    for place, figure in enumerate(figures):
        is_first = place == 0 or figures[place - 1].length != figure.length
        is_last = place + 1 < len(figures) and figures[place + 1].length != figure.length
        table.add_row(str(figure.length) if is_first else "", figure.kind, *cells(figure), end_section=is_last)
    return table


def _first(figure: Figure) -> Sequence[str]:
    return f"{1e3 * figure.first_s:,.1f}", *_ratio(figure.first_ratio)


def _next(figure: Figure) -> Sequence[str]:
    return (
        f"{1e3 * figure.next_s:,.1f}",
        *_ratio(figure.next_ratio),
        f"{figure.floor:.3f}",
        size(figure.cache_bytes),
        f"{figure.cache_share:.3f}",
    )


def _clusters(figure: Figure) -> Sequence[str]:
    return f"{1e3 * figure.next_s:,.1f}", *_ratio(figure.next_of_all_keys), f"{figure.floor:.3f}"


def _ratio(ratio: Ratio) -> Sequence[str]:
    from hvd_compress.attention.bench.measuring import is_noise

    if ratio == (1.0, 1.0, 1.0):  # full itself
        return "1", ""
    middle, low, high = (f"{value:#.4g}" if value >= 9.9995 else f"{value:.3f}" for value in ratio)  # as wide as 1.000
    return f"{middle}{' ~' if is_noise(ratio) else '  '}", f"{low}-{high}"
