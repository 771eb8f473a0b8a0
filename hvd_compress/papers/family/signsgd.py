"""signSGD with majority vote: send one bit an element; the result is the sign that most ranks have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors.base import MESSAGE_BYTES, Input, Requantizer, Round, each_checked, others_of
from hvd_compress.compressors.chunked import chunks
from hvd_compress.compressors.signs import add_signs, pack_signs
from hvd_compress.errors import PayloadError
from hvd_compress.payload import Payload

FLAG_BYTES = 4

ABSTAIN = 2.0**-126
"""What is added to an element, with a sign of its own, so that zeros are counted by that sign; others keep theirs."""


@dataclass(frozen=True)
class SignSGD(Requantizer):
    """signSGD with majority vote (Bernstein et al. 2018, Algorithm 3; Bernstein et al. 2019, Algorithm 1).

    The result of every element is +1 or -1: the sign of the sum of all ranks' signs. It has no scale, and there is no
    error feedback; the learning rate says how far a step goes. Input.scale counts for nothing: an average, a sum and a
    gradient that was divided before have the same sign.

    One bit cannot say zero. What is zero (below 2^-126) votes + or -, in turn by place in the bucket, step and rank;
    and a tie is decided in turn by place and step. So neither pushes a parameter one way for long. The result is the
    same by every path over all ranks alike; with collective="hierarchical" each host has one vote, that of its sum.

    Bytes: 1/8 an element, both ways where shards have owners, and 4 for a flag. It is 1, or NaN where an element of
    the sender's is not finite; then the result is NaN, too.
    """

    kind = "quantiser"
    source = "Bernstein et al. 2018, 2019"
    message_bytes = MESSAGE_BYTES
    adds_up = False  # the result is the sign of the sum
    granule = 64  # 8 bytes; an even number, by which places alternate

    def wire(self, layout: Layout) -> tuple[Round, ...]:
        return (Round(-(-layout.numel // 8) + FLAG_BYTES),)

    def template(self, numel: int) -> Payload:
        return _empty(numel, torch.device("cpu"))

    def compress(self, corrected: torch.Tensor, layout: Layout) -> Payload:
        """Vote as rank 0 does in step 0."""
        return self.encode_shard(Input(corrected, layout, 0, 0, 1.0), slice(0, corrected.numel()), 0)

    def add_to(self, out: torch.Tensor, payload: Payload, scale: float, layout: Layout) -> None:
        payload = _checked(payload, out.numel())
        votes = torch.zeros_like(out)
        add_signs(payload["bits"], votes)
        out.add_(votes.mul_(payload["flag"]), alpha=scale)

    def encode_shard(self, work: Input, shard: slice, owner: int) -> Payload:
        return _ballot(work.gradient[shard], work.step + work.rank)

    def keep_shard(self, work: Input, shard: slice) -> None:
        """Nothing: sum_shard() takes the gradient."""

    def sum_shard(self, work: Input, shard: slice, others: Sequence[Payload]) -> Payload:
        numel, rank = shard.stop - shard.start, work.rank
        sent = each_checked(_checked, others, others_of(rank, others), numel)
        ballots = [*sent, self.encode_shard(work, shard, rank)]
        found = _empty(numel, work.gradient.device)
        for part, votes in _counts(ballots, numel, work.step):
            pack_signs(votes, found["bits"][_bytes_of(part)])
        found["flag"].copy_(_flag(ballots))
        return found

    def write(self, work: Input, parts: Sequence[tuple[slice, Sequence[Payload]]]) -> torch.Tensor:
        flags = []
        for shard, payloads in parts:
            numel, out = shard.stop - shard.start, work.gradient[shard]
            ballots = each_checked(_checked, payloads, range(len(payloads)), numel)
            flags.append(_flag(ballots))
            for part, votes in _counts(ballots, numel, work.step):
                out[part].copy_(votes.sign_().mul_(flags[-1]))
        return torch.isfinite(torch.cat(flags)).all()


def _ballot(gradient: torch.Tensor, turn: int) -> Payload:
    """Return the signs of a gradient; of zeros + and - in turn, which begins with + where `turn` is even."""
    found = _empty(gradient.numel(), gradient.device)
    found["flag"].fill_(1.0)
    parts = list(chunks(slice(0, gradient.numel()), gradient.device))
    added = _alternating(_longest(parts), turn, ABSTAIN, gradient.device)
    for part in parts:
        chunk = gradient[part]
        mean = pack_signs(chunk, found["bits"][_bytes_of(part)], added[: chunk.numel()])
        found["flag"].add_(mean * 0)  # NaN where an element is not finite
    return found


def _counts(ballots: Sequence[Payload], numel: int, step: int) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yield each chunk with the sum of its signs, fp32; a tie is half a vote for one side, in turn."""
    device = ballots[0]["bits"].device
    parts = list(chunks(slice(0, numel), device))
    halves = _alternating(_longest(parts), step, 0.5, device)
    for part in parts:
        votes = halves[: part.stop - part.start].clone()
        for ballot in ballots:
            add_signs(ballot["bits"][_bytes_of(part)], votes)
        yield part, votes


def _longest(parts: Sequence[slice]) -> int:
    """Return the elements of the first of a shard's chunks, as no other has more; 0 where there is none."""
    return parts[0].stop if parts else 0


def _flag(ballots: Sequence[Payload]) -> torch.Tensor:
    """Return (1,) fp32: 1 if all ranks' elements are finite, else NaN."""
    return torch.cat([ballot["flag"] for ballot in ballots]).mul_(0).sum(0, keepdim=True).add_(1)


def _bytes_of(part: slice) -> slice:
    """Return where the bits of a chunk lie, which begins at a whole byte."""
    return slice(part.start // 8, -(-part.stop // 8))


def _empty(numel: int, device: torch.device) -> Payload:
    bits = torch.empty(-(-numel // 8), dtype=torch.uint8, device=device)
    return Payload({"bits": bits, "flag": torch.empty(1, dtype=torch.float32, device=device)}, numel)


def _checked(payload: Payload, numel: int) -> Payload:
    """Check what was sent. On a GPU, where the host would have to wait, a flag that is none becomes NaN."""
    bits, flag = payload["bits"], payload["flag"]
    if (bits.numel(), flag.numel()) != (-(-numel // 8), 1):
        raise PayloadError(
            f"{bits.numel()} bytes of signs and {flag.numel()} flags for {numel} elements, expected {-(-numel // 8)} "
            "and 1"
        )
    wrong = (flag != 1) & ~flag.isnan()
    if flag.device.type != "cpu":
        return Payload({"bits": bits, "flag": flag.masked_fill(wrong, torch.nan)}, numel)
    if bool(wrong):
        raise PayloadError(f"a flag is {float(flag)}, neither 1 nor NaN")
    return payload


def _alternating(numel: int, first: int, size: float, device: torch.device) -> torch.Tensor:
    """Return (numel,) fp32 of `size`, with a sign that alternates: first + where `first` is even."""
    found = torch.full((numel,), size, dtype=torch.float32, device=device)
    found[1 - first % 2 :: 2].neg_()
    return found
