"""A profile's directory, as tests write it: the model of tests/harness.py, on a slow network."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.harness import SHAPES

RATIO = 0.05
NUMELS = (1, 100, 10_000, 1_000_000)


def times(launch_us: float, element_ns: float) -> dict[str, Any]:
    return {"numel": NUMELS, "us": [launch_us + element_ns * n * 1e-3 for n in NUMELS]}


def said(hosts: int = 2, ranks_per_host: int = 2, shapes: Mapping[str, tuple[int, ...]] = SHAPES) -> dict[str, Any]:
    """Return what the three files say, by name. The last parameter's gradient is the first in the backward pass."""
    tensors = [
        {"name": name, "numel": math.prod(shape), "shape": shape, "backward_us": 20.0}
        for name, shape in reversed(shapes.items())
    ]
    device = {"compress": times(1.0, 1.0), "decompress": times(0.5, 0.1)}
    return {
        "model": {"model": "harness", "forward_us": 30.0, "tensors": tensors},
        "system": {
            "hosts": hosts,
            "ranks_per_host": ranks_per_host,
            "within": {"alpha_us": 1.0, "bytes_per_s": 1e8},
            "across": {"alpha_us": 5.0, "bytes_per_s": 1e6},
        },
        "compressor": {
            "compressor": {"name": "topk", "ratio": RATIO},
            "payload": {"per_tensor_bytes": 8.0, "per_element_bytes": 8 * RATIO},
            "devices": {"training": device, "host": device},
        },
    }


def write(folder: Path, **files: Any) -> Path:
    """Write a profile; `files` takes the place of what is said of one."""
    folder.mkdir(exist_ok=True)
    for name, content in {**said(), **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder
