from onnx import onnx_ml_pb2 as _onnx_ml_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Plan(_message.Message):
    __slots__ = ("format", "function", "launches", "engines", "reasons", "options", "implicit", "device")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    LAUNCHES_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    IMPLICIT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    format: int
    function: _onnx_ml_pb2.ModelProto
    launches: _containers.RepeatedCompositeFieldContainer[Launch]
    engines: _containers.RepeatedScalarFieldContainer[str]
    reasons: _containers.RepeatedCompositeFieldContainer[Reason]
    options: ClusteringOptions
    implicit: str
    device: str
    def __init__(self, format: _Optional[int] = ..., function: _Optional[_Union[_onnx_ml_pb2.ModelProto, _Mapping]] = ..., launches: _Optional[_Iterable[_Union[Launch, _Mapping]]] = ..., engines: _Optional[_Iterable[str]] = ..., reasons: _Optional[_Iterable[_Union[Reason, _Mapping]]] = ..., options: _Optional[_Union[ClusteringOptions, _Mapping]] = ..., implicit: _Optional[str] = ..., device: _Optional[str] = ...) -> None: ...

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

class ExecutionOptions(_message.Message):
    __slots__ = ("precision", "threads")
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    precision: str
    threads: int
    def __init__(self, precision: _Optional[str] = ..., threads: _Optional[int] = ...) -> None: ...

class Ingredient(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class WeightsMemo(_message.Message):
    __slots__ = ("format", "path", "stamp", "weights")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    format: int
    path: str
    stamp: _containers.RepeatedScalarFieldContainer[int]
    weights: _containers.RepeatedCompositeFieldContainer[WeightHash]
    def __init__(self, format: _Optional[int] = ..., path: _Optional[str] = ..., stamp: _Optional[_Iterable[int]] = ..., weights: _Optional[_Iterable[_Union[WeightHash, _Mapping]]] = ...) -> None: ...

class WeightHash(_message.Message):
    __slots__ = ("name", "digest", "place")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    name: str
    digest: bytes
    place: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., digest: _Optional[bytes] = ..., place: _Optional[_Iterable[int]] = ...) -> None: ...

class Bundle(_message.Message):
    __slots__ = ("format", "writer", "engines", "clustering", "execution", "device", "strict", "fold_constants", "inputs", "outputs", "model", "programs")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    WRITER_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    CLUSTERING_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    FOLD_CONSTANTS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROGRAMS_FIELD_NUMBER: _ClassVar[int]
    format: int
    writer: str
    engines: _containers.RepeatedCompositeFieldContainer[BundledEngine]
    clustering: ClusteringOptions
    execution: ExecutionOptions
    device: str
    strict: bool
    fold_constants: bool
    inputs: _containers.RepeatedCompositeFieldContainer[_onnx_ml_pb2.ValueInfoProto]
    outputs: _containers.RepeatedCompositeFieldContainer[_onnx_ml_pb2.ValueInfoProto]
    model: str
    programs: _containers.RepeatedCompositeFieldContainer[BundledProgram]
    def __init__(self, format: _Optional[int] = ..., writer: _Optional[str] = ..., engines: _Optional[_Iterable[_Union[BundledEngine, _Mapping]]] = ..., clustering: _Optional[_Union[ClusteringOptions, _Mapping]] = ..., execution: _Optional[_Union[ExecutionOptions, _Mapping]] = ..., device: _Optional[str] = ..., strict: bool = ..., fold_constants: bool = ..., inputs: _Optional[_Iterable[_Union[_onnx_ml_pb2.ValueInfoProto, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[_onnx_ml_pb2.ValueInfoProto, _Mapping]]] = ..., model: _Optional[str] = ..., programs: _Optional[_Iterable[_Union[BundledProgram, _Mapping]]] = ...) -> None: ...

class BundledEngine(_message.Message):
    __slots__ = ("spec", "version")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    spec: str
    version: str
    def __init__(self, spec: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class BundledProgram(_message.Message):
    __slots__ = ("function", "fetch", "plan", "regions")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    FETCH_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    function: str
    fetch: _containers.RepeatedScalarFieldContainer[str]
    plan: Plan
    regions: _containers.RepeatedCompositeFieldContainer[BundledRegion]
    def __init__(self, function: _Optional[str] = ..., fetch: _Optional[_Iterable[str]] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ..., regions: _Optional[_Iterable[_Union[BundledRegion, _Mapping]]] = ...) -> None: ...

class BundledRegion(_message.Message):
    __slots__ = ("section", "ingredients", "reason")
    SECTION_FIELD_NUMBER: _ClassVar[int]
    INGREDIENTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    section: str
    ingredients: _containers.RepeatedCompositeFieldContainer[Ingredient]
    reason: str
    def __init__(self, section: _Optional[str] = ..., ingredients: _Optional[_Iterable[_Union[Ingredient, _Mapping]]] = ..., reason: _Optional[str] = ...) -> None: ...
