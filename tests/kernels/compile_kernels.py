"""Compiles every kernel for a Hopper GPU, which needs none: the compiler refuses much that the interpreter takes."""

from __future__ import annotations

import re
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from contextlab.kernels.chunk_topk import triton as search
from contextlab.kernels.eva_attention import triton as eva
from contextlab.kernels.eva_chunk_compress import triton as pooling
from contextlab.kernels.joint_memory_attention import triton_local, triton_memory

HOPPER = GPUTarget("cuda", 90, 32)
POINTERS = {
    "*fp32": (
        *("lse_BHT", "delta_BHT", "dgate_BHT", "slopes_H", "gate_H", "dk_BKncD", "dv_BKncD"),
        *("dbias_BHT", "chunk_bias_H", "dk_xBHnD", "dv_xBHnD", "lse_BKn", "delta_BKn"),
    ),
    "*i64": ("ids_BHTm", "count_B", "key_BHTx", "counts_BT"),
    "*i8": ("found_BHTm",),
}
LOCAL = {"SLOPES": True, "FEW_QUERIES": False}
MEMORY = {"CHUNK": 4, "FEW_QUERIES": False}
EVA = {"COUNTS": True, "FEW_QUERIES": False}
KERNELS = [
    (triton_local._local_forward, LOCAL),
    (triton_local._local_dq, LOCAL),
    (triton_local._local_dkdv, {**LOCAL, "SLOPES": False}),
    (triton_memory._memory_forward, MEMORY),
    (triton_memory._memory_backward, {**MEMORY, "INTO_BANK": True}),
    (search._search, {"TAKE": 16, "SLOTS": 16, "FEW_QUERIES": False}),
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


def main() -> None:
    for tuner, given in KERNELS:
        config = tuner.configs[0]
        constants = {"WIDTH": 64, "BLOCK_D": 64, **given, **config.kwargs}
        signature = {name: kind(name, constants) for name in tuner.fn.arg_names}
        places = [i for i, name in enumerate(signature) if "_" in name and name not in constants]
        aligned = {(i,): [["tt.divisibility", 16]] for i in places}
        options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
        built = triton.compile(ASTSource(tuner.fn, signature, constants, aligned), target=HOPPER, options=options)
        print(tuner.fn.__name__, len(built.asm["cubin"]))


if __name__ == "__main__":
    main()
