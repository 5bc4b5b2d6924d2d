"""Soak test: many processes on one cache, processes that are killed while they write, and an hour of calls.

    python -m tools.soak [--processes 32] [--rounds 100] [--minutes 60] [--seed 0]

(1) All processes start at the same time with an empty cache: there must be one compile per cache signature, correct results, and
an undamaged cache. (2) In each round, processes that write are killed with SIGKILL at a random time: the cache must be undamaged
and usable afterwards. (3) Modules are called with varying threads, shapes and evictions: resident memory must not grow, and no
file descriptor or thread may leak. The first violation ends the test with exit code 1.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from tests.cache.saving import Saving
from xrt import XRTModule
from xrt.cache import CompileCache, DiskTier, Store
from xrt.graph import Constant, DType, Function, Node, TensorType, Value

ROOT = Path(__file__).parents[1]
WIDTH = 64
"""Number of features of the model's input and layers."""
REGIONS = 6
"""Number of regions, and so of cache signatures, of the model that the processes compile."""
MIN_WARM_UP_TURNS = 16
"""Number of turns after which all Python modules that are imported on first use are loaded."""
MAX_GROWTH_BYTES = 24e6
"""Allocators keep some free memory."""


class Violation(Exception):
    """A check of the soak test failed."""


def check(condition: bool, violation: str) -> None:
    if not condition:
        raise Violation(violation)


# ---------------------------------------------------------------------- processes


def start_process(cache: Path, journal: Path, mode: str = "once") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.cache.saving", str(cache), str(journal), mode]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def wait_for(children: list[subprocess.Popen[str]]) -> None:
    for child in children:
        _, errors = child.communicate()
        check(child.returncode == 0, f"a process failed: {errors}")


def start_together(folder: Path, count: int) -> None:
    """Start all processes at the same time with an empty cache."""
    cache, journal = folder / "together", folder / "journal"
    wait_for([start_process(cache, journal) for _ in range(count)])
    compiles = Saving(journal=str(journal)).count("compile")
    check(compiles == REGIONS, f"{count} processes compiled {compiles} times for {REGIONS} signatures")
    check(not Store(cache).find_damaged(), "the cache is damaged")
    print(f"{count} processes at once: {compiles} compiles for {REGIONS} signatures, results right, cache clean")


def kill_writers(folder: Path, rounds: int, rng: random.Random) -> None:
    """In each round, kill processes that write to the cache at a random time, and check the cache."""
    cache, journal = folder / "killed", folder / "killed-journal"
    for number in range(rounds):
        children = [start_process(cache, journal, "forever") for _ in range(2)]
        while not journal.exists():
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 0.5))
        for child in children:
            child.send_signal(signal.SIGKILL)
            child.communicate()
        journal.unlink()
        check(not Store(cache).find_damaged(), f"the cache is damaged after round {number}")
        wait_for([start_process(cache, journal)])
        journal.unlink()
    Store(cache).sweep()
    check(not list((Store(cache).root / "work").iterdir()), "unfinished writes are left over")
    print(f"{rounds} rounds of SIGKILL: the cache was clean and served after each")


# ---------------------------------------------------------------------- calls


def get_resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def count_handles() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def repeat_calls(folder: Path, minutes: float, rng: random.Random) -> None:
    """Call modules for some minutes; compare memory and file descriptors with those after a tenth of the time, the warm-up."""
    model, expected = make_perceptron(), {}
    thread_count = threading.active_count()
    warm: tuple[int, int] | None = None  # resident bytes and file descriptors after the warm-up
    start, turns = time.monotonic(), 0
    while (seconds := time.monotonic() - start) < 60 * minutes or warm is None:
        call_module(folder / "calls", model, expected, rng)
        turns += 1
        gc.collect()
        if warm is None and seconds > 6 * minutes and turns >= MIN_WARM_UP_TURNS:
            warm = get_resident_bytes(), count_handles()
    growth = get_resident_bytes() - warm[0]
    check(growth < MAX_GROWTH_BYTES, f"resident memory grew by {growth / 1e6:.1f} MB in {turns} turns")
    check(count_handles() <= warm[1], f"{count_handles() - warm[1]} file descriptors leaked")
    check(threading.active_count() == thread_count, f"{threading.active_count() - thread_count} threads leaked")
    print(f"{turns} turns of calls in {minutes:g} minutes: resident memory {growth / 1e6:+.1f} MB, no leaks")


def call_module(directory: Path, model: Function, expected: dict[int, np.ndarray], rng: random.Random) -> None:
    """Make a module with a small cache, call it from several threads with several shapes, and close it."""
    cache = CompileCache(rng.choice((1, 2, 8)), DiskTier(directory, limit=rng.choice((50_000, 500_000, 10**9))))
    engine = rng.choice(("ort", "toy", "ort{memory_arena=false}"))
    options = {"maximum_nodes": rng.choice((None, 1, 3)), "threads": rng.choice((1, 2))}
    with XRTModule(model, engine=engine, cache=cache, strict=True, **options) as module, ThreadPoolExecutor(4) as pool:
        sizes = [rng.randint(1, 5) for _ in range(16)]
        for size, result in zip(sizes, pool.map(lambda size: module(make_example(size)), sizes), strict=True):
            np.testing.assert_allclose(result, expected.setdefault(size, result), rtol=1e-4, atol=1e-5)
        if rng.random() < 0.3:
            cache.clear()
    cache.clear()
    if rng.random() < 0.1:
        Store(directory).clear()


def make_perceptron(layers: int = 4) -> Function:
    """Make a chain of matrix products with Relu, for any batch size."""
    rng, type_ = np.random.default_rng(0), TensorType(DType.FLOAT32, ("N", WIDTH))
    weights = {f"w{i}": Constant((rng.standard_normal((WIDTH, WIDTH)) / 8).astype(np.float32)) for i in range(layers)}
    nodes: list[Node] = []
    for i in range(layers):
        nodes += (Node("MatMul", (f"x{i}", f"w{i}"), (f"h{i}",)), Node("Relu", (f"h{i}",), (f"x{i + 1}",)))
    return Function((Value("x0", type_),), (Value(f"x{layers}", type_),), tuple(nodes), weights, {"": 18})


def make_example(batch: int) -> np.ndarray:
    return np.random.default_rng(batch).standard_normal((batch, WIDTH)).astype(np.float32)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="xrt-soak-") as name:
        folder, rng = Path(name), random.Random(arguments.seed)
        try:
            start_together(folder, arguments.processes)
            kill_writers(folder, arguments.rounds, rng)
            repeat_calls(folder, arguments.minutes, rng)
        except Violation as violation:
            print(f"wrong: {violation}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
