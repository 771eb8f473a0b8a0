"""The coder of block codes: there and back, its length next to the entropy, and payloads that are none."""

from __future__ import annotations

import hashlib
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvd_compress import native
from hvd_compress.errors import ConfigError, MismatchError, PayloadError
from hvd_compress.native import BlockFormat
from tests.native.cases import examples
from tests.native.conftest import COMPILED

CODABLE = (4, 3, 2.5, 2)
GUARD = 64
SIZES = st.one_of(st.integers(0, 70), st.sampled_from([999, 16_384, 16_385, 32_768, 32_769, 70_001]))
KINDS = {
    "normal": lambda n, generator: torch.randn(n, generator=generator),
    "few": lambda n, generator: torch.randn(n, generator=generator) * (torch.rand(n, generator=generator) < 0.05),
    "zeros": lambda n, generator: torch.zeros(n),
    "equal": lambda n, generator: torch.ones(n),
    "any bytes": None,
    "mixed": lambda n, generator: torch.randn(n, generator=generator),
}
STRANGE = {4: 0x88, 3: 0xFF, 2.5: 0xFF, 2: 0xAA}
"""Bytes of codes that no quantiser writes; where digits share a number, all of a group are the same."""


def codes_of(kind: str, numel: int, form: BlockFormat, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    draw = KINDS[kind]
    if draw is None:  # some of which no quantiser writes
        return torch.randint(256, (form.code_bytes(numel),), generator=generator, dtype=torch.uint8)
    codes = native.block_quantize(draw(numel, generator), None, form).codes
    if kind == "mixed":  # a chunk that cannot be shortened before others, and one symbol that has no code word
        first = form.code_bytes(min(numel, 16_384 if form.bits == 4 else 32_768))
        codes[:first] = torch.randint(256, (first,), generator=generator, dtype=torch.uint8)
        codes[-(form.code_bytes(64) if codes.numel() else 0) :] = STRANGE[form.bits]
    return codes


def encoded(codes: torch.Tensor, numel: int, form: BlockFormat) -> torch.Tensor:
    """Encode by what is tested, a GPU's twin perhaps, which must write what the CPU's does."""
    coded, right = native.block_encode(codes, numel, form), torch.empty(form.coded_bytes(numel), dtype=torch.uint8)
    count = COMPILED.block_encode(codes.data_ptr(), numel, form.most, right.data_ptr())
    assert torch.equal(coded, right[:count])
    return coded


def refuses(coded: torch.Tensor, numel: int, form: BlockFormat, into: torch.Tensor) -> bool:
    """Decode by what is tested, which must refuse what the CPU's twin does, and make the same codes of the rest."""
    right = torch.empty_like(into)
    good = COMPILED.block_decode(coded.data_ptr(), coded.numel(), numel, form.most, right.data_ptr())
    if good:
        assert torch.equal(native.block_decode(coded, numel, form, into=into), right)
        return False
    with pytest.raises(PayloadError):
        native.block_decode(coded, numel, form, into=into)
    return True


def student_t(numel: int, freedom: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    normal, squares = torch.randn(numel, generator=generator), torch.randn(freedom, numel, generator=generator).square()
    return normal / squares.mean(0).sqrt()


def entropy(x: torch.Tensor, form: BlockFormat) -> float:
    """Bits of an element: how often each whole number occurs, which by its unit is what was sent."""
    sent = native.block_quantize(x, None, form)
    values = torch.empty_like(x)
    native.block_sum([sent], values, form, 1.0)
    units = sent.units.float().repeat_interleave(form.block)[: x.numel()]
    shares = torch.round(values / units).unique(return_counts=True)[1].double() / x.numel()
    return float(-(shares * shares.log2()).sum())


@given(numel=SIZES, bits=st.sampled_from(CODABLE), kind=st.sampled_from(list(KINDS)), seed=st.integers(0, 99))
@examples(150)
def test_what_was_encoded_is_decoded(numel: int, bits: float, kind: str, seed: int) -> None:
    form = BlockFormat(bits)
    codes = codes_of(kind, numel, form, seed)
    coded = encoded(codes, numel, form)
    assert coded.numel() <= form.coded_bytes(numel)
    assert torch.equal(native.block_decode(coded, numel, form), codes)


@pytest.mark.level2
def test_there_may_be_more_chunks_than_a_block_has_threads() -> None:
    form, numel = BlockFormat(4), 1030 * 16_384 + 5
    codes = torch.zeros(form.code_bytes(numel), dtype=torch.uint8)
    codes[::40_009] = 0x88
    assert torch.equal(native.block_decode(encoded(codes, numel, form), numel, form), codes)


INPUTS = {"normal": (lambda: torch.randn(10**6, generator=torch.Generator().manual_seed(2)), 1.03)}
INPUTS["Student's t"] = lambda: student_t(10**6, 3), 1.05


@pytest.mark.parametrize("bits", CODABLE)
@pytest.mark.parametrize("name", INPUTS)
def test_its_length_is_that_of_the_entropy(bits: float, name: str) -> None:
    form, (draw, above) = BlockFormat(bits, fit="ternary" if bits == 2 else "max"), INPUTS[name]
    x = draw()
    codes = native.block_quantize(x, None, form).codes
    coded = native.block_encode(codes, x.numel(), form)
    assert torch.equal(native.block_decode(coded, x.numel(), form), codes)
    assert 0.9 < 8 * coded.numel() / x.numel() / entropy(x, form) < above


@pytest.mark.parametrize("bits", CODABLE)
def test_what_cannot_be_shortened_is_a_byte_a_chunk_longer(bits: float) -> None:
    form, numel = BlockFormat(bits), 300_000
    coded = native.block_encode(codes_of("any bytes", numel, form), numel, form)
    assert coded.numel() == form.coded_bytes(numel)
    assert coded.numel() / form.code_bytes(numel) < 1.001


DIGESTS = {
    4: "9d21e6bb52a766cb",
    3: "e5c39b22f58a993b",
    2.5: "3451723304fadd05",
    2: "4303d2d47addd745",
}


@pytest.mark.parametrize("bits", CODABLE)
def test_the_bytes_are_those_of_earlier_versions(bits: float) -> None:
    form, numel = BlockFormat(bits), 40_000
    x = torch.sin(torch.arange(numel, dtype=torch.float64) ** 1.5).float()
    coded = native.block_encode(native.block_quantize(x, None, form).codes, numel, form)
    assert hashlib.sha256(bytes(coded.numpy())).hexdigest()[:16] == DIGESTS[bits]


@pytest.mark.parametrize("bits", CODABLE)
def test_its_parts_lie_as_the_format_says(bits: float) -> None:
    form, numel = BlockFormat(bits), 40_000
    coded = native.block_encode(codes_of("normal", numel, form), numel, form)
    chunks = math.ceil(numel / 64 * (2 if bits == 4 else 1) / 512)
    lengths = coded[chunks : 33 * chunks].clone().view(torch.int16).sum()
    assert coded[:chunks].max() < 16
    assert coded.numel() == 33 * chunks + lengths


CHANGES = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=4)


@given(
    bits=st.sampled_from(CODABLE),
    numel=st.sampled_from([64, 700, 5000, 40_000]),
    changes=CHANGES,
    longer=st.integers(-40, 40),
)
@examples(300)
def test_what_is_no_code_is_refused(bits: float, numel: int, changes: list[tuple[int, int]], longer: int) -> None:
    form = BlockFormat(bits)
    coded = native.block_encode(codes_of("normal", numel, form), numel, form)
    bad = torch.zeros(max(0, coded.numel() + longer), dtype=torch.uint8)
    kept = min(bad.numel(), coded.numel())
    bad[:kept] = coded[:kept]
    for number, (place, byte) in enumerate(changes):  # every other one of tables and lengths
        if bad.numel():
            bad[place % (bad.numel() if number % 2 else min(bad.numel(), 33 * math.ceil(numel / 16_384)))] = byte
    whole = torch.full((form.code_bytes(numel) + 2 * GUARD,), 7, dtype=torch.uint8)
    refused = refuses(bad, numel, form, whole[GUARD:-GUARD])
    if not changes:
        assert refused == (longer != 0)
    if not refused:  # then it is a code
        codes = whole[GUARD:-GUARD].clone()
        assert torch.equal(native.block_decode(native.block_encode(codes, numel, form), numel, form), codes)
    assert whole[:GUARD].eq(7).all()
    assert whole[-GUARD:].eq(7).all()


@pytest.mark.parametrize("bits", CODABLE)
def test_streams_are_as_long_as_their_words(bits: float) -> None:
    """A byte too many in one and too few in another, bits after the last word, and more than a chunk can have."""
    form, numel = BlockFormat(bits), 64
    whole = torch.empty(form.code_bytes(numel), dtype=torch.uint8)
    coded = native.block_encode(codes_of("zeros", 20_000, form), 20_000, form)
    first = math.ceil(20_000 / (16_384 if bits == 4 else 32_768))
    moved = coded.clone()
    moved[first] += 1
    moved[first + 2] -= 1
    padded = coded.clone()
    padded[-1] |= 0x80
    into = torch.empty(form.code_bytes(20_000), dtype=torch.uint8)
    assert [refuses(each, 20_000, form, into) for each in (coded, moved, padded)] == [False, True, True]
    longest = torch.zeros(1 + 32 + 16 * 0xFFFF, dtype=torch.uint8)
    longest[1:33] = 0xFF
    assert refuses(longest, numel, form, whole)


def test_it_says_what_it_is_not() -> None:
    coded = native.block_encode(codes_of("normal", 5000, BlockFormat(3)), 5000, BlockFormat(3))
    for bad, numel in ((coded[:-1].clone(), 5000), (coded, 5065), (torch.cat([coded, coded]), 5000)):
        with pytest.raises(PayloadError, match=f"^{bad.numel()} bytes are no code of {numel} elements in 3 bits"):
            native.block_decode(bad, numel, BlockFormat(3))


def test_each_thread_writes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    form, numel = BlockFormat(3), 500_000
    codes, found = codes_of("normal", numel, form), []
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("HVD_COMPRESS_NUM_THREADS", threads)
        found.append(native.block_encode(codes, numel, form))
        assert torch.equal(native.block_decode(found[-1], numel, form), codes)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_whose_codes_these_are_must_fit() -> None:
    with pytest.raises(ConfigError, match="codes of 8 bits cannot be coded"):
        BlockFormat(8).coded_bytes(10)
    with pytest.raises(MismatchError, match="32 bytes of codes for 65 elements, expected 64"):
        native.block_encode(torch.zeros(32, dtype=torch.uint8), 65, BlockFormat(4))
    with pytest.raises(ConfigError, match="numel = -1"):
        native.block_encode(torch.zeros(32, dtype=torch.uint8), -1, BlockFormat(4))
