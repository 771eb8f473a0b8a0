"""The inputs of section 4.2 of Agarwal et al., as far as the paper, the traces and the authors' scripts say them.

INPUTS says where each is from, and what had to be derived. None is fitted to a result.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from hvd_compress.compressors import Compressor, PowerSGD
from hvd_compress.cost.formulas import Formulas
from hvd_compress.planner import profiles
from hvd_compress.planner.profiles import ModelProfile, Tensor
from hvd_compress.units import parse_bandwidth
from hvd_compress.whatif.inputs import training_of
from hvd_compress.whatif.model import BUCKET_BYTES, GAMMA, Case, Compression
from hvd_compress.whatif.named import payloads_of

TRACES = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"
RANKS, RANKS_PER_HOST = 64, 4
BANDWIDTH = "10gbit"
ONE_WAY_S = 48e-6
LATENCIES = "http://blogs.scalablelogic.com/2014/01/enhanced-networking-in-aws-cloud-part-2.html"
ALPHA_S = ONE_WAY_S / RANKS_PER_HOST
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

INPUTS = (
    ("model of time", "T_obs, and Eq. 4.1 for the ring", "section 4.2.4.1"),
    ("ranks, bandwidth", f"{RANKS} GPUs, {RANKS_PER_HOST} a host; {BANDWIDTH} a host", "section 4.1.2, p3.8xlarge"),
    ("gamma", f"{GAMMA}", "section 4.2.4.1 says 1.04 to 1.1; the middle"),
    ("bucket", f"{BUCKET_BYTES / (1 << 20):.0f} MiB", "section 4.1.1 (DDP's default)"),
    ("gradients", "102.2, 178.2 and 435.6 MB", "traces; the paper's 97, 170 and 418 MB are MiB of the same models"),
    (
        "backward pass",
        "trace x 2 for both ResNets, x 6 for BERT",
        "**derived**, in proportion: V100 traces of Espresso of 32 images and 1024 tokens a step (its Table 4, which "
        "has no ResNet-50: taken to be as its ResNet-101); the paper trains 64 images, and 12 sequences (Figure 4.5) "
        "of 512 tokens (the authors' `run_ddp_bert.sh`)",
    ),
    (
        "encode + decode",
        "45 ms for ResNet-50; 78 ms, 192 ms",
        "Table 4.1 for ResNet-50; the others **derived**, in proportion to parameters",
    ),
    (
        "payload",
        "`PowerSGD(rank=4).wire()`",
        "the paper says about 100 times fewer bytes; shapes are derived from the traces' names: a weight has as many "
        "rows as its bias, or its norm, has elements",
    ),
    (
        "alpha",
        f"{1e6 * ALPHA_S:.0f} us",
        "**not stated**: the 0.5 to 1 ms of section 4.1.1 contradicts the section's own results (below). Derived: 92 "
        "to 100 us there and back between 10 Gbit/s instances of EC2 in a placement group, as measured in 2014 "
        f"({LATENCIES}), so 48 us one way; 1 of 4 hops of the ring crosses hosts, the others count as 0",
    ),
    (
        "forward pass",
        "half of the backward pass",
        "**assumed**, for ratios of iteration times alone: T_obs leaves it out, and so do all crossovers",
    ),
)
"""What, its value, and where it is from."""


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
    alpha_s: float = ALPHA_S,
    gamma: float = GAMMA,
    coding_s: float | None = None,
    backward: float = 1.0,
    compressor: Compressor | None = None,
    forward: bool = False,
) -> Case:
    """Return a model of the paper on its cluster, with PowerSGD rank 4.

    Args:
        batch: of the paper's batch, such a share.
        coding_s: of encoding and decoding; by default from Table 4.1, in proportion to parameters.
        backward: what the time of the backward pass is multiplied by, for sensitivity.
        forward: whether the forward pass is part of a step.
    """
    found, source = model(name), SOURCES[name]
    training = training_of(found, gamma=gamma)
    backward_s = training.backward_s * source.paper / source.traced * batch * backward
    training = replace(training, backward_s=backward_s, forward_s=FORWARD * backward_s * forward)
    numel = sum(tensor.numel for tensor in found.tensors)
    coding_s = TABLE_4_1_S * numel / TABLE_4_1_NUMEL if coding_s is None else coding_s
    payloads = payloads_of(compressor or PowerSGD(rank=4), found)
    network = Formulas(alpha_s, 1 / parse_bandwidth(BANDWIDTH), ranks)
    return Case(training, network, Compression(payloads, coding_s))
