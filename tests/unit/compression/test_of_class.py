"""A compressor without a function of its own in `compression/` has its class for one."""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import pytest

from hvd_compress.compression import Compression
from hvd_compress.compression.part import of_class
from hvd_compress.compressors import OWN, EFSign
from hvd_compress.errors import MovedArgumentError
from hvd_compress.request.request import Request


@dataclass(frozen=True)
class Signs(EFSign):
    """Send signs."""


def test_its_settings_are_those_of_the_class() -> None:
    signs = of_class("signs", Signs)
    assert signs() == Request(Signs())
    assert signs(layerwise=False).by(engine="mpi") == Request(Signs(False), engine="mpi")
    assert (signs.__name__, signs.__doc__) == ("signs", "Send signs.")
    assert list(inspect.signature(signs).parameters) == ["layerwise"]
    with pytest.raises(MovedArgumentError, match=r"write Compression\.signs\(\)\.by\(collective=\"allgather\"\)"):
        signs(collective="allgather")


def test_each_compressor_of_the_core_has_a_function() -> None:
    for name, kind in OWN.items():
        functions = list(kind.functions) or [name]
        assert all(isinstance(inspect.getattr_static(Compression, each), staticmethod) for each in functions), name
