"""Comparison of the kernels of a device with their CPU twins, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial

import torch

from benchmarks.gpu.calls import CALLS, Call, Inputs, Tensors
from benchmarks.gpu.items import Item
from benchmarks.gpu.scales import Scale
from hvd_compress import native

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
OFFSETS = (0, 1, 3)
KINDS: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    lambda x: x,
    lambda x: x**5,
    torch.round,
    lambda x: x.masked_fill(x > 2, torch.nan),
    torch.zeros_like,
    lambda x: x * 1e-39,
)
"""Normal, heavy-tailed, with many ties, with what is not finite, all zero, and denormal."""
RATIO = 0.01
"""Of what is selected of a large input."""
TOLD = 3
"""Differences of a kernel that are described."""


class DifferenceError(Exception):
    """A result that is not the CPU's."""


@dataclass(frozen=True)
class Draw:
    """Inputs that are drawn by their number, so that 20 in turn pair every choice with every other."""

    number: int
    numel: int
    grad_dtype: torch.dtype
    residual_dtype: torch.dtype
    offset: int
    apart: bool
    kind: int
    k: int

    @classmethod
    def of(cls, number: int, numel: int) -> Draw:
        grad_dtype = DTYPES[number % 3]
        residual_dtype = grad_dtype if number % 2 else torch.float32
        k = int(torch.randint(0, numel + 1, (), generator=torch.Generator().manual_seed(1000 * number + numel)))
        offset, apart, kind = OFFSETS[(number + number // 3) % 3], number // 2 % 2 == 1, number // 3 % 6
        return cls(number, numel, grad_dtype, residual_dtype, offset, apart, kind, k)

    def inputs(self, device: torch.device) -> Inputs:
        grad = KINDS[self.kind](_normal(2 * self.number, self.numel)).to(self.grad_dtype)
        residual = KINDS[self.kind](_normal(2 * self.number + 1, self.numel)).to(self.residual_dtype)
        return Inputs.placed(grad, residual, self.k, self.offset, self.apart, device)

    def __str__(self) -> str:
        place = "apart" if self.apart else "in place"
        dtypes = f"{self.grad_dtype} and {self.residual_dtype}".replace("torch.", "")
        return f"input {self.number}, n = {self.numel:,}, k = {self.k:,}, {dtypes}, offset {self.offset}, {place}"


@lru_cache(maxsize=4)
def _normal(seed: int, numel: int) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


def small_items(device: torch.device, scale: Scale) -> dict[str, Item]:
    """Return one item a kernel, with many small inputs; its value is how many results were equal."""
    draws = [Draw.of(number, numel) for number in range(scale.rounds) for numel in scale.sizes]
    return {name: partial(compare_all, name, draws, device) for name in CALLS}


def large_items(device: torch.device, scale: Scale) -> dict[str, Item]:
    """Return one item a size and kernel: beyond 2^20 elements kernels sample, and take second turns of their loops.

    Of the largest size there is one input, of fp32 and apart; of the others a second one, of 16 bits and unaligned.
    """
    found: dict[str, Item] = {}
    for numel in scale.large:
        k = int(RATIO * numel) + 1
        aligned = Draw(0, numel, torch.float32, torch.float32, 0, True, 0, k)
        for position, name in enumerate(CALLS):
            other = Draw(0, numel, DTYPES[1 + position % 2], torch.float32, OFFSETS[1 + position % 2], False, 0, k + 1)
            draws = [aligned] if numel == max(scale.large) else [aligned, other]
            found[f"{name}, {numel:,} elements"] = partial(compare_all, name, draws, device)
    return found


def compare_all(name: str, draws: list[Draw], device: torch.device) -> int:
    """Compare a kernel on all inputs; return how many results were equal.

    Raises DifferenceError at the end, if any differ; RuntimeError at the first call that fails.
    """
    equal, different = 0, []
    for draw in draws:
        print(f"{name}: {draw}", flush=True)  # in the log, should it end or hang here
        try:
            equal += compare(CALLS[name], draw, device)
        except DifferenceError as error:
            different.append(f"{draw}: {error}")
        except Exception as error:
            raise RuntimeError(f"{draw}: {type(error).__name__}: {error}") from error
    if different:
        told = "; ".join(different[:TOLD])
        raise DifferenceError(f"{len(different)} of {len(draws)} inputs give other results than on the CPU: {told}")
    return equal


def compare(call: Call, draw: Draw, device: torch.device) -> int:
    """Return how many results of a call are equal on both devices. Raises DifferenceError at the first that is not."""
    expected = call(draw.inputs(CPU))
    found = on_device(call, draw.inputs(device))
    require_equal(found, expected)
    return len(found)


def on_device(call: Call, inputs: Inputs) -> Tensors:
    found = call(inputs)
    native.check_pending()
    return found


def require_equal(found: Tensors, expected: Tensors) -> None:
    """Raise DifferenceError where results are not equal to the bit, the sign of zero included; all NaN are equal."""
    for position, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            raise DifferenceError(
                f"result {position} is {ours.dtype} {tuple(ours.shape)}, expected {theirs.dtype} {tuple(theirs.shape)}"
            )
        there = theirs.to(ours.device)
        wrong = _unequal(ours, there).reshape(-1)
        if wrong.any():
            (places,) = wrong.nonzero(as_tuple=True)
            first = int(places[0])
            pair = f"{ours.reshape(-1)[first].item()!r} instead of {there.reshape(-1)[first].item()!r}"
            count = f"{len(places):,} of {len(wrong):,} elements"
            raise DifferenceError(f"result {position} differs in {count}, the first at {first}: {pair}")


def _unequal(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if not a.is_floating_point():
        return a != b
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return (a.view(whole) != b.view(whole)) & ~(a.isnan() & b.isnan())
