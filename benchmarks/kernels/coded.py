"""How short the codes of block quantisation become, next to their entropy, and what they lose.

    PYTHONPATH=.:examples python -m benchmarks.kernels.coded

Gradients of rank 0 in both tasks of time_to_accuracy, which train by them uncompressed for 151 steps, are quantised
with feedback at both ends: what a rank sends, and what an owner sends of the sum of one. In steps 3, 30 and 150 the
codes are encoded. The entropy is that of an element by how often each whole number occurs in the payload. The error is
the mean of squares of what a rank could not send, over that of what it wanted to send: what feedback has to carry.

Then what else a coder could make shorter, by entropies alone: top-k's gaps between indices and its values, and the
exponents of bf16 as distances to the largest one of 256 elements.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

os.environ.setdefault("OMP_NUM_THREADS", "1")

import click
import torch

from benchmarks.frame.circumstances import told
from benchmarks.frame.page import head, row
from benchmarks.time_to_accuracy.tasks import TASKS, Task
from hvd_compress import native
from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import TopK
from hvd_compress.native import BlockFormat

FORMATS = [
    BlockFormat(bits, block, "ternary" if bits == 2 else "max") for bits in (4, 3, 2.5, 2) for block in (64, 128, 256)
]
ENDS = ("sent", "sum")
STEPS = (3, 30, 150)


@dataclass
class Found:
    """Of one task, format and end: a figure a step, each in bits of an element."""

    entropy: list[float] = field(default_factory=list)
    coded: list[float] = field(default_factory=list)
    error: list[float] = field(default_factory=list)


def quantised(corrected: torch.Tensor, form: BlockFormat) -> tuple[native.BlockCodes, torch.Tensor]:
    """Return the codes, and what they stand for."""
    sent, values = native.block_quantize(corrected, None, form), torch.empty_like(corrected)
    native.block_sum([sent], values, form, 1.0)
    return sent, values


def entropy(sent: native.BlockCodes, form: BlockFormat, numel: int) -> float:
    numbers = torch.empty(numel)
    native.block_sum([native.BlockCodes(sent.codes, torch.ones_like(sent.units))], numbers, form, 1.0)
    return bits_of(numbers)


def bits_of(numbers: torch.Tensor) -> float:
    """Return the entropy of whole numbers, by how often each occurs, in bits of one."""
    shares = numbers.unique(return_counts=True)[1].double() / numbers.numel()
    return float(-(shares * shares.log2()).sum())


def gradients(task: Task) -> Iterator[torch.Tensor]:
    torch.manual_seed(1)
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    for step in range(max(STEPS) + 1):
        optimizer.zero_grad()
        task.loss(model, task.batch(1, step, 0)).backward()
        yield torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])
        optimizer.step()


def measured(task: Task) -> dict[tuple[BlockFormat, str], Found]:
    found = {(form, end): Found() for form in FORMATS for end in ENDS}
    left: dict[tuple[BlockFormat, str], torch.Tensor] = {}
    for step, gradient in enumerate(gradients(task)):
        for form in FORMATS:
            values = gradient
            for end in ENDS:
                corrected = left.get((form, end), torch.zeros_like(gradient)) + values
                sent, values = quantised(corrected, form)
                left[form, end] = corrected - values
                if step not in STEPS:
                    continue
                numel, seen = gradient.numel(), found[form, end]
                coded = native.block_encode(sent.codes, numel, form)
                seen.entropy.append(entropy(sent, form, numel))
                seen.coded.append(8 * coded.numel() / numel)
                seen.error.append(float(left[form, end].square().mean() / corrected.square().mean()))
    return found


def others(task: Task) -> dict[str, tuple[float, float]]:
    """Return by payload the bits of an element that is sent, and those that entropies say."""
    compressor = TopK(ratio=0.01, values="int8", index_coding="delta")
    found: dict[str, list[tuple[float, float]]] = {"topk(0.01), int8, delta": [], "bf16()": []}
    residual: torch.Tensor | float = 0.0
    for step, gradient in enumerate(gradients(task)):
        corrected = gradient + residual
        kept = corrected.abs().topk(round(0.01 * corrected.numel())).indices.sort().values
        residual = corrected.clone()
        residual[kept] = 0
        if step in STEPS:
            payload = compressor.compress(corrected, Layout.of(corrected.numel()))
            values, sizes = corrected[kept][: kept.numel() // 64 * 64].view(-1, 64), payload["codes"].numel()
            whole = (values / values.abs().amax(1, keepdim=True) * 127).round()
            of_scales = 16 * payload["scales"].numel() / sizes
            sent = 32 * payload["index_words"].numel() / sizes + 8 + of_scales
            found["topk(0.01), int8, delta"].append((sent, bits_of(kept.diff()) + bits_of(whole) + of_scales))
            exponents = (gradient.bfloat16().view(torch.int16).int() >> 7 & 255)[: gradient.numel() // 256 * 256]
            below = exponents.view(-1, 256).amax(1, keepdim=True) - exponents.view(-1, 256)
            found["bf16()"].append((16.0, 8 + bits_of(below) + 8 / 256))
    return {
        name: (mean([sent for sent, _ in each]), mean([least for _, least in each])) for name, each in found.items()
    }


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@click.command(help=__doc__)
def main() -> None:
    print(f"{told()}\n")
    titles = ("task", "bits", "block", "entropy", "coded", "coded / entropy, and the largest", "with scales", "of")
    print(head([*titles, "error"]))
    for name, task in TASKS.items():
        found = measured(task)
        for form in FORMATS:
            both = [found[form, end] for end in ENDS]
            bits = mean([mean(each.entropy) for each in both]), mean([mean(each.coded) for each in both])
            largest = max(c / e for each in both for c, e in zip(each.coded, each.entropy, strict=True))
            scales = 16 / form.block
            cells = (f"{bits[0]:.3f}", f"{bits[1]:.3f}", f"{bits[1] / bits[0]:.3f} ({largest:.3f})")
            sizes = (f"{bits[1] + scales:.2f}", f"{form.bits + scales:.2f}", f"{mean(both[0].error):.4f}")
            print(row([name, f"{form.bits:g}", form.block, *cells, *sizes]), flush=True)
    print(f"\n{head(['task', 'payload', 'bits', 'by entropies', 'of'])}")
    for name, task in TASKS.items():
        for payload, (sent, least) in others(task).items():
            print(row([name, payload, f"{sent:.2f}", f"{least:.2f}", f"{least / sent:.2f}"]), flush=True)


if __name__ == "__main__":
    main()
