"""What does a training take? The planner's three inputs as files; a guest records them, and brings the names here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hvd_compress import guests

if TYPE_CHECKING:
    from hvd_compress.papers.espresso.profiler.compressor import measure_compressor as measure_compressor
    from hvd_compress.papers.espresso.profiler.profile import Profile as Profile
    from hvd_compress.papers.espresso.profiler.system import measure_system as measure_system

__all__ = ["Profile", "measure_compressor", "measure_system"]


def __getattr__(name: str) -> Any:
    """Import what the guest brings when it is first named, and torch with it."""
    return guests.attribute(__name__, name)
