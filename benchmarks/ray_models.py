"""Models, rows and clusters for the benchmarks on Ray."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import xrt
from xrt.formats import onnx
from xrt.graph import DType, Function, TensorType
from xrt.models.registry import load

if TYPE_CHECKING:
    from benchmarks.memory_groups import MemoryGroup

__all__ = ["split_rows", "start_cluster", "text_encoder", "write_images", "write_model", "write_texts"]

STORE = 256 << 20
"""Bytes of the object store of a node."""
VOCABULARY = 4096


class text_encoder(xrt.Graph):  # noqa: N801  # used as a function
    """An encoder of token numbers of any length: embeddings, layers of attention, and the mean over the positions."""

    def __init__(self, layers: int = 2, width: int = 128, heads: int = 4) -> None:
        rng = np.random.default_rng(0)
        self._heads, self._width = heads, width
        self._table = rng.standard_normal((VOCABULARY, width)).astype("float32")
        self._layers = [
            [(rng.standard_normal(shape) / np.sqrt(shape[0])).astype("float32") for shape in self._shapes()]
            for _ in range(layers)
        ]

    def _shapes(self) -> list[tuple[int, int]]:
        return [(self._width, self._width)] * 4 + [(self._width, 4 * self._width), (4 * self._width, self._width)]

    def build(self, ids: Any) -> Any:
        ops, split = xrt.ops, np.array([0, 0, self._heads, self._width // self._heads])
        x = ops.Gather(self._table, ids)
        for q, k, v, out, wide, narrow in self._layers:
            query, key, value = (ops.Reshape(ops.MatMul(x, weight), split) for weight in (q, k, v))
            scores = ops.MatMul(ops.Transpose(query, perm=[0, 2, 1, 3]), ops.Transpose(key, perm=[0, 2, 3, 1]))
            mixed = ops.MatMul(ops.Softmax(scores * np.float32(0.1), axis=-1), ops.Transpose(value, perm=[0, 2, 1, 3]))
            joined = ops.Reshape(ops.Transpose(mixed, perm=[0, 2, 1, 3]), np.array([0, 0, self._width]))
            x = x + ops.MatMul(joined, out) * np.float32(0.1)
            x = x + ops.MatMul(ops.Relu(ops.MatMul(x, wide)), narrow) * np.float32(0.1)
        return ops.ReduceMean(x, np.array([1]), keepdims=0)


def make_text_model() -> Function:
    return text_encoder().trace(ids=TensorType(DType.INT64, ("n", "s")))


def make_image_model(image: int, batch: int) -> Function:
    return load("mobilenet", image=image, width=100, classes=10, batch=batch)


def write_model(function: Function, path: Path) -> str:
    onnx.save(function, path)
    return str(path)


def write_images(path: Path, count: int, image: int, seed: int = 0) -> str:
    """Write rows of a number and an image; a row group has some 10 MB."""
    rng = np.random.default_rng(seed)
    kind = pa.list_(pa.float32(), 3 * image * image)
    schema = pa.schema([("row", pa.int64()), ("image", kind)])
    step = max(1, 10_000_000 // (12 * image * image))
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, count, step):
            size = min(step, count - start)
            values = pa.array(rng.random(size * 3 * image * image, dtype="float32"))
            columns = [pa.array(range(start, start + size)), pa.FixedSizeListArray.from_arrays(values, 3 * image * image)]
            writer.write_table(pa.table(columns, schema=schema))
    return str(path)


def write_texts(path: Path, count: int, longest: int = 64, seed: int = 0) -> str:
    """Write rows of a number and token numbers, as many as texts have: most are short."""
    rng = np.random.default_rng(seed)
    lengths = np.minimum(4 * rng.geometric(0.25, count), longest)
    rows = [rng.integers(0, VOCABULARY, length) for length in lengths]
    pq.write_table(pa.table({"row": pa.array(range(count)), "ids": pa.array(rows)}), path, row_group_size=2048)
    return str(path)


def split_rows(path: str, folder: Path, count: int) -> str:
    """Write the rows of a file as so many files into a new folder: Ray Data hands a file to one actor."""
    table = pq.read_table(path)
    folder.mkdir()
    size = -(-table.num_rows // count)
    for number, start in enumerate(range(0, table.num_rows, size)):
        pq.write_table(table.slice(start, size), folder / f"{number:05d}.parquet")
    return str(folder)


@contextmanager
def start_cluster(nodes: int, groups: Sequence[MemoryGroup] = ()) -> Iterator[Any]:
    """Start a cluster whose head has no processor and whose other nodes have one each, connect to it, and end all of it.

    The processes of a node are in its group, if there are groups, and Ray gives away as much memory as that has.
    """
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0"}
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for number in range(nodes):
            with groups[number].hold() if groups else nullcontext():
                memory = {"memory": groups[number].size} if groups else {}
                cluster.add_node(num_cpus=1, object_store_memory=STORE, **memory)
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
