"""Which parameters of a module travel in few bits, and which as they are."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hvd_compress.errors import ConfigError
from hvd_compress.frontends.fsdp.groups import ParamGroup, Shard

FEWEST = 4096
"""Elements of a parameter below which bits save nothing that a step would notice."""


@dataclass(frozen=True)
class Pieces:
    """How the parameters of a group lie in what a rank gathers, (numel,), one after another.

    Attributes:
        few: parts that travel in few bits.
        exact: parts that travel as they are.
    """

    few: tuple[slice, ...]
    exact: tuple[slice, ...]

    @classmethod
    def of(cls, group: ParamGroup, patterns: Sequence[str]) -> Pieces:
        """Return those of a group, where parameters whose names match a pattern are exact, too."""
        found: dict[bool, list[slice]] = {False: [], True: []}
        start = 0
        for shard in group.every:
            stop = start + shard.numel
            parts = found[is_exact(shard, patterns)]
            if parts and parts[-1].stop == start:
                parts[-1] = slice(parts[-1].start, stop)
            elif stop > start:
                parts.append(slice(start, stop))
            start = stop
        return cls(tuple(found[False]), tuple(found[True]))

    @property
    def numel(self) -> int:
        """Of all parts."""
        return self.few_numel + self.exact_numel

    @property
    def few_numel(self) -> int:
        return _numel(self.few)

    @property
    def exact_numel(self) -> int:
        return _numel(self.exact)

    def split(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what of the values (numel,) travels in few bits, (few_numel,), and the rest, (exact_numel,)."""
        return _joined(values, self.few), _joined(values, self.exact)

    def spread(self, few: torch.Tensor, exact: torch.Tensor, out: torch.Tensor) -> None:
        """Write few (ways, few_numel) and exact (ways, exact_numel) to their places in `out` (ways, numel)."""
        for values, parts in ((few, self.few), (exact, self.exact)):
            start = 0
            for part in parts:
                stop = start + part.stop - part.start
                out[:, part].copy_(values[:, start:stop])
                start = stop


def is_exact(shard: Shard, patterns: Sequence[str]) -> bool:
    """Whether a parameter travels as it is: a norm, a bias, a small one, or one that a pattern names."""
    whole = shard.parameter
    return whole.dim() < 2 or whole.numel() < FEWEST or any(fnmatch.fnmatchcase(shard.name, each) for each in patterns)


def checked_patterns(exact: Any) -> tuple[str, ...]:
    """Return patterns of names. Raises ConfigError for what is none."""
    if isinstance(exact, Sequence) and not isinstance(exact, str) and all(isinstance(each, str) for each in exact):
        return tuple(exact)
    raise ConfigError(f"exact={exact!r} are no names: pass a list of patterns, such as ['embed.*']")


def check_patterns(groups: Sequence[ParamGroup], patterns: Sequence[str]) -> None:
    """Raise ConfigError where a pattern matches no parameter."""
    names = [shard.name for group in groups for shard in group.every]
    for pattern in patterns:
        if fnmatch.filter(names, pattern):
            continue
        near = difflib.get_close_matches(pattern, names, n=1, cutoff=0.0)[0]
        within = f"{pattern}.*" if fnmatch.filter(names, f"{pattern}.*") else near
        raise ConfigError(f"exact= names {pattern!r}, and no parameter is called so; write {within!r}, for example")


def require_untied(model: torch.nn.Module, groups: Sequence[ParamGroup]) -> None:
    """Raise ConfigError where a parameter of one group is used by a module of another: it would be gathered twice."""
    owners = {id(each): (group, shard) for group in groups for shard in group.every for each in shard.known}
    modules = {id(module): group for group in groups for module in group.modules}
    for name, module in model.named_modules(remove_duplicate=False):
        for parameter in module.parameters(recurse=False):
            owner = owners.get(id(parameter))
            if owner is not None and owner[0] is not _within(model, name, modules):
                raise ConfigError(
                    f"{owner[1].name!r} of {owner[0].name} is tied to a weight of {name!r}, which is sharded apart and "
                    "would be rounded for one of them alone: fully_shard([...]) both modules together, or leave "
                    "parameters= out"
                )


def _within(model: torch.nn.Module, name: str, groups: Mapping[int, ParamGroup]) -> ParamGroup | None:
    """Return the group of the innermost module around `name` that has one."""
    found, module = groups.get(id(model)), model
    for part in filter(None, name.split(".")):
        module = getattr(module, part)
        found = groups.get(id(module), found)
    return found


def _joined(values: torch.Tensor, parts: Sequence[slice]) -> torch.Tensor:
    """Return parts of the values one after another: a view where they are all, else a copy."""
    if _numel(parts) == values.numel():
        return values
    return torch.cat([values[part] for part in parts]) if parts else values[:0]


def _numel(parts: Sequence[slice]) -> int:
    return sum(part.stop - part.start for part in parts)
