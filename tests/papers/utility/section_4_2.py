"""Section 4.2 of Agarwal et al., from inputs that the paper, the traces and the authors' scripts say.

benchmarks/results/whatif.md says where each is from, and what had to be derived. None is fitted to a result.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from hvd_compress.compressors import Compressor, MSTopK, PowerSGD, SignSGD
from hvd_compress.cost.formulas import Formulas
from hvd_compress.papers.utility.answers import pays
from hvd_compress.papers.utility.inputs import training_of
from hvd_compress.papers.utility.model import GAMMA, Case, Compression
from hvd_compress.papers.utility.named import payloads_of
from hvd_compress.profiler import profiles
from hvd_compress.profiler.profiles import ModelProfile, Tensor
from hvd_compress.units import parse_bandwidth

TRACES = Path(__file__).resolve().parents[4] / "shared" / "data" / "traces"
RANKS, RANKS_PER_HOST = 64, 4
BANDWIDTH = "10gbit"
ONE_WAY_S = 48e-6
ALPHA_S = ONE_WAY_S / RANKS_PER_HOST
"""One of so many hops of the ring crosses hosts, the others count as 0."""
TABLE_4_1_S = 45e-3
TABLE_4_1_NUMEL = 25_557_032
FORWARD = 0.5


@dataclass(frozen=True)
class Source:
    """A model of the paper: its trace, the work of a step in the trace and in the paper, in images or tokens."""

    trace: str
    traced: int
    paper: int


SOURCES = {
    "ResNet-50": Source("resnet50", traced=32, paper=64),
    "ResNet-101": Source("resnet101", traced=32, paper=64),
    "BERT-base": Source("bert-base", traced=1024, paper=12 * 512),
}


@cache
def model(name: str) -> ModelProfile:
    """Return the trace of a model, with shapes."""
    return with_shapes(profiles.read(TRACES / f"{SOURCES[name].trace}.json", ModelProfile))


def with_shapes(found: ModelProfile) -> ModelProfile:
    """Return a trace with the shapes of its tensors as matrices of rows by all else, derived from names."""
    numels = {tensor.name: tensor.numel for tensor in found.tensors}
    return found.model_copy(update={"tensors": tuple(_shaped(tensor, numels) for tensor in found.tensors)})


def _shaped(tensor: Tensor, numels: dict[str, int]) -> Tensor:
    stem = tensor.name.removesuffix(".weight")
    norm = re.sub(r"downsample\.0$", "downsample.1", re.sub(r"conv(\d)$", r"bn\1", stem))
    rows = numels.get(f"{stem}.bias") or (numels.get(f"{norm}.weight") if norm != stem else None)
    if "_embeddings" in stem:
        rows = tensor.numel // numels["bert.embeddings.LayerNorm.weight"]
    whole = rows is None or tensor.name == f"{stem}.bias" or rows == tensor.numel
    shape = (tensor.numel,) if whole or rows is None else (rows, tensor.numel // rows)
    return tensor.model_copy(update={"shape": shape})


def case(
    name: str,
    *,
    batch: float = 1.0,
    ranks: int = RANKS,
    coding_s: float | None = None,
    compressor: Compressor | None = None,
    forward: bool = False,
) -> Case:
    """Return a model of the paper on its cluster, with PowerSGD rank 4.

    Args:
        batch: of the paper's batch, such a share.
        coding_s: of encoding and decoding; by default from Table 4.1, in proportion to parameters.
        forward: whether the forward pass is part of a step.
    """
    found, source = model(name), SOURCES[name]
    training = training_of(found, gamma=GAMMA)
    backward_s = training.backward_s * source.paper / source.traced * batch
    training = replace(training, backward_s=backward_s, forward_s=FORWARD * backward_s * forward)
    numel = sum(tensor.numel for tensor in found.tensors)
    coding_s = TABLE_4_1_S * numel / TABLE_4_1_NUMEL if coding_s is None else coding_s
    payloads = payloads_of(compressor or PowerSGD(rank=4), found)
    network = Formulas(ALPHA_S, 1 / parse_bandwidth(BANDWIDTH), ranks)
    return Case(training, network, Compression(payloads, coding_s))


def crossover_gbit(name: str) -> float:
    """Return the bandwidth in Gbit/s below which compression pays."""
    return pays(case(name)).below * 8 / 1e9


def saved(name: str, batch: float) -> float:
    """Return by how many percent PowerSGD shortens an iteration on 96 GPUs."""
    return 100 * (1 - 1 / case(name, batch=batch, ranks=96, forward=True).speedup)


def gathered() -> list[Case]:
    """Return ResNet-50 with what cannot be summed; the times of Table 4.1 hold all decoding, as they are of 64 GPUs."""
    return [
        case("ResNet-50", compressor=SignSGD(), coding_s=16e-3),
        case("ResNet-50", compressor=MSTopK(0.01), coding_s=103e-3),
    ]
