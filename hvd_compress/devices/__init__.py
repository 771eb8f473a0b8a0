"""Where a bucket is compressed, and how its data get there, to the engine, and back."""

from hvd_compress.devices.lane import HOST, HostLane, Lane
from hvd_compress.devices.select import Lanes

__all__ = ["HOST", "HostLane", "Lane", "Lanes"]
