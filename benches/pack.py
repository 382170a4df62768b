"""Packs the lines of stored runs, as results that are kept lie in the repository; tables and tests read them so.

python benches/pack.py results
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from contextlab.harness import store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", type=Path, nargs="+", help="results, at any depth")
    runs = [path.parent for folder in parser.parse_args().folders for path in sorted(folder.rglob(store.SUMMARY))]
    before = sum(store.lines_file(run).stat().st_size for run in runs)
    for run in runs:
        store.pack(run)
    after = sum(store.lines_file(run).stat().st_size for run in runs)
    print(json.dumps({"runs": len(runs), "bytes": {"before": before, "after": after}}))


if __name__ == "__main__":
    main()
