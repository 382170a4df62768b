"""Prints the folder for `--include_path`."""

from __future__ import annotations

from contextlab.integrations.lm_eval_tasks import FOLDER

print(FOLDER)
