"""Compressors by the names that `hvd-compress list` prints, and by those of plans."""

from __future__ import annotations

import json

import pytest

from hvd_compress.compression import Compression
from hvd_compress.compression.named import NEEDED, compressor_named, each_of, names, request_of
from hvd_compress.compressors import COMPRESSORS
from hvd_compress.errors import ConfigError
from hvd_compress.policies.plan_settings import compressor_of
from tests.brought import brought


@pytest.mark.parametrize("name", [name for name in names() if name not in COMPRESSORS])
def test_a_name_that_is_listed_is_what_compression_gives(name: str) -> None:
    assert compressor_named(name) == request_of(name).compressor


@pytest.mark.parametrize("name", [name for name in names() if name in COMPRESSORS])
def test_every_other_name_that_is_listed_is_one_of_plans(name: str) -> None:
    kind = type(request_of(name).compressor)
    settings = ",".join(f"{key}={value}" for key, value in NEEDED.items()) if name == "threshold" else ""
    assert isinstance(compressor_named(f"{name}:{settings}"), kind)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("int4:block=128", Compression.int4(block=128)),
        ("int3", Compression.int3()),
        ("int3:coded=true", Compression.int3(coded=True)),
        ("int3:coded=True", Compression.int3(coded=True)),
        ("int2:levels=5", Compression.int2(levels=5)),
        ("int2:levels=5,coded=true", Compression.int2(levels=5, coded=True)),
        ("int4:coded=true,block=64", Compression.int4(64, coded=True)),
        ("blocks:bits=2.5", Compression.int2(levels=5)),
        ("int8: stochastic = true , seed=3", Compression.int8(stochastic=True, seed=3)),
        *brought("NAMED"),
        ("bf16", Compression.bf16()),
        ("dense", Compression.dense()),
    ],
)
def test_settings_are_arguments_of_the_function(text: str, meant: object) -> None:
    assert compressor_named(text) == meant.compressor  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("int5", r"unknown compressor 'int5'; did you mean int[248]\?"),
        ("fp16", r"unknown compressor 'fp16'; did you mean half\?"),
        ("none", r"did you mean dense\?"),
        ("INT4", r"did you mean int4\?"),
        ("blcoks:bits=4", r"did you mean blocks\?"),
        ("gzip", "unknown compressor 'gzip'; known are topk, .*int4, .*blocks"),
        ("int4:bits=8", "int4 has no setting 'bits'; it has block, stochastic, coded, seed"),
        ("int4:blck=128", r"int4 has no setting 'blck'; it has block, stochastic, coded, seed; did you mean block\?"),
        ("int4:scheme=allgather", "int4 has no setting 'scheme'"),
        ("int4:block=63", "block"),
        ("int4:block=much", "is 'much', which is no int"),
        ("int4:128", "'128' is no setting, such as ratio=0.01"),
        ("topk:ratoi=0.1", r"topk has no setting 'ratoi'; it has .*layerwise; did you mean ratio\?"),
        ("topk:values=bf61", r"unknown values 'bf61'; known are fp32, bf16, int8; did you mean bf16\?"),
        ("cast:dtype=bfloat61", r"unknown dtype 'bfloat61'; known are .*bfloat16; did you mean bfloat16\?"),
        ("bf16:dtype=float16", "bf16 has no setting 'dtype'; it has none"),
        ("auto", r"Compression.auto\(\) is none by itself"),
        ("blocks", "blocks needs a setting bits"),
    ],
)
def test_a_wrong_name_or_setting_says_what_was_meant(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        compressor_named(text)


@pytest.mark.parametrize("name", [name for name in names() if name not in COMPRESSORS])
def test_a_file_with_the_name_of_a_function_says_how_files_have_it(name: str) -> None:
    with pytest.raises(ValueError, match=f"unknown compressor '{name}'; a file says ") as caught:
        compressor_of({"name": name})
    said = json.loads(str(caught.value).partition("a file says ")[2])
    assert compressor_of(said) == request_of(name).compressor


def test_a_list_has_settings_in_it() -> None:
    assert each_of("int4, topk:ratio=0.1, layerwise=true,dense") == ["int4", "topk:ratio=0.1,layerwise=true", "dense"]
    assert each_of("blocks:bits=2,topk:ratio=0.1") == ["blocks:bits=2", "topk:ratio=0.1"]
    assert each_of("ratio=0.1") == ["ratio=0.1"]


def test_a_name_that_is_none_says_which_there_are() -> None:
    with pytest.raises(ConfigError, match=r"no Compression\.int5; known are .*int4, .*; did you mean int\d\?"):
        Compression.int5()
    assert not hasattr(Compression, "int5")
    assert not hasattr(Compression, "_int4")
