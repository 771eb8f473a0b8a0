"""Are replicas still equal? Sums over the bits of results and of parameters, compared now and then behind a step."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.engines.base import Engine
from hvd_compress.engines.launch import Launch
from hvd_compress.errors import ReplicaError
from hvd_compress.measuring import machine
from hvd_compress.services.base import SeenStep, Service, Watched

FIRST = 1
"""The first exchange to be checked: parameters have changed once by then."""
UNSEEN = 10
"""Exchanges after which a difference counts though no step of an optimizer was seen since."""

log = logging.getLogger("hvd_compress")

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Difference:
    """How replicas differ; the kind is the same on all ranks.

    Attributes:
        kind: "results", "parameters", or nothing.
        told: in words; nothing on ranks that are to tell nothing.
        is_fault: whether it must not be.
    """

    kind: str = ""
    told: str = ""
    is_fault: bool = False


@dataclass(frozen=True)
class Sums:
    """What one rank brings to a comparison.

    Attributes:
        results: of the averaged gradient of each bucket, by number.
        parameters: by name; None on a rank that is no replica.
        frozen: names of parameters that require no gradient.
        arithmetic: what the bits of an optimizer's step depend on beside its arguments.
    """

    results: tuple[int, ...]
    parameters: dict[str, int] | None
    frozen: tuple[str, ...]
    arithmetic: str


class ReplicaCheck(Service):
    """Compares the replicas of all ranks every so many exchanges, and says which parameter differs on which rank.

    What ranks compare is launched behind the exchanges of a step, and taken when the next one is over: 24 bytes a rank,
    and more only where there is a difference. Results are the same on all ranks to the bit, so are the steps that
    optimizers make of them, on processors and with numbers of threads that are alike. Where those differ, a difference
    of parameters is told, once, and is no error.

    While gradients are exchanged a program may have put something of its own on parameters, as SAM or noise. So where
    they differ then, what the optimizer's step has left is compared, and counts.

    Attributes:
        parameters: those that are compared, by name.
        is_replica: whether this rank's parameters are those of the others; not where DDP's join() lets a rank that has
            no more inputs take part.
        awaits_step: whether take_step() is to be called after the coming step of an optimizer of these parameters.
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor], every: int) -> None:
        """`parameters`: those whose gradients are exchanged, by name. `every`: 0 checks nothing."""
        self.parameters, self._every = parameters, every
        self._count, self._told = 0, False
        self._compared: Callable[[], Difference] | None = None
        self._suspected: Difference | None = None
        self._unseen = 0
        self._left: dict[str, int] | None = None
        self.is_replica, self.awaits_step = True, False
        self._session: Watched
        self._is_alone = True

    def opened(self, session: Watched) -> None:
        self._session = session

    def look_at(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Compare these from now on, of the same names: what a step has left of others tells nothing of them."""
        if parameters is not self.parameters:
            self.parameters, self._left, self.awaits_step = parameters, None, False

    def met(self, engine: Engine) -> None:
        self._is_alone = engine.world_size == 1

    def exchanged(self, seen: SeenStep) -> None:
        """Take the comparison that is under way, if any, and begin one where it is due.

        Raises:
            ReplicaError: replicas differ; on all ranks.
        """
        buckets, step, launch = self._session.results, seen.step, self._session.launch
        if self._is_alone or buckets is None:
            return
        layouts = [layout for layout, _ in buckets]
        if self._compared is not None:
            compared, self._compared = self._compared, None
            found = compared()
            if found.kind == "parameters":
                self._suspected, self._unseen = found, 0
            else:
                self._judge(found)
        if self._suspected is not None:
            self._ask_again(self._suspected, step, layouts, launch)
        nth = self._every and self._count % self._every == 0
        is_due = self._every > 0 and (self._count == FIRST or (self._count > 0 and nth))
        if is_due and self._suspected is None:
            sums = self._sums([result for _, result in buckets])
            self._compared = launch(partial(_compare, step, layouts, sums), f"step {step}, comparing replicas")
        self.awaits_step, self._left = is_due or self._suspected is not None, None
        self._count += 1

    def take_step(self, is_captured: bool) -> None:
        """An optimizer has changed the parameters: keep what it has left. `is_captured`: it will, in a graph."""
        if not is_captured:
            self._left = self._sums(()).parameters

    def _ask_again(self, suspected: Difference, step: int, layouts: Sequence[Layout], launch: Launch) -> None:
        """Compare what the last step of an optimizer has left; where some replica has seen none, later."""
        self._unseen += 1
        sums = replace(self._sums(()), parameters=self._left or {}) if self.is_replica else self._sums(())
        again = partial(_compare, step - 1, layouts, sums)
        found = launch(partial(_compare_left, again, self._left is not None or not self.is_replica),
                       f"step {step}, comparing what steps have left")()  # fmt: skip
        if found is None:
            if self._unseen < UNSEEN:
                return
            found = suspected
        self._suspected = None
        self._judge(found)

    def _sums(self, results: Sequence[torch.Tensor]) -> Sums:
        """The host waits for a GPU here."""
        parameters = list(self.parameters.values()) if self.is_replica else []
        found = [bit_sum(tensor) for tensor in (*results, *parameters)]
        sums = torch.stack([each.cpu() for each in found]).tolist() if found else []
        own = dict(zip(self.parameters, sums[len(results) :], strict=True)) if self.is_replica else None
        frozen = tuple(name for name, parameter in self.parameters.items() if not parameter.requires_grad)
        return Sums(tuple(sums[: len(results)]), own, frozen, _arithmetic(parameters))

    def _judge(self, found: Difference) -> None:
        if found.told and found.is_fault:
            raise ReplicaError(found.told)
        if found.told and not self._told:
            self._told = True
            log.warning("hvd_compress: %s", found.told)


def bit_sum(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of a tensor's elements, their bits read as whole numbers, as a tensor () of int64.

    It depends neither on the order of elements in memory nor on that in which they are added, nor on which NaN one is:
    of two that a sum may come by, it takes the first, and ranks add in different orders.
    """
    whole = tensor.detach()
    if whole.is_complex():
        whole = torch.view_as_real(whole)
    if not bool(torch.isfinite(whole.sum())):
        whole = whole.masked_fill(torch.isnan(whole), torch.nan)
    word = _WORDS[whole.element_size()]
    kind = torch.int32 if word.itemsize <= 4 else torch.int64  # wraps around
    return whole.view(word).sum(dtype=kind).to(torch.int64)


def _arithmetic(parameters: Sequence[torch.Tensor]) -> str:
    devices = dict.fromkeys(parameter.device.type for parameter in parameters)
    cards = [torch.cuda.get_device_name(p.device) for p in parameters[:1] if p.device.type == "cuda"]
    threads = [f"{torch.get_num_threads()} threads"] if "cpu" in devices else []
    return ", ".join([machine(), *threads, *cards])


def _compare_left(compare: Callable[[Engine], Difference], is_seen: bool, engine: Engine) -> Difference | None:
    """Compare, where every replica has seen a step."""
    with engine.aside():
        seen = engine.control.allgather(torch.tensor([int(is_seen)]), [1] * engine.world_size)
    return compare(engine) if all(bool(each) for each in seen) else None


def _compare(step: int, layouts: Sequence[Layout], sums: Sums, engine: Engine) -> Difference:
    mine = torch.tensor([_digest(sums.results), _digest(sums.parameters), int(sums.parameters is not None)])
    with engine.aside():
        found = engine.control.allgather(mine, [mine.numel()] * engine.world_size)
    rows: list[list[int]] = [row.tolist() for row in found]
    if len({row[0] for row in rows}) == 1 and len({row[1] for row in rows if row[2]}) <= 1:
        return Difference()
    all_sums = [Sums(**answer) for answer in engine.allgather_json(asdict(sums))]
    end = "; HVD_COMPRESS_CHECK_EVERY=0, on all ranks, leaves this check out"
    if sums.results and (difference := _of_results(layouts, engine.ranks, [each.results for each in all_sums])):
        return Difference("results", f"step {step}: {difference}{end}", True)
    replicas = {rank: each for rank, each in zip(engine.ranks, all_sums, strict=True) if each.parameters is not None}
    is_fault = len({each.arithmetic for each in replicas.values()}) == 1
    if not is_fault and engine.rank:
        return Difference("parameters")  # rank 0 tells
    return Difference("parameters", f"step {step}: {_of_parameters(layouts, replicas)}{end}", is_fault)


def _digest(value: Any) -> int:
    text = json.dumps(value).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little", signed=True)


def _of_results(layouts: Sequence[Layout], ranks: Sequence[int], results: Sequence[Sequence[int]]) -> str:
    """Name the first bucket whose result differs, on which of these ranks; nothing where none does."""
    for number, layout in enumerate(layouts):
        odd = [rank for rank, own in zip(ranks, results, strict=True) if own[number] != results[0][number]]
        if odd:
            return (
                f"the averaged gradients of bucket {number} ({layout.called}) on {_ranks(odd)} are not those of rank "
                f"{ranks[0]}: memory or the network has changed what was exchanged, or hvd_compress has a defect"
            )
    return ""


def _of_parameters(layouts: Sequence[Layout], replicas: Mapping[int, Sums]) -> str:
    """Name the first parameter that differs, and what ranks may do differently. `replicas`: by rank."""
    first, *others = replicas
    known = replicas[first].parameters or {}
    differing = {name: [r for r in others if (replicas[r].parameters or {}).get(name) != known[name]] for name in known}
    differing = {name: ranks for name, ranks in differing.items() if ranks}
    name, odd = next(iter(differing.items()))
    number = next((number for number, layout in enumerate(layouts) if name in layout.names), None)
    where = "" if number is None else f" (bucket {number})"  # sparse gradients travel by themselves
    told = (
        f"parameter {name!r}{where} on {_ranks(odd)} is not that of rank {first}, and so are "
        f"{len(differing) - 1} more of {len(known)}, though averaged gradients are equal: each rank trains a model of "
        "its own. "
    )
    frozen = [rank for rank, sums in replicas.items() if name in sums.frozen]
    if 0 < len(frozen) < len(replicas):
        told += f"It is frozen on {_ranks(frozen)} alone. "
    ways = list(dict.fromkeys(sums.arithmetic for sums in replicas.values()))
    if len(ways) > 1:
        return told + f"Ranks compute in different ways, which may round differently: {' and '.join(ways)}"
    return told + (
        "Give all ranks the same parameters and optimizer state before the first step (hvd.broadcast_parameters, "
        "hvd.broadcast_optimizer_state), and change parameters, gradients and learning rates on all ranks alike"
    )


def _ranks(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
