"""What is compared: a line a method. A new method joins here, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.time_to_accuracy.rivals import HAS_TORCHFT, torch_post_local
from hvd_compress.frontends.local.outer import Outer, averaging, diloco
from hvd_compress.optim import DeMo, OneBitAdam

Parameters = Iterable[torch.nn.Parameter]
MakeOptimizer = Callable[[Parameters], torch.optim.Optimizer]

HOROVOD, OURS_IN_DDP, DDP, NONE = "Horovod's optimizer", "our hook in DDP", "DDP alone", "nothing"
LOCAL, TORCHFT, POST_LOCAL = "local steps", "torchft", "DDP with post-local SGD"
"""Front ends: what exchanges the gradients in the lab."""


@dataclass(frozen=True)
class Method:
    """A way to exchange gradients.

    Attributes:
        name: in files and on the command line.
        label: in tables.
        build: of a `Compression`, what a front end takes. Of DDP alone: gives a DDP model its hook. Of local steps:
            returns what LocalSteps takes by name. Of torchft: whether it is DiLoCo.
        front_end: in the lab.
        curve: the method whose loss against steps is this one's, as the arithmetic is the same up to the order of
            sums; its own by default.
        searches: whether it chooses while training; then what it has chosen in the lab is what is compared.
        bucket_mb: DDP's bucket_cap_mb, where it is not its own.
        optimizer: of parameters, what takes the place of the task's where the method has its own.
        turn: the steps between two exchanges, which it takes at a time.
    """

    name: str
    label: str
    build: Callable[[Any], Any]
    front_end: str = HOROVOD
    curve: str = ""
    searches: bool = False
    bucket_mb: float | None = None
    optimizer: MakeOptimizer | None = None
    turn: int = 1

    @property
    def is_rival(self) -> bool:
        """Whether it is another package's."""
        return self.differs_between_exchanges or self.front_end == DDP or self.name.startswith("horovod")

    @property
    def differs_between_exchanges(self) -> bool:
        """Whether replicas do, and nothing averages them to be evaluated."""
        return self.front_end in (TORCHFT, POST_LOCAL)

    @property
    def trained_as(self) -> str:
        """The name of the method whose losses count."""
        return self.curve or self.name


def torch_fp16(model: DistributedDataParallel) -> None:
    model.register_comm_hook(None, fp16_compress_hook)


def torch_powersgd(model: DistributedDataParallel) -> None:
    """PowerSGD of rank 4 from its earliest step on. Over several buckets and gloo torch's hook waits for ever."""
    model.register_comm_hook(PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2), powerSGD_hook)


def plain_sgd(parameters: Parameters) -> torch.optim.Optimizer:
    """That of the convnet, without the momentum that DGC has itself."""
    return torch.optim.SGD(parameters, lr=0.02)


def sgd_of_signs(parameters: Parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-3)


def onebit_adam(parameters: Parameters) -> torch.optim.Optimizer:
    """With the settings of the transformer's AdamW."""
    return OneBitAdam(parameters, lr=1e-3, weight_decay=0.01, warmup_steps=60)


BY: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "int4": ("`int4()`", lambda c: c.int4()),
    "int3-coded": ("`int3(coded=True)`", lambda c: c.int3(coded=True)),
    "int2": ("`int2()`", lambda c: c.int2()),
    "dense": ("`dense()`", lambda c: c.dense()),
    "topk": (
        '`topk(1/64, values="int8", index_coding="delta").with_feedback(0.95)`',
        lambda c: c.topk(1 / 64, values="int8", index_coding="delta").with_feedback(0.95),
    ),
}
"""By what local steps exchange: in tables, and what makes it. Top-k is what SparseLoCo sends, whose values have 2 bits,
and whose chunks of 4096 elements their own top."""


def local(every: int, delay: int = 0, by: str = "int4", outer: Outer = averaging, fragments: int = 1) -> Method:
    """Return a method that exchanges once in `every` steps, from the first one on."""

    def build(compression: Any) -> dict[str, Any]:
        return {
            **{"every": every, "compression": BY[by][1](compression), "outer": outer},
            **{"start_after": 0, "fragments": fragments, "delay": delay, "mix": None},
        }

    name, label = f"local{every}", f"`every={every}`, {BY[by][0]}"
    for word, value in (("delay", delay), ("fragments", fragments if fragments > 1 else 0)):
        if value:
            name, label = f"{name}-{word}{value}", f"{label}, `{word}={value}`"
    if outer is not averaging:
        name, label = f"{name}-diloco", f"{label}, `diloco`"
    return Method(name if by == "int4" else f"{name}-{by}", label, build, LOCAL, turn=every)


def torchft(every: int, is_diloco: bool = False) -> Method:
    """Return torchft's LocalSGD or DiLoCo, in fp32, as it is on CPUs."""
    name, outer = ("DiLoCo", "-diloco") if is_diloco else ("LocalSGD", "")
    curve = f"local{every}{outer}-dense"
    return Method(f"torchft{every}{outer}", f"torchft {name}, {every}", lambda c: is_diloco, TORCHFT, curve, turn=every)


def post_local(every: int) -> Method:
    """Return torch's post-local SGD, whose every step is local."""
    label, curve = f"torch's post-local SGD, {every}", f"local{every}-dense"
    return Method(f"post-local{every}", label, torch_post_local, POST_LOCAL, curve, turn=every)


REFERENCE = "horovod"
"""What all times are divided by, in the same round."""
BASELINE = "dense"
"""Whose loss is to be reached."""

METHODS = {
    method.name: method
    for method in (
        Method("horovod", "Horovod dense", lambda c: c.none, curve="dense"),
        Method("horovod-fp16", "Horovod fp16", lambda c: c.fp16, curve="fp16"),
        Method("ddp", "DDP dense", lambda model: None, DDP, curve="dense"),
        Method("ddp-fp16", "DDP, fp16 hook", torch_fp16, DDP, curve="fp16"),
        Method("ddp-powersgd", "DDP, PowerSGD hook, rank 4", torch_powersgd, DDP, bucket_mb=200),
        *(torchft(every) for every in (8, 32)),
        torchft(30, is_diloco=True),
        *(post_local(every) for every in (8, 32)),
        Method("alone", "no exchange: what a step computes", lambda model: None, NONE),
        Method("dense", "`dense()`", lambda c: c.dense()),
        Method("fp16", "`fp16`, in DDP", lambda c: c.fp16, OURS_IN_DDP),
        Method("bf16", "`bf16()`", lambda c: c.bf16()),
        Method("int8", "`int8()`", lambda c: c.int8()),
        Method("int4", "`int4()`", lambda c: c.int4()),
        Method("int4-ddp", "`int4()`, in DDP", lambda c: c.int4(), OURS_IN_DDP, curve="int4"),  # in DDP's buckets
        Method(
            "int4-ddp-1mb", "`int4()`, in DDP, bucket_cap_mb=1", lambda c: c.int4(), OURS_IN_DDP, "int4", bucket_mb=1
        ),
        Method("ddp-1mb", "DDP dense, bucket_cap_mb=1", lambda model: None, DDP, "dense", bucket_mb=1),
        Method("int3", "`int3()`", lambda c: c.int3()),
        Method("five", "`int2(levels=5)`", lambda c: c.int2(levels=5)),
        Method("int2", "`int2()`", lambda c: c.int2()),
        Method("int4-coded", "`int4(coded=True)`", lambda c: c.int4(coded=True)),
        Method("int3-coded", "`int3(coded=True)`", lambda c: c.int3(coded=True)),
        Method("five-coded", "`int2(levels=5, coded=True)`", lambda c: c.int2(levels=5, coded=True)),
        Method("powersgd", "`powersgd(4)`", lambda c: c.powersgd(4)),
        Method("powersgd-int8", '`powersgd(4, factors="int8")`', lambda c: c.powersgd(4, factors="int8")),
        Method("atomo", "`atomo(4)`", lambda c: c.atomo(4)),
        Method("topk", '`topk(0.01).by(collective="allgather")`', lambda c: c.topk(0.01).by(collective="allgather")),
        Method(
            "topk-coded",
            '`topk(0.01, values="int8", index_coding="delta")`',
            lambda c: c.topk(0.01, values="int8", index_coding="delta").by(collective="allgather"),
        ),
        Method(
            "topk-feedback",
            "`topk(0.01).with_feedback()`",
            lambda c: c.topk(0.01).by(collective="allgather").with_feedback(),
        ),
        Method("star", '`topk(0.01).by(collective="star")`', lambda c: c.topk(0.01).by(collective="star")),
        Method(
            "mstopk", '`mstopk(0.01).by(collective="allgather")`', lambda c: c.mstopk(0.01).by(collective="allgather")
        ),
        Method("oktopk", '`oktopk(0.01).by(collective="oktopk")`', lambda c: c.oktopk(0.01).by(collective="oktopk")),
        Method("sidco", "`sidco(0.01)`", lambda c: c.sidco(0.01)),
        Method("dgc", "`dgc(0.01, warmup_steps=60)`, SGD", lambda c: c.dgc(0.01, warmup_steps=60), optimizer=plain_sgd),
        Method("randomk", "`randomk(0.01)`", lambda c: c.randomk(0.01)),
        Method("threshold", "`threshold(0.002)`", lambda c: c.threshold(0.002)),
        Method("qsgd", "`qsgd(4)`", lambda c: c.qsgd(4)),
        Method("terngrad", "`terngrad()`", lambda c: c.terngrad()),
        Method("natural", "`natural()`", lambda c: c.natural()),
        Method("onebit", "`onebit()`", lambda c: c.onebit()),
        Method("efsign", "`efsign()`", lambda c: c.efsign()),
        Method("signsgd", "`signsgd()`, SGD at 0.001", lambda c: c.signsgd(), optimizer=sgd_of_signs),
        Method("demo", "`demo()`, DeMo at 0.001", lambda c: c.demo(), optimizer=partial(DeMo, lr=1e-3)),
        Method("onebit-adam", "1-bit Adam, warm-up of 60", lambda c: c.momentum(0.9, 60), optimizer=onebit_adam),
        *(local(every) for every in (2, 4, 8, 16, 32)),
        *(local(every, by="int2") for every in (4, 8, 16)),
        *(local(every, by="int3-coded") for every in (4, 8)),
        local(8, by="topk"),
        *(local(every, by="dense") for every in (8, 16, 32)),
        *(local(every, delay, by="int2") for every, delay in ((4, 2), (8, 2))),
        local(4, 2, by="int3-coded"),
        *(local(every, delay) for every, delay in ((4, 2), (8, 4), (16, 4), (32, 4), (32, 16))),
        local(16, 2, fragments=4),
        *(local(every, outer=diloco) for every in (8, 30)),
        local(30, by="dense", outer=diloco),
        Method("auto", "`auto()`", lambda c: c.auto(), searches=True),
        Method("auto-ddp", "`auto()`, in DDP", lambda c: c.auto(), OURS_IN_DDP, searches=True),
    )
}
"""By name; rivals first. What exchanges nothing is timed and not trained."""
ASKED = [name for name, method in METHODS.items() if method.front_end != TORCHFT or HAS_TORCHFT]
"""What is measured unless others are asked for."""

CLAIMS = {
    "bf16": "Kalamkar et al. 2019: as fp32, without a loss scale",
    "powersgd": "Vogels et al. 2019: accuracy of SGD with rank 2 or 4, after as many epochs",
    "atomo": "Wang et al. 2018: unbiased; trains as QSGD and TernGrad do, or sooner",
    "topk": "Stich et al. 2018: rate of SGD with residuals, after enough steps",
    "mstopk": "Shi et al. 2021: accuracy of top-k",
    "oktopk": "Li and Hoefler 2022: accuracy close to dense at 1 to 2 %",
    "sidco": "Abdelmoniem et al. 2021: accuracy of top-k, with the ratio held",
    "dgc": "Lin et al. 2018: no loss of accuracy at 0.1 %, with momentum correction and a warm-up",
    "randomk": "Stich et al. 2018: rate of SGD with residuals, after enough steps: more than top-k",
    "threshold": "Dutta et al. 2020: ahead of top-k at as many elements",
    "qsgd": "Alistarh et al. 2017: accuracy of SGD with 4 bits or more",
    "terngrad": "Wen et al. 2017: accuracy of SGD, or 2 % below it",
    "natural": "Horvath et al. 2022: variance grows by an eighth; as dense after as many steps",
    "onebit": "Seide et al. 2014: nearly no loss with residuals, after a start without compression",
    "efsign": "Karimireddy et al. 2019: rate of SGD with residuals",
    "signsgd": "Bernstein et al. 2018: rate of SGD; accuracy of Adam",
    "demo": "Peng et al. 2024: loss of AdamW, or below",
    "onebit-adam": "Tang et al. 2021: rate of Adam after a dense start",
}
"""What each paper leads one to expect of its own method, by name of the method."""
