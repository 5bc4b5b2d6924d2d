"""Files written to do harm in one certain way, which chance would hardly find: by reader and name."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    helper,
)

from tests.malformed_inputs.case import Case, Folder, Link, Pipe
from tests.malformed_inputs.mutators import nest, write_field

_MODEL, _GRAPH, _NODE, _ATTRIBUTE, _TENSOR = (
    message.DESCRIPTOR.fields_by_name for message in (ModelProto, GraphProto, NodeProto, AttributeProto, TensorProto)
)
_BODY = (_GRAPH["node"].number, _NODE["attribute"].number, _ATTRIBUTE["g"].number)
"""The way from a graph to a graph inside of it."""


def no_files(name: str) -> Mapping[str, Case]:
    """Return what may stand in the place of a file of that name. A model may come by a pipe, so there it is none."""
    return {
        "missing": Case({f"no/{name}": Link(name)}),
        "empty": Case({name: b""}),
        "folder": Case({name: Folder()}),
        "itself": Case({name: Link(name)}),
        "endless": Case({name: Link("/dev/zero")}),
        "text": Case({name: b"hello\n" * 100}),
        "zeros": Case({name: bytes(100_000)}),
        **({} if name == "model.onnx" else {"a pipe": Case({name: Pipe()})}),
    }


# ---------------------------------------------------------------------- ONNX


def _model(graph: bytes) -> bytes:
    head = write_field(_MODEL["ir_version"].number, 8) + write_field(_MODEL["opset_import"].number, write_field(2, 18))
    return head + write_field(_MODEL["graph"].number, graph)


def _deep(times: int) -> bytes:
    inner = nest(write_field(_GRAPH["name"].number, b"inner"), _BODY, times)
    return _model(inner)


def _valid_deep(times: int) -> bytes:
    """Return If in If: protobuf admits a hundred messages in messages."""
    result = ValueInfoProto(name="y")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "leaf", [], [result])
    for _ in range(times):
        branch = helper.make_node("If", ["c"], ["y"], then_branch=graph, else_branch=helper.make_graph([], "none", [], []))
        graph = helper.make_graph([branch], "body", [], [result])
    return _model(graph.SerializeToString())


def _deep_type(times: int) -> bytes:
    """Return an input that is a sequence of sequences."""
    inner = nest(TypeProto(tensor_type=TypeProto.Tensor(elem_type=1)).SerializeToString(), (4, 1), times)
    return _model(write_field(_GRAPH["input"].number, write_field(1, b"x") + write_field(2, inner)))


def _initializer(**fields: object) -> bytes:
    return _model(write_field(_GRAPH["initializer"].number, TensorProto(name="w", **fields).SerializeToString()))


def _sparse(count: int, dims: list[int]) -> bytes:
    values = TensorProto(name="w", data_type=1, dims=[1], float_data=[1.0])
    indices = TensorProto(data_type=7, dims=[1], int64_data=[0])
    graph = GraphProto(name="main")
    for number in range(count):
        values.name = f"w{number}"
        graph.sparse_initializer.append(SparseTensorProto(values=values, indices=indices, dims=dims))
    return _model(graph.SerializeToString())


def _calls(*bodies: tuple[str, str], times: int = 2) -> bytes:
    """Return a model of local functions, each of which calls another so many times."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("f", 1)]
    names = ["a", *(f"t{k}" for k in range(1, times)), "c"]
    functions = []
    for name, other in bodies:
        domain = "" if other == "Relu" else "f"
        calls = [helper.make_node(other, [names[k]], [names[k + 1]], domain=domain) for k in range(times)]
        functions.append(helper.make_function("f", name, ["a"], ["c"], calls, opsets))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    main = helper.make_graph([helper.make_node(bodies[0][0], ["x"], ["y"], domain="f")], "main", values[:1], values[1:])
    return bytes(helper.make_model(main, functions=functions, opset_imports=opsets).SerializeToString())


def _chain(count: int) -> list[tuple[str, str]]:
    return [(f"g{k}", f"g{k + 1}") for k in range(count)]


def models() -> Mapping[str, Case]:
    """Return models that nest, repeat, announce and call without end."""
    mostly = {**_nesting(), **_announcing(), **_calling()}
    cases = {name: Case({"model.onnx": content}) for name, content in mostly.items()}
    for name in ("graphs nested 33 deep", "types nested 40 deep", "If nested 24 deep", "If nested 33 deep", "an extent of none"):
        cases[name] = Case(cases[name].files, refused=False)
    return {**no_files("model.onnx"), **cases}


def _nesting() -> dict[str, bytes]:
    return {
        "If nested 24 deep": _valid_deep(24),
        "If nested 33 deep": _valid_deep(33),
        "graphs nested 5000 deep": _deep(5000),
        "graphs nested 33 deep": _deep(33),
        "types nested 5000 deep": _deep_type(5000),
        "types nested 40 deep": _deep_type(40),
        "groups that never end": bytes([0x0B]) * 5000,
        "a length beyond the file": _model(b"") + b"\x3a\xff\xff\xff\xff\x07",
        "a length without an end": _model(b"") + b"\x3a" + b"\xff" * 12,
        "a hundred thousand empty nodes": _model(write_field(_GRAPH["node"].number, b"") * 100_000),
    }


def _announcing() -> dict[str, bytes]:
    huge = 1 << 40
    return {
        "an extent of none": _initializer(data_type=1, dims=[1 << 32, 1 << 32, 0]),
        "a tensor of too many extents": _initializer(data_type=1, dims=[1] * 200, raw_data=b"1234"),
        "four bits, announced in terabytes": _initializer(data_type=22, dims=[huge], raw_data=b"1"),
        "strings, announced in terabytes": _initializer(data_type=8, dims=[huge], string_data=[b"a"]),
        "a sparse tensor of a gigabyte": _sparse(1, [1 << 28]),
        "many sparse tensors of a gigabyte": _sparse(50, [1 << 28]),
    }


def _calling() -> dict[str, bytes]:
    return {
        "functions that call each other": _calls(("a", "b"), ("b", "a")),
        "functions that double 40 times": _calls(*_chain(40), ("g40", "h"), ("h", "h")),
        "functions that make a billion nodes": _calls(*_chain(8), ("g8", "Relu"), times=10),
    }


# ---------------------------------------------------------------------- external data


def _outside(**entries: str) -> bytes:
    tensor = TensorProto(name="w", data_type=1, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return _model(write_field(_GRAPH["initializer"].number, tensor.SerializeToString()))


def external() -> Mapping[str, Case]:
    """Return models whose weights are no file, or at an impossible place of the file beside them."""
    numbers = ("-1", "17", str(2**63), str(2**64 - 8), "9" * 5000, "1e3", "", " 4", "0x4", "٤", "4\0", "nan")
    places = {f"{key} {value[:30]!r}": {key: value} for key in ("offset", "length") for value in numbers}
    places["offset and length that overflow"] = {"offset": "8", "length": str(2**63 - 1)}
    return {
        "the model's folder": Case({"model.onnx": _outside(location=".")}),
        "a pipe": Case({"model.onnx": _outside(location="w.bin"), "w.bin": Pipe()}),
        "a path of ten thousand folders": Case({"model.onnx": _outside(location="a/" * 10_000 + "w.bin")}),
        **{k: Case({"model.onnx": _outside(location="w.bin", **entries), "w.bin": bytes(16)}) for k, entries in places.items()},
    }


# ---------------------------------------------------------------------- text


def _function(*statements: str) -> str:
    return "\n".join(["function main(x: float32[2]) -> (x: float32[2]) {", *statements, "}"])


def texts() -> Mapping[str, Case]:
    """Return texts that nest and announce."""
    results = {
        "bodies nested 10000 deep": "function f() -> () { = If(c) {then_branch=" * 10_000,
        "types nested 10000 deep": f"function f(x: {'seq(' * 10_000}",
        "lists nested 10000 deep": _function(f"y = Op() {{a={'[' * 10_000}"),
        "a constant of terabytes": _function(f"const w: float32[{1 << 40},{1 << 40}] = [1]"),
        "a constant of terabytes in base64": _function(f'const w: float32[{1 << 40},{1 << 40}] = base64 "AAAA"'),
        "a constant beyond 64 bits": _function(f"const w: int64[] = {'9' * 90}"),
        "a constant of no bytes and endless extents": _function(f"const w: float32[0,{1 << 70}] = []"),
        "a constant of half a name": _function('const w: string[1] = ["\\ud800"]'),
        "base64 that is none": _function('const w: float32[1] = base64 "ééé="'),
        "a number of 5000 digits": _function(f"opset ai.onnx {'9' * 5000}"),
        "an attribute of 5000 digits": _function(f"y = Relu(x) {{a = {'9' * 5000}}}"),
        "a version of 99 digits": _function(f"opset ai.onnx {'9' * 99}", "y = Relu(x)"),
        "an attribute beyond 64 bits": _function(f"y = Relu(x) {{a = {1 << 63}}}"),
        "an extent of 99 digits": f"function f(x: float32[{'9' * 99}]) -> () {{ }}",
        "an open string": 'function "' + "a" * 100_000,
        "a string of escapes": f'function "{chr(92) * 100_001}',
        "only marks": "{" * 100_000,
        "a comment without an end": "#" * 200_000,
        "names without an end": _function("y = Op(" + "a, " * 50_000),
        "half a name": 'function "\\udc80"(x: float32[2]) -> (x: float32[2]) {\n}',
    }
    cases = {name: Case({"function.txt": text.encode()}, refused=False) for name, text in results.items()}
    return {"empty": Case({"function.txt": b""}), **cases}


def specs() -> Mapping[str, Case]:
    """Return specs that nest and repeat."""
    results = {
        "brackets nested 100000 deep": f"toy{{native={'(' * 100_000}}}",
        "brackets, closed": f"toy{{native={'(' * 50_000}{')' * 50_000}}}",
        "a sum in quotes": "ort{config.a='x'" + "+'x'" * 50_000 + "}",
        "calls in quotes": "ort{config.a='x'" + ".a()" * 50_000 + "}",
        "brackets in quotes": "ort{config.a='x'" + "[" * 50_000 + "]" * 50_000 + "}",
        "minus signs in quotes": "ort{config.a=''" + "-" * 100_000 + "''}",
        "a NUL in quotes": "ort{config.a='\0'}",
        "half a character": "ort{config.a='\\ud800'}",
        "an escape that is none": "ort{config.a='\\N{nothing}'}",
        "a name of 100000 letters": "t" * 100_000,
        "many empty places": "," * 100_000,
    }
    return {name: Case({"spec.txt": text.encode()}, refused=False) for name, text in results.items()}


def locks() -> Mapping[str, Case]:
    """Return locks that nest, repeat and announce."""
    row = '{"at": 0, "engine": "toy", "nodes": 1, "region": 0}'
    first = '"name {}": 1'.format
    head = '"kind": "xrt placement", "model": {"nodes": "3"}'
    results = {
        "objects nested 100000 deep": '{"kind": ' * 100_000,
        "a million nodes of nothing": f'{{{head}, "plan": [{row.replace(": 1,", ": 9999999,")}]}}',
        "one node a hundred thousand times": f'{{{head}, "plan": [{", ".join([row] * 100_000)}]}}',
        "one name a hundred thousand times": "{" + ", ".join(['"kind": 1'] * 100_000) + "}",
        "lists in lists without end": f'{{{head}, "plan": [{"[]," * 200_000}[]]}}',
        "a name that looks like an item of a list": f'{{{head}, "plan": [], "x` - at `$.plan[99999]": 1}}',
        "a name that looks like a field of a text": f'{{{head}, "writer": "a", "x` - at `$.writer.foo": 1}}',
        "a name that looks like a field of another item": f'{{{head}, "plan": [{{"x` - at `$.plan[99999].at": 1}}]}}',
        "two of a hundred thousand names are one": f"{{{', '.join(map(first, [*range(100_000), 99_999]))}}}",
    }
    cases = {name: Case({"model.lock": text.encode()}) for name, text in results.items()}
    return {**no_files("model.lock"), **cases}


def pins() -> Mapping[str, Case]:
    """Return pins that take an expression long to match."""
    results = {
        "spaces without an end": "Conv" + " " * 20_000,
        "spaces before a mark that is missing": "name:" + " a" * 20_000 + " " * 20_000 + "!",
        "marks without an end": "a=" * 20_000,
        "open options": "a=b{" * 10_000,
        "stars": f"name:{'*a' * 30}b=toy",
        "many stars": f"name:{'*' * 5000}b=toy",
    }
    return {name: Case({"pin.txt": text.encode()}, refused=False) for name, text in results.items()}


# ---------------------------------------------------------------------- arrays


def _npy(header: str, data: bytes = b"", version: int = 1) -> bytes:
    text = header.encode() + b"\n"
    size = len(text).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + size + text + data


def _described(descr: str = "'<f4'", shape: str = "(2,)", order: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"


def _zip(members: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def _pickled() -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}], object), allow_pickle=True)
    return file.getvalue()


def arrays() -> Mapping[str, Case]:
    """Return files of arrays that announce terabytes, hold pickles, lead elsewhere or expand without end."""
    alone, packed = _alone(), _packed()
    good = _npy(_described(), bytes(8))
    members = {"../x.npy": good, "/etc/x.npy": good, "a\\..\\b.npy": good, "\x01.npy": good}
    return {
        **no_files("x.npy"),
        **{f"{name}, alone": Case({"x.npy": content}) for name, content in alone.items()},
        **{f"{name}, packed": Case({"x.npz": content}) for name, content in packed.items()},
        "names that lead elsewhere": Case({"x.npz": _zip(members)}, refused=False),
    }


def _alone() -> dict[str, bytes]:
    return {
        "terabytes": _npy(_described(shape=f"({1 << 40},)"), bytes(8)),
        "extents whose product overflows": _npy(_described(shape=f"({1 << 40}, {1 << 40}, 0)")),
        "a negative extent": _npy(_described(shape="(-1, -2)"), bytes(8)),
        "an extent that is no number": _npy(_described(shape="('a',)"), bytes(8)),
        "an element of terabytes": _npy(_described(f"'|V{1 << 30}'", "(1,)"), bytes(8)),
        "an element of no bytes": _npy(_described("'|V0'", f"({1 << 40},)")),
        "texts of no characters": _npy(_described("'<U0'", f"({10**9},)")),
        "more than it announces": _npy(_described(shape="(1,)"), bytes(8)),
        "objects": _npy(_described("'|O'", "(1,)"), b"\x80\x04N."),
        "objects in fields": _npy(_described("[('a', '|O')]", "(1,)"), b"\x80\x04N."),
        "a pickle": _pickled(),
        "a bare pickle": b"\x80\x04\x95\x10" + bytes(60),
        "a header of brackets": _npy("(" * 9000, version=2),
        "a header of signs": _npy("-" * 9000 + "1", version=2),
        "a header that calls": _npy("__import__('os').system('true')"),
        "a header of gigabytes": b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + bytes(50),
        "a later version": _npy(_described(), bytes(8), version=3)[:6] + b"\x09\x00" + bytes(40),
        "too many extents": _npy(_described(shape=f"({'1, ' * 100})"), bytes(4)),
        "a type of a million fields": _npy(_described("[" + "('a', '<f4'), " * 500 + "]"), bytes(8)),
    }


def _packed() -> dict[str, bytes]:
    zeros, alone = 100 << 20, _alone()
    bomb = _npy(_described("'|u1'", f"({zeros},)"), bytes(zeros))
    good = _npy(_described(), bytes(8))
    return {
        "zeros without end": _zip({"x.npy": bomb}, zipfile.ZIP_DEFLATED),
        "a size that is not so": _resized(_zip({"x.npy": good}, zipfile.ZIP_DEFLATED), len(good), 1 << 30),
        "two of one name": _twice(good),
        "terabytes": _zip({"x.npy": alone["terabytes"]}),
        "a pickle": _zip({"x.npy": alone["a pickle"]}),
        "no arrays": _zip({"x.txt": b"hello"}),
        "an archive in an archive": _zip({"x.npz": _zip({"x.npy": good})}),
    }


def _resized(archive: bytes, old: int, new: int) -> bytes:
    """Return the archive with another size announced, in both of the places that tell it."""
    return archive.replace(old.to_bytes(4, "little"), new.to_bytes(4, "little"))


def _twice(content: bytes) -> bytes:
    return _zip({"x.npy": content, "y.npy": content}).replace(b"y.npy", b"x.npy")


# ---------------------------------------------------------------------- native libraries


def libraries() -> Mapping[str, Case]:
    """Return what is no library of kernels: wrong files, and a shared library of another kind."""
    name = "kernels.so"
    results = {
        "an ELF head alone": b"\x7fELF",
        "a library of something else": _library(),
        "an archive": b"!<arch>\n" + bytes(100),
        "a script for the linker": b"INPUT(libc.so.6)\n",
    }
    return {**no_files(name), **{k: Case({name: v}) for k, v in results.items()}}


def _library() -> bytes:
    """Return a shared library that is none of XRT's: one that NumPy brings."""
    results = sorted(Path(np.__file__).parent.rglob("_simd*.so")) or sorted(Path(np.__file__).parent.rglob("*.so"))
    return results[0].read_bytes() if results else os.fsencode(__file__)
