"""Parameters of an FSDP2 model, gathered in few bits at FSDP's own place for custom collectives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import distributed as dist

from hvd_compress.errors import ConfigError, UnsupportedError
from hvd_compress.frontends.fsdp.agreement import GatherAgreement
from hvd_compress.frontends.fsdp.all_gather import AllGatherComm, GatheredBytes
from hvd_compress.frontends.fsdp.by_hosts import HostGather, host_gather
from hvd_compress.frontends.fsdp.gather_search import Agree, GatherSearch
from hvd_compress.frontends.fsdp.gathers import SEARCHED, Gathers
from hvd_compress.frontends.fsdp.groups import ParamGroup, groups_of
from hvd_compress.frontends.fsdp.messages import Differences, Weights
from hvd_compress.frontends.fsdp.pieces import Pieces, check_patterns, require_untied
from hvd_compress.native.blocks import MAX_BLOCK
from hvd_compress.settings import Settings
from hvd_compress.warned import warn_caller


class ParameterGathers:
    """The gathers of all groups of a model.

    Attributes:
        form: how parameters travel.
        asked: what the program has asked for, in words that ranks compare.
        bytes: what was sent.
        search: of the form in which they travel, where that is chosen by real steps.
    """

    def __init__(
        self,
        groups: Sequence[ParamGroup],
        form: Gathers,
        exact: Sequence[str],
        asked: str,
        before: Callable[[], None],
        timeout_s: float,
    ) -> None:
        """Nothing is communicated yet.

        Args:
            groups: all that FSDP gathers, of which require_gathers() refuses none.
            form: how parameters travel; at first, where that is searched.
            exact: patterns of the names of parameters that travel as they are.
            asked: as the attribute.
            before: called before each gather; raises what keeps ranks from one.
            timeout_s: how long ranks may let each other wait.
        """
        self.bytes, self._exact = GatheredBytes(), exact
        self.search: GatherSearch | None = None
        self._over, self._timeout_s = groups[0].shard_group, timeout_s
        self.asked = asked
        self._comms = [(group, AllGatherComm(group, self.bytes, before, lambda: self._by_hosts)) for group in groups]
        self._differences: dict[str, Differences] = {}
        self.use(form)
        for group, comm in self._comms:
            group.install_gather(comm)

    def use(self, form: Gathers) -> None:
        """Gather in this form from now on, on all ranks alike."""
        self.form = form
        for group, comm in self._comms:
            comm.travels = self._travels(group, form)

    @cached_property
    def _by_hosts(self) -> HostGather:
        assert self._over is not None
        return host_gather(self._over, self._timeout_s)

    def figures(self) -> dict[str, float]:
        """Return what metrics show."""
        tried = {} if self.search is None else self.search.found_s
        form = self.form if self.saves else Gathers()
        return {f"gathers/{form.words}": 1.0, **{f"step_s_of_gathers/{name}": each for name, each in tried.items()}}

    @property
    def saves(self) -> bool:
        """Whether some parameters travel in few bits."""
        return any(comm.travels is not None for _, comm in self._comms)

    def end_step(self, agree: Agree) -> None:
        """A step is over, on all ranks.

        Args:
            agree: as GatherSearch.end_step().
        """
        if self.search is not None:
            self.search.end_step(agree)

    def _travels(self, group: ParamGroup, form: Gathers) -> Weights | None:
        pieces = Pieces.of(group, self._exact)
        if form.encoding is None or not pieces.few or group.shard_group is not self._over:
            return None
        if not _saves(form, group):
            return None
        if not form.of_differences:
            return Weights(pieces, form.encoding, group.gather_dtype)
        found = Differences(pieces, form.encoding, group.gather_dtype)
        self._differences[group.name] = found
        return found

    def saved(self) -> dict[str, torch.Tensor]:
        """Return this rank's parts of the copies of differences, by group."""
        return {name: each.saved() for name, each in self._differences.items()}

    def require_fits(self, saved: Mapping[str, Any]) -> None:
        """Raise ConfigError for what saved() has not returned, of these parameters."""
        for name, part in saved.items():
            if name in self._differences:  # else it is gathered in another form now, which remembers nothing
                self._differences[name].require_fits(name, part)

    def load(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Go on from what saved() returned, on all ranks; what is missing is gathered exactly at first."""
        for name, each in self._differences.items():
            each.load(saved.get(name))

    def forget(self, name: str, *_: Any) -> None:
        """Parameters of a group were loaded: gather them exactly. All ranks load alike."""
        if name in self._differences:
            self._differences[name].forget()


def gather(
    model: torch.nn.Module,
    groups: Sequence[ParamGroup],
    form: Gathers | None,
    exact: Sequence[str],
    settings: Settings,
    after: int,
) -> tuple[ParameterGathers | None, Callable[[], None]]:
    """Have FSDP gather the parameters of a model in a form; None leaves that to FSDP.

    Args:
        groups: those with trainable parameters.
        exact: as compress().
        after: steps before forms are tried, where auto() chooses one.

    Returns:
        The gathers, and what compares them with other ranks' before the first: all ranks call it.

    Raises ConfigError, UnsupportedError for what cannot be had.
    """
    every, shards = [*groups, *groups_of(model, frozen=True)], groups[0].shard_group
    check_patterns(every, exact)
    if form is None and exact:
        raise ConfigError("exact= names parameters that travel as they are, and without parameters= all do: leave it")
    if shards is None or shards.size() == 1:
        if form is not None and dist.get_world_size() > 1:
            raise ConfigError("parameters= is for shards, and each rank has all parameters: leave it out")
        return None, lambda: None
    if form is not None and form.is_searched and not settings.adapt:
        form = SEARCHED[-1]  # nothing may be measured, and this sends the fewest bytes
    words = "as FSDP does" if form is None else "; ".join([form.words, *(f"{each} exactly" for each in exact)])
    if form is not None:
        require_untied(model, every)
        for group in every:
            require_gathers(group)
    names = [f"{shard.name} {shard.padded}" for group in every for shard in group.every]
    agreement = GatherAgreement(words, names, shards, settings.timeout_s)
    if form is None:
        return None, agreement.check
    first = SEARCHED[0] if form.is_searched else form
    found = ParameterGathers(every, first, exact, words, agreement.check, settings.timeout_s)
    if form.encoding is not None and not found.saves:
        warn_caller(
            "parameters= changes nothing: all are small, have one dimension, are named by exact=, or travel in as few "
            "bits already. Leave it out"
        )
    for group in every:  # any part of the model may be loaded
        for module in group.holders:
            module.register_load_state_dict_post_hook(partial(found.forget, group.name))  # type: ignore[no-untyped-call]
    if form.is_searched:
        found.search = _search(found, shards, groups[0], after)
    return found, agreement.check


def _search(gathers: ParameterGathers, over: dist.ProcessGroup, group: ParamGroup, after: int) -> GatherSearch:
    forms = [form for form in SEARCHED if form.encoding is None or _saves(form, group)]
    words = [form.words for form in forms]
    return GatherSearch(words, lambda number: gathers.use(forms[number]), over, group.device, after)


def _saves(form: Gathers, group: ParamGroup) -> bool:
    """Whether a form takes fewer bytes than FSDP's own gathers, as bf16 does not of bf16."""
    assert form.encoding is not None
    return form.encoding.nbytes(MAX_BLOCK) < MAX_BLOCK * group.gather_dtype.itemsize


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
            f"parameters of {group.name} are gathered as {', '.join(dtypes)}: give fully_shard() an mp_policy with one "
            "param_dtype for all, as MixedPrecisionPolicy(param_dtype=torch.bfloat16), or call it for modules of one "
            "dtype each, float32, bfloat16 or float16; or leave parameters= out"
        )
    for shard in group.every:
        if hasattr(shard.local(), "fsdp_pre_all_gather"):
            raise UnsupportedError(
                f"{shard.name!r} has a gather of its own, as float8 tensors have: leave parameters= out"
            )
