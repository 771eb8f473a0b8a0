"""What a loader says of itself while another one reads ahead of the training."""

from __future__ import annotations

from typing import Any


class Wrapped:
    """A loader that a library asks how far the training is: Accelerate's, whose `end_of_dataloader` ends a window of
    `accumulate()` and lets `gather_for_metrics()` drop what was added to the last batch."""

    def __init__(self, loader: Any) -> None:
        has_state = all(
            hasattr(loader, name) for name in ("gradient_state", "end_of_dataloader", "remainder", "begin", "end")
        )
        self._loader = loader if has_state else None

    def trains_on(self, is_last: bool) -> None:
        """A batch is handed over: the loader is as it would be if it had just given this one."""
        if self._loader is not None:
            if self._loader not in self._loader.gradient_state.dataloader_references:  # it has given all of them
                remainder = self._loader.remainder  # of a stream known at its end alone
                self._loader.begin()
                self._loader.remainder = remainder
            self._loader.end_of_dataloader = is_last

    def end(self) -> None:
        """The loop is over, or was left."""
        if self._loader is not None:
            self._loader.end()
