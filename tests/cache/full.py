"""A disk without room: a file system of one page where one can be mounted, else files that may not grow.

    python -m tests.cache.full FOLDER SPEC [strict]

runs a model on one engine (alone where strict: the compiler of IREE needs files that grow) with its cache in the folder, and
prints what came of it as JSON.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from tests.cache.saving import chain
from xrt.cache import CompileCache, open_disk_tier
from xrt.module import XRTModule

PAGES = "4k"
X = np.arange(4, dtype=np.float32)


def run_on_full_disk(folder: Path, spec: str, *, limit: bool = False) -> dict[str, Any]:
    """Return what the program above prints, with a full disk at the folder; with ``limit`` files of at most a page instead.

    The file system is the child's alone, and gone with it. A user who is not root mounts it in a namespace of his own.
    """
    folder.mkdir(mode=0o700)
    program = shlex.join([sys.executable, "-m", "tests.cache.full", str(folder), spec])
    mount = f"mount -t tmpfs -o size={PAGES},mode=700 tmpfs {shlex.quote(str(folder))}"
    spaces = [] if limit else [["unshare", "--mount"], ["unshare", "--map-root-user", "--mount"]]
    possible = [item for item in spaces if subprocess.run([*item, "sh", "-c", mount], capture_output=True).returncode == 0]
    command = (
        [*possible[0], "sh", "-c", f"{mount} && exec {program} strict"]
        if possible
        else ["sh", "-c", f"ulimit -f 4; exec {program}"]
    )
    # bytecode that may not grow either would be cut short in the sources' folder, for all later processes
    environment = {**os.environ, "HOME": str(folder.parent), "XRT_CACHE": "on", "PYTHONDONTWRITEBYTECODE": "1"}
    completed = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert completed.returncode == 0, completed.stderr
    document: dict[str, Any] = json.loads(completed.stdout)
    return {**document, "mounted": bool(possible), "stderr": completed.stderr}


def main(folder: Path, spec: str, *, strict: bool) -> None:
    if spec == "ort":
        from xrt.engines.ort import engine

        engine.MIN_SAVED_NODES = 1  # a model of one node is not worth saving otherwise
    cache = CompileCache(disk=open_disk_tier(directory=folder))
    with (
        warnings.catch_warnings(record=True) as caught,
        XRTModule(chain(), spec, cache=cache, strict=strict, threads=1) as module,
    ):
        warnings.simplefilter("always")
        results = module(X).tolist()
        items = [str(path) for path in folder.glob("xrt-cache/work/*")]
    values = {
        "results": results,
        "warnings": [str(warning.message) for warning in caught],
        "writes": cache.statistics.disk.writes,
        "left": items,
        "folder": sorted(path.name for path in folder.iterdir()),
    }
    sys.stdout.write(json.dumps(values))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], strict=sys.argv[3:] == ["strict"])
