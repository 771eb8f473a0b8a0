"""What an engine can do, and what it says where it is asked for something else."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hvd_compress.checks import check_choice
from hvd_compress.engines.names import KNOWN
from hvd_compress.errors import ConfigError, UnsupportedError


@dataclass(frozen=True)
class Capabilities:
    """What an engine can do.

    `algorithms`, `broadcasts` and `allgathers` are what it can force of an allreduce, a broadcast and an all-gather,
    "auto" aside; `devices` the kinds of devices whose memory it takes, the one to measure with first; `splits` whether
    `Engine.split` works; `aborts` whether `Engine.abort` does; `hosts` as `Engine.hosts`, empty before `Engine.locate`;
    `takes_shorter` as the engine's, false before that.
    """

    verbs: tuple[str, ...]
    algorithms: tuple[str, ...]
    sum_dtypes: tuple[torch.dtype, ...]
    broadcasts: tuple[str, ...] = ()
    allgathers: tuple[str, ...] = ()
    devices: tuple[str, ...] = ("cpu",)
    splits: bool = False
    aborts: bool = False
    hosts: tuple[int, ...] = ()
    takes_shorter: bool = False

    def forcible(self, verb: str) -> tuple[str, ...]:
        """Return the algorithms of `verb` that can be forced; none for verbs that have only one way."""
        return {"allreduce": self.algorithms, "broadcast": self.broadcasts, "allgather": self.allgathers}.get(verb, ())

    def require(
        self, name: str, world_size: int, verb: str, algorithm: str = "auto", dtype: torch.dtype | None = None
    ) -> None:
        """Raise UnsupportedError, or ConfigError for an unknown name, unless the engine that has these can do it."""
        check_choice("algorithm", algorithm, ("auto", *KNOWN.get(verb, ())), f" of {verb}")
        if verb not in self.verbs:
            raise UnsupportedError(f"the {name} engine has no {verb}; it has {', '.join(self.verbs)}")
        if algorithm != "auto" and algorithm not in self.forcible(verb):
            offered = ", ".join(("auto", *self.forcible(verb)))
            raise UnsupportedError(
                f"the {name} engine cannot force algorithm {algorithm!r} of {verb} over {world_size} ranks here; it "
                f"offers {offered}. Leave algorithm at 'auto', or say .by(engine='mpi') of the compression, in a job "
                "that mpirun has launched"
            )
        if dtype is not None and dtype not in self.sum_dtypes:
            raise UnsupportedError(f"the {name} engine cannot sum {dtype}")

    def require_layout(self, name: str, tensor: torch.Tensor) -> None:
        """Raise ConfigError for a tensor that the engine does not take.

        Engines hand the bare memory to their transport, so anything but a flat tensor would move wrong bytes.
        """
        if tensor.dim() != 1 or not tensor.is_contiguous() or tensor.device.type not in self.devices:
            shape, known = tuple(tensor.shape), " or ".join(self.devices)
            raise ConfigError(
                f"the {name} engine takes contiguous one-dimensional tensors on {known}, not {shape} on {tensor.device}"
            )
