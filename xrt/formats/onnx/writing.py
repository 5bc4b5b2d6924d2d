"""Convert Functions to ModelProtos, find the lowest opsets that preserve their semantics, and save them to files."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from google.protobuf.message import EncodeError
from onnx import (
    AttributeProto,
    GraphProto,
    MapProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    SequenceProto,
    TensorProto,
    helper,
)

from xrt.errors import ModelError
from xrt.formats.onnx.messages import (
    METADATA_IR_VERSION,
    count_encoded_bytes,
    encode_data,
    is_large,
    make_type,
    needs_metadata,
    write_graph_metadata,
    write_node_metadata,
    write_props,
    write_reference,
    write_tensor,
    write_value,
)
from xrt.formats.output import replace_file
from xrt.graph import AttrKind, Constant, Function, Node, Value, since_version
from xrt.graph.schemas import latest_version

# Before IR version 4, initializers had to be inputs too, which XRT does not write.
MIN_IR_VERSION = 4


def find_lowest_opsets(function: Function) -> dict[str, int]:
    """Find for each domain in use the lowest version that preserves the semantics of every operator.

    An operator is unchanged from its `since_version` to the imported version, so the result is the maximum of `since_version`.
    Domains that onnx does not describe keep their version. ai.onnx is always included, because some libraries require it.
    """
    lowest = {"": 1}
    for holder, node in function.walk():
        since = since_version(node, holder)
        if since is None:
            since = holder.opset(node.domain)
        if since > lowest.get(node.domain, 0):
            lowest[node.domain] = since
    return lowest


def find_newer_node(function: Function, max_opset: int) -> Node | None:
    """Find the first ai.onnx node, bodies included, that needs a newer opset than ``max_opset``; None if there is none."""
    for holder, node in function.walk():
        since = None if node.domain else since_version(node, holder)
        if since is not None and since > max_opset:
            return node
    return None


def find_ir_version(opsets: Mapping[str, int], *, floor: int = 0) -> int:
    """Find the IR version that was released with the newest of these opsets; at least ``floor``."""
    operator_sets = [OperatorSetIdProto(domain=d, version=v) for d, v in opsets.items() if latest_version(d)]
    version: int = helper.find_min_ir_version_for(operator_sets, ignore_unknown=True)
    return max(MIN_IR_VERSION, floor, version)


CLIP_BOUND_INPUTS_OPSET = 11
"""The first opset in which the bounds of Clip are inputs, without defaults. Before, they are attributes with defaults."""
DEFAULT_CLIP_BOUND = float(np.finfo(np.float32).max)
"""Default upper bound of Clip before opset 11, and the negative of the default lower bound. It is the same number for all element
types; converted to float16, it is infinite."""


def read_clip_bounds(node: Node) -> tuple[float, float]:
    """Read the lower and the upper bound of a Clip from its attributes, before opset `CLIP_BOUND_INPUTS_OPSET`."""
    return float(node.attr("min", -DEFAULT_CLIP_BOUND)), float(node.attr("max", DEFAULT_CLIP_BOUND))


TensorWriter = Callable[[Constant, str], TensorProto]
"""Converts a constant to a message with a name."""


@dataclass(frozen=True, slots=True)
class GraphWriter:
    """Fills in ONNX messages from Functions.

    ``constants`` writes the constants of the main graph, ``inner`` the constants of bodies and the tensors among attributes.
    Without ``with_metadata``, docs, metadata, and properties that ONNX does not have are omitted; engines do not need them.
    """

    constants: TensorWriter = write_tensor
    inner: TensorWriter = write_tensor
    with_metadata: bool = True

    def write_graph(self, function: Function, proto: GraphProto, *, is_body: bool = False) -> None:
        write_constant = self.inner if is_body else self.constants
        proto.name = function.name or "main"
        for value in function.inputs:
            write_value(value.name, value.type, proto.input.add())
        for value in function.outputs:
            write_value(value.name, value.type, proto.output.add())
        for name, type_ in function.types.items():
            write_value(name, type_, proto.value_info.add())
        for name, constant in function.constants.items():
            proto.initializer.append(write_constant(constant, name))
        for node in function.nodes:
            self.write_node(node, proto.node)
        if self.with_metadata:
            proto.doc_string = function.doc
            write_graph_metadata(function, proto, with_metadata=is_body)

    def write_node(self, node: Node, nodes: Any) -> None:
        proto: NodeProto = nodes.add(op_type=node.op_type, input=node.inputs, output=node.outputs, name=node.name)
        if node.domain:
            proto.domain = node.domain
        for attribute in node.attributes:
            target = proto.attribute.add(name=attribute.name, type=attribute.kind.value)
            _ATTRIBUTE_WRITERS[attribute.kind](self, attribute.value, target)
        if self.with_metadata and (node.control or node.device):
            write_node_metadata(node, proto)

    def write_bodies(self, functions: tuple[Function, ...], proto: AttributeProto) -> None:
        for function in functions:
            self.write_graph(function, proto.graphs.add(), is_body=True)


WITHOUT_METADATA, WITH_METADATA = GraphWriter(with_metadata=False), GraphWriter()


def to_model(function: Function, writer: GraphWriter = WITH_METADATA) -> ModelProto:
    """Convert to a model that `load` converts back to an equal Function, with the IR version released with the opsets.

    Constants are copied into the model, unless ``writer`` writes references. A model of more than 2 GB cannot be serialized: use
    `save`.
    """
    floor = METADATA_IR_VERSION if needs_metadata(function) else 0
    return make_model(function, function.opsets, find_ir_version(function.opsets, floor=floor), writer)


def make_model(function: Function, opsets: Mapping[str, int], ir_version: int, writer: GraphWriter) -> ModelProto:
    """Make a model with these opsets and IR version. Whether the opsets have the operators is not checked."""
    model = ModelProto(ir_version=ir_version, producer_name="xrt")
    for domain in sorted(opsets):
        model.opset_import.add(domain=domain, version=opsets[domain])
    if writer.with_metadata:
        write_props(function.metadata, model)
    writer.write_graph(function, model.graph)
    return model


def make_node_message(node: Node) -> NodeProto:
    graph = GraphProto()
    WITHOUT_METADATA.write_node(node, graph.node)
    return graph.node[0]


def _encode_string(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("utf-8")


_ATTRIBUTE_WRITERS: dict[AttrKind, Callable[[GraphWriter, Any, AttributeProto], Any]] = {
    AttrKind.FLOAT: lambda _, value, proto: setattr(proto, "f", value),
    AttrKind.INT: lambda _, value, proto: setattr(proto, "i", value),
    AttrKind.STRING: lambda _, value, proto: setattr(proto, "s", _encode_string(value)),
    AttrKind.TENSOR: lambda writer, value, proto: proto.t.CopyFrom(writer.inner(value, "")),
    AttrKind.GRAPH: lambda writer, value, proto: writer.write_graph(value, proto.g, is_body=True),
    AttrKind.TYPE: lambda _, value, proto: proto.tp.CopyFrom(make_type(value)),
    AttrKind.FLOATS: lambda _, value, proto: proto.floats.extend(value),
    AttrKind.INTS: lambda _, value, proto: proto.ints.extend(value),
    AttrKind.STRINGS: lambda _, value, proto: proto.strings.extend(map(_encode_string, value)),
    AttrKind.TENSORS: lambda writer, value, proto: proto.tensors.extend(writer.inner(item, "") for item in value),
    AttrKind.GRAPHS: lambda writer, value, proto: writer.write_bodies(value, proto),
    AttrKind.TYPES: lambda _, value, proto: proto.type_protos.extend(map(make_type, value)),
}


# By default, a model with more bytes of large constants gets a data file, because protobuf is limited to 2 GB.
MIN_DATA_FILE_BYTES = 1 << 30
_PAGE_BYTES = 4096  # at offsets aligned to pages, readers can map each tensor separately


def save(function: Function, path: str | os.PathLike[str], external_data: bool | None = None) -> None:
    """Write a Function as an ONNX file atomically, replacing an existing file.

    With ``external_data``, large constants, also in bodies and attributes, are stored in ``NAME.DIGEST.data`` in the same
    directory. This is the default for models over 1 GB. The digest is of the data, so that a crash between writing the two files
    leaves the old model with its old data. Data files of earlier saves of the same file are removed at the end. Raises ModelError
    if the file cannot be written or would exceed 2 GB.
    """
    path = Path(path)
    if external_data is None:
        large_bytes = sum(_encoded_size(constant) for constant in function.walk_constants() if is_large(constant))
        external_data = large_bytes > MIN_DATA_FILE_BYTES
    try:
        if external_data:
            _save_in_two(function, path)
        else:
            data = _serialize_model(to_model(function), "save it with external_data=True")
            replace_file(path, lambda file: file.write(data))
            _remove_old_data(path, keep="")
    except OSError as error:
        raise ModelError(f"cannot write {os.fspath(path)!r}: {error.strerror}") from error


def _save_in_two(function: Function, path: Path) -> None:
    """Write the model, and its large constants to a data file beside it. Equal constants are stored once."""
    constants = {constant.digest: constant for constant in filter(is_large, function.walk_constants())}
    offsets: dict[bytes, int] = {}
    end = 0
    for digest, constant in constants.items():
        # Round up to a page.
        offsets[digest] = -(-end // _PAGE_BYTES) * _PAGE_BYTES
        end = offsets[digest] + _encoded_size(constant)
    data_digest = hashlib.sha256(b"".join(constants)).hexdigest()
    data_path = path.with_name(f"{path.name}.{data_digest[:12]}.data")
    is_new = not data_path.exists()
    write_constant = partial(write_reference, lambda constant: (data_path.name, offsets[constant.digest]))
    message = to_model(function, GraphWriter(write_constant, write_constant))
    model = _serialize_model(message, "it does even without its large constants")

    def write_data(file: BinaryIO) -> None:
        for digest, constant in constants.items():
            # Zeros up to the next page, where the tensor begins.
            file.write(b"\0" * (offsets[digest] - file.tell()))
            file.write(encode_data(constant))

    # Data first: if the process dies in between, the old model still refers to its old data.
    try:
        replace_file(data_path, write_data)
        replace_file(path, lambda file: file.write(model))
    except BaseException:
        # An older data file belongs to the model that is still there.
        if is_new:
            data_path.unlink(missing_ok=True)
        raise
    _remove_old_data(path, keep=data_path.name)


def _encoded_size(constant: Constant) -> int:
    return count_encoded_bytes(constant.dtype, constant.array.size)


def _serialize_model(model: ModelProto, hint: str) -> bytes:
    try:
        data: bytes = model.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise ModelError(f"the model exceeds protobuf's limit of 2 GB per file ({error}); {hint}") from error
    return data


def _remove_old_data(path: Path, keep: str) -> None:
    """Remove data files of earlier saves of the same file, except the file named ``keep``."""
    pattern = re.compile(re.escape(path.name) + r"\.[0-9a-f]{12}\.data")
    for entry in path.parent.iterdir():
        if pattern.fullmatch(entry.name) and entry.name != keep:
            entry.unlink(missing_ok=True)


def save_case(function: Function, inputs: Sequence[Any], outputs: Sequence[Any], folder: str | os.PathLike[str]) -> None:
    """Write an ONNX test case: ``model.onnx``, and ``test_data_set_0`` with one file per input and output.

    The test runners of ONNX and of the engines' libraries read this layout. Creates the directory. Raises ModelError if that
    fails, or for a value that is not a tensor, a map of numbers, or a list of tensors or maps.
    """
    folder = Path(folder)
    data_folder = folder / "test_data_set_0"
    try:
        data_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(f"cannot make the folder {os.fspath(data_folder)!r}: {error.strerror}") from error
    save(function, folder / "model.onnx")
    for kind, values, contents in (("input", function.inputs, inputs), ("output", function.outputs, outputs)):
        for index, (value, content) in enumerate(zip(values, contents, strict=True)):
            (data_folder / f"{kind}_{index}.pb").write_bytes(_write_case_value(value, content).SerializeToString())


def _write_case_value(value: Value, content: Any) -> TensorProto | SequenceProto | MapProto:
    if isinstance(content, np.ndarray):
        return write_tensor(Constant(content), value.name)
    if isinstance(content, list) and all(isinstance(item, np.ndarray) for item in content):
        return _write_sequence(value.name, content)
    if isinstance(content, dict):
        return _write_map(value.name, content)
    if isinstance(content, list) and all(isinstance(item, dict) for item in content):
        return SequenceProto(name=value.name, elem_type=SequenceProto.MAP, map_values=[_write_map("", item) for item in content])
    raise ModelError(f"{value.name!r} is a {type(content).__name__}; a case holds tensors, maps, and lists of one of these")


def _write_sequence(name: str, content: Sequence[Any]) -> SequenceProto:
    # numpy_helper.from_list rejects text that is not UTF-8, and arrays in another byte order.
    tensors = [write_tensor(Constant(item)) for item in content]
    return SequenceProto(name=name, elem_type=SequenceProto.TENSOR, tensor_values=tensors)


def _write_map(name: str, content: Mapping[Any, Any]) -> MapProto:
    """Convert a map; Python floats become float32, as in the outputs of ONNX's operators."""
    values = []
    for item in content.values():
        array = np.array(item, np.float32 if isinstance(item, float) else None)
        values.append(array.astype(object) if array.dtype.kind == "U" else array)  # a Constant holds text as objects
    if any(isinstance(key, str) for key in content):
        keys = [str(key).encode() for key in content]
        return MapProto(name=name, key_type=TensorProto.STRING, string_keys=keys, values=_write_sequence("", values))
    return MapProto(name=name, key_type=TensorProto.INT64, keys=list(content), values=_write_sequence("", values))
