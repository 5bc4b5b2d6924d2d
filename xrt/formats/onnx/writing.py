"""Convert a Function to a ModelProto at the lowest versions that preserve its meaning, and save it to files."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    METADATA_IR,
    encode_bytes,
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

# Before this version, initializers must also be inputs; XRT does not write them so.
INITIALISERS_IR = 4


def lowest_opsets(function: Function) -> dict[str, int]:
    """Find for each domain in use the lowest version that preserves the semantics of every operator.

    An operator is unchanged from its `since_version` to the declared version, so the maximum of all `since_version` is such a
    version. Domains that onnx does not describe keep their version. ai.onnx is always included, because some readers require
    it.
    """
    lowest = {"": 1}
    for holder, node in function.walk():
        since = since_version(node, holder)
        if since is None:
            since = holder.opset(node.domain)
        if since > lowest.get(node.domain, 0):
            lowest[node.domain] = since
    return lowest


def newest_nodes(function: Function, max_opset: int) -> Iterator[tuple[Function, Node, int]]:
    """Yield each ai.onnx node that needs a newer opset than ``max_opset``, with its Function or body and its `since_version`."""
    for holder, node in function.walk():
        since = since_version(node, holder)
        if not node.domain and since is not None and since > max_opset:
            yield holder, node, since


def lowest_ir(opsets: Mapping[str, int], *, floor: int = 0, ceiling: int | None = None) -> int:
    """Find the IR version that was released with the newest of these opsets.

    ``floor`` and ``ceiling`` limit the result. A ceiling is safe for a library that reads these opsets in an older IR version.
    """
    operator_sets = [OperatorSetIdProto(domain=d, version=v) for d, v in opsets.items() if latest_version(d)]
    paired: int = helper.find_min_ir_version_for(operator_sets, ignore_unknown=True)
    return max(INITIALISERS_IR, floor, paired if ceiling is None else min(paired, ceiling))


BOUNDS_ARE_INPUTS = 11
"""The first opset with the bounds of Clip as inputs. An omitted bound is then unlimited, as in ONNX's definition."""
CLIP_LIMIT = float(np.finfo(np.float32).max)
"""Default bound in ONNX's schema of version 6, for all element types.

It replaces infinities by a finite number, except in float16, where it is infinite.
"""


def read_clip_bounds(node: Node) -> tuple[float, float]:
    """Read the lower and the upper bound of a Clip from its attributes, before opset `BOUNDS_ARE_INPUTS`."""
    return float(node.attr("min", -CLIP_LIMIT)), float(node.attr("max", CLIP_LIMIT))


TensorWriter = Callable[[Constant, str], TensorProto]
"""Creates the message of a constant with a name."""


@dataclass(frozen=True, slots=True)
class GraphWriter:
    """Fills in ONNX messages from Functions. Its fields determine how constants and metadata are written."""

    constants: TensorWriter = write_tensor
    """Writes constants of the main graph."""
    inner: TensorWriter = write_tensor
    """Writes constants of bodies, and tensors among attributes."""
    with_metadata: bool = True
    """Include docs, metadata, and properties without an ONNX equivalent; engines do not need them."""

    def graph(self, function: Function, proto: GraphProto, *, is_body: bool = False) -> None:
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
            self.node(node, proto.node)
        if self.with_metadata:
            proto.doc_string = function.doc
            write_graph_metadata(function, proto, with_metadata=is_body)

    def node(self, node: Node, nodes: Any) -> None:
        proto: NodeProto = nodes.add(op_type=node.op_type, input=node.inputs, output=node.outputs, name=node.name)
        if node.domain:
            proto.domain = node.domain
        for attribute in node.attributes:
            target = proto.attribute.add(name=attribute.name, type=attribute.kind.value)
            _ATTRIBUTE_WRITERS[attribute.kind](self, attribute.value, target)
        if self.with_metadata and (node.control or node.device):
            write_node_metadata(node, proto)

    def bodies(self, functions: tuple[Function, ...], proto: AttributeProto) -> None:
        for function in functions:
            self.graph(function, proto.graphs.add(), is_body=True)


PLAIN, COMPLETE = GraphWriter(with_metadata=False), GraphWriter()


def to_model(function: Function, writer: GraphWriter = COMPLETE) -> ModelProto:
    """Convert to a model that `load` converts back to an equal Function.

    The IR version is the one released with its opsets. Constants are copied into the model, unless ``writer`` writes them
    otherwise; if they exceed 2 GB it cannot be serialized: use `save`.
    """
    floor = METADATA_IR if needs_metadata(function) else 0
    return write_model(function, function.opsets, lowest_ir(function.opsets, floor=floor), writer)


def write_model(function: Function, opsets: Mapping[str, int], ir_version: int, writer: GraphWriter) -> ModelProto:
    """Write a model with these versions. It is not checked that the operators exist in them."""
    model = ModelProto(ir_version=ir_version, producer_name="xrt")
    for domain in sorted(opsets):
        model.opset_import.add(domain=domain, version=opsets[domain])
    if writer.with_metadata:
        write_props(function.metadata, model)
    writer.graph(function, model.graph)
    return model


def node_message(node: Node) -> NodeProto:
    """Convert one node, without properties that ONNX cannot express."""
    graph = GraphProto()
    PLAIN.node(node, graph.node)
    return graph.node[0]


def _encode_string(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode("utf-8")


_ATTRIBUTE_WRITERS: dict[AttrKind, Callable[[GraphWriter, Any, AttributeProto], Any]] = {
    AttrKind.FLOAT: lambda _, value, proto: setattr(proto, "f", value),
    AttrKind.INT: lambda _, value, proto: setattr(proto, "i", value),
    AttrKind.STRING: lambda _, value, proto: setattr(proto, "s", _encode_string(value)),
    AttrKind.TENSOR: lambda writer, value, proto: proto.t.CopyFrom(writer.inner(value, "")),
    AttrKind.GRAPH: lambda writer, value, proto: writer.graph(value, proto.g, is_body=True),
    AttrKind.TYPE: lambda _, value, proto: proto.tp.CopyFrom(make_type(value)),
    AttrKind.FLOATS: lambda _, value, proto: proto.floats.extend(value),
    AttrKind.INTS: lambda _, value, proto: proto.ints.extend(value),
    AttrKind.STRINGS: lambda _, value, proto: proto.strings.extend(map(_encode_string, value)),
    AttrKind.TENSORS: lambda writer, value, proto: proto.tensors.extend(writer.inner(item, "") for item in value),
    AttrKind.GRAPHS: lambda writer, value, proto: writer.bodies(value, proto),
    AttrKind.TYPES: lambda _, value, proto: proto.type_protos.extend(map(make_type, value)),
}


# Protobuf is limited to 2 GB, so models with more constants than this get a data file by default.
AUTOMATIC_BYTES = 1 << 30
_PAGE = 4096  # aligned offsets let readers map each tensor separately


def save(function: Function, path: str | os.PathLike[str], external_data: bool | None = None) -> None:
    """Write a Function as an ONNX file atomically, replacing an existing one.

    With ``external_data``, large constants, including those of bodies and attributes, are stored in ``NAME.DIGEST.data`` in the
    same directory; this is the default for models over 1 GB. The digest depends on their content, so that a crash between writing
    the two files leaves the old model with its old data. Data files of earlier saves under the same name are removed at the end.
    Raises ModelError if the file cannot be written or would exceed 2 GB.
    """
    path = Path(path)
    if external_data is None:
        external_data = sum(map(_encoded_size, filter(is_large, function.walk_constants()))) > AUTOMATIC_BYTES
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
    # Equal constants are stored once.
    constants = {constant.digest: constant for constant in filter(is_large, function.walk_constants())}
    offsets, end = dict[bytes, int](), 0
    for digest, constant in constants.items():
        offsets[digest] = -(-end // _PAGE) * _PAGE
        end = offsets[digest] + _encoded_size(constant)
    data = path.with_name(f"{path.name}.{hashlib.sha256(b''.join(constants)).hexdigest()[:12]}.data")
    is_new = not data.exists()
    tensor = partial(write_reference, lambda constant: (data.name, offsets[constant.digest]))
    model = _serialize_model(to_model(function, GraphWriter(tensor, tensor)), "it does even without its large constants")

    def write_data(file: BinaryIO) -> None:
        for digest, constant in constants.items():
            # Zeros up to the next page, where the tensor begins.
            file.write(b"\0" * (offsets[digest] - file.tell()))
            file.write(encode_data(constant))

    # Data first: if the process dies in between, the old model still refers to its old data.
    try:
        replace_file(data, write_data)
        replace_file(path, lambda file: file.write(model))
    except BaseException:
        # Remove only a new data file: an existing one belongs to the model that is still there.
        if is_new:
            data.unlink(missing_ok=True)
        raise
    _remove_old_data(path, keep=data.name)


def _encoded_size(constant: Constant) -> int:
    return encode_bytes(constant.dtype, constant.array.size)


def _serialize_model(model: ModelProto, hint: str) -> bytes:
    try:
        data: bytes = model.SerializeToString()
    except (EncodeError, ValueError) as error:
        raise ModelError(f"the model exceeds protobuf's limit of 2 GB per file ({error}); {hint}") from error
    return data


def _remove_old_data(path: Path, keep: str) -> None:
    """Remove data files of earlier saves under the same name."""
    pattern = re.compile(re.escape(path.name) + r"\.[0-9a-f]{12}\.data")
    for entry in path.parent.iterdir():
        if pattern.fullmatch(entry.name) and entry.name != keep:
            entry.unlink(missing_ok=True)


def save_case(function: Function, inputs: Sequence[Any], outputs: Sequence[Any], folder: str | os.PathLike[str]) -> None:
    """Write an ONNX test case: ``model.onnx``, and ``test_data_set_0`` with one file per input and output.

    ONNX's test runner and those of the engines read this layout. Creates the directory. Raises ModelError if it cannot be
    written, or for a value that is not a tensor, a map of numbers, or a list of these.
    """
    folder = Path(folder)
    data = folder / "test_data_set_0"
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelError(f"cannot make the folder {os.fspath(data)!r}: {error.strerror}") from error
    save(function, folder / "model.onnx")
    for kind, values, contents in (("input", function.inputs, inputs), ("output", function.outputs, outputs)):
        for index, (value, content) in enumerate(zip(values, contents, strict=True)):
            (data / f"{kind}_{index}.pb").write_bytes(_write_case_value(value, content).SerializeToString())


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
    # Not numpy_helper.from_list: it refuses text that is not UTF-8 and arrays in another byte order.
    tensors = [write_tensor(Constant(item)) for item in content]
    return SequenceProto(name=name, elem_type=SequenceProto.TENSOR, tensor_values=tensors)


def _write_map(name: str, content: Mapping[Any, Any]) -> MapProto:
    """Convert a map; Python floats become float32, as in ONNX's operators."""
    values = [np.array(x, np.float32 if isinstance(x, float) else None) for x in content.values()]
    values = [x.astype(object) if x.dtype.kind == "U" else x for x in values]
    if any(isinstance(key, str) for key in content):
        keys = [str(key).encode() for key in content]
        return MapProto(name=name, key_type=TensorProto.STRING, string_keys=keys, values=_write_sequence("", values))
    return MapProto(name=name, key_type=TensorProto.INT64, keys=list(content), values=_write_sequence("", values))
