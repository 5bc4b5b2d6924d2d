"""Write docs/witnesses.md: who proves each operator of the reference."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script sees its own folder only

from tests.witness.proved import PAGE, page


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.name}")


if __name__ == "__main__":
    main()
