"""Export the zoo: ``python -m benchmarks.zoo.build [NAME ...]`` writes ``build/zoo/<name>/model.onnx`` and its case."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

from benchmarks.zoo.model import Export, save_case

FOLDER = Path(__file__).parents[2] / "build" / "zoo"


def list_exports() -> list[Export]:
    """Return every model of the zoo."""
    from benchmarks.zoo import derived_models, sklearn_models, torch_models, transformer_models

    sources = (transformer_models, torch_models, sklearn_models, derived_models)
    return [export for source in sources for export in source.list_exports()]


def main(names: list[str]) -> int:
    """Export what is not there yet, or the named ones anew; return 1 if one failed."""
    failed = 0
    for export in list_exports():
        done = (FOLDER / export.name / "case.npz").exists()
        if (names and export.name not in names) or (done and not names):
            continue
        try:
            save_case(export, FOLDER)
            print(f"{export.name}: exported", flush=True)
        except Exception as error:  # noqa: BLE001  # an exporter's failure is no reason to lose the others
            failed += 1
            last = traceback.extract_tb(error.__traceback__)[-1]
            print(
                f"{export.name}: {type(error).__name__}: {str(error)[:300]} ({Path(last.filename).name}:{last.lineno})",
                flush=True,
            )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
