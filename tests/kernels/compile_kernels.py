"""Compiles every kernel for a Hopper GPU, without one: the compiler is stricter than the interpreter."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
import sys
from collections.abc import Sequence
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from contextlab.kernels import part_triton, retrieved_triton
from contextlab.kernels.chunk_topk import triton as search
from contextlab.kernels.eva_attention import triton as eva
from contextlab.kernels.eva_chunk_compress import triton as pooling
from contextlab.kernels.joint_memory_attention import triton_local

HOPPER = GPUTarget("cuda", 90, 32)
POINTERS = {
    "*fp32": (
        *("lse_BHT", "lse_xBHT", "local_lse_BHT", "lse_BKn", "delta_BHT", "delta_BKn", "slopes_H", "weight_H"),
        *("dweight_BHT", "dbias_BHT", "chunk_bias_H", "dk_BKncD", "dv_BKncD", "dk_xBHnD", "dv_xBHnD"),
    ),
    "*i64": ("ids_BHTm", "count_B", "key_BHTx", "counts_BT"),
    "*i8": ("retrieved_BHTm",),
}
LOCAL = {"SLOPES": True}
MEMORY = {"CHUNK": 4}
PART = {"BIAS": True, "CAUSAL": False}
EVA = {"COUNTS": True}
KERNELS = [
    (triton_local._local_forward, LOCAL),
    (triton_local._local_dq, LOCAL),
    (triton_local._local_dkdv, {**LOCAL, "SLOPES": False}),
    (retrieved_triton.forward_kernel, {**MEMORY, "JOINT": False}),
    (retrieved_triton.forward_kernel, {**MEMORY, "JOINT": True}),
    (retrieved_triton.backward_kernel, {**MEMORY, "JOINT": False, "INTO_BANK": True}),
    (retrieved_triton.backward_kernel, {**MEMORY, "JOINT": True, "INTO_BANK": False}),
    (part_triton._forward, PART),
    (part_triton._backward_queries, PART),
    (part_triton._backward_keys, PART),
    (search._search, {"TAKE": 16, "SLOTS": 16}),
    (eva._forward, {**EVA, "BIAS": True}),
    (eva._backward_queries, {**EVA, "BIAS": False}),
    (eva._backward_keys, EVA),
    (eva._backward_chunks, {**EVA, "BIAS": True}),
    (pooling._pool, {"CHUNK": 16, "FEATURES": True}),
    (pooling._pool_backward, {"CHUNK": 16, "FEATURES": False}),
]


def kind(name: str, constants: dict[str, Any]) -> str:
    if name in constants:
        return "constexpr"
    for pointer, names in POINTERS.items():
        if name in names:
            return pointer
    if name == "scale":
        return "fp32"
    return "*bf16" if re.search(r"_x?B", name) else "i32"


def compiled(tuner: Any, constants: dict[str, Any], config: Any, wide: bool) -> dict[str, Any]:
    """The resources of a kernel: bytes of shared memory, registers of a thread, bytes spilled."""
    constants = {**constants, **config.kwargs}
    signature = {name: kind(name, constants) for name in tuner.fn.arg_names}
    if wide:
        signature = {name: "*fp32" if value == "*bf16" else value for name, value in signature.items()}
    pointers = [i for i, name in enumerate(signature) if "_" in name and name not in constants]
    aligned = {(i,): [["tt.divisibility", 16]] for i in pointers}
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    log = io.StringIO()
    with contextlib.redirect_stdout(log):
        built = triton.compile(ASTSource(tuner.fn, signature, constants, aligned), target=HOPPER, options=options)
    spilled = sum(map(int, re.findall(r"(\d+) bytes spill", log.getvalue())))
    registers = int(re.findall(r"Used (\d+) registers", log.getvalue())[-1])
    return {"shared": built.metadata.shared, "registers": registers, "spilled": spilled}


def main(widths: Sequence[int], every: bool) -> None:
    """One line of JSON for every kernel, width and type, and for the last tile that fits them or every one."""
    triton.knobs.nvidia.dump_ptxas_log = True
    for (tuner, constexprs), width, wide in itertools.product(KERNELS, widths, (False, True)):
        constants = {"WIDTH": width, "BLOCK_D": width, **constexprs}
        matrix = torch.empty(1, 1, 1, 1, dtype=torch.float32 if wide else torch.bfloat16)
        fitting = tuner.early_config_prune(tuner.configs, {"matrix": matrix}, **constants)
        for config in fitting if every else fitting[-1:]:
            tile = {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}
            kernel = {"kernel": tuner.fn.__name__, "width": width, "type": str(matrix.dtype), **tile}
            print(json.dumps({**kernel, **compiled(tuner, constants, config, wide)}), flush=True)


if __name__ == "__main__":
    main([int(width) for width in sys.argv[1].split(",")], "--every" in sys.argv)
