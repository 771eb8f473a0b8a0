"""Where a bucket is compressed, and how its data get there, to the engine, and back."""

from hvd_compress.devices.lane import HOST, HostLane, Lane
from hvd_compress.devices.select import lane_for

__all__ = ["HOST", "HostLane", "Lane", "lane_for"]
