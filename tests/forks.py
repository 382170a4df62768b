"""New processes without the start of Python: forks of a process that has imported what takes seconds."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

SERVER = """
import json, os, sys
import torch, transformers
for line in sys.stdin:
    process = os.fork()
    if not process:
        exec(compile(json.loads(line), "<code>", "exec"), {"__name__": "__main__"})
        sys.stdout.flush()
        os._exit(0)
    print(json.dumps(os.waitpid(process, 0)[1]), flush=True)
"""


@contextlib.contextmanager
def forks(folder: Path, environment: Mapping[str, str]) -> Iterator[Callable[[str], list[str]]]:
    """Runs code in a process of its own, in which torch and transformers are imported and nothing of this package.

    Args:
        folder: in which it runs, and from which it imports.
        environment: of the processes.

    Yields:
        A function from the code to the lines that it prints.
    """
    command = [sys.executable, "-c", SERVER]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, env=environment, text=True, stdin=pipe, stdout=pipe) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        stdin, stdout = server.stdin, server.stdout

        def run(code: str) -> list[str]:
            print(json.dumps(code), file=stdin, flush=True)
            printed: list[str] = []
            for line in stdout:
                if line.strip().isdecimal():
                    assert line.strip() == "0", printed
                    return printed
                printed.append(line.rstrip("\n"))
            raise AssertionError(f"the process ended: {printed}")

        yield run
        stdin.close()
