"""The corpus: every entry is a valid model with a name of its own, and nothing can change it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from xrt.formats import onnx as formats
from xrt.graph.verify import verify
from xrt.testing.corpus import CORPUS, find_entry

NAMES = [e.name for e in CORPUS]


def test_names_are_unique_and_entries_have_a_text():
    assert len(set(NAMES)) == len(NAMES)
    assert all(len(e.why) > 20 for e in CORPUS)


@pytest.mark.parametrize("name", NAMES)
def test_onnx_accepts_it(name):
    verify(find_entry(name).function)
    infers = name != "pools_without_a_window_in_the_padding"  # there the shapes that onnx infers are wrong
    onnx.checker.check_model(formats.to_model(find_entry(name).function), full_check=infers)


@pytest.mark.parametrize("name", NAMES)
def test_it_judges_its_own_expectation_right(name):
    one = find_entry(name)
    assert one.judge([np.array(e) if isinstance(e, np.ndarray) else e for e in one.expected])


def test_inputs_are_handed_out_as_copies():
    one = find_entry("update_in_place")
    with pytest.raises(ValueError, match="read-only"):
        one.inputs[0][:] = 0
    one.make_inputs()[0][:] = 0
    assert one.inputs[0].tolist() == [1, 1, 1]


def test_a_strided_input_stays_strided():
    assert not find_entry("strided_input").make_inputs()[0].flags.c_contiguous
