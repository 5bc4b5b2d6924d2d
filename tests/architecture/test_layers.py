"""The layers of the package, who may import whom, and which effects a package may have."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.architecture.public import ROOT, files, parse, walk

PACKAGE = "xrt"
LINE = (
    ("errors", "forking", "lazy_names"),
    ("measure", "comparison", "logging", "processes", "progress"),
    ("html",),
    ("graph",),
    ("operators",),
    ("formats",),
    ("builder",),
    ("passes",),
    ("engines.contract",),
    ("engines.toolkit",),
    ("engines.kernels",),
    ("engines.native",),
    ("engines",),
    ("partition",),
    ("cache",),
    ("runtime",),
    ("worker",),
    ("verify",),
    ("placement",),
    ("precision",),
    ("module",),
    ("frontends",),
    ("training",),
    ("serve",),
    ("integrations",),
    ("ray",),
    ("bench", "testing"),
    ("cli",),
)
"""A package may import the packages on the lines above its own. Packages on one line do not see each other."""
BESIDE = {"models": ("errors", "graph", "operators", "formats", "builder")}
"""Packages beside the line, and all that they may import."""
EDGES = {"module.module": ("frontends.torch.module", "a module of PyTorch is run by the XRTModule of its front end")}
"""Imports against the order that a module may make of one other, inside a function, each with the reason."""
READERS = {"testing": ("cli",), "models": ("bench", "testing", "cli"), "cli": (), "bench": ("cli",)}
"""Packages that only these may import."""
LEAF = tuple(name for line in LINE for name in line)[: [name for line in LINE for name in line].index("partition")]
"""What an engine may import, beside itself."""
LIBRARIES = {
    "click": ("cli", "bench"),
    "cupy": ("runtime",),
    "google": ("formats", "serve"),
    "graphlay": ("html",),
    "grpc": ("serve",),
    "hypothesis": ("testing",),
    "iree": ("engines.iree",),
    "jax": ("engines.xla",),
    "jaxlib": ("engines.xla",),
    "jinja2": ("html",),
    "msgspec": ("formats", "serve", "bench"),
    "onnx": ("graph", "formats", "passes", "models", "engines.kernels", "engines.toy", "testing"),
    "onnxruntime": ("engines.ort",),
    "openvino": ("engines.openvino",),
    "prometheus_client": ("serve",),
    "pyarrow": ("integrations",),
    "pytest": ("testing",),
    "ray": ("integrations",),
    "rich": ("cli", "bench"),
    "threadpoolctl": ("engines.toolkit",),
    "torch": ("frontends", "engines.torch"),
    "tvm": ("engines.tvm",),
    "tvm_ffi": ("engines.tvm",),
    "uvicorn": ("serve",),
}
"""Where a library may be imported; one that is not listed, anywhere."""
MESSAGES = ("formats", "testing", "engines.toy")
"""Packages that may handle the messages of onnx. The models read its folder."""
SCHEMAS = ("graph",)
"""Packages that read its schemas, whose defaults are attribute messages that ``onnx.helper`` opens."""
FILES = (
    "formats",
    "cli",
    "bench",
    "integrations.batch.job",
    "engines.*",
    "engines.contract.registry",
    "engines.native.library",
    "html.views",
    "cache.entries",
    "cache.records",
    "cache.signature",
    "processes.priority",
    "processes.spawn",
    "runtime.threads",
    "serve.triton_repository",
    "testing.cases",
    "testing.corpus.entry",
)
"""Packages, and modules of packages, that may touch files. A batch job fills a folder. The runtime asks the kernel for the quota
of its cores, `processes` for the children of a process and the priority of a session, `html.views` reads the style
sheets of the package, and `serve.triton_repository` writes what Triton reads."""
TOUCHES = frozenset(
    [
        *("mkdir", "makedirs", "mkdtemp", "mkstemp", "rename", "rmdir", "rmtree", "symlink_to", "touch", "unlink"),
        *("open", "read_bytes", "read_text", "savez", "write_bytes", "write_text", "NamedTemporaryFile", "TemporaryDirectory"),
    ]
)
"""Names of calls that touch a file. A method named ``replace`` or ``load`` may be anything, and is not told here."""
STARTS = {
    "subprocess": ("Popen", "run", "call", "check_call", "check_output", "getoutput", "getstatusoutput"),
    "os": ("fork", "forkpty", "system", "popen", "startfile", "posix_spawn", "posix_spawnp"),
    "pty": ("fork", "spawn"),
}
"""Calls that start a process, by their modules; those of ``os`` whose names begin with ``exec`` or ``spawn`` too."""
STARTERS = (
    *("multiprocessing", "concurrent.futures.ProcessPoolExecutor", "asyncio.subprocess"),
    *("xrt.processes.start", "xrt.processes.spawn"),
)
"""What starts processes in ways of its own; `xrt.processes` has a worker process that answers messages, and ``run``."""
PRINTERS = ("cli", "bench")
SHOWS = {"progress": "a search or a compile of more than two seconds shows how far it is, on a terminal or in a notebook alone"}
"""Modules beside these that may use the standard streams, each with the reason."""
STREAMS = ("stdout", "stderr", "__stdout__", "__stderr__")
"""Attributes of `sys`."""


@dataclass(frozen=True, slots=True)
class Module:
    """One source file of the package."""

    name: str
    """Dotted, without the package: ``engines.ort.session``; empty for the package itself."""
    tree: ast.Module

    @property
    def package(self) -> str:
        """The package; an engine is a package of its own, ``engines.ort``."""
        return package_of(self.name)


def package_of(name: str) -> str:
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "engines" and len(parts) > 1 and parts[1] in PARTS else parts[0]


ENGINES = ("toy", "ort", "tvm", "openvino", "xla", "iree", "torch")
PARTS = ("contract", "toolkit", "kernels", "native", *ENGINES)
"""What stands in `engines` as a package of its own."""


def violations(module: Module) -> list[str]:
    """Return what the module does that its package may not, one sentence each."""
    where = module.name or PACKAGE
    laws = (imports_of_packages, imports_of_libraries, onnx_messages, prints, touched_files, started_processes)
    return [f"{where}:{line}: {what}" for law in laws for line, what in law(module)]


Found = Iterator[tuple[int, str]]


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield every import, wherever it stands, as line and dotted name."""
    for node in walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def imports_of_packages(module: Module) -> Found:
    for line, name in imported(module.tree):
        if not module.name or not name.startswith(f"{PACKAGE}."):
            continue
        inner = name.removeprefix(f"{PACKAGE}.")
        if module.name in EDGES and inner.startswith(f"{EDGES[module.name][0]}."):
            continue
        other = package_of(inner)
        if not may_import(module.package, other):
            yield line, f"{module.package} may not import {other}"


def may_import(package: str, other: str) -> bool:
    if package == other or other.startswith("__"):
        return True
    if other.removeprefix("engines.") in ENGINES:
        return False
    if package in BESIDE:
        return other in BESIDE[package]
    if package.removeprefix("engines.") in ENGINES:
        return other in LEAF
    if other in READERS:
        return package in READERS[other]
    return rank(other) < rank(package)


def rank(package: str) -> int:
    return next((index for index, names in enumerate(LINE) if package in names), len(LINE))


def imports_of_libraries(module: Module) -> Found:
    for line, name in imported(module.tree):
        library = name.partition(".")[0]
        if module.package not in LIBRARIES.get(library, (module.package,)):
            yield line, f"{module.package or PACKAGE} may not import {library}; only {', '.join(LIBRARIES[library])} may"


def onnx_messages(module: Module) -> Found:
    if module.package in MESSAGES:
        return
    for line, name in imported(module.tree):
        if module.package in SCHEMAS and name == "onnx.helper":
            continue
        if name.startswith("onnx.") and name.endswith(("Proto", "helper", "numpy_helper", "onnx_ml_pb2")):
            yield line, f"{module.package} may not handle the messages of onnx ({name})"


def prints(module: Module) -> Found:
    if module.package in PRINTERS or module.name in SHOWS:
        return
    for node in walk(module.tree):
        if isinstance(node, ast.Attribute) and node.attr in STREAMS and _is_name(node.value, "sys"):
            yield node.lineno, f"{module.package} may not print"


def touched_files(module: Module) -> Found:
    allowed = (module.package, module.name, "engines.*" if module.package.removeprefix("engines.") in ENGINES else "")
    if any(place in FILES for place in allowed):
        return
    for call in walk(module.tree):
        if isinstance(call, ast.Call) and last_name(call.func) in TOUCHES:
            yield call.lineno, f"{module.package or PACKAGE} may not touch files ({ast.unparse(call.func)})"


def started_processes(module: Module) -> Found:
    """A process starts in one way, which neither imports from the current directory nor leaves a child behind."""
    if module.package == "processes":
        return
    for line, name in imported(module.tree):
        owner, _, called = name.rpartition(".")
        if name.startswith(STARTERS) or _starts(owner, called):
            yield line, f"{module.package or PACKAGE} may not start processes ({name}); xrt.processes does"
    for call in walk(module.tree):
        match call:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=called)) if _starts(owner, called):
                yield call.lineno, f"{module.package or PACKAGE} may not start processes ({owner}.{called}); xrt.processes does"


def _starts(owner: str, called: str) -> bool:
    return called in STARTS.get(owner, ()) or (owner == "os" and called.startswith(("exec", "spawn")))


def last_name(called: ast.expr) -> str:
    match called:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


MODULES = {name.removeprefix(PACKAGE).removeprefix("."): path for name, path in files().items()}


def test_every_package_has_its_place() -> None:
    results = {package for line in LINE for package in line} | set(BESIDE) | {f"engines.{name}" for name in ENGINES} | {""}
    assert set(map(package_of, MODULES)) <= results
    assert len(MODULES) > 50


def test_every_engine_in_the_package_is_known_as_one() -> None:
    assert {path.parent.name for path in ROOT.glob("engines/*/__init__.py")} == {*PARTS}


def test_the_laws_are_kept() -> None:
    assert [text for name, path in MODULES.items() for text in violations(Module(name, parse(path)))] == []


STARTED = "may not start processes ({}); xrt.processes does"
PLANTED = [
    ("graph.node", "from xrt.formats.onnx import load", "graph may not import formats"),
    ("graph.node", "def f():\n    import xrt.engines.contract.graph_compiler", "graph may not import engines.contract"),
    ("graph.node", "if TYPE_CHECKING:\n    from xrt import formats", "graph may not import formats"),
    ("progress", "from xrt.graph import Function", "progress may not import graph"),
    ("passes.simplification", "from xrt.engines.toy import Toy", "passes may not import engines.toy"),
    ("engines.ort.engine", "from xrt.engines.toy import Toy", "engines.ort may not import engines.toy"),
    ("engines.ort.engine", "from xrt.partition import Plan", "engines.ort may not import partition"),
    ("module.module", "from xrt.models import load_light", "module may not import models"),
    ("bench.run", "from xrt.testing import corpus", "bench may not import testing"),
    ("models.light", "from xrt.passes import fold_constants", "models may not import passes"),
    ("engines.kernels.reduction", "import jax.numpy as jnp", "engines.kernels may not import jax; only engines.xla may"),
    ("graph.schemas", "from onnx import ModelProto", "graph may not handle the messages of onnx (onnx.ModelProto)"),
    ("runtime.program", "import sys\nstream = sys.stderr", "runtime may not print"),
    ("engines.toolkit.blas", "open('x')", "engines.toolkit may not touch files (open)"),
    ("cache.memory", "from pathlib import Path\nPath('x').write_bytes(b'')", "cache may not touch files (Path('x').write_bytes)"),
    ("cli.lock", "import subprocess\nsubprocess.run(['x'])", f"cli {STARTED.format('subprocess.run')}"),
    ("bench.comparison", "import os\nos.execv('x', [])", f"bench {STARTED.format('os.execv')}"),
    ("testing.shares", "from multiprocessing import Pool", f"testing {STARTED.format('multiprocessing.Pool')}"),
    ("bench.process", "from xrt.processes import start_python", f"bench {STARTED.format('xrt.processes.start_python')}"),
]


@pytest.mark.parametrize(("name", "source", "broken"), PLANTED)
def test_a_planted_violation_is_seen(name: str, source: str, broken: str) -> None:
    result = violations(Module(name, ast.parse(source)))
    assert [text.split(": ", 1)[1] for text in result] == [broken]


def loaded_by(code: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has loaded after the code."""
    report = "import sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    completed = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], env=os.environ, capture_output=True, text=True, check=True
    )
    return set(completed.stdout.split())


HEAVY = {
    *("onnxruntime", "openvino", "tvm", "tvm_ffi", "jax", "jaxlib", "iree", "torch"),
    *("networkx", "jinja2", "graphlay", "rich", "click", "hypothesis", "pytest"),
    *("cupy", "grpc", "prometheus_client", "uvicorn"),
}


@pytest.mark.parametrize(
    "code",
    [
        "import xrt",
        "import xrt; [getattr(xrt, name) for name in xrt.__all__]",
        "import xrt.models",
        "import xrt.testing",
        "import xrt.html.views, xrt.serve",
        "import xrt; xrt.XRTModule; import xrt.engines; xrt.engines.names()",
    ],
)
def test_an_import_loads_no_engine_library_and_nothing_for_the_screen(code: str) -> None:
    assert not loaded_by(code) & HEAVY
