"""Which rows of keys and values a clustered cache keeps, and which of them attention takes together.

A row is what a head of one sequence has of all tokens: (tokens, head_dim). Rows are numbered sequence * heads + head.
Keys are kept of representatives alone, values of all. The rows lie so that heads with the same scores are neighbours,
and so are clusters of the same size: a group of c clusters of m heads is then a slice of the values, seen as (c, m,
tokens, head_dim), and a slice of the keys, seen as the same with a stride of 0 along m. Nothing is copied for
attention.

Under grouped-query attention a row of values is used with several rows of keys; each such pair is a group of its own,
with as many queries as representatives share it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Group:
    """Rows that one call of SDPA takes: c clusters of m heads, or a pair of rows with n queries.

    Attributes:
        key: the first row of keys, of `clusters` ones.
        value: the first row of values, of `clusters * members` ones.
        queries: rows of queries, clusters * n of them. `members` heads share each.
        sequences: of the batch, one a cluster, ascending.
    """

    key: int
    value: int
    members: int
    queries: tuple[int, ...]
    sequences: tuple[int, ...]

    @property
    def clusters(self) -> int:
        return len(self.sequences)

    @property
    def shared(self) -> int:
        """Queries (n) of each cluster."""
        return len(self.queries) // self.clusters

    def by_sequence(self) -> Iterator[Group]:
        """Return the group as groups of one sequence each."""
        start = 0
        while start < self.clusters:
            sequence = self.sequences[start]
            end = start + self.sequences[start:].count(sequence)
            yield Group(
                self.key + start,
                self.value + start * self.members,
                self.members,
                self.queries[start * self.shared : end * self.shared],
                self.sequences[start:end],
            )
            start = end


@dataclass(frozen=True)
class Layout:
    """Of a layer's cache.

    Attributes:
        key_rows: rows that are kept of all keys, in the order in which they lie.
        value_rows: the same of values: all of them.
        groups: for attention.
        outputs: for each head of each sequence, its place among the outputs of all groups, one behind the other.
    """

    key_rows: tuple[int, ...]
    value_rows: tuple[int, ...]
    groups: tuple[Group, ...]
    outputs: tuple[int, ...]


def whole_layout(batch: int, key_heads: int) -> Layout:
    """Return that of a cache which keeps all keys, and has no groups yet."""
    rows = tuple(range(batch * key_heads))
    return Layout(rows, rows, (), ())


def clustered_layout(source: list[list[int]], key_heads: int) -> Layout:
    """Return that of representatives.

    Args:
        source: for each sequence and head the representative of its cluster.
        key_heads: heads of keys and values.
    """
    return _by_size(source) if len(source[0]) == key_heads else _by_pair(source, key_heads)


def _by_size(source: list[list[int]]) -> Layout:
    """Each head has keys and values of its own."""
    heads = len(source[0])
    clusters = [
        (sequence, representative, [head for head in range(heads) if row[head] == representative])
        for sequence, row in enumerate(source)
        for representative in sorted(set(row))
    ]
    clusters.sort(key=lambda cluster: -len(cluster[2]))
    keys: list[int] = []
    values: list[int] = []
    groups: list[Group] = []
    for size in dict.fromkeys(len(members) for _, _, members in clusters):
        group = [cluster for cluster in clusters if len(cluster[2]) == size]
        rows = [sequence * heads + representative for sequence, representative, _ in group]
        sequences = tuple(sequence for sequence, _, _ in group)
        groups.append(Group(len(keys), len(values), size, tuple(rows), sequences))
        keys += rows
        values += [sequence * heads + head for sequence, _, members in group for head in members]
    outputs = [0] * len(values)
    for place, row in enumerate(values):
        outputs[row] = place
    return Layout(tuple(keys), tuple(values), tuple(groups), tuple(outputs))


def _by_pair(source: list[list[int]], key_heads: int) -> Layout:
    """Several heads share keys and values: of keys those stay that some representative uses."""
    heads = len(source[0])
    ratio = heads // key_heads
    keys: list[int] = []
    groups: list[Group] = []
    outputs: list[int] = []
    places = 0
    for sequence, row in enumerate(source):
        place: dict[tuple[int, int], int] = {}
        for used in sorted({representative // ratio for representative in row}):
            for value_head in range(key_heads):
                mine = row[value_head * ratio : (value_head + 1) * ratio]
                asked = sorted({representative for representative in mine if representative // ratio == used})
                if asked:
                    queries = tuple(sequence * heads + representative for representative in asked)
                    groups.append(Group(len(keys), sequence * key_heads + value_head, 1, queries, (sequence,)))
                    place |= {(value_head, representative): places + i for i, representative in enumerate(asked)}
                    places += len(asked)
            keys.append(sequence * key_heads + used)
        outputs += [place[head // ratio, representative] for head, representative in enumerate(row)]
    return Layout(tuple(keys), tuple(range(len(source) * key_heads)), tuple(groups), tuple(outputs))
