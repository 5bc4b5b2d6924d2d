"""The messages of proto/xrt.proto: fresh, commented, and plain values that come back as they went."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

from xrt.errors import BundleError
from xrt.formats import xrt_pb2
from xrt.formats.protobuf import read_plan, write_plan
from xrt.partition import ClusteringOptions
from xrt.partition.options import Pin
from xrt.partition.plan import Reason

TOP = Path(__file__).parents[2]
PROTO = TOP / "proto" / "xrt.proto"


def described(folder: Path) -> descriptor_pb2.FileDescriptorProto:
    """Return what the compiler makes of proto/xrt.proto today."""
    import onnx

    out = folder / "xrt.bin"
    arguments = [f"-I{PROTO.parent}", f"-I{Path(onnx.__file__).parents[1]}", f"--descriptor_set_out={out}", str(PROTO)]
    assert protoc.main(["protoc", *arguments]) == 0
    file = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file[0]
    for message in file.message_type:
        for field in message.field:
            field.ClearField("json_name")  # the compiler adds it; generated modules do without
    return file


def test_the_committed_module_is_fresh(tmp_path: Path) -> None:
    committed = descriptor_pb2.FileDescriptorProto.FromString(xrt_pb2.DESCRIPTOR.serialized_pb)
    assert described(tmp_path) == committed, "proto/xrt.proto was changed; run `make proto` and commit xrt/formats/xrt_pb2.py"


def test_the_committed_module_loads_with_the_oldest_protobuf_that_onnx_admits() -> None:
    source = Path(str(xrt_pb2.__file__)).read_text()
    assert "Protobuf Python Version: 6.31.1\n" in source


@pytest.mark.parametrize("path", sorted(PROTO.parent.glob("*.proto")), ids=lambda path: path.name)
def test_every_message_call_and_field_is_commented(path: Path) -> None:
    lines = [line.strip() for line in path.read_text().splitlines()]
    declared = [n for n, line in enumerate(lines) if line.startswith(("message ", "rpc ")) or re.search(r" = \d+;$", line)]
    assert len(declared) > 20
    assert [lines[n] for n in declared if not lines[n - 1].startswith("//")] == []


@pytest.mark.parametrize("cls", [ClusteringOptions, Reason, Pin])
def test_a_message_has_the_fields_of_what_it_writes_down(cls: Any) -> None:
    assert {field.name for field in getattr(xrt_pb2, cls.__name__).DESCRIPTOR.fields} == {field.name for field in fields(cls)}


def test_an_absent_field_is_none_and_an_empty_one_is_not() -> None:
    absent = {"function": None, "launches": (), "engines": (), "reasons": (), "options": None, "implicit": None, "device": ""}
    assert read_plan(b"") == absent
    assert read_plan(write_plan({"options": {"maximum_nodes": 0}}))["options"]["maximum_nodes"] == 0
    assert read_plan(write_plan({"options": {}}))["options"] is not None


def test_damaged_bytes_are_reported() -> None:
    with pytest.raises(BundleError, match=r"^these 5 bytes are not a serialised Plan: "):
        read_plan(b"\xff\xff\xff\xff\xff")
    with pytest.raises(BundleError, match=r"^these 6 bytes are not a serialised Plan: "):
        read_plan(b"\x0a\x04\x3a\x02\x0a\x07")  # a model that holds a truncated node
