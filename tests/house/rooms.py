"""The rooms of the package, who may import whom, and which effects a room may have; read off the source, nothing is imported.

`violations` takes one module's source and says which laws it breaks.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "xrt"

LINE = (
    ("errors",),
    ("graph",),
    ("ops",),
    ("formats",),
    ("passes",),
    ("engines",),
    ("partition",),
    ("cache",),
    ("runtime",),
    ("verify",),
    ("tune",),
    ("frontends",),
    ("module",),
    ("bench", "testing"),
    ("cli",),
)
"""A room may import the rooms on the lines above its own. Rooms on one line do not see each other."""

BESIDE = {"compare": ("errors",), "logs": ("errors",), "processes": ("errors",), "models": ("errors", "graph", "formats")}
"""Rooms beside the line, and all that they may import."""

FREE = ("errors", "compare", "processes")
"""Rooms that everyone may import."""

READERS = {"testing": ("cli",), "models": ("tune", "bench", "testing", "cli"), "cli": (), "bench": ("cli",)}
"""Rooms that only these may import."""

LEAF = ("errors", "compare", "graph", "ops", "formats", "passes", "engines")
"""What an engine may import, beside itself."""

LIBRARIES = {
    "click": ("cli", "bench"),
    "cupy": ("runtime",),
    "google": ("formats",),
    "hypothesis": ("testing",),
    "iree": ("engines.iree",),
    "jax": ("engines.xla",),
    "jaxlib": ("engines.xla",),
    "networkx": ("formats",),
    "onnx": ("graph", "formats", "passes", "models", "engines.toy", "testing"),
    "onnxruntime": ("engines.ort",),
    "openvino": ("engines.openvino",),
    "pytest": ("testing",),
    "rich": ("cli", "bench"),
    "threadpoolctl": ("engines",),
    "torch": ("frontends",),
    "tvm": ("engines.tvm",),
    "tvm_ffi": ("engines.tvm",),
}
"""Where a library may be imported; one that is not listed, anywhere."""

LAZY = ("cupy", "networkx", "rich", "click", "hypothesis", "pytest", "torch")
"""Libraries that only `cli` and `bench` import before they are used."""

MESSAGES = ("formats", "testing", "engines.toy")
"""Rooms that may handle the messages of onnx. The models read its folder."""

SCHEMAS = ("graph",)
"""Rooms that read its schemas, whose defaults are attribute messages that ``onnx.helper`` opens."""

FILES = (
    "formats",
    "cli",
    "bench",
    "engines.*",
    "engines.native.library",
    "engines.native.elf",
    "cache.disk",
    "processes.tree",
    "runtime.threads",
    "testing.files",
    *(f"testing.hostile.{name}" for name in ("child", "crafted_files", "harness", "laid", "readers", "samples")),
    "testing.stored",
)
"""Rooms, and modules of rooms, that may touch files. The runtime asks the kernel for the quota of its cores, `processes` for the
children of a process."""

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
STARTERS = ("multiprocessing", "concurrent.futures.ProcessPoolExecutor", "asyncio.subprocess")
"""What starts processes in ways of its own."""

PRINTERS = ("cli", "bench")


@dataclass(frozen=True, slots=True)
class Module:
    """One source file of the package."""

    name: str
    """Dotted, without the package: ``engines.ort.session``; empty for the package itself."""
    tree: ast.Module

    @classmethod
    def read(cls, path: Path, root: Path) -> Module:
        parts = path.relative_to(root).with_suffix("").parts
        return cls(".".join(parts[:-1] if parts[-1] == "__init__" else parts), ast.parse(path.read_text(encoding="utf-8")))

    @property
    def room(self) -> str:
        """The room; an engine is a room of its own, ``engines.ort``."""
        return room_of(self.name)


def room_of(name: str) -> str:
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "engines" and len(parts) > 1 and parts[1] in ENGINES else parts[0]


ENGINES = ("toy", "ort", "tvm", "openvino", "xla", "iree")


def violations(module: Module) -> list[str]:
    """Return what the module does that its room may not, one sentence each."""
    where = module.name or PACKAGE
    laws = (imports_of_rooms, imports_of_libraries, lazy_imports, onnx_messages, prints, touched_files, started_processes)
    return [f"{where}:{line}: {what}" for law in laws for line, what in law(module)]


Found = Iterator[tuple[int, str]]


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield every import, wherever it stands, as line and dotted name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def imports_of_rooms(module: Module) -> Found:
    for line, name in imported(module.tree):
        if name.startswith("."):
            yield line, f"imports {name} relatively; write the whole name"
        if not module.name or not name.startswith(f"{PACKAGE}."):
            continue
        other = room_of(name.removeprefix(f"{PACKAGE}."))
        if not may_import(module.room, other):
            yield line, f"{module.room} may not import {other}"


def may_import(room: str, other: str) -> bool:
    if room == other or other.startswith("__"):
        return True
    if other.startswith("engines."):
        return False
    if room in BESIDE:
        return other in BESIDE[room]
    if other in FREE:
        return True
    if room.startswith("engines."):
        return other in LEAF
    if other in READERS:
        return room in READERS[other]
    return rank(other) < rank(room)


def rank(room: str) -> int:
    return next((index for index, rooms in enumerate(LINE) if room in rooms), len(LINE))


def imports_of_libraries(module: Module) -> Found:
    for line, name in imported(module.tree):
        library = name.partition(".")[0]
        if module.room not in LIBRARIES.get(library, (module.room,)):
            yield line, f"{module.room or PACKAGE} may not import {library}; only {', '.join(LIBRARIES[library])} may"


def lazy_imports(module: Module) -> Found:
    if module.room in PRINTERS:
        return
    for statement in module.tree.body:
        if not isinstance(statement, ast.Import | ast.ImportFrom):
            continue
        for line, name in imported(statement):
            if name.partition(".")[0] in LAZY and not module.name.startswith("testing."):
                yield line, f"imports {name.partition('.')[0]} before it is used; import it in the function that uses it"


def onnx_messages(module: Module) -> Found:
    if module.room in MESSAGES:
        return
    for line, name in imported(module.tree):
        if module.room in SCHEMAS and name == "onnx.helper":
            continue
        if name.startswith("onnx.") and name.endswith(("Proto", "helper", "numpy_helper", "onnx_ml_pb2")):
            yield line, f"{module.room} may not handle the messages of onnx ({name})"


def prints(module: Module) -> Found:
    if module.room in PRINTERS:
        return
    for call in ast.walk(module.tree):
        if isinstance(call, ast.Call) and _called(call) in ("print", "sys.stdout.write", "sys.stderr.write"):
            yield call.lineno, f"{module.room} may not print"


def touched_files(module: Module) -> Found:
    allowed = (module.room, module.name, f"{module.room.partition('.')[0]}.*" if "." in module.room else "")
    if any(place in FILES for place in allowed) or module.name.startswith("cache.disk."):
        return
    for call in ast.walk(module.tree):
        if isinstance(call, ast.Call) and _called(call).rpartition(".")[2] in TOUCHES:
            yield call.lineno, f"{module.room or PACKAGE} may not touch files ({_called(call)})"


def started_processes(module: Module) -> Found:
    """A process starts in one way, which neither imports from the current directory nor leaves a child behind."""
    if module.room == "processes":
        return
    for line, name in imported(module.tree):
        owner, _, called = name.rpartition(".")
        if name.startswith(STARTERS) or _starts(owner, called):
            yield line, f"{module.room or PACKAGE} may not start processes ({name}); xrt.processes does"
    for call in ast.walk(module.tree):
        if isinstance(call, ast.Call):
            owner, _, called = _called(call).rpartition(".")
            if _starts(owner, called):
                yield call.lineno, f"{module.room or PACKAGE} may not start processes ({owner}.{called}); xrt.processes does"


def _starts(owner: str, called: str) -> bool:
    return called in STARTS.get(owner, ()) or (owner == "os" and called.startswith(("exec", "spawn")))


def _called(call: ast.Call) -> str:
    return ast.unparse(call.func) if isinstance(call.func, ast.Name | ast.Attribute) else ""
