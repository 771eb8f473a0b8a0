"""Which lane a bucket takes, and which device a thread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from hvd_compress.devices.cuda import cuda_streams
from hvd_compress.devices.device import DeviceLane
from hvd_compress.devices.lane import HOST, Lane
from hvd_compress.devices.offload import OffloadLane
from hvd_compress.devices.staged import StagedLane
from hvd_compress.devices.streams import Streams
from hvd_compress.errors import UnsupportedError


class Lanes:
    """Gives each bucket its lane, and each thread of an exchange its device. Tests put a played device in its place."""

    def lane_for(self, gradients: torch.device, compression: str, engine_takes: Sequence[str]) -> Lane:
        """Return a new lane.

        Args:
            gradients: where they lie.
            compression: the kind of device that compresses, "cpu" or that of the gradients.
            engine_takes: kinds of devices whose memory the engine takes.

        Raises:
            UnsupportedError: for gradients on a device that this package does not know, or that is not there.
        """
        if gradients.type == "cpu":
            return HOST
        return lane_on(streams_of(gradients), compression, engine_takes)

    def set_device(self, gradients: Iterable[torch.device]) -> None:
        """Make the first GPU on which gradients lie the calling thread's current device; without one, do nothing.

        A new thread's current device is GPU 0. Whatever it calls there makes a context: about 0.5 GiB for each rank of
        a host, and an error where a process has GPU 0 for itself alone.
        """
        gpu = next((device for device in gradients if device.type == "cuda"), None)
        if gpu is not None:
            torch.cuda.set_device(gpu)


def lane_on(streams: Streams, compression: str, engine_takes: Sequence[str]) -> Lane:
    """Return a new lane for gradients on the device of these streams."""
    if compression == "cpu":
        return OffloadLane(streams)
    return DeviceLane(streams) if streams.device.type in engine_takes else StagedLane(streams)


def streams_of(device: torch.device) -> Streams:
    """Return the compression streams of a device. Raises UnsupportedError where it has none."""
    if device.type != "cuda":
        raise UnsupportedError(
            f"gradients on {device} cannot be compressed; move the model to the CPU or a CUDA device"
        )
    return cuda_streams(torch.cuda.current_device() if device.index is None else device.index)
