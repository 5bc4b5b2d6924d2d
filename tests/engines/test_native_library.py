"""Libraries of native kernels: what is opened, what is refused and in which words, and what a kernel is shown."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from ctypes import sizeof
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.exact_errors import raises_exactly
from xrt.engines import native
from xrt.engines.native import abi
from xrt.engines.toy import Toy
from xrt.errors import CompileRefused, EngineUnavailable, OptionError

SOURCE = Path(__file__).parent / "native" / "kernels.cc"
COMPILER = next(filter(None, map(shutil.which, (os.environ.get("CXX", ""), "c++", "g++", "clang++"))), "c++")


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="xrt-test-kernels-")


@cache
def library(*macros: str) -> Path:
    """Return the path of the test library compiled with those macros, each ``NAME`` or ``NAME=value``."""
    name = f"lib{hashlib.sha256(' '.join(macros).encode()).hexdigest()[:12]}.so"
    target = Path(_folder().name) / name
    options = ["-shared", "-fPIC", "-O1", "-std=c++17", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unused"]
    command = [COMPILER, *options, *(f"-D{macro}" for macro in macros), "-I", native.include_dir(), str(SOURCE)]
    subprocess.run([*command, "-o", str(target)], check=True)
    return target


X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


def kernels(*macros: str) -> native.NativeLibrary:
    return native.load(library(*macros))


def test_a_library_says_what_it_is() -> None:
    opened = kernels()
    assert (opened.name, opened.version) == ("test_kernels", "7")
    assert [kernel.name for kernel in opened.kernels] == ["twice", "split", "loud_neg"]
    assert (opened.kernels[2].since, opened.kernels[2].until, opened.kernels[2].priority) == (6, 12, 5)
    assert opened is kernels(), "it is opened once"


@pytest.mark.slow
def test_other_bytes_are_another_signature() -> None:
    assert kernels().signature != kernels('VERSION="8"').signature
    assert kernels().signature.startswith("test_kernels 7 (")


WRONG = [
    ("ABI=2", ("it has version 2 of the kernel interface, this XRT version 1; "
     "rebuild it with the kernel.h of xrt.engines.native.include_dir()")),
    ("NULL_ENTRY", ("it does not support version 1 of the kernel interface, which this XRT has; "
     "rebuild it with the kernel.h of xrt.engines.native.include_dir()")),
    ("NO_ENTRY", "it does not export 'xrt_library_entry', which kernel.h describes; is it a library of XRT's kernels?"),
    ("NO_RUN", "kernel 'lame' lacks run, which is not optional"),
    ("NO_NAME", "the name of kernel 3 is missing"),
    ("NOT_UTF8", r"the operator of kernel 'lame' is not UTF-8: b'L\xff'"),
    ("ODD_DEVICE", "kernel 'lame' is for a device of type 77, which XRT does not support"),
    ("TWINS", ("kernels 'split' and 'splat' both support every Split at priority 0; "
     "change the priority or the version range of one, or add a why_not")),
    ("VERSION=\"\"", "its version is empty"),
    ("UNDEFINED", ("the system does not open it as a shared library: {path}: undefined symbol: nowhere_to_be_found")),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("macro", "reason"), WRONG)
def test_a_library_that_is_wrong_is_refused_by_name(macro: str, reason: str) -> None:
    path = library(macro)
    with raises_exactly(EngineUnavailable, f"native library {str(path)!r} cannot be used: {reason.format(path=path)}"):
        native.load(path)


def test_what_is_no_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, cut, secret = (tmp_path / f"{name}.so" for name in ("text", "cut", "secret"))
    text.write_text("not a library at all, but long enough to be looked at\n" * 20)
    cut.write_bytes(library().read_bytes()[:20])
    shutil.copy(library(), secret)
    opened, plain = "the system does not open it as a shared library: ", Path.open

    def open_or_deny(path: Path, *mode: str) -> Any:
        if path == secret:
            raise PermissionError(13, "Permission denied")
        return plain(path, *mode)

    monkeypatch.setattr(Path, "open", open_or_deny)
    for path, reason in {
        text: f"{opened}{text}: invalid ELF header",
        cut: f"{opened}{cut}: file too short",
        tmp_path: "it is a directory; name the file in it",
        secret: "it cannot be read: Permission denied",
    }.items():
        with raises_exactly(EngineUnavailable, f"native library {str(path)!r} cannot be used: {reason}"):
            native.load(path)


def test_a_path_that_is_not_there_names_its_neighbours(tmp_path: Path) -> None:
    shutil.copy(library(), tmp_path / "kernels.so")
    path = str(tmp_path / "kernel.so")
    text = f"native library {path!r} cannot be used: there is no such file. Did you mean 'kernels.so'?"
    with raises_exactly(EngineUnavailable, text):
        native.load(path)
    with pytest.raises(EngineUnavailable, match=r"there is no such file\. There is no directory '/nowhere' to look in either"):
        native.load("/nowhere/kernels.so")


def test_a_kernel_is_asked_for_by_name() -> None:
    text = f"native library {str(library())!r} has no kernel 'twise'. Did you mean 'twice'?"
    with raises_exactly(EngineUnavailable, text):
        kernels().kernel("twise")


def test_the_structures_are_the_compilers() -> None:
    read_layout = ctypes.CDLL(str(library())).layout
    read_layout.restype = ctypes.c_int64
    structures = (
        abi.DTypeC, abi.TensorC, abi.AttributeC, abi.NodeC, abi.TextC, abi.OutputC, abi.PlanC, abi.CallC, abi.KernelC,
        abi.LibraryC,
    )  # fmt: skip
    last = (
        abi.TensorC.byte_offset, abi.AttributeC.tensor, abi.NodeC.n_outputs, abi.OutputC.shape, abi.PlanC.outputs,
        abi.CallC.host, abi.KernelC.destroy, abi.LibraryC.kernels,
    )  # fmt: skip
    mine = [*(sizeof(s) for s in structures), *(field.offset for field in last), abi.ABI_VERSION, abi.MAX_RANK]
    assert [read_layout(i) for i in range(len(mine))] == mine
    assert read_layout(len(mine)) == -1


def test_a_kernel_runs_alone() -> None:
    (y,) = native.run_kernel(kernels().kernel("twice"), X, None, attributes={"factor": 3.0, "bid": "scratch"}, threads=2)
    np.testing.assert_allclose(y, 3 * X)
    (y,) = native.run_kernel(kernels().kernel("twice"), X.T, X.T, constants=[1])
    np.testing.assert_allclose(y, 3 * X.T)
    with pytest.raises(CompileRefused, match=r": twice: it was bidden to$"):
        native.run_kernel(kernels().kernel("twice"), X, None, attributes={"bid": "decline"})


def test_toy_gets_the_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    toy = Toy(libraries=(str(library()),))
    assert toy.spec == f"toy{{libraries={library()}}}" or "libraries=" in toy.spec
    assert kernels().signature in toy.version()
    assert "xrt_native" in toy.version() and "xrt_native" not in Toy(native="off").version()
    assert Toy(native="off").version().endswith("no native kernels")


def test_options_that_contradict_each_other_are_refused() -> None:
    with raises_exactly(OptionError, "engine 'toy' has libraries of native kernels and native='off'; set only one of them"):
        Toy(native="off", libraries=("x.so",))
    with pytest.raises(EngineUnavailable, match=r"native library '.*/no\.so' cannot be used: there is no such file"):
        Toy(libraries=("no.so",))
