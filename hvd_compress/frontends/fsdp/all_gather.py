"""What FSDP calls instead of its all-gather."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import distributed as dist

from hvd_compress.errors import UnsupportedError
from hvd_compress.frontends.eagerly import eagerly
from hvd_compress.frontends.fsdp.by_hosts import HostGather
from hvd_compress.frontends.fsdp.groups import ParamGroup
from hvd_compress.frontends.fsdp.messages import Finish, Messages, Weights


@dataclass
class GatheredBytes:
    """What this rank has sent to gather parameters since it was asked last.

    Attributes:
        sent: bytes.
        dense: what FSDP itself would have sent.
    """

    sent: int = 0
    dense: int = 0

    def take(self) -> tuple[int, int]:
        """Return both, and begin to count anew."""
        found, self.sent, self.dense = (self.sent, self.dense), 0, 0
        return found


class AllGatherComm:
    """What FSDP calls instead of its all-gather (`set_custom_all_gather`).

    Attributes:
        travels: how parameters do; None where they do as FSDP sends them.
    """

    travels: Weights | None = None

    def __init__(
        self,
        group: ParamGroup,
        sent: GatheredBytes,
        before: Callable[[], None],
        by_hosts: Callable[[], HostGather],
    ) -> None:
        """Nothing is communicated yet.

        Args:
            before: called before each gather; raises what keeps ranks from one.
            by_hosts: returns what gathers on the CPU, the same for all groups of a model.
        """
        self._name, self._over, self._bytes, self._before = group.name, group.shard_group, sent, before
        self._by_hosts = by_hosts
        self._expected = sum(shard.numel for shard in group.every), group.gather_dtype
        self._used: torch.cuda.Event | None = None

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return memory of the allocator's: as FSDP's own."""
        return torch.empty(*size, dtype=dtype, device=device)

    @eagerly
    @torch.no_grad()
    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False
    ) -> dist.Work | None:
        """Gather shards (numel,), of which `input_tensor` is this rank's, to `output_tensor` (ways * numel,)."""
        self._before()
        ways, is_pending = group.size(), async_op or not output_tensor.is_cuda
        dense = (ways - 1) * input_tensor.nbytes
        self._bytes.dense += dense
        if self.travels is None or group is not self._over:
            # With reshard_after_forward=N a backward gather stays within N ranks, and its input is rounded already.
            self._bytes.sent += dense
            work: dist.Work | None = dist.all_gather_into_tensor(output_tensor, input_tensor, group, async_op)
            return work
        if (found := (input_tensor.numel(), input_tensor.dtype)) != self._expected:
            raise UnsupportedError(
                f"FSDP gathers {found[0]} elements of {self._name} as {found[1]}, and compress() has found "
                f"{self._expected[0]} as {self._expected[1]}: convert the model before compress()"
            )
        self._wait_for_last(output_tensor)
        pending = Pending(partial(self._end, self._begin(input_tensor, group), output_tensor.view(ways, -1)))
        if is_pending:
            return pending
        pending.wait()
        return None

    def _begin(self, shard: torch.Tensor, group: Any) -> Finish:
        assert self.travels is not None
        is_backward = torch._C._current_graph_task_id() != -1
        if is_backward and (finish := self.travels.kept()) is not None:
            return finish
        return self.travels.gather(shard, group.rank(), partial(self._start, group))

    def _start(self, group: Any, message: torch.Tensor) -> Messages:
        self._bytes.sent += (group.size() - 1) * message.numel()
        if message.is_cpu:
            return self._by_hosts().start(message)
        messages = message.new_empty(group.size(), message.numel())
        work: Any = dist.all_gather_into_tensor(messages.view(-1), message, group, async_op=True)

        def wait() -> torch.Tensor:
            work.wait()
            return messages

        return wait

    def _end(self, finish: Finish, out: torch.Tensor) -> None:
        try:
            finish(out)
        except BaseException:
            out.fill_(torch.nan)  # FSDP goes on with it where a program catches the error
            raise
        if out.is_cuda:
            self._used = torch.cuda.current_stream(out.device).record_event()

    def _wait_for_last(self, out: torch.Tensor) -> None:
        """The copy may have been written on another stream."""
        if self._used is not None:
            torch.cuda.current_stream(out.device).wait_event(self._used)


class Pending(dist.Work):
    """A gather under way, for which FSDP waits where it needs the parameters."""

    def __init__(self, end: Callable[[], None]) -> None:
        super().__init__()
        self._end: Callable[[], None] | None = end

    def wait(self, timeout: Any = None) -> bool:
        """Wait, and write the parameters."""
        end, self._end = self._end, None
        if end is not None:
            with torch.no_grad():
                end()
        return True
