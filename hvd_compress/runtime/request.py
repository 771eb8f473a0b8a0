"""What a rank wants done with a tensor, and what all ranks do with one or several."""

from __future__ import annotations

from typing import Any, NamedTuple

ALLREDUCE, ALLGATHER, BROADCAST = "allreduce", "allgather", "broadcast"
ALLTOALL, REDUCESCATTER, BARRIER = "alltoall", "reducescatter", "barrier"
JOIN = "join"
"""Of a response alone: all ranks have joined."""
LEAVE = "leave"
"""Of a response alone: nothing is answered after it."""
ADD_SET, REMOVE_SET = "new process set", "removal of a process set"
"""Asked for by all ranks. `shape` has its ranks, or its number."""

AVERAGE, SUM, MIN, MAX, PRODUCT, ADASUM = "Average", "Sum", "Min", "Max", "Product", "Adasum"


class Request(NamedTuple):
    """What one rank wants.

    Attributes:
        verb: ALLREDUCE and so on.
        name: of the tensor; ranks that submit the same one in a process set meet.
        process_set_id: of Horovod; 0 has all ranks.
        dtype: such as "float32".
        shape: of this rank's tensor.
        op: AVERAGE and so on; of an allreduce or a reduce-scatter.
        root: of a broadcast, counted in the whole job.
        prescale, postscale: what each tensor, and what their reduction, is multiplied by.
        splits: of an all-to-all: rows for each member.
        group: tensors of one group are moved together; its name, and how many it has.
    """

    verb: str
    name: str
    process_set_id: int = 0
    dtype: str = ""
    shape: tuple[int, ...] = ()
    op: str = ""
    root: int = -1
    prescale: float = 1.0
    postscale: float = 1.0
    splits: tuple[int, ...] = ()
    group: tuple[str, int] = ("", 1)

    @classmethod
    def of(cls, fields: list[Any]) -> Request:
        """Return what was sent as JSON, which knows no tuples."""
        return cls(*(_tuples(field) for field in fields))

    def describe(self) -> str:
        """Return it in words."""
        words = f"{self.verb} of {self.dtype} {list(self.shape)}" if self.dtype or self.shape else self.verb
        words += f" by {self.op}" if self.op else ""
        words += f" from rank {self.root}" if self.verb == BROADCAST else ""
        words += (
            f" times {self.prescale:.12g} and {self.postscale:.12g}"
            if (self.prescale, self.postscale) != (1, 1)
            else ""
        )
        return words + (f" in a group of {self.group[1]}" if self.group[1] > 1 else "")


class Response(NamedTuple):
    """What all members of a process set do next; those of other sets pass it by.

    Attributes:
        requests: that of the first member, of each tensor; several are moved as one.
        error: why they are not moved.
        to: only these ranks heed it; all where it is empty.
        sizes: of an all-gather, by member, the rows of its tensor; of an all-to-all, by member, its splits.
        absent: members that have joined, and take part with zeros.
        missing: the error is that a rank did not come.
        silent: it has not left either, as far as anybody knows: it may be stopped.
        last: of JOIN: the rank that joined last; of ADD_SET: the number of the new one.
    """

    requests: tuple[Request, ...]
    error: str = ""
    to: tuple[int, ...] = ()
    sizes: tuple[Any, ...] = ()
    absent: tuple[int, ...] = ()
    missing: bool = False
    last: int = -1
    silent: bool = False


def _tuples(field: Any) -> Any:
    return tuple(map(_tuples, field)) if isinstance(field, list) else field
