"""The import law and the law of effects, over the whole package; and that the checker sees what is planted."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import xrt
from tests.architecture.layers import BESIDE, ENGINES, LINE, PARTS, Module, imported, name_module, package_of, violations

ROOT = Path(xrt.__file__).parent
MODULES = {name_module(path, ROOT): path for path in sorted(ROOT.rglob("*.py"))}


def test_every_package_has_its_place() -> None:
    known = {package for line in LINE for package in line} | set(BESIDE) | {f"engines.{name}" for name in ENGINES} | {""}
    assert set(map(package_of, MODULES)) <= known
    assert len(MODULES) > 50


def test_every_engine_in_the_package_is_known_as_one() -> None:
    assert {path.parent.name for path in ROOT.glob("engines/*/__init__.py")} == {*PARTS}


def test_the_laws_are_kept() -> None:
    assert [text for path in MODULES.values() for text in violations(Module.read(path, ROOT))] == []


PLANTED = [
    ("graph.node", "from xrt.formats.onnx import load", "graph may not import formats"),
    ("graph.node", "def f():\n    import xrt.engines.contract.graph_compiler", "graph may not import engines.contract"),
    (
        "graph.node",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from xrt import formats",
        "graph may not import formats",
    ),
    ("formats.dump", "from xrt.passes import drop_dead_nodes", "formats may not import passes"),
    ("passes.inlining", "from xrt.engines.toy import Toy", "passes may not import engines.toy"),
    ("engines.ort.engine", "from xrt.engines.toy import Toy", "engines.ort may not import engines.toy"),
    ("engines.ort.engine", "from xrt.partition import Plan", "engines.ort may not import partition"),
    ("engines.tvm.engine", "from xrt.runtime import Program", "engines.tvm may not import runtime"),
    ("engines.contract.registry", "from xrt.engines.toy import Toy", "engines.contract may not import engines.toy"),
    ("engines.native.tape", "from xrt.engines.toy import Toy", "engines.native may not import engines.toy"),
    ("engines.native.tape", "from xrt.runtime import Program", "engines.native may not import runtime"),
    ("engines.native.tape", "open('x')", "engines.native may not touch files (open)"),
    ("partition.plan", "from xrt.cache import signature", "partition may not import cache"),
    ("verify.regions", "import xrt.placement.autotune", "verify may not import placement"),
    ("module.module", "from xrt.testing import corpus", "module may not import testing"),
    ("module.module", "from xrt.models import load_light", "module may not import models"),
    ("bench.run", "from xrt.testing import corpus", "bench may not import testing"),
    ("testing.cases", "from xrt.cli import main", "testing may not import cli"),
    ("comparison", "from xrt.graph import DType", "comparison may not import graph"),
    ("measure.timing", "from xrt.graph import DType", "measure may not import graph"),
    ("engines.contract.options", "from xrt.engines.toolkit import blas", "engines.contract may not import engines.toolkit"),
    ("engines.toolkit.blas", "from xrt.partition import Plan", "engines.toolkit may not import partition"),
    ("engines.kernels.reduction", "import jax.numpy as jnp", "engines.kernels may not import jax; only engines.xla may"),
    ("engines.kernels.reduction", "from xrt.engines.toy import tape", "engines.kernels may not import engines.toy"),
    ("engines.toolkit.blas", "open('x')", "engines.toolkit may not touch files (open)"),
    ("runtime.program", "from xrt.worker import server", "runtime may not import worker"),
    ("placement.auto", "from xrt.module import XRTModule", "placement may not import module"),
    ("formats.dump", "from xrt.builder import Tensor", "formats may not import builder"),
    ("models.light", "from xrt.passes import fold_constants", "models may not import passes"),
    ("graph.node", "from .formats import onnx", "imports .formats.onnx relatively; write the whole name"),
    ("runtime.program", "import onnxruntime as ort", "runtime may not import onnxruntime; only engines.ort may"),
    ("engines.ort.engine", "from tvm import relax", "engines.ort may not import tvm; only engines.tvm may"),
    ("partition.plan", "from google.protobuf import message", "partition may not import google; only formats, serve may"),
    ("html.views", "import jinja2", "imports jinja2 before it is used; import it in the function that uses it"),
    ("module.explain", "def f():\n    from rich.table import Table", "module may not import rich; only cli, bench may"),
    ("graph.schemas", "from onnx import ModelProto", "graph may not handle the messages of onnx (onnx.ModelProto)"),
    ("passes.shape_inference", "from onnx import helper", "passes may not handle the messages of onnx (onnx.helper)"),
    ("module.explain", "print('hello')", "module may not print"),
    ("runtime.program", "import sys\nsys.stderr.write('x')", "runtime may not print"),
    ("runtime.program", "import sys\nstream = sys.stderr", "runtime may not print"),
    ("progress", "from xrt.graph import Function", "progress may not import graph"),
    ("module.module", "open('x')", "module may not touch files (open)"),
    (
        "cli.lock",
        "import subprocess\nsubprocess.run(['x'])",
        "cli may not start processes (subprocess.run); xrt.processes does",
    ),
    ("worker.isolated_engine", "import os\nos.fork()", "worker may not start processes (os.fork); xrt.processes does"),
    ("bench.comparison", "import os\nos.execv('x', [])", "bench may not start processes (os.execv); xrt.processes does"),
    (
        "testing.shares",
        "from multiprocessing import Pool",
        "testing may not start processes (multiprocessing.Pool); xrt.processes does",
    ),
    (
        "bench.process",
        "from xrt.processes import start_python",
        "bench may not start processes (xrt.processes.start_python); xrt.processes does",
    ),
    ("processes.spawn", "from xrt.graph import Function", "processes may not import graph"),
    ("cache.memory", "from pathlib import Path\nPath('x').write_bytes(b'')", "cache may not touch files (Path('x').write_bytes)"),
]


@pytest.mark.parametrize(("name", "source", "broken"), PLANTED)
def test_a_planted_violation_is_seen(name: str, source: str, broken: str) -> None:
    found = violations(Module(name, ast.parse(source)))
    assert [text.split(": ", 1)[1] for text in found] == [broken]


ALLOWED = [
    (
        "engines.ort.engine",
        "import onnxruntime\nfrom xrt.engines import GraphCompiler\nfrom xrt.passes import drop_dead_nodes",
    ),
    ("engines.tvm.engine", "context.workdir.mkdir()"),
    ("engines.native.library", "from xrt.engines.contract.op_table import OpTable\nPath('x').read_bytes()"),
    ("engines.toy.native", "from xrt.engines.native import NativeTape"),
    ("runtime.program", "from xrt.comparison import compare\nfrom xrt.cache import memory"),
    ("formats.dump", "open('x')"),
    ("progress", "import sys\nsys.stderr.write('x')"),
    ("cli.run", "import rich\nfrom xrt.testing import conformance\nprint('x')"),
    ("cache.records", "open('x')"),
    ("processes.spawn", "import subprocess\nsubprocess.Popen(['x'])"),
    ("bench.comparison", "from xrt.processes.client import WorkerProcess\nWorkerProcess('x:y')"),
    ("engines.iree.compiler", "from xrt.processes import run\nrun(['x'], b'', 1.0)"),
    ("graph.schemas", "from onnx import defs"),
]


@pytest.mark.parametrize(("name", "source"), ALLOWED)
def test_what_is_allowed_is_let_through(name: str, source: str) -> None:
    assert violations(Module(name, ast.parse(source))) == []


def test_imports_are_found_wherever_they_stand() -> None:
    source = "import a.b\ndef f():\n    from c import d, e\n    class G:\n        import h"
    assert [name for _, name in imported(ast.parse(source))] == ["a.b", "c.d", "c.e", "h"]


def loaded_by(code: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has loaded after the code."""
    report = "import sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{report}"], env=os.environ, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


HEAVY = {
    "onnxruntime",
    "openvino",
    "tvm",
    "tvm_ffi",
    "jax",
    "jaxlib",
    "iree",
    "torch",
    "networkx",
    "jinja2",
    "graphlay",
    "rich",
    "click",
    "hypothesis",
    "pytest",
}


@pytest.mark.parametrize(
    "code",
    [
        "import xrt",
        "import xrt; [getattr(xrt, name) for name in xrt.__all__]",
        "import xrt.models",
        "import xrt.testing",
        "import xrt; xrt.XRTModule; import xrt.engines; xrt.engines.names()",
    ],
)
def test_an_import_loads_no_engine_library_and_nothing_for_the_screen(code: str) -> None:
    assert not loaded_by(code) & HEAVY
