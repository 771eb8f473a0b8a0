"""Espresso's two testbeds and three compressors as profiles for the planner (section 5.1), without the hardware.

The paper gives bandwidths, numbers of hosts and GPUs, and the CPUs; its times of compression are not published. They
are a roofline here: bytes that a fused kernel moves, over the bandwidth of memory, and what launching it takes. Each
number below says where it is from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hvd_compress.profiler.profiles import (
    CompressorProfile,
    DeviceTimes,
    Link,
    PayloadSize,
    SystemProfile,
    Times,
)

RANKS_PER_HOST = 8
"""Section 5.1: 8 V100 a machine."""


@dataclass(frozen=True)
class Testbed:
    """Links of a machine: bytes per second of a GPU within a host, of a host across hosts; microseconds a message."""

    within_bytes_per_s: float
    within_alpha_us: float
    across_bytes_per_s: float
    across_alpha_us: float


TESTBEDS: Mapping[str, Testbed] = {
    "nvlink-100g": Testbed(1.2e12 / 8, 5.0, 100e9 / 8, 25.0),
    "pcie-25g": Testbed(100e9 / 8, 10.0, 25e9 / 8, 25.0),
}
"""Bandwidths: footnote 1 and section 5.1 (NVLink 1.2 Tbit/s a GPU, PCIe 3.0 x16 about 100 Gbit/s, Ethernet). Alphas are
assumed: 5 and 10 us a message between GPUs of a host, 25 us over TCP/IP."""

GPU_BYTES_PER_S = 0.75 * 900e9
"""V100: 900 GB/s (data sheet), of which streaming kernels reach about three quarters (assumed)."""
KERNEL_US = 8.0
"""Launching a GPU kernel (assumed; 5 to 10 us are usual)."""
CPU_BYTES_PER_S = 0.6 * 2 * 6 * 8 * 2.933e9
"""Two Xeon 8260: 6 channels of DDR4-2933 each (data sheet), 282 GB/s, of which 48 cores reach 60 % (assumed)."""
COPY_BYTES_PER_S = RANKS_PER_HOST * 100e9 / 8
"""Between GPUs and memory of the host: each GPU over its own PCIe 3.0 x16, all at once. The planner lets the CPU work
for one GPU after the other, so an eighth of the time counts for each."""
TASK_US = 30.0
"""Handing a tensor to the CPU's threads and back (assumed)."""


@dataclass(frozen=True)
class Work:
    """What compressing and decompressing moves.

    Attributes:
        bytes_per_element: of the payload.
        bytes_per_tensor: of the payload.
        compress_bytes, decompress_bytes: through memory, an element of the tensor; decompression adds one payload.
        kernels: launched to compress.
    """

    bytes_per_element: float
    bytes_per_tensor: float
    compress_bytes: float
    decompress_bytes: float
    kernels: int


RATIO = 0.01
WORK: Mapping[str, Work] = {
    "randomk": Work(4 * RATIO, 0, 12 + 12 * RATIO, 16 * RATIO, 3),
    "dgc": Work(8 * RATIO, 0, 12 + 4 + 4 + 80 * RATIO + 16 * RATIO, 16 * RATIO, 8),
    "efsignsgd": Work(1 / 8, 4, 12 + 8 + 1 / 8, 8 + 1 / 8, 3),
}
"""fp32 elements, error feedback: read gradient and residual, write their sum, 12 bytes.

- randomk: values alone travel (indices follow from a seed); gather and zero k elements; adding reads index and value,
  reads and writes the sum. Kernels: sum, indices, gather.
- dgc: values and indices; a pass that counts above the threshold and one that collects; sorting a sample of 1 % by
  radix, about 80 bytes an element of it. Kernels: sum, sample, sort (2), threshold, count, collect, zero.
- efsignsgd: the scale is a sum over the first pass; the second one reads, writes a bit and the residual. Adding a
  payload reads its bits, reads and writes the sum.
"""

RESNET50_NUMEL = 25_557_032
TABLE_4_1_MS: Mapping[str, float] = {"randomk": 163.0, "dgc": 221.0, "efsignsgd": 16.0}
"""Measured elsewhere: encoding and decoding all of ResNet-50 on a V100 with operators of PyTorch (Agarwal's thesis with
Accordion, chapter 4 on the utility of gradient compression, Table 4.1: RandomK 1 %, DGC 1 %, SignSGD)."""

_NUMEL = tuple(digit * 10**exponent for exponent in range(10) for digit in (1, 2, 5))


def system(testbed: str, gpus: int) -> SystemProfile:
    """Return a testbed with `gpus` GPUs, 8 a host."""
    links = TESTBEDS[testbed]
    return SystemProfile(
        hosts=max(1, gpus // RANKS_PER_HOST),
        ranks_per_host=min(gpus, RANKS_PER_HOST),
        within=Link(alpha_us=links.within_alpha_us, bytes_per_s=links.within_bytes_per_s),
        across=Link(alpha_us=links.across_alpha_us, bytes_per_s=links.across_bytes_per_s),
        source="Espresso (EuroSys 2023), section 5.1; alphas assumed",
    )


def compressor(name: str, measured: bool = False) -> CompressorProfile:
    """Return a compressor at 1 %, with times on a V100 and on the CPUs of its host.

    Args:
        measured: on the GPU what PyTorch's operators took (TABLE_4_1_MS) instead of the roofline.
    """
    work = WORK[name]
    settings = {"name": "efsign"} if name == "efsignsgd" else {"name": name, "ratio": RATIO}
    return CompressorProfile(
        compressor=settings,
        payload=PayloadSize(per_tensor_bytes=work.bytes_per_tensor, per_element_bytes=work.bytes_per_element),
        devices={"training": _on_gpu(name, measured), "host": _on_cpu(work)},
        source="PyTorch's operators on a V100, Table 4.1" if measured else "roofline of a V100 and two Xeon 8260",
    )


def slower_than_roofline(name: str) -> float:
    """Return what PyTorch's operators took for an element, as a multiple of the roofline."""
    roofline = (WORK[name].compress_bytes + WORK[name].decompress_bytes) / GPU_BYTES_PER_S
    return TABLE_4_1_MS[name] * 1e-3 / RESNET50_NUMEL / roofline


def _on_gpu(name: str, measured: bool) -> DeviceTimes:
    work, factor = WORK[name], slower_than_roofline(name) if measured else 1.0
    return DeviceTimes(
        compress=_linear(work.kernels * KERNEL_US, factor * work.compress_bytes / GPU_BYTES_PER_S),
        decompress=_linear(KERNEL_US, factor * work.decompress_bytes / GPU_BYTES_PER_S),
    )


def _on_cpu(work: Work) -> DeviceTimes:
    copied, payload = 4 / COPY_BYTES_PER_S, work.bytes_per_element / COPY_BYTES_PER_S
    return DeviceTimes(
        compress=_linear(TASK_US, work.compress_bytes / CPU_BYTES_PER_S + copied + payload),
        decompress=_linear(TASK_US, work.decompress_bytes / CPU_BYTES_PER_S + payload),
    )


def _linear(constant_us: float, s_per_element: float) -> Times:
    return Times(numel=_NUMEL, us=tuple(constant_us + 1e6 * s_per_element * numel for numel in _NUMEL))
