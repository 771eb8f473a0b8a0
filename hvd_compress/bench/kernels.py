"""How long each native kernel takes, beside its floor and beside what torch takes for the same."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hvd_compress import native
from hvd_compress.bench import peers
from hvd_compress.bench.timing import fixed_threads, timed

RATIOS = (0.001, 0.01, 0.1)
LISTS = 8
RANKS = 4  # whose codes are added; each of them owns a part of so many
REFERENCE_NUMEL = 25_557_032  # of ResNet-50: for it, and whoever types 25.6M, we promise ourselves the bounds below
_CALL_S, _PEER_S = 5e-8, 3.4e-7
"""What all kernels with their floors, and all peers, take for an element: measured once, on one machine."""
_BOUNDS: dict[tuple[str, float | None], float] = {
    ("topk_accumulate", 0.001): 1.8,
    ("topk_accumulate", 0.01): 1.8,
    ("topk_accumulate", 0.1): 2.5,
    ("sign_accumulate", None): 1.8,
    ("threshold_select", 0.01): 1.0,
    ("threshold_accumulate", 0.01): 1.8,
    ("threshold_accumulate/momentum", 0.01): 2.3,
    ("mstopk_accumulate", 0.01): 2.3,
    ("scatter_lists", 0.01): 1.5,
    ("gain_curve", None): 1.5,
    ("quantize_accumulate/8", None): 2.5,
    **{(f"block_quantize/{form}", None): 1.8 for form in ("8", "4", "2", "4-random")},
    **{(f"block_sum/{form}", None): 1.3 for form in ("8", "4", "2")},
    **{(f"block_sum_quantize/{form}", None): 2.0 for form in ("8", "4", "2", "4-random")},
}


@dataclass(frozen=True)
class Case:
    """A kernel with its arguments. `prepare` restores what a call changes, and is not timed.

    The name is that of the function in hvd_compress.native, a variant behind a slash. `floor` is a call on buffers of
    its own and the multiple of its time that counts, where the kernel does not work on as much as the others.
    """

    name: str
    ratio: float | None
    run: Callable[[], object]
    peer: Callable[[], object]
    prepare: Callable[[], object]
    floor: tuple[Callable[[], object], float] | None = None


@dataclass(frozen=True)
class Figure:
    """One measurement: medians in seconds.

    Attributes:
        kernel, ratio, numel, threads, data: what was measured.
        seconds: our kernel.
        floor_s: torch.add(residual, grad, out=residual) on the same buffers and threads, in turns with our kernel; of
            block_sum_quantize on the part that a rank owns, and scaled from 12 bytes an element to its own.
        peer_s: torch's own operations for the same selection or rounding; it does not pack bits. Fewer repetitions.
        bound: the multiple of the floor that it may take, where one is stated.
        quartiles: of our time over the floor's, turn by turn.
    """

    kernel: str
    ratio: float | None
    numel: int
    threads: int
    data: str
    seconds: float
    floor_s: float
    peer_s: float
    bound: float | None
    quartiles: tuple[float, float]

    @property
    def times_floor(self) -> float:
        return self.seconds / self.floor_s

    @property
    def times_faster(self) -> float:
        return self.peer_s / self.seconds


def gradients(kind: str, numel: int) -> torch.Tensor:
    """Return a gradient (numel,) of the named distribution: "normal" or "laplace"."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(numel, generator=generator)
    if kind == "laplace":
        x = x.sign() * torch.rand(numel, generator=generator).clamp(min=2.0**-24).log()
    return x


def kernel_names() -> tuple[str, ...]:
    """Return the names of all cases."""
    few = torch.ones(8)
    return tuple(dict.fromkeys(case.name for case in _cases(few, few.clone(), lambda: None)))


def peer_repetitions(numel: int) -> int:
    """Return how often the peers run, which take so long that one must do where there are many elements."""
    return 3 if numel < 10**7 else 1


def estimated_s(numel: int, repetitions: int, share: float = 1.0) -> float:
    """Return about how long measure() takes, for a share of the kernels."""
    calls, peer_calls = repetitions + 2, 2 * peer_repetitions(numel)
    return share * (1.0 + numel * (_CALL_S * calls + _PEER_S * peer_calls))


def measure(
    grad: torch.Tensor, data: str, threads: int, repetitions: int, kernels: Collection[str] | None = None
) -> Iterator[Figure]:
    """Yield the figures of the kernels with these names, or of all, on one gradient."""
    with fixed_threads(threads):
        residual, start = torch.empty_like(grad), 0.5 * grad.roll(1)
        restore = _restore(residual, start)
        floor = _bind(torch.add, residual, grad, out=residual)
        for case in _cases(grad, residual, restore):
            if kernels is not None and case.name not in kernels:
                continue
            call, scale = case.floor or (floor, 1.0)
            ours, floors = times([(case.run, case.prepare), (call, restore)], repetitions)
            (peers,) = times([(case.peer, case.prepare)], peer_repetitions(grad.numel()))
            seconds, floor_s, peer_s = (statistics.median(taken) for taken in (ours, floors, peers))
            quartiles = _quartiles([own / (scale * least) for own, least in zip(ours, floors, strict=True)])
            promised = math.isclose(grad.numel(), REFERENCE_NUMEL, rel_tol=0.01)
            bound = _BOUNDS.get((case.name, case.ratio)) if promised else None
            yield Figure(
                case.name, case.ratio, grad.numel(), threads, data, seconds, scale * floor_s, peer_s, bound, quartiles
            )


def _restore(tensor: torch.Tensor, value: torch.Tensor) -> Callable[[], object]:
    return lambda: tensor.copy_(value)


def _quartiles(values: list[float]) -> tuple[float, float]:
    first, _, third = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else 3 * values
    return first, third


def times(
    calls: Sequence[tuple[Callable[[], object], Callable[[], object]]],
    repetitions: int,
    clock: Callable[[], float] = time.perf_counter,
) -> list[list[float]]:
    """Time (call, what prepares it) in turns, so that a machine that becomes slower does so for all of them.

    Returns the seconds of each repetition, by the clock, for each call.
    """
    seconds: list[list[float]] = [[] for _ in calls]
    warm_up = min(2, repetitions)  # the first ones find cold caches and memory that is not mapped yet
    for repetition in range(warm_up + repetitions):
        for (call, prepare), own in zip(calls, seconds, strict=True):
            prepare()
            taken = timed(call, clock)
            if repetition >= warm_up:
                own.append(taken)
    return seconds


def _cases(grad: torch.Tensor, residual: torch.Tensor, restore: Callable[[], object]) -> Iterator[Case]:
    numel, one = grad.numel(), torch.empty(())
    nothing: Callable[[], object] = lambda: None  # noqa: E731
    for ratio in RATIOS:
        k = max(1, int(ratio * numel))
        into = _memory(k)
        yield Case(
            "topk_accumulate",
            ratio,
            _bind(native.topk_accumulate, grad, residual, k, into=into),
            _bind(peers.topk_accumulate, grad, residual, k),
            restore,
        )
    for ratio in RATIOS:
        k = max(1, int(ratio * numel))
        yield Case("topk", ratio, _bind(native.topk, grad, k, into=_memory(k)), _bind(peers.topk, grad, k), nothing)
    k = max(1, numel // 100)
    tau = float(native.topk(grad, k)[1].abs().min())
    yield Case(
        "threshold_select",
        0.01,
        _bind(native.threshold_select, grad, tau),
        _bind(peers.threshold_select, grad, tau),
        nothing,
    )
    out = torch.empty_like(grad)
    yield from _fed_threshold_cases(grad, residual, out, restore)
    yield Case("gain_curve", None, _bind(native.gain_curve, grad), _bind(peers.gain_curve, grad), nothing)
    yield Case(
        "sign_accumulate",
        None,
        _bind(native.sign_accumulate, grad, residual, into=(torch.empty(-(-numel // 8), dtype=torch.uint8), one)),
        _bind(_torch_sign, grad, residual),
        restore,
    )
    yield Case(
        "sign_accumulate_kept",
        None,
        _bind(native.sign_accumulate_kept, grad, residual, one),
        _bind(_torch_sign, grad, residual),
        restore,
    )
    bits, scale = native.sign_accumulate(grad, residual.clone())
    out.zero_()
    yield Case(
        "sign_add",
        None,
        _bind(native.sign_add, bits, scale, out, 0.1),
        _bind(_torch_sign_add, bits, float(scale), out),
        nothing,
    )
    key: dict[str, Any] = {"seed": 1, "step": 2, "bucket": 3}
    for width in (8, 4, 2):
        packed = torch.empty(-(-numel * width // 8), dtype=torch.uint8)
        yield Case(
            f"quantize_accumulate/{width}",
            None,
            _bind(native.quantize_accumulate, grad, residual, width, **key, into=(packed, one)),
            _bind(peers.quantize_accumulate, grad, residual, width),
            restore,
        )
    yield Case(
        "quantize_add/8",
        None,
        _bind(native.quantize_add, *native.quantize_accumulate(grad, residual.clone(), 8, **key), out, 8, 0.1),
        _bind(_torch_dequantize, grad.to(torch.int8), out),
        nothing,
    )
    yield from _block_cases(grad, residual, out, restore)
    yield Case(
        "accumulate", None, _bind(native.accumulate, grad, residual), _bind(peers.accumulate, grad, residual), restore
    )
    yield Case("scale", None, _bind(native.scale, out, 1.0), _bind(peers.scale, out, 1.0), nothing)
    indices = native.topk(grad, k)[0]
    yield Case("gather", 0.01, _bind(native.gather, grad, indices), _bind(peers.gather, grad, indices.long()), nothing)
    yield Case(
        "take",
        0.01,
        _bind(native.take, residual, indices),
        _bind(peers.take, residual, indices.long()),
        restore,
    )
    values = native.gather(grad, indices)
    for scatter, peer in ((native.scatter_add, peers.scatter_add), (native.scatter_set, peers.scatter_set)):
        yield Case(
            scatter.__name__,
            0.01,
            _bind(scatter, indices, values, out, 0.1),
            _bind(peer, indices.long(), values, out),
            nothing,
        )
    words = native.elias_fano_encode(indices, numel)
    yield Case(
        "elias_fano_encode",
        0.01,
        _bind(native.elias_fano_encode, indices, numel),
        _bind(peers.elias_fano_encode, indices, numel),
        nothing,
    )
    yield Case(
        "elias_fano_decode",
        0.01,
        _bind(native.elias_fano_decode, words, numel, k),
        _bind(peers.elias_fano_decode, words, numel, k),
        nothing,
    )
    yield Case("mstopk", 0.01, _bind(native.mstopk, grad, k), _bind(peers.topk, grad, k), nothing)
    yield Case(
        "mstopk_accumulate",
        0.01,
        _bind(native.mstopk_accumulate, grad, residual, k),
        _bind(peers.topk_accumulate, grad, residual, k),
        restore,
    )
    lists = [native.topk(grad.roll(101 * rank), k) for rank in range(LISTS)]
    yield Case(
        "scatter_lists",
        0.01,
        _bind(native.scatter_lists, lists, out, 1 / LISTS),
        _bind(peers.scatter_lists, lists, out, False),
        nothing,
    )
    yield Case(
        "scatter_lists/clear",
        0.01,
        _bind(native.scatter_lists, lists, out, 1 / LISTS, True),
        _bind(peers.scatter_lists, lists, out, True),
        nothing,
    )


def _fed_threshold_cases(
    grad: torch.Tensor, residual: torch.Tensor, out: torch.Tensor, restore: Callable[[], object]
) -> Iterator[Case]:
    k = max(1, grad.numel() // 100)
    restore()
    momentum = native.Momentum(0.9, grad.roll(1), torch.empty_like(grad))
    for name, own in (("threshold_accumulate", None), ("threshold_accumulate/momentum", momentum)):
        added = grad if own is None else torch.add(grad, own.velocity, alpha=own.factor)
        tau = float(native.topk(residual + added, k)[1].abs().min())
        arguments = (grad, residual, tau, out, own)
        run, peer = _bind(native.threshold_accumulate, *arguments), _bind(peers.threshold_accumulate, *arguments)
        yield Case(name, 0.01, run, peer, restore)


def _block_cases(
    grad: torch.Tensor, residual: torch.Tensor, out: torch.Tensor, restore: Callable[[], object]
) -> Iterator[Case]:
    key = native.RandomKey(1, 2, 3)
    variants: dict[str, tuple[native.BlockFormat, native.RandomKey | None]] = {
        **{str(bits): (native.BlockFormat(bits), None) for bits in (8, 4, 2)},
        "4-random": (native.BlockFormat(4), key),
        "2-ternary": (native.BlockFormat(2, fit="ternary"), None),
    }
    for name, (form, variant_key) in variants.items():
        into = _block_memory(form, grad.numel())
        run = _bind(native.block_quantize, grad, residual, form, key=variant_key, into=into)
        yield Case(f"block_quantize/{name}", None, run, _bind(_torch_blocks, grad, residual, form), restore)
    for name in ("8", "4", "2"):
        form = variants[name][0]
        sent = [native.block_quantize(grad.roll(101 * rank), None, form) for rank in range(RANKS)]
        wide = [(_whole(codes, form, grad.numel()), codes.units.float()) for codes in sent]
        run, peer = _bind(native.block_sum, sent, out, form, 1 / RANKS), _bind(_torch_block_sum, wide, form, out)
        yield Case(f"block_sum/{name}", None, run, peer, lambda: None)
    numel = max(1, grad.numel() // RANKS)
    part, own, rest = grad[:numel], residual[:numel], torch.empty(numel)
    for name, (form, variant_key) in variants.items():
        others = [native.block_quantize(part.roll(101 * rank), None, form) for rank in range(1, RANKS)]
        wide = [(_whole(codes, form, numel), codes.units.float()) for codes in others]
        into = _block_memory(form, numel)
        scale = (8 + RANKS * form.nbytes(numel) / numel) / 12
        yield Case(
            f"block_sum_quantize/{name}",
            None,
            _bind(native.block_sum_quantize, own, others, 1, form, key=variant_key, rest=own, into=into),
            _bind(_torch_block_sum_quantize, own, wide, form, rest),
            restore,
            (_bind(torch.add, own, part, out=own), scale),
        )


def _block_memory(form: native.BlockFormat, numel: int) -> native.BlockCodes:
    codes = torch.empty(form.code_bytes(numel), dtype=torch.uint8)
    return native.BlockCodes(codes, torch.empty(form.blocks(numel), dtype=torch.bfloat16))


def _whole(codes: native.BlockCodes, form: native.BlockFormat, numel: int) -> torch.Tensor:
    """Return the whole numbers (numel,) int8: torch has no type for fewer bits."""
    ones = native.BlockCodes(codes.codes, torch.ones_like(codes.units))
    numbers = torch.empty(numel)
    native.block_sum([ones], numbers, form, 1.0)
    return numbers.to(torch.int8)


def _bind(function: Callable[..., object], *arguments: object, **named: object) -> Callable[[], object]:
    return lambda: function(*arguments, **named)


def _memory(k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What a caller keeps for the result of a selection."""
    return torch.empty(k, dtype=torch.int32), torch.empty(k)


def _torch_dequantize(q: torch.Tensor, out: torch.Tensor) -> object:
    return out.add_(q, alpha=0.01)


def _torch_sign(grad: torch.Tensor, residual: torch.Tensor) -> object:
    residual.add_(grad)
    scale = residual.abs().mean()
    signs = residual.sign()
    residual.sub_(signs, alpha=float(scale))
    return signs


def _torch_sign_add(bits: torch.Tensor, scale: float, out: torch.Tensor) -> object:
    masks = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)
    signs = (bits.unsqueeze(1) & masks).ne(0).reshape(-1)[: out.numel()]
    return out.add_(torch.where(signs, 0.1 * scale, -0.1 * scale))


def _rows(x: torch.Tensor, form: native.BlockFormat) -> torch.Tensor:
    """Return whole blocks as rows: what is left over is too little to count."""
    return x[: x.numel() // form.block * form.block].view(-1, form.block)


def _torch_blocks(grad: torch.Tensor, residual: torch.Tensor, form: native.BlockFormat) -> object:
    residual.add_(grad)
    rows = _rows(residual, form)
    units = rows.abs().amax(1, keepdim=True) / (2 ** (form.bits - 1) - 1)
    whole = (rows / units).round_()
    rows.sub_(whole * units)
    return whole.to(torch.int8), units


def _torch_block_sum(
    sources: list[tuple[torch.Tensor, torch.Tensor]], form: native.BlockFormat, out: torch.Tensor
) -> object:
    rows = _rows(out.zero_(), form)
    for whole, units in sources:
        rows.addcmul_(_rows(whole, form), units[: rows.shape[0], None])
    return out.div_(len(sources))


def _torch_block_sum_quantize(
    own: torch.Tensor, sources: list[tuple[torch.Tensor, torch.Tensor]], form: native.BlockFormat, rest: torch.Tensor
) -> object:
    _torch_block_sum(sources, form, rest)
    return _torch_blocks(own, rest, form)
