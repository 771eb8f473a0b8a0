"""Every test of the kernels runs at each level of vector instructions that the machine has, with several threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hvd_compress import native

LEVELS = [(level, 1 + number) for number, level in enumerate(native.simd_levels())]
"""(level, threads): a fault in how work is divided shows at any level."""


@pytest.fixture(scope="module", autouse=True, params=LEVELS, ids=lambda param: f"{param[0]}-{param[1]}")
def level(request: pytest.FixtureRequest) -> Iterator[None]:
    name, threads = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HVD_COMPRESS_NUM_THREADS", str(threads))
        native.set_simd_level(name)
        yield
        native.set_simd_level(native.simd_levels()[-1])
