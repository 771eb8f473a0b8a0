"""A bucket: the gradients of several parameters in one flat tensor, from step to step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.buckets.memory import BucketMemory
from hvd_compress.buckets.real import gradient_dtype, gradient_shape
from hvd_compress.buckets.under_way import stand_in
from hvd_compress.errors import UnsupportedError


class Bucket:
    """The gradients of one bucket, and which of them have arrived in this step."""

    def __init__(self, layout: Layout, parameters: Mapping[str, torch.Tensor]) -> None:
        self.layout = layout
        self.parameters = {name: parameters[name] for name in layout.names}
        self._device = parameters[layout.names[0]].device
        self._memory = BucketMemory(layout, self.parameters, self._device)
        self._stand_ins = {name: stand_in(view) for name, view in self._memory.views.items()}
        self._arrived: set[str] = set()
        self._had_gradient: set[str] = set()
        self._is_open = False

    @property
    def flat(self) -> torch.Tensor:
        """(numel,), what is exchanged."""
        return self._memory.flat

    @property
    def missing(self) -> list[str]:
        """Parameters whose gradient has not arrived in this step."""
        return [name for name in self.layout.names if name not in self._arrived]

    @property
    def changed(self) -> list[str]:
        """Parameters whose gradient is under way and was dropped or replaced by the program meanwhile."""
        under_way = (name for name in self.layout.names if name in self._had_gradient)
        return [name for name in under_way if self.parameters[name].grad is not self._stand_ins[name]]

    @torch.no_grad()
    def arrive(self, name: str) -> bool:
        """Take in the gradient of a parameter, or none as zeros; return whether the bucket is full now.

        A gradient that autograd wrote elsewhere (after zero_grad(set_to_none=True), or in the first step) is copied;
        otherwise it is in place already. From now on the program sees a stand-in: what writes to a gradient while it is
        under way, such as clipping without synchronize(), would change a local gradient on one rank and a result on
        another.

        Raises:
            UnsupportedError: the parameter has another dtype, shape or device than when the bucket was made.
        """
        self._open()
        parameter, view = self.parameters[name], self._memory.views[name]
        gradient = parameter.grad
        if gradient is None or not self._memory.holds(name, gradient):
            self._require_same(name, parameter)
            if gradient is None:
                view.zero_()
            else:
                # backward(create_graph=True) leaves one that has a graph
                view.copy_(gradient.to_dense() if gradient.is_sparse else gradient.detach())
        if gradient is not None:
            self._had_gradient.add(name)
            parameter.grad = self._stand_ins[name]
        self._arrived.add(name)
        return len(self._arrived) == len(self.layout.names)

    def give_back(self, shaped: Callable[[str, torch.Tensor], torch.Tensor]) -> None:
        """The exchange is over: results become the gradients, each as `shaped` by its name, and a new step begins.

        A parameter that was frozen, and had no gradient in this step, gets none.
        """
        for name, parameter in self.parameters.items():
            if name in self._had_gradient or parameter.requires_grad:
                parameter.grad = shaped(name, self._memory.gradient(name))
        self._arrived.clear()
        self._had_gradient.clear()
        self._is_open = False

    def holds_results(self) -> bool:
        """Whether any parameter still has the gradient that it was given, as it lies in the bucket."""
        return any(
            parameter.grad is not None and self._memory.holds(name, parameter.grad)
            for name, parameter in self.parameters.items()
        )

    def _open(self) -> None:
        """A step begins. Where the program keeps gradients of earlier ones, it keeps their memory, too."""
        if self._is_open:
            return
        self._is_open = True
        if self._memory.is_kept((name, parameter.grad) for name, parameter in self.parameters.items()):
            self._memory = BucketMemory(self.layout, self.parameters, self._device)

    def _require_same(self, name: str, parameter: torch.Tensor) -> None:
        """Torch holds gradients to their parameter."""
        view = self._memory.views[name]
        now = (gradient_shape(parameter), gradient_dtype(parameter), parameter.is_complex(), parameter.device)
        before = (gradient_shape(view), gradient_dtype(view), view.is_complex(), view.device)
        if now != before:
            raise UnsupportedError(
                f"parameter {name!r} is {tuple(parameter.shape)} {parameter.dtype} on {parameter.device} now, and its "
                f"gradient was {tuple(view.shape)} {view.dtype} on {view.device} when ranks exchanged it first: "
                "convert a model before its optimizer is wrapped; while training, convert it, make a new optimizer, "
                "and wrap that, on every rank"
            )
