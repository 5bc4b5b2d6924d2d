"""Many sizes on one executable of openvino: kernels and holes of the heap are bounded."""

from __future__ import annotations

import multiprocessing
import threading
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest

from tests.engines.openvino_running import CONTEXT, function, node, relu, tensor
from tests.engines.resident import resident
from xrt.engines import CompileContext
from xrt.engines.openvino import OpenVino
from xrt.engines.openvino.size_log import MET_KEPT, TRIM_EVERY, SizeLog, limit_kernels
from xrt.graph import Function

MEGABYTE = 1 << 20


def rows() -> Function:
    """A product and a Softmax over an open number of rows: each size has kernels of its own."""
    nodes = [node("MatMul", "x w", "h"), node("Softmax", "h", "y")]
    return function({"x": tensor("rows", 16)}, {"y": tensor("rows", 16)}, nodes, {"w": np.eye(16, dtype=np.float32)})


def test_the_heap_is_trimmed_after_so_many_new_sizes_and_never_for_sizes_that_were_met() -> None:
    trims: list[int] = []
    log = SizeLog(lambda: trims.append(1))
    for size in range(TRIM_EVERY - 1):
        log.note(((size, 16),))
    for size in range(TRIM_EVERY - 1):
        log.note(((size, 16),))
    assert not trims
    log.note(((TRIM_EVERY, 16),))
    assert len(trims) == 1
    for size in range(10 * MET_KEPT):
        log.note(((size, 8),))
        assert len(log._met) <= MET_KEPT
    assert 10 * MET_KEPT // TRIM_EVERY - 10 <= len(trims) <= 10 * MET_KEPT // TRIM_EVERY + 1


def test_sizes_are_noted_from_several_threads() -> None:
    trims: list[int] = []
    log = SizeLog(lambda: trims.append(1))

    def note_all() -> None:
        for size in range(4 * TRIM_EVERY):
            log.note(size)

    threads = [threading.Thread(target=note_all) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log._met == set(range(4 * TRIM_EVERY))


def test_a_program_for_all_sizes_keeps_a_bounded_number_of_kernels() -> None:
    assert [limit_kernels(nodes) for nodes in (1, 4, 10, 16, 10_000)] == [512, 512, 1280, 2048, 2048]
    assert OpenVino()._settings(CONTEXT, rows())["CPU_RUNTIME_CACHE_CAPACITY"] == 512
    assert "CPU_RUNTIME_CACHE_CAPACITY" not in OpenVino()._settings(CONTEXT, relu())


@pytest.mark.slow
def test_a_program_for_fixed_sizes_notes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[object] = []
    monkeypatch.setattr(SizeLog, "note", lambda _, sizes: noted.append(sizes))
    for dims in ((3, 16), ("rows", 16)):
        f = function({"x": tensor(*dims)}, {"y": tensor(*dims)}, [node("Relu", "x", "y")])
        executable = OpenVino().compile(f, CONTEXT)
        executable.prepare()
        executable.run([np.zeros((3, 16), np.float32)])
    assert noted == [((3, 16),)]


def grow(sizes: int) -> tuple[int, int]:
    """Return what the process holds after a third of so many growing sizes, and after all."""
    executable = OpenVino().compile(rows(), CompileContext(threads=1))  # in this thread, whose heap has its arrays too
    executable.prepare()
    held = []
    for number in range(sizes):
        executable.run([np.ones((256 + number, 16), np.float32)])
        if number + 1 in (sizes // 3, sizes):
            for thread in threading.enumerate():
                if thread.name == "xrt-openvino-trim":
                    thread.join()
            held.append(resident())
    return held[0], held[1]


@pytest.mark.slow
def test_memory_of_sizes_that_grow_is_flat_from_the_first_500_on() -> None:
    """By 17 MB; without the trim by 47, with 2,048 kernels by 45, with neither by 189."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        early, late = pool.submit(grow, 1800).result()
    assert late - early < 32 * MEGABYTE, (early, late)
