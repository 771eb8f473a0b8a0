"""What ranks must have alike that come to a running job: compared before a difference could end the job for all."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import torch

from hvd_compress.errors import CommunicationError, ConfigError


def model_in_words(parameters: Mapping[str, torch.Tensor]) -> str:
    """Return the number of parameters, and a sum over names, shapes and dtypes."""
    shapes = [f"{name} {tuple(each.shape)} {each.dtype}" for name, each in parameters.items()]
    return f"{len(shapes)} parameters ({zlib.crc32(repr(shapes).encode()):08x})"


def require_alike(told: Sequence[Mapping[str, str]], root: int, own: int) -> None:
    """Raise where ranks have not all the same.

    Args:
        told: by ranks, what each has, by name and in words.
        root: whose is right.
        own: this rank.

    Raises:
        ConfigError: on ranks that differ from the root.
        CommunicationError: on others, which may go on without them.
    """
    others = [rank for rank, each in enumerate(told) if each != told[root]]
    if not others:
        return
    shown = own if own in others else others[0]
    first, other = told[root], told[shown]
    words = "; ".join(
        f"{name} is {first.get(name)} on rank {root}, and {other.get(name)} on rank {shown}"
        for name in {**first, **other}
        if first.get(name) != other.get(name)
    )
    if own in others:
        raise ConfigError(
            f"this rank, {own}, cannot train with the others: {words}. Have the program, its compression and "
            "HVD_COMPRESS_* be the same on all ranks"
        )
    raise CommunicationError(f"ranks {others} are refused: {words}")
