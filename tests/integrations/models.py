"""Small models of rows, written to files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from xrt.formats.onnx import save
from xrt.graph import DType, MapType, SequenceType, TensorType
from xrt.testing.corpus.entry import graph, node

ML = "ai.onnx.ml"

SCALE = """
<ir_version: 10, opset_import: ["" : 21]>
scale (float[n,3] x, float[n] bias) => (float[n,3] y, float[n] total) {
  two = Constant <value_float = 2.0> ()
  axis = Constant <value_ints = [1]> ()
  half = Mul (x, two)
  wide = Unsqueeze (bias, axis)
  y = Add (half, wide)
  total = ReduceSum <keepdims = 0> (y, axis)
}
"""
TEXT = """
<ir_version: 10, opset_import: ["" : 21]>
text (int64[n,s] ids) => (float[n,s] squares, float[n] mean) {
  axis = Constant <value_ints = [1]> ()
  real = Cast <to = 1> (ids)
  squares = Mul (real, real)
  mean = ReduceMean <keepdims = 0> (squares, axis)
}
"""
FOUR = """
<ir_version: 10, opset_import: ["" : 21]>
four (float[4,2] x) => (float[4,2] y) {
  y = Neg (x)
}
"""
LOOKUP = """
<ir_version: 10, opset_import: ["" : 21]>
lookup (int64[n] index) => (float[n] y) <float[3] table = {1.0, 2.0, 4.0}> {
  y = Gather (table, index)
}
"""


def write_model(folder: Path, text: str, name: str = "model.onnx") -> str:
    path = folder / name
    onnx.save(onnx.parser.parse_model(text), path)
    return str(path)


def write_texts(path: Path, count: int, seed: int = 0, *, group: int | None = None) -> list[np.ndarray]:
    """Write rows of ids of different lengths, with a number each, and return them."""
    rng = np.random.default_rng(seed)
    rows = [rng.integers(0, 9, rng.integers(1, 7)) for _ in range(count)]
    table = pa.table({"row": pa.array(range(count), pa.int64()), "ids": pa.array([row.tolist() for row in rows])})
    pq.write_table(table, path, row_group_size=group)
    return rows


def read_results(folder: Path) -> pa.Table:
    return ds.dataset(str(folder), format="parquet").to_table()


def check_squares(folder: Path, rows: list[np.ndarray]) -> None:
    """Assert that the results of the model `TEXT` are there for each row, in order."""
    result = read_results(folder)
    assert result.column("row").to_pylist() == list(range(len(rows)))
    assert result.column("squares").to_pylist() == [(row.astype("float32") ** 2).tolist() for row in rows]


def write_classifier(folder: Path) -> str:
    """Write what skl2onnx makes of a pipeline by default: unnamed rows, a column for each input, a map for each row."""
    weights = {"coefficients": [-0.1, -0.02, 0.1, 0.02], "intercepts": [1.0, -1.0], "classlabels_ints": [3, 7]}
    nodes = (
        node("Concat", "age income", "features", axis=1),
        node("LinearClassifier", "features", "output_label scores", domain=ML, post_transform="SOFTMAX", **weights),
        node("ZipMap", "scores", "output_probability", domain=ML, classlabels_int64s=[3, 7]),
    )
    maps = SequenceType(MapType(DType.INT64, TensorType(DType.FLOAT32, ())))
    outputs = {"output_label": "int64[?]", "output_probability": maps}
    path = folder / "classifier.onnx"
    save(graph({"age": "float32[?,1]", "income": "float32[?,1]"}, outputs, *nodes, ml=3), path)
    return str(path)
