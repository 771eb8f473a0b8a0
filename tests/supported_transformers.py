"""Imported before anything that imports transformers: with an older torch the tests skip."""

from __future__ import annotations

import pytest
import torch

if tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) < (2, 6):
    pytest.skip("transformers 5 needs torch 2.6", allow_module_level=True)
