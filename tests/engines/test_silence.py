"""What engines import, look up, print and leave behind."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.module.test_faults import X, chain
from xrt.engines.toolkit.libraries import hide_module
from xrt.formats import onnx

LIMIT = 600  # seconds after which a command counts as hung
VARIABLE = "ORT_DISABLE_TELEMETRY"
WATCH = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static void note(const char *what, const char *whom) {
  char line[512];
  const char *place = getenv("XRT_TEST_LOOKUPS");
  int length = snprintf(line, sizeof line, "%s %s\\n", what, whom ? whom : "nobody");
  int file = place ? open(place, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
  if (file < 0) return;
  if (write(file, line, length) != length) abort();
  close(file);
}
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **result) {
  note("getaddrinfo", node);
  return EAI_FAIL;
}
int connect(int socket, const struct sockaddr *address, socklen_t length) {
  if (address->sa_family == AF_INET || address->sa_family == AF_INET6) {
    note("connect", "an address");
    errno = ECONNREFUSED;
    return -1;
  }
  typedef int (*Connect)(int, const struct sockaddr *, socklen_t);
  return ((Connect)dlsym(RTLD_NEXT, "connect"))(socket, address, length);
}
"""


@pytest.fixture(scope="session")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, compiled."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "g++", "clang"))), None)
    assert compiler is not None, "a C compiler is needed to watch what a process looks up"
    folder = tmp_path_factory.mktemp("watch")
    (folder / "watch.c").write_text(WATCH)
    build = [compiler, "-x", "c", "-shared", "-fPIC", "-o", str(folder / "watch.so"), str(folder / "watch.c"), "-ldl"]
    subprocess.run(build, check=True)
    return folder / "watch.so"


@dataclass
class Place:
    """A user's folders, all empty, a model elsewhere, and what a process sees of the environment."""

    folder: Path
    watch: Path

    def __post_init__(self) -> None:
        for name in (*self.empty, "cache", "work"):
            (self.folder / name).mkdir()
        onnx.save(chain("Abs", "Neg", "Exp"), self.folder / "work" / "m.onnx")
        np.save(self.folder / "work" / "x.npy", X)

    empty = ("home", "tmp", "xdg_cache", "xdg_config", "xdg_data")

    def run(self, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
        variables = {name: value for name, value in os.environ.items() if name in ("PATH", "LD_LIBRARY_PATH", "LANG")}
        environment = {
            **variables,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "HOME": str(self.folder / "home"),
            "TMPDIR": str(self.folder / "tmp"),
            **{f"XDG_{what}_HOME": str(self.folder / f"xdg_{what.lower()}") for what in ("CACHE", "CONFIG", "DATA")},
            "XRT_CACHE_DIR": str(self.folder / "cache"),
            "XRT_TEST_LOOKUPS": str(self.folder / "lookups"),
            "LD_PRELOAD": str(self.watch),
            "PYTHONDONTWRITEBYTECODE": "1",
            **more,
        }
        start = [sys.executable, "-P", *command]
        where = self.folder / "work"
        return subprocess.run(start, cwd=where, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False)

    def lookups(self) -> list[str]:
        noted = self.folder / "lookups"
        return noted.read_text().splitlines() if noted.exists() else []

    def left(self) -> list[str]:
        """Return the files and folders that are new."""
        results = [str(path.relative_to(self.folder)) for name in self.empty for path in (self.folder / name).rglob("*")]
        return sorted(results + [path.name for path in (self.folder / "work").iterdir() if path.name not in ("m.onnx", "x.npy")])


@pytest.fixture
def place(tmp_path: Path, watch: Path) -> Place:
    return Place(tmp_path, watch)


ASKS = """
import contextlib, socket
for ask in (lambda: socket.getaddrinfo("a.test", 1), lambda: socket.socket().connect(("127.0.0.1", 9))):
    with contextlib.suppress(OSError):
        ask()
open("new", "w").close()
"""


@pytest.mark.slow
def test_what_a_process_looks_up_is_seen(place: Place) -> None:
    assert place.run("-c", ASKS).returncode == 0
    assert place.lookups() == ["getaddrinfo a.test", "connect an address"]
    assert place.left() == ["new"]


ENGINES = ("toy", "ort", "tvm", "openvino", "xla", "iree", "torch")
RUN = ("-m", "xrt.cli", "run", "m.onnx", "-i", "x.npy", "--strict")
TUNE = ("-m", "xrt.cli", "tune", "m.onnx", "--engines", "ort,openvino", "--budget", "60s")
COMMANDS = [
    *(pytest.param((*RUN, "--engine", engine), id=f"run {engine}") for engine in ENGINES),
    pytest.param(("-c", "import openvino_telemetry, xrt.engines.openvino"), id="openvino after its telemetry"),
    pytest.param(("-m", "xrt.cli", "doctor"), id="doctor"),
    pytest.param(("-m", "xrt.cli", "bench", "m.onnx", "--engine", "ort", "--rounds", "2"), id="bench"),
    pytest.param(TUNE, id="tune", marks=pytest.mark.full),
    *(
        pytest.param(
            (*RUN, "--engine", engine, "--isolate", engine, "--isolate-run"),
            id=f"isolated {engine}",
            marks=[] if engine == "ort" else pytest.mark.full,
        )
        for engine in ENGINES
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_is_looked_up_and_nothing_left(command: tuple[str, ...], place: Place) -> None:
    completed = place.run(*command)
    assert completed.returncode == 0, completed.stderr
    assert (place.lookups(), place.left()) == ([], [])


VALUE = f"import os, sys; from xrt.engines import create; create('ort'); print(os.environ['{VARIABLE}'])"


@pytest.mark.slow
@pytest.mark.parametrize(("given", "found"), [({}, "1"), ({VARIABLE: "0"}, "0"), ({VARIABLE: ""}, "")])
def test_the_users_own_choice_holds(given: Mapping[str, str], found: str, place: Place) -> None:
    completed = place.run("-c", VALUE, **given)
    assert completed.stdout == f"{found}\n", completed.stderr


IMPORTING = ("toy", "ort", "tvm", "openvino", "xla", "iree")
RUNNING = """
import sys
import numpy as np, xrt
from xrt.testing.corpus.entry import graph, node

function = graph({"x": "float32[3]"}, {"y": "float32[3]"}, node("Neg", "x", "y"))
module = xrt.XRTModule(function, engine=sys.argv[1], strict=True)
assert module(np.ones(3, "float32")).tolist() == [-1, -1, -1]
assert "torch" not in sys.modules, "it was imported"
import torch
assert torch.NAME == "a stand-in"
assert module(np.zeros(3, "float32")).tolist() == [0, 0, 0]
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """A folder with a package that is called torch."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text('NAME = "a stand-in"\n', encoding="utf-8")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("engine", IMPORTING)
def test_no_engine_imports_torch(engine: str, stand_in: Path) -> None:
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(stand_in)!r})\n{RUNNING}", engine]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr


def test_a_hidden_module_is_there_for_other_threads_and_afterwards(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (stand_in / "torch").rename(stand_in / "hidden_here")
    monkeypatch.syspath_prepend(str(stand_in))
    finders = list(sys.meta_path)
    with hide_module("hidden_here"):
        with pytest.raises(ModuleNotFoundError, match=r"^No module named 'hidden_here'$"):
            importlib.import_module("hidden_here")
        with ThreadPoolExecutor(1) as pool:
            loaded = pool.submit(importlib.import_module, "hidden_here").result()
    with suppress(ValueError), hide_module("hidden_here"):
        assert importlib.import_module("hidden_here") is loaded, "it was imported before"
        raise ValueError("broken")
    assert sys.meta_path == finders
    del sys.modules["hidden_here"]
    assert importlib.import_module("hidden_here").NAME == "a stand-in"
    del sys.modules["hidden_here"]
