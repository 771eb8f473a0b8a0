"""Parameters of an FSDP2 model, gathered in few bits at FSDP's own place for custom collectives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import distributed as dist

from hvd_compress.errors import ConfigError, UnsupportedError
from hvd_compress.frontends.eagerly import eagerly
from hvd_compress.frontends.fsdp.agreement import GatherAgreement
from hvd_compress.frontends.fsdp.encodings import encoding_of
from hvd_compress.frontends.fsdp.gathers import Gathers
from hvd_compress.frontends.fsdp.groups import ParamGroup, groups_of
from hvd_compress.frontends.fsdp.messages import Differences, Finish, Messages, Weights
from hvd_compress.frontends.fsdp.pieces import Pieces, check_patterns, require_untied


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


class ParameterGathers:
    """The gathers of all groups of a model.

    Attributes:
        form: how parameters travel.
        bytes: what was sent.
    """

    def __init__(
        self, groups: Sequence[ParamGroup], form: Gathers, exact: Sequence[str], before: Callable[[], None]
    ) -> None:
        """Nothing is communicated yet.

        Args:
            groups: all that FSDP gathers, of which require_gathers() refuses none.
            exact: patterns of the names of parameters that travel as they are.
            before: called before each gather; raises what keeps ranks from one.
        """
        self.form, self.bytes = form, GatheredBytes()
        self._differences: dict[str, Differences] = {}
        for group in groups:
            group.install_gather(AllGatherComm(group, self._travels(group, exact), self.bytes, before))

    def _travels(self, group: ParamGroup, exact: Sequence[str]) -> Weights | None:
        pieces = Pieces.of(group, exact)
        if self.form.compressor is None or not pieces.few:
            return None
        kind = Differences if self.form.of_differences else Weights
        found = kind(pieces, encoding_of(self.form.compressor), group.gather_dtype)
        if isinstance(found, Differences):
            self._differences[group.name] = found
        return found

    def saved(self) -> dict[str, torch.Tensor]:
        """Return this rank's parts of the copies of differences, by group."""
        found = {name: each.saved() for name, each in self._differences.items()}
        return {name: part for name, part in found.items() if part is not None}

    def load(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Go on from what saved() returned, on all ranks; what is missing is gathered exactly at first.

        Raises ConfigError where it is of other modules, or of other parameters; nothing has changed then.
        """
        for name, part in saved.items():
            if name not in self._differences:
                continue  # gathered in another form now, which remembers nothing
            self._differences[name].require_fits(name, part)
        for name, each in self._differences.items():
            each.load(saved.get(name))

    def forget(self) -> None:
        """Parameters were loaded: gather them exactly."""
        for each in self._differences.values():
            each.forget()


class AllGatherComm:
    """What FSDP calls instead of its all-gather (`set_custom_all_gather`)."""

    def __init__(
        self, group: ParamGroup, travels: Weights | None, sent: GatheredBytes, before: Callable[[], None]
    ) -> None:
        self._name, self._over, self._travels, self._bytes, self._before = (
            group.name, group.shard_group, travels, sent, before
        )  # fmt: skip
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
        if self._travels is None or group is not self._over:
            # After a forward pass within a smaller mesh shards are of gathered parameters, on a host that has them all.
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
        assert self._travels is not None
        is_backward = torch._C._current_graph_task_id() != -1
        if is_backward and (finish := self._travels.kept()) is not None:
            return finish

        def start(message: torch.Tensor) -> Messages:
            messages = message.new_empty(group.size(), message.numel())
            self._bytes.sent += (group.size() - 1) * message.numel()
            work: Any = dist.all_gather_into_tensor(messages.view(-1), message, group, async_op=True)

            def wait() -> torch.Tensor:
                work.wait()
                return messages

            return wait

        return self._travels.gather(shard, group.rank(), start)

    def _end(self, finish: Finish, out: torch.Tensor) -> None:
        finish(out)
        if out.is_cuda:
            self._used = torch.cuda.current_stream(out.device).record_event()

    def _wait_for_last(self, out: torch.Tensor) -> None:
        """What the last gather has left is read after it, whichever stream that was in."""
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


def gather(
    model: torch.nn.Module,
    groups: Sequence[ParamGroup],
    form: Gathers | None,
    exact: Sequence[str],
    timeout_s: float,
) -> tuple[ParameterGathers | None, Callable[[], None]]:
    """Have FSDP gather the parameters of a model in a form; None leaves that to FSDP.

    Args:
        groups: those with trainable parameters.
        exact: as compress().
        timeout_s: how long ranks wait for each other.

    Returns:
        The gathers, and what compares them with other ranks' before the first: all ranks call it.

    Raises ConfigError, UnsupportedError for what cannot be had.
    """
    every, shards = [*groups, *groups_of(model, frozen=True)], groups[0].shard_group
    check_patterns(every, exact)
    if form is None and exact:
        raise ConfigError("exact= names parameters that travel as they are, and without parameters= all do: leave it")
    if shards is None or shards.size() == 1:
        if form is not None:
            raise ConfigError("parameters= is for shards, and each rank has all parameters: leave it out")
        return None, lambda: None
    words = "as FSDP does" if form is None else "; ".join([form.words, *(f"{each} exactly" for each in exact)])
    if form is not None:
        require_untied(model, every)
        for group in every:
            require_gathers(group)
    agreement = GatherAgreement(words, shards, timeout_s)
    if form is None:
        return None, agreement.check
    found = ParameterGathers(every, form, exact, agreement.check)
    model.register_load_state_dict_post_hook(lambda *_: found.forget())  # type: ignore[no-untyped-call]
    return found, agreement.check


def require_gathers(group: ParamGroup) -> None:
    """Raise UnsupportedError for a group whose parameters cannot travel in few bits."""
    if group.has_own_gather:
        raise UnsupportedError(
            f"{group.name} is gathered by something else already: leave set_custom_all_gather(), "
            "set_symm_mem_for_comm() and set_allocate_memory_from_process_group_for_comm() out, or parameters="
        )
    dtypes = sorted({str(dtype) for dtype in group.gather_dtypes})
    if len(dtypes) != 1 or group.gather_dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise UnsupportedError(
            f"parameters of {group.name} are gathered as {', '.join(dtypes)}: call fully_shard() for modules of one "
            "dtype each, float32, bfloat16 or float16, or leave parameters= out"
        )
    for shard in group.every:
        if hasattr(shard.local(), "fsdp_pre_all_gather"):
            raise UnsupportedError(
                f"{shard.name!r} has a gather of its own, as float8 tensors have: leave parameters= out"
            )
