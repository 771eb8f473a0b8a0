"""The bytes of this package's compressors, by their `wire()`. The only module here that imports torch."""

from __future__ import annotations

from hvd_compress.buckets.layout import Layout
from hvd_compress.collectives import Requantize
from hvd_compress.compressors import Compressor
from hvd_compress.errors import ConfigError
from hvd_compress.papers.utility.model import Payload
from hvd_compress.profiler.profiles import ModelProfile

_SQUARE, _FLAT = Layout.of((1024, 1024)), Layout.of(1024 * 1024)


def payloads_of(compressor: Compressor, model: ModelProfile) -> tuple[Payload, ...]:
    """Return what a rank sends of a model's whole gradient, round by round; the most, where the size is not fixed.

    Raises ConfigError where it depends on the shapes of parameters, and the profile has none.
    """
    unknown = [tensor.name for tensor in model.tensors if tensor.shape is None]
    if unknown and compressor.wire(_SQUARE) != compressor.wire(_FLAT):
        raise ConfigError(
            f"what {compressor} sends depends on shapes, and the profile of {model.model} has none, such as tensors."
            f"{[tensor.name for tensor in model.tensors].index(unknown[0])}.shape of {unknown[0]!r}: add them, or say "
            "how much is sent, as --payload 1%"
        )
    shapes = tuple(tensor.shape or (tensor.numel,) for tensor in model.tensors)
    layout = Layout(tuple(tensor.name for tensor in model.tensors), shapes)
    return tuple(Payload(each.priced, each.sum_dtype is not None) for each in compressor.wire(layout))


def is_summable(compressor: Compressor) -> bool:
    """Return whether payloads of all ranks may be added."""
    return all(each.sum_dtype is not None for each in compressor.wire(_SQUARE))


def is_summed_by_owners(compressor: Compressor) -> bool:
    """Return whether owners of shards sum payloads and compress the sums again, as this package's quantisers have it.

    An all-to-all and an all-gather then move the bytes of a ring, whether or not payloads can be added themselves.
    """
    return Requantize.carries(compressor)
