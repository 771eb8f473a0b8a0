"""How many elements a ratio keeps."""

from __future__ import annotations

import pytest

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import TopK
from hvd_compress.errors import ConfigError
from hvd_compress.papers.flexible.kept import kept


def test_it_is_counted_as_the_sparsifiers_do() -> None:
    for numel in (0, 1, 7, 1000, 99_999):
        for ratio in (0.001, 0.0155, 0.5, 1.0):
            assert kept(numel, ratio) == TopK(ratio).kept(Layout.of(numel))


@pytest.mark.parametrize(("numel", "ratio", "says"), [(10, 0.0, "outside"), (-1, 0.1, "negative")])
def test_bad_input_is_a_config_error(numel: int, ratio: float, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        kept(numel, ratio)
