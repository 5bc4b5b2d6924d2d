"""Tensors that do not fit their headers, and models that are damaged."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.formats.test_onnx_errors import changed, message

# ---------------------------------------------------------------------------------------------- tensors


def with_weight(tensor: TensorProto) -> ModelProto:
    tensor.name = "w"
    return changed(lambda whole: whole.graph.initializer.append(tensor))


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (
            TensorProto(data_type=1, dims=[2, 3], raw_data=bytes(20)),
            "is float32[2,3], which takes 24 bytes, but its data is 20 bytes",
        ),
        (
            TensorProto(data_type=1, dims=[1 << 40], raw_data=bytes(4)),
            "is float32[1099511627776], which takes 4398046511104 bytes, but its data is 4 bytes",
        ),
        (
            TensorProto(data_type=1, dims=[1 << 62, 1 << 62], float_data=[1.0]),
            (
                f"is float32[{1 << 62},{1 << 62}], and its data does not fit: "
                f"cannot reshape array of size 1 into shape ({1 << 62},{1 << 62})"
            ),
        ),
        (
            TensorProto(data_type=1, dims=[3]),
            "is float32[3], and its data does not fit: cannot reshape array of size 0 into shape (3,)",
        ),
        (TensorProto(data_type=22, dims=[3], int32_data=[1] * 9), "is int4[3], which takes 2 bytes, but its data is 9 bytes"),
        (TensorProto(data_type=22, dims=[3], raw_data=b"\0"), "is int4[3], which takes 2 bytes, but its data is 1 bytes"),
        (
            TensorProto(data_type=14, dims=[2], float_data=[1, 2]),
            "is complex64[2], and its data does not fit: cannot reshape array of size 1 into shape (2,)",
        ),
        (TensorProto(data_type=8, dims=[2], raw_data=b"ab"), "holds strings as raw bytes; ONNX stores them in string_data only"),
        (TensorProto(data_type=1, dims=[-1], raw_data=b""), "has a negative extent in its shape [-1]"),
        (TensorProto(dims=[1], raw_data=b"\0"), "has no element type"),
        (TensorProto(data_type=99, dims=[1]), ": element type 99 is not one of ONNX's that XRT knows (1 to 28)"),
        (
            TensorProto(data_type=1, dims=[1], segment=TensorProto.Segment(begin=0, end=1)),
            "is a segment of a larger tensor, which ONNX has never defined how to join",
        ),
    ],
)
def test_a_tensor_whose_data_does_not_fit_its_header(tensor: TensorProto, reason: str) -> None:
    gap = "" if reason.startswith(":") else " "
    assert message(with_weight(tensor)) == f"cannot load the given ModelProto: initialiser 'w'{gap}{reason}"


def test_an_empty_tensor_of_an_impossible_shape() -> None:
    tensor = TensorProto(data_type=1, dims=[0, 1 << 62, 1 << 62])
    assert message(with_weight(tensor)).startswith(
        f"cannot load the given ModelProto: initialiser 'w' is float32[0,{1 << 62},{1 << 62}], and its data does not fit: "
    )


def sparse(dims: list[int], indices: np.ndarray, values: int = 1) -> ModelProto:
    whole = changed(lambda whole: None)
    entry = whole.graph.sparse_initializer.add(dims=dims)
    entry.values.CopyFrom(numpy_helper.from_array(np.ones(values, np.float32), "w"))
    entry.indices.CopyFrom(numpy_helper.from_array(indices))
    return whole


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            sparse([1 << 20, 1 << 20], np.array([0])),
            "is sparse and would take 4398046511104 bytes as a dense tensor, too many for the size of its data",
        ),
        (sparse([2, 2], np.array([4])), "is sparse, and one of its indices lies outside of its shape [2, 2]"),
        (sparse([2, 2], np.array([[0, 2]])), "is sparse, and one of its indices lies outside of its shape [2, 2]"),
        (sparse([2, 2], np.array([-1])), "is sparse, and one of its indices lies outside of its shape [2, 2]"),
        (
            sparse([2, 2], np.array([0, 1])),
            "is sparse with 1 values of rank 2; its indices must be int64[1] or int64[1,2], not int64[2]",
        ),
    ],
)
def test_a_sparse_tensor_that_is_not_one(given: ModelProto, reason: str) -> None:
    assert message(given) == f"cannot load the given ModelProto: initialiser 'w' {reason}"


@pytest.mark.slow
def test_among_very_many_nodes_the_nearest_name_is_not_looked_for() -> None:
    nodes = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"]) for i in range(10_000)]
    nodes.append(helper.make_node("Relu", ["v0_"], ["y"], name="n"))
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("v0", 1, [1])], [helper.make_tensor_value_info("y", 1, [1])]
    )
    assert message(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)) == (
        "cannot load the given ModelProto: node 'n' (Relu) reads value 'v0_', which no input, initialiser or node defines."
    )


# ---------------------------------------------------------------------------------------------- damage

NOT_TEXT = b"\xff\xfe"


@pytest.mark.parametrize(
    ("place", "what"),
    [
        (b"the_op", "the operator or domain of node 'the_node' (b'\\xff\\xfee_op')"),
        (b"the_domain", "the operator or domain of node 'the_node' (the_op)"),
        (b"the_input", "the name of a value or node"),
        (b"the_output", "the name of a value or node"),
        (b"the_node", "the name of a value or node"),
        (b"the_graph", "the name of a graph"),
        (b"the_x", "the name of a value"),
        (b"the_extent", "the name of an extent"),
        (b"the_weight", "the name of an initialiser"),
        (b"the_attribute", "the name of an attribute of node 'the_node' (the_op)"),
        (b"the_doc", "the documentation"),
        (b"the_import", "the domain of an opset import"),
        (b"the_key", "a key of the metadata"),
        (b"the_value", "a value of the metadata"),
    ],
)
def test_text_that_is_not_utf8(place: bytes, what: str) -> None:
    node = helper.make_node("the_op", ["the_input"], ["the_output"], name="the_node", domain="the_domain", the_attribute=1)
    outputs = [helper.make_tensor_value_info("y", 1, ["the_extent"])]
    inputs = [helper.make_tensor_value_info("the_x", 1, [])]
    graph = helper.make_graph(
        [node], "the_graph", inputs, outputs, [numpy_helper.from_array(np.zeros(1), "the_weight")], doc_string="the_doc"
    )
    whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("the_domain", 1), helper.make_opsetid("the_import", 1)])
    whole.metadata_props.add(key="the_key", value="the_value")
    data = whole.SerializeToString()
    broken = data.replace(place, NOT_TEXT + place[len(NOT_TEXT) :], 1)  # where it stands first
    assert message(broken).startswith(f"cannot load the given bytes: {what}")
    assert "is not UTF-8 text: b'" in message(broken)
