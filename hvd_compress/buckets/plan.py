"""The bucket plan: a list of parameters in agreed order, cut into buckets. Pure arithmetic, the same on every rank."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from hvd_compress.buckets.layout import COMPLEX, Layout
from hvd_compress.buckets.real import gradient_dtype, gradient_shape
from hvd_compress.errors import UnsupportedError

Kind = tuple[torch.dtype, str]
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Slot:
    """What the plan needs to know of one parameter's gradient, as it travels.

    `place` tells devices of this rank apart, the same on all ranks, and complex gradients from real ones: in buckets of
    their own each begins at an even element.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    place: str = "cpu"

    def describe(self, name: str) -> str:
        """Return in words what must be equal on all ranks."""
        words = f"{name}: {self.shape} {self.dtype}"
        return words if self.place == "cpu" else f"{words} on {self.place}"

    def layout(self, name: str, sparse: bool = False) -> Layout:
        """Return the layout of this parameter by itself."""
        return Layout((name,), (self.shape,), *self.kind, sparse=sparse)

    @property
    def nbytes(self) -> int:
        """Bytes of the gradient."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def kind(self) -> Kind:
        """What all parameters of a bucket have in common."""
        return self.dtype, self.place


def slots_of(parameters: Mapping[str, torch.Tensor]) -> tuple[dict[str, Slot], dict[str, torch.device]]:
    """Return what a plan of buckets needs to know of parameters, and the device of each place.

    Devices are named by the order in which parameters lie on them: ranks use GPUs of different numbers.

    Raises:
        UnsupportedError: gradients of a dtype that cannot be exchanged.
    """
    devices = dict.fromkeys(parameter.device for parameter in parameters.values())
    numbered = {
        device: device.type if device.type == "cpu" else f"{device.type} {number}"
        for number, device in enumerate(devices)
    }
    slots, places = {}, {}
    for name, parameter in parameters.items():
        if gradient_dtype(parameter) not in _DTYPES:
            raise UnsupportedError(
                f"parameter {name!r} has gradients of {parameter.dtype}; what is exchanged are those of float16, "
                "bfloat16, float32, float64 and complex numbers of these"
            )
        place = numbered[parameter.device] + (COMPLEX if parameter.is_complex() else "")
        slots[name] = Slot(gradient_shape(parameter), gradient_dtype(parameter), place)
        places[place] = parameter.device
    return slots, places


@dataclass(frozen=True)
class Part:
    """Parameters that share no bucket with others: one bucket in this order if `whole`, else cut as usual."""

    names: tuple[str, ...]
    whole: bool = False


def plan_buckets(
    order: Sequence[str],
    slots: Mapping[str, Slot],
    threshold_bytes: int,
    groups: Sequence[Sequence[str]] = (),
    parts: Sequence[Part] = (),
) -> list[Layout]:
    """Cut `order` into buckets of at most `threshold_bytes`, one dtype and one device each.

    A bucket holds at least one unit (a parameter, or all of a group that have one dtype and device), however large; a
    threshold of 0 puts every unit into a bucket of its own. A unit takes the place of its last parameter in `order`:
    it is complete then. Buckets are numbered in the order in which they are complete.

    Args:
        parts: what is cut by itself; its parameters are in `order`, each in one part. A whole one has one dtype and
            device.
    """
    place = {name: position for position, name in enumerate(order)}
    plans, taken = [], {name for part in parts for name in part.names}
    for part in parts:
        if part.whole:
            plans.append(
                Layout(part.names, tuple(slots[name].shape for name in part.names), *slots[part.names[0]].kind)
            )
        else:
            plans += _cut(sorted(part.names, key=place.__getitem__), slots, threshold_bytes, groups)
    plans += _cut([name for name in order if name not in taken], slots, threshold_bytes, groups)
    return sorted(plans, key=lambda plan: max(place[name] for name in plan.names))


def plan_so_many(order: Sequence[str], slots: Mapping[str, Slot], most: int) -> list[Layout]:
    """Cut `order` into at most `most` buckets, as even as the order allows; into more where dtypes or devices are."""
    low, high = 0, sum(slots[name].nbytes for name in order)
    most = max(most, len(plan_buckets(order, slots, high)))
    while low < high:
        middle = (low + high) // 2
        if len(plan_buckets(order, slots, middle)) <= most:
            high = middle
        else:
            low = middle + 1
    return plan_buckets(order, slots, high)


def cut_as(names: Sequence[Sequence[str]], layouts: Sequence[Layout]) -> list[Layout] | None:
    """Return the parameters of `layouts` in buckets of these names; None where they cannot be cut so."""
    known = {name: (shape, each) for each in layouts for name, shape in zip(each.names, each.shapes, strict=True)}
    if sorted(name for bucket in names for name in bucket) != sorted(known):
        return None
    found = []
    for bucket in names:
        kinds = {(known[name][1].dtype, known[name][1].place) for name in bucket}
        if len(kinds) != 1:
            return None
        ((dtype, place),) = kinds
        found.append(Layout(tuple(bucket), tuple(known[name][0] for name in bucket), dtype, place))
    return found


def _cut(
    order: Sequence[str], slots: Mapping[str, Slot], threshold_bytes: int, groups: Sequence[Sequence[str]]
) -> list[Layout]:
    open_units: dict[Kind, list[str]] = {}
    sizes: dict[Kind, int] = {}
    plans: list[Layout] = []

    def close(kind: Kind) -> None:
        names = open_units.pop(kind, [])
        sizes.pop(kind, None)
        if names:
            plans.append(Layout(tuple(names), tuple(slots[name].shape for name in names), *kind))

    for unit in _units(order, slots, groups):
        kind = slots[unit[0]].kind
        size = sum(slots[name].nbytes for name in unit)
        if sizes.get(kind, 0) + size > threshold_bytes:
            close(kind)
        open_units.setdefault(kind, []).extend(unit)
        sizes[kind] = sizes.get(kind, 0) + size
        if sizes[kind] >= threshold_bytes:
            close(kind)
    for kind in list(open_units):
        close(kind)
    return plans


def _units(order: Sequence[str], slots: Mapping[str, Slot], groups: Sequence[Sequence[str]]) -> list[list[str]]:
    """The indivisible parts of the plan, each at the place of its last member."""
    group_of = {name: number for number, group in enumerate(groups) for name in group}
    keys = {name: (group_of[name], slots[name].kind) if name in group_of else name for name in order}
    members: dict[object, list[str]] = {}
    for name in order:
        members.setdefault(keys[name], []).append(name)
    return [members[keys[name]] for name in order if members[keys[name]][-1] == name]
