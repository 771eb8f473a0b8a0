"""A network of hosts on one machine, with a latency and a bandwidth that can change while jobs run on it."""

from hvd_compress.netlab.lab import Lab
from hvd_compress.netlab.link import Link
from hvd_compress.netlab.schedule import Schedule

__all__ = ["Lab", "Link", "Schedule"]
