"""Compressors in few words."""

from __future__ import annotations

from hvd_compress.report.words import distinct


def test_settings_by_which_compressors_differ_stay() -> None:
    four, one = "PowerSGD(rank=4, start_step=0, factors='fp32')", "PowerSGD(rank=1, start_step=0, factors='fp32')"
    assert distinct([four, one, "Cast(dtype=None)"]) == {
        four: "PowerSGD(rank=4)",
        one: "PowerSGD(rank=1)",
        "Cast(dtype=None)": "Cast(dtype=None)",
    }


def test_one_of_its_name_and_what_is_no_compressor_stay_as_they_are() -> None:
    assert distinct(["TopK(ratio=0.01)", "my own", ""]) == {
        "TopK(ratio=0.01)": "TopK(ratio=0.01)",
        "my own": "my own",
        "": "",
    }
