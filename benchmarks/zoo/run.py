"""Run the zoo: ``python -m benchmarks.zoo.run [--engines ort,xla] [--models bert,vit]`` writes docs/zoo.json.

Each engine runs in its own process, which is restarted after a crash or a hang. The record of models that are not run is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import platform
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.zoo.model import FOLDER, load_case

TOP = Path(__file__).parents[2]
RECORD = TOP / "docs" / "zoo.json"
ENGINES = ("toy", "ort", "openvino", "xla", "tvm", "iree", "auto")
LIBRARIES = (
    "onnx",
    "onnxruntime",
    "openvino",
    "jax",
    "apache-tvm",
    "iree-base-compiler",
    "torch",
    "transformers",
    "scikit-learn",
    "skl2onnx",
)
TIMEOUT_SECONDS = 300.0
"""Time limit in seconds for one model on one engine."""


def list_models() -> list[str]:
    """List the names of the exported models."""
    return sorted(path.parent.name for path in FOLDER.glob("*/case.npz"))


def try_all(command: Sequence[str], names: Sequence[str], limit: float) -> Iterator[dict[str, Any]]:
    """Run a command with the names as arguments; yield the outcome that it prints for each.

    After a crash or a hang the command is started again with the remaining names.
    """
    remaining = list(names)
    while remaining:
        for line in _read_lines([*command, *remaining], limit):
            outcome = json.loads(line)
            if "begin" in outcome:
                current = outcome["begin"]
                continue
            if "lost" in outcome:
                outcome = {"model": current, "verdict": outcome["lost"], "reason": outcome["reason"]}
            remaining = remaining[remaining.index(outcome["model"]) + 1 :]
            yield outcome
            if outcome["verdict"] in ("crash", "hang"):
                break


def _read_lines(command: Sequence[str], limit: float) -> Iterator[str]:
    """Yield the lines that a process prints. If it crashes or hangs, the last line is JSON with ``lost`` and the ``reason``."""
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryFile() as errors:
        environment = {**os.environ, "XRT_CACHE_DIR": cache}
        process = subprocess.Popen(command, cwd=TOP, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True)
        lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=_forward, args=(process, lines), daemon=True).start()
        while True:
            try:
                line = lines.get(timeout=limit)
            except queue.Empty:
                process.kill()
                yield json.dumps({"lost": "hang", "reason": f"no answer within {limit:.0f} s"})
                break
            if line is None:
                break
            if line.startswith("{"):
                yield line
        if (process.wait() and process.returncode > 0) or process.returncode < -9:
            errors.seek(0)
            last = errors.read().decode(errors="replace").strip().splitlines()[-1:] or [""]
            yield json.dumps({"lost": "crash", "reason": f"exit status {process.returncode}: {last[0][:200]}"})


def _forward(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def read_record() -> dict[str, Any]:
    """Read docs/zoo.json; return an empty record if there is none."""
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {"models": {}}


@contextlib.contextmanager
def changed_record() -> Iterator[dict[str, Any]]:
    """Yield the record and write it after the block, which changes it. A lock lets several runs do so."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "record.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        record = read_record()
        yield record
        record["versions"] = {library: metadata.version(library) for library in LIBRARIES}
        record["machine"] = f"{platform.machine()}, {os.cpu_count()} cores"
        written = RECORD.with_suffix(".partial")
        written.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        written.replace(RECORD)


def main(arguments: Sequence[str]) -> None:
    """Run the selected models and engines; write the record after each model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--models", default="")
    parser.add_argument("--limit", type=float, default=TIMEOUT_SECONDS, help="seconds that a model may take")
    options = parser.parse_args(arguments)
    names = [name for name in options.models.split(",") if name] or list_models()
    for engine in options.engines.split(","):
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.zoo.trial", engine]
        for outcome in try_all(command, names, options.limit):
            print(engine, outcome["model"], outcome["verdict"], outcome.get("on_toy", ""), outcome["reason"], flush=True)
            name = outcome.pop("model")
            family = load_case(FOLDER / name).family
            with changed_record() as record:
                record["models"].setdefault(name, {}).update({engine: outcome, "family": family})


if __name__ == "__main__":
    main(sys.argv[1:])
