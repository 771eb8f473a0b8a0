"""The memory of a bucket, of which the program may keep gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch.utils.dlpack import from_dlpack

from hvd_compress.buckets.layout import Layout
from hvd_compress.buckets.real import as_parameter


class BucketMemory:
    """One flat tensor for the exchange, and gradients of parameters that lie in it for the program.

    Both have storages of their own over the same memory. So the uses of the program's storage say whether gradients
    that it was given are still held, by whatever tensor or array.

    Attributes:
        flat: (numel,), what is exchanged; a step writes all of it first.
        views: by parameter, its gradient. Not to be given away: who assigns to `.data` of a tensor leads it elsewhere.
    """

    def __init__(self, layout: Layout, parameters: Mapping[str, torch.Tensor], device: torch.device) -> None:
        # The program's storage borrows: who moves it, as share_memory_() does, frees nothing that is exchanged.
        self.flat = torch.empty(layout.numel, dtype=layout.dtype, device=device)
        whole = from_dlpack(self.flat) if layout.numel else self.flat.clone()
        parts = torch.split(whole, list(layout.segments))
        self.views = {name: as_parameter(p, parameters[name]) for name, p in zip(layout.names, parts, strict=True)}
        self._storage = whole.untyped_storage()
        del parts
        self._own_uses = self._uses()

    def gradient(self, name: str) -> torch.Tensor:
        """Return the gradient of a parameter as a tensor to give away."""
        return self.views[name].detach()

    def holds(self, name: str, gradient: torch.Tensor) -> bool:
        """Whether this gradient of the parameter lies where it is exchanged."""
        return gradient.layout is torch.strided and gradient.is_set_to(self.views[name])

    def is_kept(self, gradients: Iterable[tuple[str, torch.Tensor | None]]) -> bool:
        """Whether anything but these gradients, of parameters by name, holds what was given away; or has moved it."""
        if self.flat.numel() and self._storage.data_ptr() != self.flat.data_ptr():
            return True
        uses = self._uses() - self._own_uses
        return uses > 0 and uses > sum(grad is not None and self.holds(name, grad) for name, grad in gradients)

    def _uses(self) -> int:
        uses: int = torch._C._storage_Use_Count(self._storage._cdata)
        return uses
