"""Law 6: text and ONNX parse back to an equal Function, with what ONNX has no word for."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given, strategies as st

from tests.laws.laws import bounded
from xrt.formats import onnx
from xrt.formats.text import parse, to_text
from xrt.passes import infer_shapes
from xrt.testing.corpus import CORPUS, find_entry
from xrt.testing.strategies import functions

NAMES = [e.name for e in CORPUS]


@pytest.mark.slow
@bounded
@given(function=functions(), inferred=st.booleans())
def test_text(function, inferred):
    function = infer_shapes(function) if inferred else function
    assert parse(to_text(function)) == function


@pytest.mark.slow
@bounded
@given(function=functions(), inferred=st.booleans())
def test_onnx(function, inferred):
    function = infer_shapes(function) if inferred else function
    again = onnx.load(onnx.to_model(function).SerializeToString())
    assert again == function
    assert again.fingerprint == function.fingerprint


@pytest.mark.slow
@bounded
@given(function=functions())
def test_pickle(function):
    assert pickle.loads(pickle.dumps(function)) == function


@pytest.mark.parametrize("name", NAMES)
def test_corpus_as_text(name):
    assert parse(to_text(find_entry(name).function)) == find_entry(name).function


@pytest.mark.parametrize("name", NAMES)
def test_corpus_as_onnx(name):
    function = find_entry(name).function
    assert onnx.load(onnx.to_model(function).SerializeToString()) == function
