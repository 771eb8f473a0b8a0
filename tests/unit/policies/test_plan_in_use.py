"""The plan that says what is in use."""

from __future__ import annotations

import pytest
import torch

from hvd_compress.buckets.layout import Layout
from hvd_compress.compressors import Cast, EFSign, TopK
from hvd_compress.cost.paths import Path
from hvd_compress.errors import UsageError
from hvd_compress.policies.plan_in_use import plan_in_use
from hvd_compress.request.decision import Decision

LAYOUTS = [
    Layout(("a", "b"), ((3, 4), (5,))),
    Layout(("c",), ((6,),), torch.float16),
    Layout(("rows",), ((7, 8),), sparse=True),
    Layout(("d",), ((9,),)),
]
DECISIONS = [
    Decision(TopK(0.25), Path("star", "tree", "pipeline_16k"), "cuda", "measured"),
    Decision(Cast(torch.bfloat16), Path("dense", "rabenseifner"), "cpu"),
    Decision(EFSign(), Path("allgather", "bruck"), "cpu"),
]


def plan_of(decisions: list[Decision]):
    dense = [layout for layout in LAYOUTS if not layout.sparse]
    return plan_in_use({one.names: of for one, of in zip(dense, decisions, strict=True)}, LAYOUTS, 4)


def test_each_bucket_keeps_all_of_its_decision() -> None:
    plan = plan_of(DECISIONS)
    assert [entry.parameters for entry in plan.buckets] == [("a", "b"), ("c",), ("d",)]
    assert [entry.built() for entry in plan.buckets] == [of.compressor for of in DECISIONS]
    said = [(entry.collective, entry.algorithm, entry.broadcast, entry.device) for entry in plan.buckets]
    assert said == [
        ("star", "tree", "pipeline_16k", "cuda"),
        ("dense", "rabenseifner", "auto", "cpu"),
        ("allgather", "bruck", "auto", "cpu"),
    ]
    assert [entry.path for entry in plan.buckets] == [of.path for of in DECISIONS]


def test_it_is_for_this_model_and_these_ranks() -> None:
    plan = plan_of(DECISIONS)
    assert plan.world_size == 4
    assert plan.model is not None
    assert {name: (found.shape, found.dtype) for name, found in plan.model.items()} == {
        "a": ((3, 4), "float32"),
        "b": ((5,), "float32"),
        "c": ((6,), "float16"),
        "d": ((9,), "float32"),
    }


class Unsaid(Decision):
    no_plan = "it is sent every other day"


def test_what_is_only_tried_or_more_than_compressor_and_path_is_no_plan() -> None:
    trial = Decision(TopK(0.25), Path("star"), reason="round 2", is_trial=True)
    with pytest.raises(UsageError, match=r"bucket of c travels by star for the time being \(round 2\)"):
        plan_of([DECISIONS[0], trial, DECISIONS[2]])
    with pytest.raises(UsageError, match=r"no plan can say how the bucket of d travels: it is sent every other day"):
        plan_of([*DECISIONS[:2], Unsaid(Cast(), Path("dense"))])
