"""Train a recommendation model whose embedding tables lie on all ranks, behind a cache that looks ahead (Bagpipe).

    mpirun -np 4 --map-by :OVERSUBSCRIBE --bind-to none python examples/train_dlrm.py
    mpirun -np 4 --map-by :OVERSUBSCRIBE --bind-to none python examples/train_dlrm.py --model deepfm --data packages
    mpirun -np 4 --map-by :OVERSUBSCRIBE --bind-to none python examples/train_dlrm.py --data train.txt
    torchrun --nproc-per-node 4 examples/train_dlrm.py --ddp

What makes the dense part distributed stands here; the embeddings are in recommendation/embedding_model.py, the loop in
recommendation/training.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from images.methods import METHODS, build_compression
from images.ranks import Ranks
from recommendation import sources
from recommendation.embedding_model import Settings
from recommendation.models import MODELS
from recommendation.skew import Skew, Top, Zipf
from recommendation.training import train
from torch import nn

from hvd_compress.embedding.precision import PRECISIONS
from hvd_compress.errors import ConfigError, UnsupportedError

Compress = Callable[[Any], Any]
Distributed = tuple[nn.Module, torch.optim.Optimizer]
GENERATED = ((), ("synthetic",))
"""Values of --data."""


def by_horovod(compress: Compress) -> tuple[Ranks, Callable[[nn.Module, float], Distributed]]:
    """Join the job; `compress` builds the compression of a front end's `Compression`."""
    import train_images

    import hvd_compress.torch as hvd

    def distribute(model: nn.Module, lr: float) -> Distributed:
        optimizer = hvd.DistributedOptimizer(
            torch.optim.Adam(model.parameters(), lr=lr),
            named_parameters=model.named_parameters(),
            compression=compress(hvd.Compression),
        )
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return model, optimizer

    return train_images.start("cpu"), distribute


def by_ddp(compress: Compress) -> tuple[Ranks, Callable[[nn.Module, float], Distributed]]:
    """As by_horovod, with PyTorch's DistributedDataParallel."""
    import train_ddp
    from torch.nn.parallel import DistributedDataParallel

    import hvd_compress.ddp as hc

    def distribute(model: nn.Module, lr: float) -> Distributed:
        replica = DistributedDataParallel(model)
        hc.compress(replica, compress(hc.Compression))
        return replica, torch.optim.Adam(replica.parameters(), lr=lr)

    return train_ddp.start("cpu"), distribute


def skew_of(zipf: float | None, top: float | None, data: tuple[str, ...]) -> Skew | None:
    """Return the skew of generated data that the options ask for; None for one like Criteo's."""
    if zipf is not None and top is not None:
        raise click.UsageError("--zipf and --top are two skews: give one of them")
    skew = Zipf(zipf) if zipf is not None else Top(top) if top is not None else None
    if skew is not None and data not in GENERATED:
        raise click.UsageError("--zipf and --top are for generated data; --data has a skew of its own")
    return skew


@click.command(help=__doc__)
@click.option("--model", type=click.Choice(list(MODELS)), default="dlrm", show_default=True)
@click.option("--full", is_flag=True, help="Sizes of Bagpipe's Table 5.2; vectors of 48 elements, not 16.")
@click.option("--data", multiple=True, help="synthetic, packages, or Criteo's files. [default: synthetic]")
@click.option(
    "--scale",
    type=click.FloatRange(0, min_open=True),
    default=0.01,
    help="Of Criteo's table sizes. [default: 0.01]",
)
@click.option("--zipf", type=float, metavar="ALPHA", help="Exponent of Zipf's distribution of generated rows.")
@click.option("--top", type=float, metavar="SHARE", help="Of the draws that 1 % of the generated rows take.")
@click.option("--batch-size", type=click.IntRange(2), default=128, show_default=True, help="Of one rank.")
@click.option("--steps", type=click.IntRange(1), default=300, show_default=True)
@click.option("--compression", type=click.Choice(list(METHODS)), default="none", show_default=True)
@click.option("--ratio", type=float, help="Share of the values that top-k sends, in (0, 1].")
@click.option("--engine", help="What moves compressed gradients: auto, mpi, horovod, torch.")
@click.option("--lr", type=float, default=0.001, show_default=True, help="Of the dense part's Adam.")
@click.option("--embedding-lr", type=float, default=0.05, show_default=True, help="Of the rows' Adagrad.")
@click.option("--cache-rows", type=int, default=200_000, show_default=True, help="Slots of a rank's cache.")
@click.option("--lookahead", type=int, help="Batches. [default: as many as the cache holds]")
@click.option(
    "--sync-precision",
    type=click.Choice(list(PRECISIONS)),
    default="exact",
    show_default=True,
    help="Of rows and gradients that several ranks share.",
)
@click.option(
    "--journal",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder in which each step is written; a run that was killed goes on behind it.",
)
@click.option("--report-every", type=click.IntRange(1), default=100, show_default=True, help="Steps.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True)
@click.option("--ddp", is_flag=True, help="PyTorch's DistributedDataParallel instead of Horovod; by torchrun.")
def main(
    data: tuple[str, ...],
    scale: float,
    zipf: float | None,
    top: float | None,
    batch_size: int,
    steps: int,
    compression: str,
    ratio: float | None,
    engine: str | None,
    ddp: bool,
    **settings: Any,
) -> None:
    def compress(compressions: Any) -> Any:
        return build_compression(compressions, compression, ratio=ratio, engine=engine)

    try:  # before the job is joined, as click's own checks
        skew = skew_of(zipf, top, data)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    ranks, distribute = (by_ddp if ddp else by_horovod)(compress)
    ranks.share_cores()
    seed = settings["seed"]
    try:
        if data in GENERATED:
            source = sources.synthetic(scale, batch_size, steps, seed, ranks, skew)
        elif data == ("packages",):
            source = sources.packages(batch_size, steps, seed, ranks)
        else:
            source = sources.criteo([Path(name) for name in data], scale, batch_size, steps, ranks)
        train(source, steps, Settings(**settings), ranks, distribute)
    except (ConfigError, UnsupportedError) as error:  # the message says what to change
        refusal = click.ClickException(f"rank {ranks.rank}: {error}")
        refusal.exit_code = 2  # as of the command line's own
        raise refusal from error
    if ddp:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
