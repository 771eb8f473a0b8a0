"""Gradients of an FSDP2 model by a session: handed over as the backward pass makes them, and there at its end."""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.engines.arrivals import Arrivals
from hvd_compress.engines.base import Engine
from hvd_compress.errors import CommunicationError, ConfigError, UnsupportedError, UsageError, located
from hvd_compress.frontends.eagerly import eagerly
from hvd_compress.frontends.fsdp.gathering import ParameterGathers
from hvd_compress.frontends.fsdp.groups import ParamGroup, Shard
from hvd_compress.frontends.handle import Handle
from hvd_compress.frontends.stepped import tell_of_steps
from hvd_compress.frontends.unused import UnusedResult
from hvd_compress.request.request import Request
from hvd_compress.session.replicas import ReplicaCheck
from hvd_compress.settings import Settings


class GradientExchange:
    """One session for all modules of a model. A bucket is what FSDP reduces at once: a parameter group.

    FSDP calls this for each group in the backward pass, and reads what it wrote at once: it is given zeros. The results
    are added to the sharded gradients when the backward pass is over, behind FSDP's own end of it, which an optimizer
    cannot precede. So exchanges run beside the rest of the backward pass, and gradients may accumulate, be cast, or lie
    on the host, as FSDP wants.

    Attributes:
        handle: of the session that exchanges the buckets.
        scatters: whether it replaces reduce-scatters; else it comes behind them, and averages over replicas.
        gathers: how parameters are gathered, where not by FSDP.
    """

    gathers: ParameterGathers | None = None

    def __init__(
        self,
        groups: Sequence[ParamGroup],
        in_backward: Callable[[], bool],
        scatters: bool,
        request: Request,
        settings: Settings,
        connect: Callable[[], Engine],
        arrivals: Arrivals | None = None,
    ) -> None:
        """Nothing is communicated yet.

        Args:
            groups: of one mesh, in the order in which a backward pass probably comes by them.
            in_backward: whether FSDP's own end of the backward pass is still to come.
            scatters: as the attribute.
            connect: creates the engine, in the first backward pass.
            arrivals: by what ranks tell each other who waits, for the message of a timeout.

        Raises:
            ConfigError, UnsupportedError: as Handle.
        """
        self.scatters, self._in_backward = scatters, in_backward
        self._every = list(groups)  # those without a trainable parameter, too
        self._groups = {self._bucket_of(group): group for group in groups}
        self.handle = Handle(self.stand_ins(), request, settings, connect, arrivals=arrivals)
        self.session = self.handle.session
        shards = {shard.name: weakref.ref(shard) for group in groups for shard in group.every}
        replicas = _Tensors(shards, Shard.local)
        self.session.services.replicas = None if scatters else ReplicaCheck(replicas, settings.check_every)
        if self.session.services.replicas is not None:
            tell_of_steps(self.session.services.replicas)
        self._unused = UnusedResult(_Tensors(shards, lambda shard: shard.parameter), self.session.drop_step)
        tell_of_steps(self._unused)
        self._flats: dict[tuple[str, ...], torch.Tensor] = {}  # of shards that replicas average
        self._came: list[tuple[str, ...]] = []  # in this step
        self._passes: set[int] = set()  # of this step: a reentrant checkpoint has a backward pass within another
        self._opened = self._ordered = False
        self.session.may_give_up = True

    def parameters_of(self, bucket: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of the parameters of a bucket."""
        return tuple(shard.name for shard in self._groups[bucket].shards)

    @property
    def _words(self) -> str:
        """What ranks compare before their first exchange."""
        mesh = "FSDP with shards among these ranks" if self.scatters else "FSDP with replicas on these ranks"
        return mesh if self.gathers is None else f"{mesh}, parameters gathered as {self.gathers.asked}"

    @property
    def shard(self) -> str:
        """Of which parts of the parameters residuals are on this rank, behind its name in a checkpoint."""
        group = next(iter(self._groups.values()))
        if group.shard_group is None:
            return ""
        return f", {group.ways} shards" if self.scatters else f", shard {group.shard_group.rank()} of {group.ways}"

    @eagerly
    def take(self, group: ParamGroup, gradient: torch.Tensor) -> None:
        """Hand over what FSDP has of a group, (numel,): all shards if this scatters, else this rank's.

        Raises:
            ConfigError, UsageError, UnsupportedError: the step is one that cannot be exchanged.
            CommunicationError: ranks have not met, in the first step.
        """
        try:
            self._take(group, gradient)
        except BaseException as error:  # other ranks may wait for this one: it must be able to end
            self.session.fail(error)
            raise

    def require_working(self) -> None:
        """A forward pass begins. Raises CommunicationError after a failure; and on all ranks, where an error has ended
        the backward pass before it on some.
        """
        self.session.refuse_after_failure()
        if self._came and torch._C._current_graph_task_id() == -1:
            self._give_up()

    @eagerly
    @torch.no_grad()
    def _give_up(self) -> None:
        """An error, as of memory, ended the backward pass, and the program goes on: nobody must wait for this rank.

        What has not left yet leaves as not finite. By that all ranks see that something is wrong, and ask each other.
        """
        missing = [bucket for bucket in self._groups if bucket not in self._came]
        with self._ending():
            if self._in_backward() or not missing:
                raise CommunicationError(
                    "a backward pass has ended before all gradients were exchanged: where an error in it is caught, on "
                    "all ranks, call reset_iter_state() of the root module (torch 2.15) before the next forward pass, "
                    "or make the model anew. FSDP itself leaves modules out of the training otherwise"
                )
            numbers = {layout.names: number for number, layout in enumerate(self.session.buckets.layouts)}
            for bucket in missing:
                group = self._groups[bucket]
                numel = group.numel * (group.ways if self.scatters else 1)
                self.session.buckets.mark_ready(numbers[bucket])
                nothing = torch.full((numel,), torch.nan, dtype=group.dtype, device=group.device)
                self.session.submit(numbers[bucket], nothing)
            with located("giving up a backward pass that an error has ended on this rank"):
                self.session.end_step(gives_up=True)

    def _take(self, group: ParamGroup, gradient: torch.Tensor) -> None:
        if not self._came:
            self._follow()
        bucket = self._bucket_of(group)
        if bucket not in self._groups:
            raise UsageError(
                f"{group.name} is trained, and all of it was frozen when compress() was called: replicas do not "
                "exchange its gradients. Leave a parameter of it unfrozen until then, or shard a new model"
            )
        group.require_as_it_was(gradient.numel() // (group.ways if self.scatters else 1), gradient.dtype)
        self._finish_behind_this_pass()
        if not self._came:
            self._begin()
        self._came.append(bucket)
        number = [layout.names for layout in self.session.buckets.layouts].index(bucket)
        if not self.scatters:
            if bucket not in self._flats:
                self._flats[bucket] = torch.empty_like(gradient)
            gradient = self._flats[bucket].copy_(gradient)
        self.session.buckets.mark_ready(number)
        self.session.submit(number, gradient)

    def _finish_behind_this_pass(self) -> None:
        backward_pass = torch._C._current_graph_task_id()
        if backward_pass == -1:
            raise UnsupportedError(
                "compressed gradients are complete at the end of a backward pass, and this one is finalized by hand: "
                "leave set_manual_backward_finalization() out"
            )
        if backward_pass not in self._passes:
            # Behind FSDP's own end, in which it may reduce what is left: that was queued when the pass began.
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
            self._passes.add(backward_pass)

    def _begin(self) -> None:
        self._unused.begins()  # FSDP adds to the sharded gradients later
        self.session.begin_step()
        if not self._opened:
            self._open()

    def _follow(self) -> None:
        """Parameters may have been frozen or unfrozen since the last step, on all ranks alike.

        Raises UnsupportedError where a reduce-scatter has feedback, whose residuals are of modules.
        """
        trained = [group.trained for group in self._every]
        if trained == [group.shards for group in self._every]:
            return
        if self.scatters and self.session.request.compressor.error_feedback:
            raise UnsupportedError(
                "layers were frozen or unfrozen, and feedback=True remembers modules as a whole: freeze them before "
                "compress(), or leave feedback out"
            )
        known = [self._groups[layout.names] for layout in self.session.buckets.layouts] if self._opened else self._every
        for group, shards in zip(self._every, trained, strict=True):
            if shards != group.shards:
                group.shards = shards
                self._make_room(group)
        going_on = [*known, *(group for group in self._every if group not in known)]
        self._groups = {self._bucket_of(group): group for group in going_on if group.shards}
        self._flats = {bucket: flat for bucket, flat in self._flats.items() if bucket in self._groups}
        if self._opened:
            self._compare_shards()
            self.session.set_buckets([self._layout(bucket) for bucket in self._groups], self.handle.devices)

    def _make_room(self, group: ParamGroup) -> None:
        """Other parameters of a group travel than before."""
        slots = self.handle.slots
        kind = next(slots[name] for name in (group.name, *(shard.name for shard in group.every)) if name in slots)
        if self.scatters:
            slots[group.name] = replace(kind, shape=(group.ways, group.numel))
        else:
            slots.update({s.name: replace(kind, shape=s.padded) for s in group.shards if s.name not in slots})

    def _open(self) -> None:
        layouts = [self._layout(bucket) for bucket in self._groups]
        self.session.open([name for layout in layouts for name in layout.names], options=self._words)
        if self.scatters:
            self._compare_shards()
        as_before = self.session.loaded.cuts
        if sorted(as_before) == sorted(self._groups):
            layouts = [self._layout(bucket) for bucket in as_before]
            self._ordered = True
        self.session.set_buckets(layouts, self.handle.devices)
        self._opened = True

    def _compare_shards(self) -> None:
        """Ranks must have gradients of the same parameters, and the handshake knows of how many elements. Collective.

        Raises ConfigError, on all ranks alike.
        """
        own = [zlib.crc32(repr([(s.name, s.padded) for s in group.shards]).encode()) for group in self._groups.values()]
        of_ranks = self.session.gathering.figures(own, "which parameters have gradients")
        for group, *found in zip(self._groups.values(), *of_ranks, strict=True):
            if len(set(found)) > 1:
                names = ", ".join(shard.name for shard in group.shards)
                raise ConfigError(
                    f"ranks train different parameters of {group.name}, this one {names}: freeze the same on all ranks"
                )

    @eagerly
    @torch.no_grad()
    def _finish(self) -> None:
        """The backward pass is over: wait for all buckets, and add the results to the sharded gradients."""
        if self._in_backward():
            return  # it was one within another
        with self._ending():
            if missing := [group for bucket, group in self._groups.items() if bucket not in self._came]:
                raise UsageError(
                    f"{missing[0].name} has reduced no gradient in this backward pass, and {len(self._came)} others "
                    "have: call set_reduce_scatter_unused_params(True) of the root module where a step leaves modules "
                    "out, and call backward() once for all modules"
                )
            if self.gathers is not None:
                self.session.reporting.take(self.gathers.figures())
            self.session.end_step()
            for number, layout in enumerate(self.session.buckets.layouts):
                result = self.session.result(number) if self.scatters else self._flats[layout.names]
                group = self._groups[layout.names]
                group.wait()
                scale = group.scale(self.scatters, self.session.engine.world_size)
                for shard, part in zip(
                    group.shards, torch.split(result, [each.numel for each in group.shards]), strict=True
                ):
                    shard.add(part, scale)
            self._order()
            if self.session.buckets.remember:
                self._unused.exchanged()
            if self.gathers is not None:
                self.gathers.end_step(self._slowest)

    def _slowest(self, seconds: Sequence[float]) -> list[float]:
        """Return the largest of each over all ranks. Collective."""
        of_ranks = self.session.gathering.figures(seconds, "how long steps took")
        return [max(each) for each in zip(*of_ranks, strict=True)]

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """The step is over with the block; an error in it ends all exchanges."""
        try:
            yield
        except BaseException as error:
            self.session.fail(error)
            raise
        finally:
            self._came = []
            self._passes.clear()

    def _order(self) -> None:
        """After the first step: buckets leave in the order of its backward pass, as rank 0 has seen it. Collective."""
        if self._ordered:
            return
        self._ordered = True
        known = list(self._groups)
        seen = self.session.gathering.figures([known.index(bucket) for bucket in self._came], "the order of gradients")[
            0
        ]
        layouts = [self._layout(known[int(number)]) for number in seen]
        if layouts != list(self.session.buckets.layouts):
            self.session.set_buckets(layouts, self.handle.devices)

    def _bucket_of(self, group: ParamGroup) -> tuple[str, ...]:
        """Return what lies in the bucket: shards of parameters, or all of the group, whose shards are interleaved."""
        return (group.name,) if self.scatters else tuple(shard.name for shard in group.shards)

    def stand_ins(self, frozen: bool = False) -> dict[str, torch.Tensor]:
        """Return what lies in buckets, or may with what is frozen now, as tensors of that shape without memory."""
        found = {}
        for group in self._every:
            one = torch.empty((), dtype=group.dtype, device=group.device)
            if self.scatters:
                found[group.name] = one.expand(group.ways, group.numel)
            else:
                found |= {s.name: one.expand(s.padded) for s in (group.every if frozen else group.shards)}
        return found

    def _layout(self, bucket: tuple[str, ...]) -> Layout:
        slots = [self.handle.slots[name] for name in bucket]
        return Layout(bucket, tuple(slot.shape for slot in slots), *slots[0].kind)


class ReduceScatterComm:
    """What FSDP calls in the place of its reduce-scatter (`set_custom_reduce_scatter`)."""

    def __init__(self, exchange: GradientExchange, group: ParamGroup) -> None:
        self._exchange, self._group = exchange, group

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return memory of the allocator's: as FSDP's own."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        """Take the gradients of all shards, (ways * numel,), and give zeros for this rank's."""
        self._exchange.take(self._group, input_tensor)
        output_tensor.zero_()


class AllReduceHook:
    """What FSDP calls behind its reduce-scatter (`set_all_reduce_hook`)."""

    def __init__(self, exchange: GradientExchange, group: ParamGroup) -> None:
        self._exchange, self._group = exchange, group

    def __call__(self, reduce_output: torch.Tensor) -> None:
        """Take this rank's shard of the gradients, (numel,), and leave zeros."""
        self._exchange.take(self._group, reduce_output)
        reduce_output.zero_()


class _Tensors(Mapping[str, torch.Tensor]):
    """Tensors of shards that are looked up when they are read, as torch replaces sharded parameters.

    It does not hold them: a session lives until its model is dropped, and a shard knows its module.
    """

    def __init__(self, shards: Mapping[str, weakref.ref[Shard]], tensor_of: Callable[[Shard], torch.Tensor]) -> None:
        self._shards, self._tensor_of = shards, tensor_of

    def __getitem__(self, name: str) -> torch.Tensor:
        shard = self._shards[name]()
        assert shard is not None
        return self._tensor_of(shard)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shards)

    def __len__(self) -> int:
        return len(self._shards)
