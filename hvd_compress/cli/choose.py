"""`hvd-compress choose`: what the formulas say, without a network."""

from __future__ import annotations

import json

import click

from hvd_compress import collectives
from hvd_compress.buckets.layout import Layout
from hvd_compress.cli.numbers import RANKS, elements
from hvd_compress.cli.numbers import ratio as ratio_of
from hvd_compress.compressors import Cast, Compressor, TopK
from hvd_compress.cost.formulas import Formulas
from hvd_compress.cost.paths import Path
from hvd_compress.cost.predict import Prediction, fastest, predict
from hvd_compress.engines.names import ALGORITHMS
from hvd_compress.units import parse_bandwidth, parse_latency

DEFAULT = (
    *(Path("dense", name) for name in ALGORITHMS),
    Path("allgather"),
    *(Path("artopk", name) for name in ALGORITHMS),
)


@click.command("choose", help="Predict by formulas which collective is fastest for a bucket.")
@click.option(
    "--numel", required=True, type=elements, metavar="NUMBER", help="Elements of the bucket, or of the model: 25.6M."
)
@click.option("--ratio", required=True, type=ratio_of, metavar="RATIO", help="k / numel, in (0, 1]: 0.01 or 1%.")
@click.option("--world-size", required=True, type=RANKS, help="Number of ranks.")
@click.option("--latency", required=True, help="Of one message, with its unit: 1ms.")
@click.option("--bandwidth", required=True, help="Of one rank's link, with its unit: 5gbit.")
@click.option("--candidates", help="Comma-separated, such as allgather,artopk-ring,parameter-server.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(
    numel: int, ratio: float, world_size: int, latency: str, bandwidth: str, candidates: str | None, as_json: bool
) -> None:
    costs = Formulas(parse_latency(latency), 1 / parse_bandwidth(bandwidth), world_size)
    chosen = [collectives.parse(label.strip()) for label in candidates.split(",")] if candidates else DEFAULT
    layout = Layout.of(numel)
    predictions = [
        predict(path, collectives.stages(_sent(path, ratio), path, layout, world_size), costs) for path in chosen
    ]
    winner = fastest(predictions)
    if as_json:
        click.echo(json.dumps({"candidates": [_row(p) for p in predictions], "winner": _row(winner)}, indent=2))
        return
    width = max(len(str(prediction.candidate)) for prediction in predictions)
    for prediction in sorted(predictions, key=lambda prediction: prediction.seconds):
        mark = "  <- fastest" if prediction is winner else ""
        click.echo(f"{prediction.candidate!s:<{width}}  {1e3 * prediction.seconds:12.3f} ms{mark}")


def _sent(path: Path, ratio: float) -> Compressor:
    """The whole gradient where the collective carries it, top-k else."""
    dense = Cast()
    return dense if collectives.carries(dense, path) else TopK(ratio)


def _row(prediction: Prediction) -> dict[str, str | float]:
    candidate = prediction.candidate
    row: dict[str, str | float] = {"collective": candidate.collective, "algorithm": candidate.algorithm}
    if candidate.broadcast != "auto":
        row["broadcast"] = candidate.broadcast
    return {**row, "seconds": prediction.seconds}
