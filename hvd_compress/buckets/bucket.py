"""A bucket: the gradients of several parameters in one flat tensor, from step to step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.buckets.memory import BucketMemory
from hvd_compress.buckets.real import gradient_dtype
from hvd_compress.buckets.under_way import stand_in
from hvd_compress.errors import UnsupportedError


class Bucket:
    """The gradients of one bucket, and which of them have arrived in this step."""

    def __init__(self, layout: Layout, parameters: Mapping[str, torch.Tensor]) -> None:
        self.layout = layout
        self.parameters = {name: parameters[name] for name in layout.names}
        self._device = parameters[layout.names[0]].device
        self._memory = BucketMemory(layout, self.parameters, self._device)
        self._kinds = {name: _kind(view) for name, view in self._memory.views.items()}
        self._like = {name: (view.dtype, view.shape, view.device) for name, view in self._memory.views.items()}
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

    def arrive(self, name: str) -> bool:
        """Take in the gradient of a parameter, or none as zeros; return whether the bucket is full now.

        A gradient that autograd wrote elsewhere (after zero_grad(set_to_none=True), or in the first step) is copied;
        otherwise it is in place already. From now on the program sees a stand-in: what writes to a gradient while it is
        under way, such as clipping without synchronize(), would change a local gradient on one rank and a result on
        another.

        Raises:
            UnsupportedError: the parameter has another dtype, shape or device than when the bucket was made.
        """
        if not self._is_open:
            self._open()
        parameter, view = self.parameters[name], self._memory.views[name]
        gradient = parameter.grad
        if gradient is None or not self._memory.holds(name, gradient):
            if gradient is None:
                self._require_same(name, parameter)
                view.zero_()
            else:
                if (gradient.dtype, gradient.shape, gradient.device) != self._like[name]:
                    self._require_same(name, parameter)
                # backward(create_graph=True) leaves one that has a graph
                plain = gradient.detach() if gradient.requires_grad else gradient
                view.copy_(plain.to_dense() if plain.is_sparse else plain)
        if gradient is not None:
            self._had_gradient.add(name)
            parameter.grad = self._stand_ins[name]
        self._arrived.add(name)
        return len(self._arrived) == len(self.layout.names)

    def take_results(self, buckets: Sequence[Bucket]) -> None:
        """Gradients are cut anew: take over what was exchanged in these, which hold all of its parameters."""
        found = {name: bucket for bucket in buckets for name in bucket.parameters}
        for name, view in self._memory.views.items():
            view.copy_(found[name]._memory.views[name])
        self._had_gradient = {name for name in self.parameters if name in found[name]._had_gradient}

    def give_back(
        self, shaped: Callable[[str, torch.Tensor], torch.Tensor], without: Collection[str] = frozenset()
    ) -> None:
        """The exchange is over: results become the gradients, each as `shaped` by its name, and a new step begins.

        A parameter that was frozen, and had no gradient in this step, gets none; nor does one `without`.
        """
        for name, parameter in self.parameters.items():
            if name in without:
                parameter.grad = None
            elif name in self._had_gradient or parameter.requires_grad:
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
        self._is_open = True
        if self._memory.is_kept((name, parameter.grad) for name, parameter in self.parameters.items()):
            self._memory = BucketMemory(self.layout, self.parameters, self._device)

    def _require_same(self, name: str, parameter: torch.Tensor) -> None:
        """Torch holds gradients to their parameter."""
        if _kind(parameter) != self._kinds[name]:
            view = self._memory.views[name]
            raise UnsupportedError(
                f"parameter {name!r} is {tuple(parameter.shape)} {parameter.dtype} on {parameter.device} now, and its "
                f"gradient was {tuple(view.shape)} {view.dtype} on {view.device} when ranks exchanged it first: "
                "convert a model before its optimizer is wrapped; while training, convert it, make a new optimizer, "
                "and wrap that, on every rank"
            )


def _kind(tensor: torch.Tensor) -> tuple[object, ...]:
    """What the gradient of a parameter, or that gradient itself, may not change."""
    return tensor.shape, gradient_dtype(tensor), tensor.is_complex(), tensor.device
