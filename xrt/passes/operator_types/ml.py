"""Types of ai.onnx.ml, as far as ONNX's own inference leaves them open."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from xrt.graph import Dim, DType, MapType, SequenceType, Shape, TensorType, Type
from xrt.passes.operator_types.operands import Operands, Rule, as_first, make_type

__all__ = ["ML"]

_STRINGS = ("classlabels_strings", "classes_strings")
_INTEGERS = ("classlabels_int64s", "classlabels_ints")


def _rows(o: Operands) -> Dim:
    """Return how many rows the first input has: one where it is a row itself."""
    shape = o.shape(0)
    return None if not shape else 1 if len(shape) == 1 else shape[0]


def _labels(o: Operands) -> tuple[DType | None, Dim]:
    """Return the type of the labels, and how many there are."""
    for names, dtype in ((_STRINGS, DType.STRING), (_INTEGERS, DType.INT64)):
        for name in names:
            if given := o.attr(name):
                return dtype, len(given)
    return None, None


def _classified(o: Operands, scores: Dim) -> Sequence[Type | None]:
    dtype, _ = _labels(o)
    return [make_type(dtype or DType.INT64, (_rows(o),)), TensorType(DType.FLOAT32, (_rows(o), scores))]


def _classifier(o: Operands) -> Sequence[Type | None]:
    _, count = _labels(o)
    return _classified(o, count if isinstance(count, int) and count > 1 else None)


def _support_vectors(o: Operands) -> Sequence[Type | None]:
    _, count = _labels(o)
    return _classified(o, count if o.attr("prob_a") else None)


def _regressor(o: Operands) -> Sequence[Type | None]:
    name = "n_targets" if o.node.op_type.startswith("Tree") else "targets"
    return [TensorType(DType.FLOAT32, (_rows(o), o.attr(name, 1 if name == "targets" else None)))]


def _tree_ensemble(o: Operands) -> Sequence[Type | None]:
    return [make_type(o.dtype(0), (_rows(o), o.attr("n_targets")))]


def _floats(o: Operands) -> Sequence[Type | None]:
    return [TensorType(DType.FLOAT32, o.shape(0))]


def _extracted(o: Operands) -> Sequence[Type | None]:
    shape, chosen = o.shape(0), o.shape(1)
    many = [extent for extent in chosen or () if extent != 1]
    count = _product(many) if chosen is not None and len(many) != 1 else many[0] if many else None
    if not shape:
        return [make_type(o.dtype(0), None)]
    return [make_type(o.dtype(0), (*(shape[:-1] if len(shape) > 1 else (1,)), count))]


def _product(extents: Sequence[Dim]) -> Dim:
    known = [extent for extent in extents if isinstance(extent, int)]
    return math.prod(known) if len(known) == len(extents) else None


def _joined(o: Operands) -> Sequence[Type | None]:
    sizes = o.attr("inputdimensions")
    return [TensorType(DType.FLOAT32, (_rows(o), sum(sizes) if sizes else None))]


def _encoded(o: Operands) -> Sequence[Type | None]:
    categories, shape = o.attr("cats_int64s") or o.attr("cats_strings"), o.shape(0)
    known: Shape | None = None if shape is None or not categories else (*shape, len(categories))
    return [TensorType(DType.FLOAT32, known)]


def _mapped(o: Operands) -> Sequence[Type | None]:
    dtype = {DType.STRING: DType.INT64, DType.INT64: DType.STRING}.get(o.dtype(0) or DType.FLOAT32)
    return [make_type(dtype, o.shape(0))]


_VALUES = {
    **dict.fromkeys(("values_strings", "classes_strings"), DType.STRING),
    "values_int64s": DType.INT64,
    "values_floats": DType.FLOAT32,
}


def _relabeled(o: Operands) -> Sequence[Type | None]:
    if (tensor := o.attr("values_tensor")) is not None:
        return [make_type(tensor.dtype, o.shape(0))]
    dtype = next((dtype for name, dtype in _VALUES.items() if o.attr(name)), None)
    if o.attr("classes_strings") and o.dtype(0) is DType.STRING:
        dtype = DType.INT64  # the first version maps either way
    return [make_type(dtype, o.shape(0))]


def _cast_map(o: Operands) -> Sequence[Type | None]:
    dtype = {"TO_FLOAT": DType.FLOAT32, "TO_INT64": DType.INT64, "TO_STRING": DType.STRING}.get(o.attr("cast_to", "TO_FLOAT"))
    return [make_type(dtype, (1, None))]


def _vectorized(o: Operands) -> Sequence[Type | None]:
    words = o.attr("string_vocabulary") or o.attr("int64_vocabulary")
    type_ = o.types[0] if o.types else None
    inner = type_.value if isinstance(type_, MapType) else None
    return [TensorType(inner.dtype, (1, len(words) if words else None)) if isinstance(inner, TensorType) else None]


def _zipped(o: Operands) -> Sequence[Type | None]:
    dtype, _ = _labels(o)
    return [None if dtype is None else SequenceType(MapType(dtype, TensorType(DType.FLOAT32, ())))]


ML: Mapping[str, Rule] = {
    "ArrayFeatureExtractor": _extracted,
    "Binarizer": as_first(),
    "CastMap": _cast_map,
    "CategoryMapper": _mapped,
    "DictVectorizer": _vectorized,
    "FeatureVectorizer": _joined,
    "Imputer": as_first(),
    "LabelEncoder": _relabeled,
    "LinearClassifier": _classifier,
    "LinearRegressor": _regressor,
    "Normalizer": _floats,
    "OneHotEncoder": _encoded,
    "SVMClassifier": _support_vectors,
    "SVMRegressor": lambda o: [TensorType(DType.FLOAT32, (_rows(o), 1))],
    "Scaler": _floats,
    "TreeEnsemble": _tree_ensemble,
    "TreeEnsembleClassifier": _classifier,
    "TreeEnsembleRegressor": _regressor,
    "ZipMap": _zipped,
}
"""What the definition of each operator says of its outputs."""
