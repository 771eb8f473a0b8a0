"""A bucket: one flat buffer in which the gradients of several parameters live."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.buckets.under_way import stand_in


class Bucket:
    """The memory of one bucket, and which of its gradients have arrived in this step."""

    def __init__(self, layout: Layout, parameters: Mapping[str, torch.Tensor]) -> None:
        self.layout = layout
        device = parameters[layout.names[0]].device
        self.flat = torch.zeros(layout.numel, dtype=layout.dtype, device=device)
        self.parameters = {name: parameters[name] for name in layout.names}
        parts = torch.split(self.flat, list(layout.segments))
        self.views = {name: part.view(parameters[name].shape) for name, part in zip(layout.names, parts, strict=True)}
        self._stand_ins = {name: stand_in(parameter) for name, parameter in self.parameters.items()}
        self._arrived: set[str] = set()
        self.had_gradient: set[str] = set()

    def arrive(self, name: str) -> bool:
        """Take in the gradient of a parameter; return whether the bucket is full now.

        A gradient that autograd wrote elsewhere (after zero_grad(set_to_none=True), or in the first step) is copied and
        the parameter pointed at the bucket; otherwise it is in place already.
        """
        self.adopt(name)
        self._arrived.add(name)
        return len(self._arrived) == len(self.layout.names)

    @property
    def missing(self) -> list[str]:
        """Parameters whose gradient has not arrived in this step."""
        return [name for name in self.layout.names if name not in self._arrived]

    @torch.no_grad()
    def adopt(self, name: str) -> None:
        """Make the gradient of a parameter that has one live in the bucket; a parameter without one counts as zero."""
        parameter, view = self.parameters[name], self.views[name]
        gradient = parameter.grad
        if gradient is None:
            view.zero_()
            return
        if gradient.is_sparse:
            gradient = gradient.to_dense()
        gradient = gradient.detach()  # backward(create_graph=True) leaves one that has a graph
        if gradient.data_ptr() != view.data_ptr():
            view.copy_(gradient)
        parameter.grad = view

    def depart(self) -> None:
        """Take the gradients out of the program's sight while the bucket is under way.

        What writes to them meanwhile, such as clipping without synchronize(), would change a local gradient on one
        rank and a result on another: it gets an error instead.
        """
        for name, parameter in self.parameters.items():
            if parameter.grad is not None:
                self.had_gradient.add(name)
                parameter.grad = self._stand_ins[name]

    def reset(self) -> None:
        """Begin a new step."""
        self._arrived.clear()
        self.had_gradient.clear()
