"""A bucket on its way by an option, task by task, over the groups of ranks that it names."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hvd_compress.collectives.base import Exchange, Work
from hvd_compress.collectives.groups import within_host
from hvd_compress.compressors.base import Compressor, SingleRound
from hvd_compress.compressors.finite import all_finite, scale_finite
from hvd_compress.engines.base import Engine
from hvd_compress.engines.layout import shard_lengths
from hvd_compress.errors import located
from hvd_compress.papers.espresso.groups import same_place
from hvd_compress.papers.espresso.tree.feedback import PartCompressor
from hvd_compress.papers.espresso.tree.packed import ListPacker, Template, template_of
from hvd_compress.papers.espresso.tree.walk import ROOT, Held, Holding, Task, members, parse, sent_to, walk
from hvd_compress.payload import Payload

RESULT = ("allgather", "broadcast")
"""Calls of tensors that bring the result to all, in the gradient's dtype, where they come last."""


class OptionExchange(Exchange):
    """One bucket on its way: what this rank holds, as a tensor or as payloads, and how many tasks are done."""

    def __init__(self, name: str, compressor: Compressor, work: Work, rank: int) -> None:
        """`name`: of the option. `compressor`: what it compresses with, or that which loses nothing."""
        self._name, self._compressor = name, compressor
        self._work, self._rank = work, rank
        self._tasks = parse(self._name)
        self._rows = walk(self._name, work.gradient.numel(), work.hosts)
        self._parts = PartCompressor(self._compressor, work, rank, self._name)
        self._packer = ListPacker(work)
        self._memory = torch.empty(0)  # fp32, of the whole bucket: the gradient's own where that is fp32
        self._values = torch.empty(0)  # of the part that this rank holds, where compression runs; mostly a part of it
        self._payloads: list[Payload] = []  # as many as it holds
        self._sent: list[torch.Tensor] = []  # of the call that comes next
        self._received: Sequence[torch.Tensor] | None = None  # of the call before
        self._kept: list[torch.Tensor] = []  # a stream may still read them
        self._done = 0  # tasks
        self._is_scaled = False  # whether values are those of the result

    def encode(self) -> None:
        self._values = self._memory = self._parts.start()
        self._compute()

    def communicate(self, engine: Engine) -> None:
        groups = {"all": engine}
        if any(task.link not in ("", "all") for task in self._tasks):
            groups |= {"within": within_host(engine), "across": same_place(engine)}
        while True:
            task = self._tasks[self._done]
            if groups[task.link].world_size > 1 and any(self._of_group(self._done)):
                self._received = self._launch(groups[task.link], task)
            if not any(task.link for task in self._tasks[self._done + 1 :]):
                return
            with self._work.lane.between_collectives():
                self._arrive()
                self._compute()

    def decode(self) -> torch.Tensor:
        self._arrive()
        self._compute()
        gradient = self._work.gradient
        if self._values.dtype != gradient.dtype and not self._is_scaled:  # a sum may be beyond what 16 bits hold
            self._values, self._is_scaled = self._values.mul_(self._work.scale), True
        if self._values.data_ptr() != gradient.data_ptr():
            gradient.copy_(self._values)
        return all_finite(gradient) if self._is_scaled else scale_finite(gradient, self._work.scale)

    def _held(self, number: int) -> Holding:
        """Return what this rank holds before a task."""
        return self._rows[number][self._rank]

    def _of_group(self, number: int) -> list[Holding]:
        """Return what the members of a call hold before it."""
        group = members(self._tasks[number].link, self._work.hosts, self._rank)
        return [self._rows[number][rank] for rank in group]

    def _compute(self) -> None:
        """Compress and decompress until the next call, and prepare what it sends."""
        while self._done < len(self._tasks) and not self._tasks[self._done].link:
            if self._tasks[self._done].verb == "comp":
                self._compress()
            else:
                self._decompress()
            self._done += 1
        if self._done < len(self._tasks):
            self._prepare(self._tasks[self._done])

    def _compress(self) -> None:
        self._payloads = []
        for whole in self._held(self._done):
            for piece in self._held(self._done + 1):
                values = self._values[piece.start - whole.start : piece.stop - whole.start]
                self._payloads.append(self._parts.compress(self._done, piece, values))
        self._kept.append(self._values)

    def _decompress(self) -> None:
        self._is_scaled = self._done == len(self._tasks) - 1
        scale = self._work.scale if self._is_scaled else 1.0
        for whole in self._held(self._done + 1):
            self._values = self._memory[whole.part]
        of_part: dict[tuple[int, int], list[Payload]] = {}
        for held, payload in zip(self._held(self._done), self._payloads, strict=True):
            of_part.setdefault((held.start, held.stop), []).append(payload)
        for (start, stop), payloads in of_part.items():
            assert isinstance(self._compressor, SingleRound)
            out, layout = self._memory[start:stop], self._work.layout.part(slice(start, stop))
            with located(lambda: f"option {self._name!r}, task {self._done + 1}"):
                self._compressor.sum_into(out, payloads, scale, layout)

    def _prepare(self, task: Task) -> None:
        """Bring to where the engine takes it what this rank sends."""
        lane, number, held = self._work.lane, self._done, self._held(self._done)
        name = f"sent {number}"
        if task.compressed and task.verb == "alltoall":
            ranks, own = len(self._of_group(number)), dict(zip(held, self._payloads, strict=True))
            outgoing = [[own[one] for one in sent_to(held, ranks, member)] for member in range(ranks)]
            self._sent = [self._packer.pack_all(f"{name} to {to}", payloads) for to, payloads in enumerate(outgoing)]
        elif task.compressed:
            self._sent = [self._packer.pack_all(name, self._payloads)]
        else:
            if number == len(self._tasks) - 1 and task.verb in RESULT:
                self._is_scaled = True
                self._values = self._values.mul_(self._work.scale).to(self._work.gradient.dtype)
            self._kept.append(self._values)
            self._sent = [lane.post(name, self._values if held else self._values[:0])]

    def _launch(self, engine: Engine, task: Task) -> Sequence[torch.Tensor]:
        """Run a call, and return what this rank receives, by member of the group."""
        holdings = self._of_group(self._done)
        if not task.compressed:
            return self._launch_plain(engine, task.verb, [sum(held.numel for held in holding) for holding in holdings])
        if task.verb == "alltoall":
            own = [self._bytes(sent_to(holding, len(holdings), engine.rank)) for holding in holdings]
            return engine.alltoall(self._sent, own)
        lengths = [self._bytes(holding) for holding in holdings]
        if task.verb == "allgather":
            inbox = self._work.lane.inbox(f"received {self._done}", sum(lengths), torch.uint8)
            return engine.allgather(self._sent[0], lengths, out=inbox)
        if task.verb == "gather":
            return engine.gather(self._sent[0], ROOT, lengths) or []
        return self._broadcast(engine, lengths[ROOT])

    def _launch_plain(self, engine: Engine, verb: str, lengths: Sequence[int]) -> Sequence[torch.Tensor]:
        sent = self._sent[0]
        if verb == "allreduce":
            engine.allreduce(sent)
            return [sent]
        if verb == "allgather":
            return engine.allgather(sent, lengths)
        if verb == "broadcast":
            return self._broadcast(engine, lengths[ROOT])
        shard = engine.reduce_scatter(sent)
        if verb == "reduce_scatter":
            return [shard]
        return engine.gather(shard, ROOT, shard_lengths(sent.numel(), engine.world_size)) or []

    def _broadcast(self, engine: Engine, length: int) -> Sequence[torch.Tensor]:
        sent = self._sent[0]
        if engine.rank != ROOT:
            sent = self._work.lane.buffer(f"received {self._done}", length, sent.dtype)
        engine.broadcast(sent, ROOT)
        return [sent]

    def _arrive(self) -> None:
        """Take what the last call has left, if there was one."""
        number, received, self._received = self._done, self._received, None
        self._done += 1
        if received is None:
            return
        task = self._tasks[number]
        if not task.compressed:
            self._values = self._joined(number, [part for part in received if part.numel()])
            return
        group = members(task.link, self._work.hosts, self._rank)
        senders = group[: len(received)]  # of a broadcast the root
        self._payloads = []
        for rank, packed in zip(senders, received, strict=True):
            holding = self._rows[number][rank]
            if task.verb == "alltoall":
                holding = sent_to(holding, len(group), group.index(self._rank))
            self._payloads += self._packer.unpack_all(rank, packed, [self._template(held) for held in holding])

    def _joined(self, number: int, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return what this rank holds after a call; several parts are brought to their places in the bucket."""
        lane, memory = self._work.lane, self._work.gradient if self._is_scaled else self._memory
        if len(parts) < 2:
            return lane.fetch(parts[0]) if parts else memory[:0]
        (held,) = self._held(number + 1)
        for part, place in zip(parts, torch.split(memory[held.part], [part.numel() for part in parts]), strict=True):
            lane.fetch(part, into=place)
        return memory[held.part]

    def _template(self, held: Held) -> Template:
        assert isinstance(self._compressor, SingleRound)
        return template_of(self._compressor, self._work.layout.part(held.part))

    def _bytes(self, holding: Holding) -> int:
        return sum(self._template(held).packed_bytes for held in holding)
