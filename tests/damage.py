"""Damage for fuzz tests: changes of bytes, JSON and safetensors files.

`CONTEXTLAB_FUZZ_SECONDS=60` makes every fuzz test run for a minute.
"""

from __future__ import annotations

import copy
import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

SECONDS = float(os.environ.get("CONTEXTLAB_FUZZ_SECONDS", "0"))

ODD: list[Any] = [
    None, 0, -1, 1.5, True, 1e999, -1e999, float("nan"), 10**30, -(10**400), "", "\0", "\x1b[31m", "\ud800", "../../x",
    "=1+1", "x" * 5000, [], {}, [[]], {"a": None}, [1, [2, [3]]],
]  # fmt: skip


def rounds(least: int, share: float = 1.0, salt: str = "") -> Iterator[random.Random]:
    """A random generator for every round: at least `least` rounds, and for a share of the environment's seconds."""
    until, number = time.monotonic() + SECONDS * share, 0
    while number < least or time.monotonic() < until:
        yield random.Random(f"{salt} {number}")
        number += 1


def cut(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.randrange(len(content) + 1)]


def flip(content: bytes, draw: random.Random) -> bytes:
    changed = bytearray(content or b"x")
    for _ in range(draw.choice((1, 1, 4))):
        changed[draw.randrange(len(changed))] = draw.choice((0, 10, 34, 44, 92, 0xFF, draw.randrange(256)))
    return bytes(changed)


def insert(content: bytes, draw: random.Random) -> bytes:
    start = draw.randrange(len(content) + 1)
    odd = draw.choice((b"\xff\xfe", b"\0", b'"', b"\n", b"\r", b"{", b"\xe9", b"9" * 5000, b"[" * 90_000))
    return content[:start] + odd + content[start:]


def repeat(content: bytes, draw: random.Random) -> bytes:
    """One line removed, doubled, replaced, or divided at its first space."""
    rows = content.split(b"\n")
    number = draw.randrange(len(rows))
    row = rows[number]
    rows[number : number + 1] = draw.choice(([], [row] * 2, [b""], [b"garbage"], [b"{}"], [b"[1]"], row.split(b" ", 1)))
    return b"\n".join(rows)


def value(content: bytes, draw: random.Random) -> bytes:
    """One value of a JSON file, or of a file with JSON lines, removed or replaced; flipped bytes in other files."""
    try:
        whole, records = True, [json.loads(content)]
    except ValueError:
        try:
            whole, records = False, [json.loads(line) for line in content.splitlines() if line]
        except ValueError:
            return flip(content, draw)
    if not records:
        return flip(content, draw)
    holder, key = draw.choice([*_items(records)])
    if draw.random() < 0.4:
        del holder[key]
    else:
        holder[key] = copy.deepcopy(draw.choice(ODD))
    return "\n".join(json.dumps(record) for record in records).encode() + (b"" if whole else b"\n")


def _items(holder: Any) -> Iterator[tuple[Any, Any]]:
    """Every list or object inside a JSON value, with each of its keys."""
    keys = range(len(holder)) if isinstance(holder, list) else holder if isinstance(holder, dict) else ()
    for key in list(keys):
        yield holder, key
        yield from _items(holder[key])


def damaged(content: bytes, draw: random.Random) -> bytes:
    """A file's content after one change; most changes keep JSON valid."""
    return draw.choice((cut, flip, insert, repeat, value, value, value, value))(content, draw)


INTEGERS = (-1, 1 << 40, 2**62, -(2**63), 300)
FLOATS = (float("nan"), float("inf"), float("-inf"))
TYPES = (torch.float64, torch.float16, torch.int64, torch.int32, torch.bool, torch.uint8, torch.complex64)


def mutated(
    tensors: dict[str, torch.Tensor], about: dict[str, str], path: Path, draw: random.Random
) -> tuple[str, str]:
    """Write tensors with one error; returns its kind and the name of the tensor."""
    tensors, about = {name: tensor.clone() for name, tensor in tensors.items()}, dict(about)
    name = draw.choice(sorted(tensors))
    tensor = tensors[name]
    kinds = ["gone", "extra", "named", "dim", "type", "flat", "rows", "header", "bytes", "cut"]
    kinds += ["value"] * 8 if tensor.numel() and tensor.dtype != torch.bool else []
    kind = draw.choice(kinds)
    if kind == "gone":
        del tensors[name]
    elif kind == "extra":
        tensors["more"] = torch.zeros(2)
    elif kind == "named":
        tensors[name + "x"] = tensors.pop(name)
    elif kind == "dim":
        dim = draw.randrange(tensor.dim()) if tensor.dim() else 0
        shape = list(tensor.shape) or [1]
        shape[dim] = max(shape[dim] + draw.choice((-1, 1, 3)), 0)
        if shape == list(tensor.shape):
            shape[dim] += 1
        tensors[name] = torch.zeros(shape, dtype=tensor.dtype)
    elif kind == "type":
        other = draw.choice([dtype for dtype in TYPES if dtype != tensor.dtype])
        tensors[name] = tensor.to(other)
    elif kind == "flat":
        tensors[name] = (
            tensor[None] if draw.random() < 0.5 else tensor.reshape(-1) if tensor.dim() != 1 else tensor[None]
        )
    elif kind == "rows":
        tensors[name] = torch.cat((tensor, tensor)) if tensor.dim() and len(tensor) else tensor[None]
    elif kind == "value":
        at = draw.randrange(tensor.numel())
        odd = draw.choice(FLOATS if tensor.is_floating_point() else INTEGERS)
        most = {torch.uint8: 2**8, torch.int32: 2**31}.get(tensor.dtype)
        tensor.view(-1)[at] = odd % most if most else odd
    elif kind == "header" and about:
        key = draw.choice(sorted(about))
        if draw.random() < 0.5:
            del about[key]
        else:
            about[key] = draw.choice(("", "x", "{}", about[key][:-1], about[key] + "0"))
    save_file({key: part.contiguous() for key, part in tensors.items()}, path, metadata=about)
    if kind in ("bytes", "cut"):
        content = path.read_bytes()
        length = 8 + int.from_bytes(content[:8], "little")
        head = (flip if kind == "bytes" else cut)(content[:length], draw)
        path.write_bytes(head + (content[length:] if kind == "bytes" else b""))
    return kind, name
