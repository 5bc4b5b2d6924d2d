"""Start many processes on one cache, kill some at random, and call modules for an hour.

    python tools/soak.py [--processes 32] [--rounds 100] [--minutes 60] [--seed 0]

(1) The processes start at once on a cold cache: one compile per signature, correct results, an undamaged cache. (2) In each
round processes that write are killed with SIGKILL at a random time; afterwards the cache is undamaged and usable. (3) Calls
with varying threads, shapes, modules and evictions: resident memory stays constant, and no file descriptor or thread leaks.
Exit code 1, with one line, for the first violation.
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

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.cache.saving import Saving  # noqa: E402  # of this checkout
from xrt import XRTModule  # noqa: E402
from xrt.cache import CompileCache, DiskTier, Store  # noqa: E402
from xrt.graph import Constant, DType, Function, Node, TensorType, Value  # noqa: E402

REGIONS = 6
"""Regions, hence signatures, of the model that the processes compile."""
WARM_TURNS = 16
"""Turns after which all modules are imported: they load on first use."""
ALLOWED_GROWTH = 24e6
"""In bytes: free memory that allocators keep."""


class Violation(Exception):
    """A check of the soak test failed."""


def check(holds: bool, what: str) -> None:
    if not holds:
        raise Violation(what)


# ---------------------------------------------------------------------- processes


def start_process(cache: Path, journal: Path, mode: str = "once") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.cache.saving", str(cache), str(journal), mode]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def wait_for(children: list[subprocess.Popen[str]]) -> None:
    for child in children:
        _, errors = child.communicate()
        check(child.returncode == 0, f"a process failed: {errors}")


def start_together(folder: Path, count: int) -> None:
    """Start the processes at once on a cold cache."""
    cache, journal = folder / "together", folder / "journal"
    wait_for([start_process(cache, journal) for _ in range(count)])
    compiles = Saving(journal=str(journal)).count("compile")
    check(compiles == REGIONS, f"{count} processes compiled {compiles} times for {REGIONS} signatures")
    check(not Store(cache).find_damaged(), "the cache is damaged")
    print(f"{count} processes at once: {compiles} compiles for {REGIONS} signatures, results right, cache clean")


def kill_writers(folder: Path, rounds: int, rng: random.Random) -> None:
    """Kill writers at random moments, round after round."""
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
    """Call for some minutes; compare memory, file descriptors and threads with those after the first tenth of the time."""
    model, expected = perceptron(), {}
    threads, settled = threading.active_count(), None
    began, turns = time.monotonic(), 0
    while (spent := time.monotonic() - began) < 60 * minutes or settled is None:
        turn(folder / "calls", model, expected, rng)
        turns += 1
        gc.collect()
        if settled is None and spent > 6 * minutes and turns >= WARM_TURNS:
            settled = get_resident_bytes(), count_handles()
    grown = get_resident_bytes() - settled[0]
    check(grown < ALLOWED_GROWTH, f"resident memory grew by {grown / 1e6:.1f} MB in {turns} turns")
    check(count_handles() <= settled[1], f"{count_handles() - settled[1]} handles are left over")
    check(threading.active_count() == threads, f"{threading.active_count() - threads} threads are left over")
    print(f"{turns} turns of calls in {minutes:g} minutes: resident memory {grown / 1e6:+.1f} MB, no handle or thread left over")


def turn(directory: Path, model: Function, expected: dict[int, np.ndarray], rng: random.Random) -> None:
    """Make a module with a small cache, call it from several threads with several shapes, and release it."""
    cache = CompileCache(rng.choice((1, 2, 8)), DiskTier(directory, limit=rng.choice((50_000, 500_000, 10**9))))
    engine = rng.choice(("ort", "toy", "ort{memory_arena=false}"))
    options = {"maximum_nodes": rng.choice((None, 1, 3)), "threads": rng.choice((1, 2))}
    with XRTModule(model, engine=engine, cache=cache, strict=True, **options) as module, ThreadPoolExecutor(4) as pool:
        sizes = [rng.randint(1, 5) for _ in range(16)]
        for size, result in zip(sizes, pool.map(lambda size: module(example(size)), sizes), strict=True):
            np.testing.assert_allclose(result, expected.setdefault(size, result), rtol=1e-4, atol=1e-5)
        if rng.random() < 0.3:
            cache.clear()
    cache.clear()
    if rng.random() < 0.1:
        Store(directory).clear()


def perceptron(layers: int = 4, width: int = 64) -> Function:
    """Matrix products with Relu, for any batch size."""
    rng, type_ = np.random.default_rng(0), TensorType(DType.FLOAT32, ("N", width))
    weights = {f"w{i}": Constant((rng.standard_normal((width, width)) / 8).astype(np.float32)) for i in range(layers)}
    nodes = [
        n
        for i in range(layers)
        for n in (Node("MatMul", (f"x{i}", f"w{i}"), (f"h{i}",)), Node("Relu", (f"h{i}",), (f"x{i + 1}",)))
    ]
    return Function((Value("x0", type_),), (Value(f"x{layers}", type_),), tuple(nodes), weights, {"": 18})


def example(size: int) -> np.ndarray:
    return np.random.default_rng(size).standard_normal((size, 64)).astype(np.float32)


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
