"""Convert parts of ONNX messages to and from parts of Functions: tensors, external data, types, values, names and metadata.

The size in the header of a tensor is compared with the available data before memory is allocated.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from onnx import (
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    TensorShapeProto,
    TypeProto,
    ValueInfoProto,
    helper,
    numpy_helper,
)

from xrt.errors import ModelError
from xrt.formats.output import map_file
from xrt.graph import Constant, Dim, DType, MapType, OptionalType, SequenceType, TensorType, Type, Value

if TYPE_CHECKING:
    from xrt.graph import Function, Node


# A sparse tensor becomes dense, with the size in its header, which could be any number. The dense tensors of a model together may
# have DENSE_BASE_BYTES, plus for each tensor DENSE_RATIO times the bytes of its values, but at most MAX_DENSE_CREDIT_BYTES.
MAX_DENSE_CREDIT_BYTES = 1 << 30
DENSE_BASE_BYTES = 1 << 24
DENSE_RATIO = 1000


def count_encoded_bytes(dtype: DType, count: int) -> int:
    """Count the bytes of ``count`` elements in ONNX's encoding, which packs types narrower than a byte."""
    return (dtype.bits * count + 7) // 8


def read_tensor(tensor: TensorProto, external: ExternalData, subject: str) -> Constant:
    """Convert a tensor to a constant that is a view of ``raw_data`` or of the external data.

    The data is copied only if it must be unpacked (types narrower than a byte) or is unaligned. ``subject`` names the tensor in
    errors. Raises ModelError if the data does not match the header.
    """
    if tensor.HasField("segment"):
        raise ModelError(f"{subject} is a segment of a larger tensor, which ONNX has never defined how to join")
    dtype = _read_dtype(tensor, subject)
    shape = _read_shape(tensor.dims, subject)
    if tensor.data_location == TensorProto.EXTERNAL:
        return Constant(decode_data(external.view(tensor, subject), dtype, shape, subject))
    if tensor.HasField("raw_data"):
        return Constant(decode_data(tensor.raw_data, dtype, shape, subject))
    if dtype is DType.STRING:
        strings = np.empty(len(tensor.string_data), object)
        strings[:] = list(tensor.string_data)
        return Constant(_reshape(strings, shape, subject))
    if dtype.bits < 6:  # packed elements, one byte per entry; onnx would ignore surplus entries
        packed = np.array(tensor.int32_data, np.int32).astype(np.uint8)
        return Constant(decode_data(packed.tobytes(), dtype, shape, subject))
    try:
        return Constant(numpy_helper.to_array(tensor))
    except (ValueError, OverflowError) as error:
        raise ModelError(f"{subject} is {TensorType(dtype, shape)}, and its data does not fit: {error}") from error


def _read_dtype(tensor: TensorProto, subject: str) -> DType:
    if not tensor.data_type:
        raise ModelError(f"{subject} has no element type")
    try:
        return DType.from_onnx(tensor.data_type)
    except ModelError as error:
        raise ModelError(f"{subject}: {error}") from None


def _read_shape(dims: Sequence[int], subject: str) -> tuple[int, ...]:
    shape = tuple(dims)
    if any(dim < 0 for dim in shape):
        raise ModelError(f"{subject} has a negative extent in its shape {list(shape)}")
    return shape


def decode_data(data: bytes | memoryview, dtype: DType, shape: tuple[int, ...], subject: str) -> np.ndarray[Any, Any]:
    """Decode the bytes of a tensor, as a view if possible. Raises ModelError if the number of bytes does not fit the shape."""
    if dtype is DType.STRING:
        raise ModelError(f"{subject} holds strings as raw bytes; ONNX stores them in string_data only")
    needed, available = count_encoded_bytes(dtype, math.prod(shape)), len(data)
    if needed != available:
        type_ = TensorType(dtype, shape)
        raise ModelError(f"{subject} is {type_}, which takes {needed} bytes, but its data is {available} bytes")
    if dtype.bits < 8:
        packed = TensorProto(data_type=dtype.onnx, dims=shape, raw_data=bytes(data))
        return np.asarray(numpy_helper.to_array(packed))
    array = np.frombuffer(data, dtype.numpy.newbyteorder("<"))
    return _reshape(array if array.flags.aligned else array.copy(), shape, subject)


def _reshape(array: np.ndarray[Any, Any], shape: tuple[int, ...], subject: str) -> np.ndarray[Any, Any]:
    try:
        return array.reshape(shape)
    except ValueError as error:  # for example, an extent of 0 next to one that is too large
        raise ModelError(f"{subject} has the shape {list(shape)}, which no array can have: {error}") from None


def read_sparse(sparse: SparseTensorProto, external: ExternalData, subject: str) -> Constant:
    """Convert a sparse tensor to a dense constant; raises ModelError if it would be too large."""
    values = read_tensor(sparse.values, external, subject)
    shape = _read_shape(sparse.dims, subject)
    size = math.prod(shape) * values.dtype.numpy.itemsize
    # Checked before allocating: a header of a few bytes can announce any size. See `DENSE_BASE_BYTES`.
    external.dense_bytes_left += min(values.nbytes * DENSE_RATIO, MAX_DENSE_CREDIT_BYTES) - size
    if external.dense_bytes_left < 0:
        raise ModelError(f"{subject} is sparse and would take {size} bytes as a dense tensor, too many for the size of its data")
    zero = "" if values.dtype is DType.STRING else values.dtype.numpy.type(0)
    dense = np.full(math.prod(shape), zero, values.dtype.numpy)
    if values.array.size:
        dense[_read_positions(sparse, external, values.array.size, shape, subject)] = values.array.reshape(-1)
    return Constant(_reshape(dense, shape, subject))


def _read_positions(
    sparse: SparseTensorProto, external: ExternalData, count: int, shape: tuple[int, ...], subject: str
) -> np.ndarray[Any, Any]:
    """Read the indices of a sparse tensor's values in the flattened tensor. ONNX stores flat or multi-dimensional indices."""
    indices = read_tensor(sparse.indices, external, f"the indices of {subject}").array
    if indices.dtype != np.int64 or indices.shape not in ((count,), (count, len(shape))):
        raise ModelError(
            f"{subject} is sparse with {count} values of rank {len(shape)}; its indices must be int64[{count}] or "
            f"int64[{count},{len(shape)}], not {TensorType(DType.from_array(indices), indices.shape)}"
        )
    is_flat = indices.ndim == 1
    limits = math.prod(shape) if is_flat else np.array(shape, np.int64)
    if ((indices < 0) | (indices >= limits)).any():
        raise ModelError(f"{subject} is sparse, and one of its indices lies outside of its shape {list(shape)}")
    return indices if is_flat else np.ravel_multi_index(tuple(indices.T), shape)


def write_tensor(constant: Constant, name: str = "") -> TensorProto:
    """Convert a constant to a message with ``raw_data`` (except strings). Copies the data."""
    tensor = TensorProto(data_type=constant.dtype.onnx, dims=constant.shape, name=name)
    if constant.dtype is DType.STRING:
        tensor.string_data.extend(text.encode("utf-8", "surrogateescape") for text in constant.array.flat)
    else:
        tensor.raw_data = bytes(encode_data(constant))
    return tensor


def encode_data(constant: Constant) -> memoryview:
    """Encode a constant (not of strings) in ONNX's encoding, as a view of the array unless elements must be packed."""
    if constant.dtype.bits < 8:
        return memoryview(numpy_helper.from_array(constant.array).raw_data)
    array = constant.array.astype(constant.dtype.numpy.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


MIN_EXTERNAL_BYTES = 1024
"""Constants of at least this size may be stored outside of the model, in another file or section."""


def is_large(constant: Constant) -> bool:
    """Whether a constant may be stored outside of the model. Strings may not, because ONNX has no external format for them."""
    return constant.dtype is not DType.STRING and constant.nbytes >= MIN_EXTERNAL_BYTES


def write_reference(find_location: Callable[[Constant], tuple[str, int]], constant: Constant, name: str) -> TensorProto:
    """Convert a large constant to a reference to the file and offset that ``find_location`` returns, a small one to a tensor."""
    if not is_large(constant):
        return write_tensor(constant, name)
    tensor = TensorProto(name=name, data_type=constant.dtype.onnx, dims=constant.shape, data_location=TensorProto.EXTERNAL)
    location, offset = find_location(constant)
    length = count_encoded_bytes(constant.dtype, constant.array.size)
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    return tensor


class ExternalData:
    """The external data files of one model. Each is mapped once, for as long as an array refers to it.

    ``directory`` is the model's directory, or None for a model from bytes or a message. ``find_embedded`` returns the data of a
    location that was loaded otherwise (`ModelExcerpt`, bundles), and None for the name of a file.
    """

    def __init__(
        self, directory: Path | None = None, find_embedded: Callable[[str], memoryview | None] = lambda location: None
    ) -> None:
        self.directory = directory
        self._find_embedded = find_embedded
        self._maps: dict[str, memoryview] = {}
        self.dense_bytes_left = DENSE_BASE_BYTES
        """Bytes that further sparse tensors may have as dense tensors: see `DENSE_BASE_BYTES`."""

    @property
    def locations(self) -> tuple[str, ...]:
        return tuple(sorted(self._maps))

    def view(self, tensor: TensorProto, subject: str) -> memoryview:
        """Return the bytes of a tensor, as a view of the mapped file. Without a length, the data extends to the end of the file.

        Raises ModelError if the file is missing, outside the model's directory, or too short.
        """
        entries = {entry.key: check_text(entry.value, f"the external data of {subject}") for entry in tensor.external_data}
        location = entries.get("location", "")
        if not location:
            raise ModelError(f"{subject} is external data without a location")
        if (embedded := self._find_embedded(location)) is not None:
            return embedded
        if location not in self._maps:
            self._maps[location] = self._map_file(location, subject)
        data = self._maps[location]
        # Python's integers do not overflow: offset + length is compared with the true size of the file.
        offset = _parse_number(entries, "offset", 0, subject)
        length = _parse_number(entries, "length", max(len(data) - offset, 0), subject)
        if offset + length > len(data):
            raise ModelError(
                f"{subject} is bytes {offset} to {offset + length} of external data file {location!r}, "
                f"which has only {len(data)} bytes"
            )
        return data[offset : offset + length]

    def _map_file(self, location: str, subject: str) -> memoryview:
        path = self._find_path(location, subject)
        try:
            with path.open("rb") as file:
                return map_file(file.fileno(), path)
        except OSError as error:
            where = f"{subject} is in external data file {location!r}"
            raise ModelError(f"{where}, which cannot be read: {error.strerror}") from error

    def _find_path(self, location: str, subject: str) -> Path:
        where = f"{subject} is in external data file {location!r}"
        if self.directory is None:
            raise ModelError(f"{where}, but the model did not come from a file; load it by its path")
        # Directory and path are resolved, so that neither ".." nor a symbolic link can lead out of the directory.
        root = self.directory.resolve()
        try:
            path = (root / location.replace("\\", "/")).resolve()
            is_file = path.is_file()
        except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a name that is too long, NUL in it
            raise ModelError(f"{where}, which is not a valid path: {error}") from None
        if not path.is_relative_to(root):
            raise ModelError(f"{where}, which leads outside the model's directory {str(root)!r}")
        if not is_file:
            raise ModelError(f"{where}, which is missing from {str(root)!r}")
        return path


def _parse_number(entries: dict[str, str], key: str, default: int, subject: str) -> int:
    digits = entries.get(key)
    if digits is None:
        return default
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        raise ModelError(f"{subject} is external data with {key} {digits!r}, which is not a number of bytes")
    return int(digits)


Entries: TypeAlias = tuple[tuple[str, str], ...]
"""The (key, value) pairs that describe external data. ONNX defines ``location``, ``offset`` and ``length``."""


def read_entries(model: bytes) -> dict[str, Entries]:
    """Read the external data entries of the initializers in a model's main graph, by name."""
    return {
        tensor.name: tuple((entry.key, entry.value) for entry in tensor.external_data)
        for tensor in ModelProto.FromString(model).graph.initializer
        if tensor.data_location == TensorProto.EXTERNAL
    }


def write_entries(model: bytes, entries: Mapping[str, Iterable[tuple[str, str]]]) -> bytes:
    """Replace the external data entries of the named initializers."""
    message = ModelProto.FromString(model)
    for tensor in message.graph.initializer:
        if tensor.name in entries:
            del tensor.external_data[:]
            for key, value in entries[tensor.name]:
                tensor.external_data.add(key=key, value=value)
    serialized: bytes = message.SerializeToString()
    return serialized


UNKNOWN_EXTENT = -1  # some exporters write it instead of omitting the extent


def read_type(proto: TypeProto, symbols: frozenset[str] | None = None) -> Type | None:
    """Convert a type; None for a message without an element type, and for an opaque type.

    A sparse tensor type becomes dense. With ``symbols``, symbolic extents that are not in the set become unknown. Raises
    ModelError for an unknown element type. Results are cached, because a model has far fewer types than values.
    """
    return _parse_type(proto.SerializeToString(), symbols)


@lru_cache(maxsize=4096)
def _parse_type(serialised: bytes, symbols: frozenset[str] | None) -> Type | None:
    return _convert_type(TypeProto.FromString(serialised), symbols)


def _convert_type(proto: TypeProto, symbols: frozenset[str] | None) -> Type | None:
    """Convert a type; None if it is incomplete or opaque. A sparse tensor has the type of a dense one."""
    kind = proto.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        tensor = getattr(proto, kind)
        if not tensor.elem_type:
            return None
        shape = tuple(_read_dim(dim, symbols) for dim in tensor.shape.dim) if tensor.HasField("shape") else None
        return TensorType(DType.from_onnx(tensor.elem_type), shape)
    if kind == "sequence_type":
        element = _convert_type(proto.sequence_type.elem_type, symbols)
        return None if element is None else SequenceType(element)
    if kind == "optional_type":
        element = _convert_type(proto.optional_type.elem_type, symbols)
        return None if element is None else OptionalType(element)
    if kind == "map_type" and proto.map_type.key_type:
        element = _convert_type(proto.map_type.value_type, symbols)
        return None if element is None else MapType(DType.from_onnx(proto.map_type.key_type), element)
    return None


def _read_dim(dim: TensorShapeProto.Dimension, symbols: frozenset[str] | None) -> Dim:
    if dim.dim_param:
        name = check_text(dim.dim_param, "the name of an extent")
        return name if symbols is None or name in symbols else None
    # A negative extent is unknown: see `read_boundary_value`.
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        size: int = dim.dim_value
        return size
    return None


def read_value(proto: ValueInfoProto) -> Value:
    return Value(check_text(proto.name, "the name of a value"), read_type(proto.type) if proto.HasField("type") else None)


def read_boundary_value(proto: ValueInfoProto) -> Value:
    """Convert an input or output of a graph; raises ModelError for a negative extent other than `UNKNOWN_EXTENT`.

    Invalid types of inner values are ignored, because they do not change the results.
    """
    for kind in ("tensor_type", "sparse_tensor_type"):
        if proto.type.HasField(kind):
            for axis, dim in enumerate(getattr(proto.type, kind).shape.dim):
                if dim.HasField("dim_value") and dim.dim_value < UNKNOWN_EXTENT:
                    problem = f"axis {axis} of {proto.name!r} has a negative extent, {dim.dim_value}"
                    raise ModelError(f"{problem}; only {UNKNOWN_EXTENT} is allowed, for an unknown extent")
    return read_value(proto)


@lru_cache(maxsize=4096)
def make_type(type_: Type) -> TypeProto:
    """Convert a type to a message. The message is cached, so it must not be changed."""
    if isinstance(type_, TensorType):
        return helper.make_tensor_type_proto(type_.dtype.onnx, type_.shape)
    if isinstance(type_, SequenceType):
        return helper.make_sequence_type_proto(make_type(type_.element))
    if isinstance(type_, OptionalType):
        return helper.make_optional_type_proto(make_type(type_.element))
    return helper.make_map_type_proto(type_.key.onnx, make_type(type_.value))


def write_value(name: str, type_: Type | None, proto: ValueInfoProto) -> None:
    proto.name = name
    if type_ is not None:
        proto.type.CopyFrom(make_type(type_))


def check_text(value: Any, subject: str) -> str:
    """Return the value if it is a string; raises ModelError for the bytes that protobuf returns for text that is not UTF-8."""
    if isinstance(value, str):
        return value
    raise ModelError(f"{subject} is not UTF-8 text: {value!r}")


def check_texts(values: Iterable[Any], subject: str) -> None:
    values = list(values)
    # A fast check, because a model has hundreds of thousands of names: join fails for bytes.
    try:
        "".join(values)
    except TypeError:
        for value in values:
            check_text(value, subject)


def summarize_error(error: Exception) -> str:
    """Format an error of onnx without the source file, line and assertion at the beginning of the message."""
    text = re.sub(r"^.*Assertion `.*?` failed: ", "", str(error), flags=re.DOTALL).strip()
    return text or f"onnx gives no reason ({type(error).__name__})"


METADATA_IR_VERSION = 10
"""The IR version that introduced ``metadata_props`` of nodes and graphs."""

# Keys of metadata_props of graphs and of nodes, for properties of Functions that ONNX does not have.
_ALIASES, _NAME = "xrt.aliases", "xrt.name"
_CONTROL, _DEVICE = "xrt.control", "xrt.device"


def read_props(proto: Any) -> dict[str, str]:
    props = {}
    for entry in proto.metadata_props:
        props[check_text(entry.key, "a key of the metadata")] = check_text(entry.value, "a value of the metadata")
    return props


def write_props(values: Mapping[str, str], proto: Any) -> None:
    for key, value in values.items():
        proto.metadata_props.add(key=key, value=value)


def read_node_metadata(proto: NodeProto) -> tuple[tuple[str, ...], str]:
    props = read_props(proto)
    names = _pop_list(props, _CONTROL, lambda item: isinstance(item, str), 'a list of node names, like ["a", "b"]')
    return tuple(names), props.get(_DEVICE, "")


def write_node_metadata(node: Node, proto: NodeProto) -> None:
    if node.control:
        proto.metadata_props.add(key=_CONTROL, value=json.dumps(node.control, ensure_ascii=False))
    if node.device:
        proto.metadata_props.add(key=_DEVICE, value=node.device)


def read_graph_metadata(proto: GraphProto) -> tuple[str, tuple[tuple[str, str], ...], dict[str, str]]:
    """Read the name, the aliases, and the other metadata of a graph."""
    props = read_props(proto)
    name = check_text(props.pop(_NAME, proto.name), "the name of a graph")
    pairs = _pop_list(props, _ALIASES, _is_pair, 'a list of pairs, like [["input", "output"]]')
    return name, tuple((source, target) for source, target in pairs), props


def write_graph_metadata(function: Function, proto: GraphProto, *, with_metadata: bool) -> None:
    """Store the properties of a Function that ONNX does not have: aliases, an empty name, and (if requested) metadata.

    The metadata of the main graph is stored in the model instead.
    """
    if not function.name:
        # ONNX requires a name, so `GraphWriter` names the graph "main".
        proto.metadata_props.add(key=_NAME, value="")
    if function.aliases:
        proto.metadata_props.add(key=_ALIASES, value=json.dumps(function.aliases, ensure_ascii=False))
    if not with_metadata:
        return
    reserved = function.metadata.keys() & {_NAME, _ALIASES}
    if reserved:
        raise ModelError(f"the metadata of body {function.name!r} uses {min(reserved)!r}, which is reserved for XRT's own use")
    write_props(function.metadata, proto)


def needs_metadata(function: Function) -> bool:
    """Whether the Function or a body has properties that must be stored in ``metadata_props`` of nodes or graphs."""
    # ONNX has no aliases, and requires a name of each graph: see `write_graph_metadata`.
    if function.aliases or not function.name:
        return True
    for _, node in function.walk():
        if node.control or node.device or any(body.metadata or needs_metadata(body) for body in node.bodies):
            return True
    return False


def _pop_list(props: dict[str, str], key: str, is_item: Callable[[Any], bool], expected: str) -> list[Any]:
    """Remove a property that is a JSON list, and return the list; an empty list if the property is missing."""
    text = props.pop(key, "[]")
    try:
        items = json.loads(text)
    except (ValueError, RecursionError):
        items, expected = None, "JSON"
    if not isinstance(items, list) or not all(map(is_item, items)):
        raise ModelError(f"metadata {key!r} is {text[:80]!r}; it must be {expected}")
    return items


def _is_pair(item: Any) -> bool:
    return isinstance(item, list) and len(item) == 2 and all(isinstance(name, str) for name in item)
