"""What a session tells: on rank 0, once."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence

from hvd_compress.compressors import Compressor

log = logging.getLogger("hvd_compress")


def tell_float64(names: Sequence[str], count: int) -> None:
    """Of the parameters, `count` in all, these were to be compressed and are not."""
    log.warning(
        "hvd_compress: %d of %d parameters are float64 (%s first) and travel dense, without compression: only float32, "
        "float16 and bfloat16 gradients are compressed",
        len(names),
        count,
        names[0],
    )


def tell_one_rank(compressor: Compressor) -> None:
    """There is nobody to exchange gradients with."""
    log.warning(
        "hvd_compress: there is one rank, so nothing is exchanged, and nothing is compressed%s: launch the training "
        "with mpirun, horovodrun or torchrun to have several",
        ", so the momentum that the compression has is left out" if compressor.refuses_momentum(0.5, True) else "",
    )


def tell_momentum(compressor: Compressor, remedy: str) -> None:
    """The optimizer is not known, and must not have a momentum of its own."""
    log.warning(
        "hvd_compress: %s has a momentum, and an optimizer with another one of its own would train with both (%s): "
        "hc.of(model).follow_learning_rate(optimizer) checks that there is none, and leaves this out",
        compressor,
        remedy,
    )


def tell_other_choice(choice: str) -> None:
    """The checkpoint has what another policy has chosen."""
    try:
        policy = str(dict(json.loads(choice)).get("policy") or "auto(), or a path that was left open")
    except (ValueError, TypeError):
        policy = "it cannot be read"
    log.warning(
        "hvd_compress: what the checkpoint says was chosen is of another compression (%s), and is not used: this one "
        "begins anew",
        policy,
    )


def tell_unused(kinds: Sequence[str]) -> None:
    """The checkpoint has what this compression keeps nothing of."""
    log.warning(
        "hvd_compress: the checkpoint is of another compression, and this one has no use for what that remembers: %s",
        ", ".join(kinds),
    )


def tell_bucket_cap(buckets: int, nbytes: int, waited_s: float, cap_mib: float, made: int) -> None:
    """DDP's buckets are so few that a step waits for their exchange."""
    log.warning(
        "hvd_compress: DDP has put %.3g MB of gradients into %d bucket%s, and a step waits %.3g ms for their exchange: "
        "DistributedDataParallel(model, bucket_cap_mb=%.2g) makes %d, of which more travel beside the backward pass",
        1e-6 * nbytes,
        buckets,
        "s" * (buckets != 1),
        1e3 * waited_s,
        cap_mib,
        made,
    )


def tell_nonfinite(step: int, buckets: Sequence[str]) -> None:
    """The first step that is not finite, in these buckets."""
    log.warning(
        "hvd_compress: step %d: gradients are NaN or infinite on some rank, in bucket %s; residuals stay as they were. "
        "last_step.nonfinite_steps counts such steps, and this is told once",
        step,
        ", ".join(buckets),
    )


def tell_given_up(step: int) -> None:
    """An error has ended the backward pass on all ranks."""
    log.warning(
        "hvd_compress: step %d: an error has ended the backward pass on all ranks, and what had left of its gradients "
        "is forgotten; residuals stay as they were",
        step,
    )
