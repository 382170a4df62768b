"""The tidy frame as CSV and JSON."""

from __future__ import annotations

import json

import pandas

from contextlab import harmless


def written(frame: pandas.DataFrame, style: str) -> str:
    """The frame as text: a line per row; settings are JSON.

    Args:
        frame: from `reports.frame`.
        style: `csv`, without cells that a spreadsheet reads as formulas, or `json`, one object per line.
    """
    if style == "csv":
        texts = frame.assign(settings=frame["settings"].map(json.dumps))
        words = [name for name in texts.columns if texts[name].dtype.kind not in "fiub"]
        safe = {name: texts[name].map(harmless.csv, na_action="ignore") for name in words}
        return str(texts.assign(**safe).to_csv(index=False))
    return str(frame.to_json(orient="records", lines=True, double_precision=15))
