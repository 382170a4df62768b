from __future__ import annotations

import subprocess
import sys

import pytest

from contextlab import backbone, registry, static, trained
from contextlab.cli.complete import backbone_names, method_names, task_names

HEAVY = {"torch", "transformers", "pandas", "numpy", "contextlab.backbone"}


def test_all_names_are_offered() -> None:
    assert method_names("") == [*registry.methods(), *trained.names()]
    assert task_names("") == [*registry.tasks()]
    assert backbone_names("") == [*backbone.known()]


@pytest.mark.parametrize(
    ("incomplete", "completed"),
    [
        ("longm", ["longmem", "longmem-difference", "longmem-domain", "longmem-domain-seed1"]),
        (
            "window,longm",
            ["window,longmem", "window,longmem-difference", "window,longmem-domain", "window,longmem-domain-seed1"],
        ),
        ("window(N=32),hs", ["window(N=32),hso"]),
        ("window(N", []),
        ("evalm(c=8,ful", []),
        ("nothing-like-it", []),
    ],
)
def test_the_last_item_of_a_list_is_completed(incomplete: str, completed: list[str]) -> None:
    assert method_names(incomplete) == completed


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("contextlab bench --method full,evalm-c4-d", "full,evalm-c4-domain"),
        ("contextlab bench --task stream", "streamingqa"),
        ("contextlab bench --backbone tiny-gpt2", "tiny-gpt2"),
        ("contextlab train full --backbone smollm2-135m+ultragist-r", "smollm2-135m+ultragist-r8"),
        ("contextlab train dyn", "dynamic-eval"),
        ("contextlab check dyn", "dynamic-eval"),
        ("contextlab chat dyn", "dynamic-eval"),
        ("contextlab doct", "doctor"),
    ],
)
def test_a_shell_gets_names_without_anything_heavy(words: str, completed: str) -> None:
    code = f"""
import os, sys
from contextlab.cli.main import main
try:
    main([])
finally:
    assert not {HEAVY!r} & set(sys.modules), set(sys.modules)
"""
    environment = {
        "_CONTEXTLAB_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
        "PYTHONPATH": ":".join(sys.path),
    }
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert answer.stdout.split() == [completed]
    assert answer.stderr == ""


def test_a_constant_is_read_without_importing_its_module() -> None:
    assert static.constant("contextlab.backbone.toys:TINY") == backbone.TINY
    for target in ("contextlab.backbone.toys:NOTHING", "contextlab.nothing:TINY"):
        with pytest.raises(KeyError, match=target):
            static.constant(target)
