"""Features made ready for a model: scaled, normalised, filled in, joined, and encoded as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from xrt.engines.toy.kernels.scores import ML, read_labels
from xrt.engines.toy.table import CPU, Array, Run, ops

if TYPE_CHECKING:
    from xrt.engines.toy.kernel_context import KernelContext
    from xrt.graph import Node

__all__: list[str] = []


@ops("Scaler", domain=ML, devices=CPU)
def scaler(node: Node, env: KernelContext) -> Run:
    """Return float32, whatever the features are; left out, the offset is zero and the scale is one."""
    offset, scale = (np.array(node.attr(name) or (neutral,), np.float64) for name, neutral in (("offset", 0.0), ("scale", 1.0)))
    return lambda x: ((x.astype(np.float64) - offset) * scale).astype(np.float32)


@ops("Normalizer", domain=ML, devices=CPU)
def normalizer(node: Node, env: KernelContext) -> Run:
    """Return float32 rows, each over its norm; a row of zeros stays. A tensor of rank 1 is one row."""
    norm = node.attr("norm", "MAX")

    def run(x: Array) -> Array:
        wide = x.astype(np.float64)
        if norm == "L2":
            size = np.sqrt(np.square(wide).sum(axis=-1, keepdims=True))
        else:
            size = (np.abs(wide).sum if norm == "L1" else np.abs(wide).max)(axis=-1, keepdims=True)
        return np.divide(wide, size, out=wide.copy(), where=size != 0).astype(np.float32)

    return run


@ops("FeatureVectorizer", domain=ML, devices=CPU)
def feature_vectorizer(node: Node, env: KernelContext) -> Run:
    """Return the inputs concatenated in float32, each cut, or filled with zeros, to its width."""

    def run(*values: Array) -> Array:
        parts = [x.reshape(len(x), -1) for x in values]
        widths = node.attr("inputdimensions") or [part.shape[1] for part in parts]
        padded = [np.pad(x[:, :width], ((0, 0), (0, max(0, width - x.shape[1])))) for x, width in zip(parts, widths, strict=True)]
        return np.concatenate(padded, axis=1).astype(np.float32)

    return run


@ops("OneHotEncoder", domain=ML, devices=CPU)
def one_hot_encoder(node: Node, env: KernelContext) -> Run:
    """Return a last axis with a one in the column of each element's category; none where ``zeros`` allows it."""
    categories = read_labels(node, "cats_int64s", "cats_strings")
    known = np.array(categories, dtype=object if any(isinstance(one, str) for one in categories) else np.int64)

    def run(x: Array) -> Array:
        hot = np.asarray(x[..., None] == known)
        if not node.attr("zeros", 1) and not hot.any(axis=-1).all():
            missing = x[~hot.any(axis=-1)].reshape(-1)[0]
            raise ValueError(f"{missing!r} is none of the {len(categories)} categories, and zeros=0 allows no row without one")
        return hot.astype(np.float32)

    return run
