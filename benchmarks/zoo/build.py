"""Export the zoo: ``python -m benchmarks.zoo.build [NAME ...]`` writes ``build/zoo/<name>/model.onnx`` and its case."""

from __future__ import annotations

import argparse
import sys
import traceback
from pathlib import Path

from benchmarks.zoo.model import FOLDER, Export, save_case


def list_exports() -> list[Export]:
    """Return every model of the zoo."""
    from benchmarks.zoo import derived_models, sklearn_models, torch_models, transformer_models

    sources = (transformer_models, torch_models, sklearn_models, derived_models)
    return [export for source in sources for export in source.list_exports()]


def main(names: list[str]) -> int:
    """Export the missing models, or the named ones again; return 1 if an export fails."""
    failed = 0
    for export in list_exports():
        done = (FOLDER / export.name / "case.npz").exists()
        if (names and export.name not in names) or (done and not names):
            continue
        try:
            save_case(export, FOLDER)
            print(f"{export.name}: exported", flush=True)
        except Exception as error:  # noqa: BLE001  # the other exports continue
            failed += 1
            last = traceback.extract_tb(error.__traceback__)[-1]
            print(
                f"{export.name}: {type(error).__name__}: {str(error)[:300]} ({Path(last.filename).name}:{last.lineno})",
                flush=True,
            )
    return int(failed > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo.build", description=(__doc__ or "").partition(":")[0] + ".")
    parser.add_argument("names", nargs="*", metavar="NAME", help="model to export again; default: all that are missing")
    sys.exit(main(parser.parse_args().names))
