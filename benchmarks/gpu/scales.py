"""How much a check compares and measures."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Scale:
    """Numbers of elements, and how often.

    Attributes:
        sizes: elements of inputs that are compared, `rounds` times each.
        large: elements of inputs that are compared once or twice.
        graph: elements of inputs of a captured graph.
        numel: elements of what is timed.
        bucket: elements of the bucket whose tail is timed: 64 MiB of fp32.
        few: elements around which top-k goes from its queue to its bracket, and `ks` of them to select.
        repetitions: of a kernel that is timed, and `peer_repetitions` of what torch and cub do.
        training: options of training.py.
    """

    sizes: tuple[int, ...] = (0, 1, 5, 63, 4095, 4096, 4097, 16_384, 70_001, 1_000_003)
    rounds: int = 20
    large: tuple[int, ...] = (5_000_003, 100_000_007)
    graph: int = 300_001
    numel: int = 100_000_000
    bucket: int = 1 << 24
    few: tuple[int, ...] = (16_384, 65_536, 131_072, 262_144, 524_288)
    ks: tuple[int, ...] = (64, 512, 2048)
    repetitions: int = 50
    peer_repetitions: int = 10
    training: dict[str, int] = field(default_factory=dict)


SCALES = {
    "full": Scale(),
    "sanitized": Scale(sizes=Scale.sizes[:-1], rounds=3),
    "tiny": Scale(
        sizes=(0, 1, 63, 4097),
        rounds=6,
        large=(20_011,),
        graph=5003,
        numel=65_536,
        bucket=16_384,
        few=(4096,),
        ks=(64,),
        repetitions=2,
        peer_repetitions=1,
        training={"numel": 2003, "width": 8, "repetitions": 1},
    ),
}
"""By name: what `run` does; what runs under a sanitizer, where every access takes a hundred times as long; and one that
shows in seconds, on a CPU too, that the check itself works."""
