"""Where a command writes is tried before its work, and errors name what was asked for, never a temporary name."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import xrt
from tests.bench.test_page import Reader
from tests.cli.commands import Command, write_model
from tests.runtime.test_program import read_trace
from xrt.errors import BundleError, ModelError, OptionError
from xrt.formats import onnx
from xrt.formats.output import remove_dead_temporaries, replace_file, why_not_folder, why_not_writable
from xrt.testing.corpus.entry import graph, node

RELU = graph({"x": "float32[2,3]"}, {"y": "float32[2,3]"}, node("Relu", "x", "y"))


@pytest.fixture
def model(tmp_path: Path) -> str:
    return write_model(tmp_path / "m.onnx", (2, 3), "Relu")


WRITING: list[tuple[str, ...]] = [
    ("run", "-o", "%"),
    ("run", "--trace", "%"),
    ("compile", "-o", "%"),
    ("lock", "-o", "%"),
    ("bisect", "-o", "%"),
    ("bench", "--html", "%"),
    ("explain", "--html", "%"),
    ("run", "--dump", "%"),
]


@pytest.mark.parametrize("arguments", WRITING, ids=" ".join)
def test_an_output_is_tried_before_the_work(
    arguments: tuple[str, ...], model: str, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_work(*_: object, **__: object) -> None:
        pytest.fail("it works before it looks where to write")

    for name in ("xrt.partition.partition", "xrt.cli.tune.compare_engines", "xrt.cli.tune.lock_module"):
        monkeypatch.setattr(name, no_work)
    (tmp_path / "file").write_text("")
    name, *options = (argument.replace("%", str(tmp_path / "file" / "out")) for argument in arguments)
    code, _, err = command(name, model, *options)
    assert code == 2 and str(tmp_path / "file") in err
    assert ".tmp" not in err and "partial" not in err and "this should not happen" not in err


def test_a_folder_at_the_default_path(model: str, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.xrt").mkdir()
    assert command("compile", model)[::2] == (2, "error: cannot write m.xrt: it is a folder\n")


def test_why_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "folder").mkdir()
    assert why_not_writable(tmp_path / "new") is None
    assert why_not_writable(tmp_path / "file") is None
    assert why_not_writable(tmp_path / "folder") == "it is a folder"
    assert why_not_writable(tmp_path / "no" / "new") == f"there is no folder {tmp_path}/no"
    assert why_not_writable(tmp_path / "file" / "new") == f"there is no folder {tmp_path}/file"
    assert why_not_writable(tmp_path / ("a" * 300)) == "File name too long"
    assert why_not_writable(Path("/proc/new")) is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == "old"


def test_why_a_folder_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert why_not_folder(tmp_path / "a" / "b") is None
    assert not (tmp_path / "a").exists()
    assert why_not_folder(tmp_path / "file" / "b") == f"{tmp_path}/file is not a folder"
    with pytest.raises(OptionError) as caught:
        xrt.XRTModule(RELU, engine="toy", dump_subgraph_dir=tmp_path / "file" / "b")
    assert str(caught.value) == f"dump_subgraph_dir is '{tmp_path}/file/b', and {tmp_path}/file is not a folder"


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), ".hidden.tmp")


WRITERS: list[tuple[Callable[[Path], object], type[Exception]]] = [
    (lambda path: replace_file(path, full), OSError),
    (lambda path: onnx.save(RELU, path), ModelError),
    (lambda path: xrt.XRTModule(RELU, "toy").save(path), BundleError),
]


@pytest.mark.parametrize(("write", "kind"), WRITERS)
def test_what_fails_leaves_the_old_file_and_names_it(
    write: Callable[[Path], object], kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out"
    path.write_text("old")
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(kind) as caught:
        write(path)
    assert f"'{path}'" in str(caught.value) and ".tmp" not in str(caught.value)
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["out"]


def test_links_and_devices_stay(tmp_path: Path, model: str, command: Command) -> None:
    (tmp_path / "real.npz").write_text("old")
    (tmp_path / "link.npz").symlink_to(tmp_path / "real.npz")
    (tmp_path / "null").symlink_to("/dev/null")
    assert command("run", model, "-o", str(tmp_path / "link.npz"))[0] == 0
    assert (tmp_path / "link.npz").is_symlink()
    assert np.load(tmp_path / "real.npz")["y"].shape == (2, 3)
    assert command("run", model, "-o", str(tmp_path / "null"))[0] == 0
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    assert not list(tmp_path.glob(".*"))


def test_a_timeline_of_the_runs(model: str, tmp_path: Path, command: Command) -> None:
    target = tmp_path / "t.json"
    code, out, _ = command("run", model, "-e", "toy", "--repeat", "3", "--trace", target)
    assert code == 0
    assert [event["name"] for event in read_trace(target)] == 3 * ["call", "xrt_toy_0"]
    assert f"{target}: a timeline of 3 calls; open it in ui.perfetto.dev or chrome://tracing" in out.splitlines()


def test_a_plan_is_explained_as_text_and_as_a_page(model: str, tmp_path: Path, command: Command) -> None:
    target, bundle = tmp_path / "plan.html", tmp_path / "m.xrt"
    code, out, _ = command("explain", model, "-e", "toy", "--html", target)
    assert code == 0 and "xrt_toy_0" in out, "the text is printed all the same"
    page = Reader(target.read_text(encoding="utf-8"))
    assert f"Where the nodes of {model} are" in page.text and "svg" in {name for name, _ in page.elements}
    assert command("compile", model, "-o", bundle)[0] == command("explain", bundle, "--html", target)[0] == 0
    assert command("run", bundle, "--trace", tmp_path / "m.json")[0] == 0 and read_trace(tmp_path / "m.json")


WRITER = """
import sys, time
from pathlib import Path
from xrt.formats.output import replace_file
def write(file):
    file.write(b"half")
    print("begun", flush=True)
    time.sleep(600)
replace_file(Path(sys.argv[1]), write)
"""


def test_what_a_killed_writer_leaves_is_removed_by_the_next_one(tmp_path: Path) -> None:
    target = tmp_path / "checkpoint.xrt"
    with ExitStack() as stack:
        writers = [
            stack.enter_context(subprocess.Popen([sys.executable, "-c", WRITER, str(target)], stdout=subprocess.PIPE))
            for _ in range(2)
        ]
        stack.callback(writers[1].kill)
        for writer in writers:
            assert writer.stdout is not None and writer.stdout.readline() == b"begun\n"
        writers[0].kill()
        writers[0].wait()
        assert len(list(tmp_path.iterdir())) == 2
        replace_file(target, lambda file: file.write(b"whole"))
        assert len(list(tmp_path.glob(".xrt-*.tmp"))) == 1  # of the writer that lives
        assert target.read_bytes() == b"whole"
    remove_dead_temporaries(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.xrt"]


def test_many_files_list_their_folder_once_and_have_the_mode_of_new_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders, scan = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda folder: folders.append(folder) or scan(folder))
    for number in range(10):
        replace_file(tmp_path / f"part-{number}", lambda file: file.write(b"rows"))
    assert folders == [tmp_path]
    (tmp_path / "plain").touch()
    assert (tmp_path / "part-0").stat().st_mode == (tmp_path / "plain").stat().st_mode
