"""What does a training take? Recording the planner's three inputs: model, compressor and system."""

from hvd_compress.profiler.compressor import measure_compressor
from hvd_compress.profiler.profile import Profile
from hvd_compress.profiler.system import measure_system

__all__ = ["Profile", "measure_compressor", "measure_system"]
