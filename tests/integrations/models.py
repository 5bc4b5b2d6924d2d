"""Small models of rows, written to files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq

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
