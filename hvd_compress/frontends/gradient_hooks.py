"""Hooks on parameters: when the gradient of one is about to be computed, and when it has been."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

import torch

from hvd_compress.frontends.eagerly import eagerly

Told = Callable[[torch.Tensor], None]
"""Is told of a parameter."""


class Handle(Protocol):
    """What removes a hook."""

    def remove(self) -> None: ...


class GradientHooks:
    """Tells, in each backward pass, when the gradient of a parameter comes, and when it is there.

    Torch makes a parameter a new node to accumulate its gradient where Module.double() and the like change its data,
    and hooks on the old node are silent from then on. Those on the tensor stay: the first one that is called without
    the other watches the new node.

    Attributes:
        handles: remove the hooks. Who holds them does not keep the hooks alive.
    """

    def __init__(self, parameters: Iterable[torch.Tensor], comes: Told, ready: Told) -> None:
        """`comes` and `ready` are held: they should not hold who owns the hooks."""
        self._comes, self._ready = comes, ready
        self._coming: set[int] = set()  # ids of parameters
        self._nodes: dict[int, Any] = {}  # held, as a parameter does not hold the node that adds to its gradient
        self.handles: list[Handle] = []
        me = weakref.ref(self)  # a parameter must not hold the node that holds it
        for parameter in parameters:
            self.handles.append(parameter.register_post_accumulate_grad_hook(partial(_after, me)))  # type: ignore[no-untyped-call]
            self._watch(parameter)

    def _watch(self, parameter: torch.Tensor) -> None:
        with torch.enable_grad():  # torch 2.4 finds no node without, as in a backward pass
            node: Any = torch.autograd.graph.get_gradient_edge(parameter).node
        self._nodes[id(parameter)] = node
        self.handles.append(node.register_prehook(partial(_before, weakref.ref(self), parameter)))

    def _before_gradient(self, parameter: torch.Tensor) -> None:
        self._coming.add(id(parameter))
        self._comes(parameter)

    def _after_gradient(self, parameter: torch.Tensor) -> None:
        if id(parameter) in self._coming:
            self._coming.discard(id(parameter))
        else:
            self._watch(parameter)
            self._comes(parameter)
        self._ready(parameter)


@eagerly
def _before(hooks: weakref.ref[GradientHooks], parameter: torch.Tensor, _: Any) -> None:
    found = hooks()
    if found is not None:
        found._before_gradient(parameter)


@eagerly
def _after(hooks: weakref.ref[GradientHooks], parameter: torch.Tensor) -> None:
    found = hooks()
    if found is not None:
        found._after_gradient(parameter)
