from onnx import onnx_ml_pb2 as _onnx_ml_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Plan(_message.Message):
    __slots__ = ("function", "launches", "engines", "reasons", "options", "implicit", "device")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    LAUNCHES_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    IMPLICIT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    function: _onnx_ml_pb2.ModelProto
    launches: _containers.RepeatedCompositeFieldContainer[Launch]
    engines: _containers.RepeatedScalarFieldContainer[str]
    reasons: _containers.RepeatedCompositeFieldContainer[Reason]
    options: ClusteringOptions
    implicit: str
    device: str
    def __init__(self, function: _Optional[_Union[_onnx_ml_pb2.ModelProto, _Mapping]] = ..., launches: _Optional[_Iterable[_Union[Launch, _Mapping]]] = ..., engines: _Optional[_Iterable[str]] = ..., reasons: _Optional[_Iterable[_Union[Reason, _Mapping]]] = ..., options: _Optional[_Union[ClusteringOptions, _Mapping]] = ..., implicit: _Optional[str] = ..., device: _Optional[str] = ...) -> None: ...

class Launch(_message.Message):
    __slots__ = ("name", "engine", "nodes", "function")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    name: str
    engine: str
    nodes: _containers.RepeatedScalarFieldContainer[str]
    function: _onnx_ml_pb2.ModelProto
    def __init__(self, name: _Optional[str] = ..., engine: _Optional[str] = ..., nodes: _Optional[_Iterable[str]] = ..., function: _Optional[_Union[_onnx_ml_pb2.ModelProto, _Mapping]] = ...) -> None: ...

class Reason(_message.Message):
    __slots__ = ("node", "op", "engine", "text", "updating_engine")
    NODE_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    UPDATING_ENGINE_FIELD_NUMBER: _ClassVar[int]
    node: str
    op: str
    engine: str
    text: str
    updating_engine: str
    def __init__(self, node: _Optional[str] = ..., op: _Optional[str] = ..., engine: _Optional[str] = ..., text: _Optional[str] = ..., updating_engine: _Optional[str] = ...) -> None: ...

class ClusteringOptions(_message.Message):
    __slots__ = ("minimum_nodes", "maximum_nodes", "pins")
    MINIMUM_NODES_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_NODES_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    minimum_nodes: int
    maximum_nodes: int
    pins: _containers.RepeatedCompositeFieldContainer[Pin]
    def __init__(self, minimum_nodes: _Optional[int] = ..., maximum_nodes: _Optional[int] = ..., pins: _Optional[_Iterable[_Union[Pin, _Mapping]]] = ...) -> None: ...

class Pin(_message.Message):
    __slots__ = ("patterns", "engine", "by", "forbid")
    PATTERNS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    FORBID_FIELD_NUMBER: _ClassVar[int]
    patterns: _containers.RepeatedScalarFieldContainer[str]
    engine: str
    by: str
    forbid: bool
    def __init__(self, patterns: _Optional[_Iterable[str]] = ..., engine: _Optional[str] = ..., by: _Optional[str] = ..., forbid: bool = ...) -> None: ...
