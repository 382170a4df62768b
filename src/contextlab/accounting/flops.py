"""Model FLOPs, counted from the operations that run.

Convention: a multiply-add is 2 and element-wise work is 0. Attention is counted exactly, for every kernel: visible
(query, key) pairs x 2 x (d_qk + d_v). Its backward pass counts twice that; computing the scores a second time, which
some kernels do to save memory, is not counted. Attention that is written as matrix products counts as such, including
masked pairs.
"""

from __future__ import annotations

import functools
import math
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Self, TypeVar

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.bias import CausalBias
from torch.overrides import TorchFunctionMode
from torch.utils import flop_counter
from torch.utils._mode_utils import no_dispatch

from contextlab.accounting.watch import OF_TORCH, watching

if TYPE_CHECKING:
    from transformers import GPT2Config, GPTNeoXConfig, LlamaConfig, OPTConfig, PreTrainedConfig

R = TypeVar("R")
aten = torch.ops.aten

_FUSED = {
    f"_scaled_dot_product_{kernel}{direction}"
    for kernel in (
        "flash_attention_for_cpu",
        "flash_attention",
        "efficient_attention",
        "cudnn_attention",
        "fused_attention_overrideable",
    )
    for direction in ("", "_backward")
}
CALL_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


class FlopCounter:
    """A context manager that sums the FLOPs of all operations, including backward passes, in `flops`.

    An operation outside of torch counts by its formula registered with
    `torch.utils.flop_counter.register_flop_formula`; without one it counts 0, with a warning.
    """

    def __init__(self) -> None:
        self.flops = 0
        self._formulas: dict[Any, Callable[..., int] | None] = {}
        self._paused = False
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(watching(self._observe))
        self._stack.enter_context(_AttentionCalls(self))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @contextmanager
    def counted_as(self, flops: int) -> Iterator[None]:
        """Count `flops` for all operations inside the `with` block."""
        self.flops += flops
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def _observe(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any, inside: bool) -> None:
        if inside or self._paused:
            return
        if op not in self._formulas:
            self._formulas[op] = _formula_of(op)
        formula = self._formulas[op]
        if formula is not None:
            self.flops += formula(*args, **kwargs, out_val=result)


class _AttentionCalls(TorchFunctionMode):
    """Counts calls of attention: in the operations below, matrix products and padded heads hide its shape."""

    def __init__(self, counter: FlopCounter) -> None:
        super().__init__()
        self._counter = counter

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        with self._counter.counted_as(attention_flops(named(CALL_ARGUMENTS, args, kwargs))):
            return func(*args, **kwargs)


def count(fn: Callable[[], R]) -> tuple[R, int]:
    """The result of `fn()` and its FLOPs."""
    with FlopCounter() as counter:
        result = fn()
    return result, counter.flops


def causal_pairs(queries: int, keys: int) -> int:
    """Number of visible pairs when query i sees keys 0 to i."""
    square = min(queries, keys)
    return square * (square + 1) // 2 + (queries - square) * keys


def visible_pairs(mask: Tensor) -> int:
    """Number of visible pairs of a mask, which is boolean or added to the scores."""
    with no_dispatch():
        # Some callers use the lowest finite number instead of -inf.
        visible = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min
        return int(visible.count_nonzero())


def attention_flops(named_arguments: Mapping[str, Any], visible: Callable[[Tensor], int] = visible_pairs) -> int:
    """FLOPs of a forward pass, from named arguments: query `(..., queries, d_qk)` and value `(..., keys, d_v)`."""
    *rows, queries, d_qk = named_arguments["query"].shape
    keys, d_v = named_arguments["value"].shape[-2:]
    mask = named_arguments.get("attn_mask", named_arguments.get("attn_bias"))
    if isinstance(mask, CausalBias):
        # The queries are the last of the keys, and each sees all up to itself.
        pairs = math.prod(rows) * (causal_pairs(keys, keys) - causal_pairs(keys - queries, keys))
        return int(2 * pairs * (d_qk + d_v))
    pairs = math.prod(rows) * (causal_pairs if named_arguments.get("is_causal") else operator.mul)(queries, keys)
    if mask is not None and pairs:
        pairs = pairs // mask.numel() * visible(mask)
    return int(2 * pairs * (d_qk + d_v))


def _formula_of(op: Any) -> Callable[..., int] | None:
    packet = getattr(op, "_overloadpacket", op)
    if op.namespace == "aten" and packet.__name__ in _FUSED:
        return functools.partial(_fused_attention_flops, op)
    formula = _PRODUCTS.get(packet) or flop_counter.flop_registry.get(packet)
    if formula is None and op.namespace not in OF_TORCH:
        warnings.warn(f"{packet} has no FLOP formula and counts 0: register_flop_formula gives it one.", stacklevel=2)
    return formula


def _fused_attention_flops(op: Any, *args: Any, **kwargs: Any) -> int:
    named_arguments = named((argument.name for argument in op._schema.arguments), args, kwargs)
    return (2 if "logsumexp" in named_arguments else 1) * attention_flops(named_arguments)


def named(names: Iterable[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by their names."""
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _product(a: Tensor, b: Tensor, **_: Any) -> int:
    return 2 * a.numel() * (b.shape[-1] if b.dim() > 1 else 1)


def _added_product(_base: Tensor, a: Tensor, b: Tensor, **_: Any) -> int:
    return _product(a, b)


# Torch has no formulas for some of these; its other formulas take as long as a small product.
_PRODUCTS: dict[Any, Callable[..., int]] = {
    **dict.fromkeys((aten.dot, aten.vdot, aten.mv, aten.mm, aten.bmm), _product),
    **dict.fromkeys(
        (aten.addmv, aten.addmm, aten.addbmm, aten.baddbmm, aten._addmm_activation),
        _added_product,
    ),
}


def llama_block_flops(tokens: int, visible_pairs: int, config: LlamaConfig) -> int:
    """FLOPs of one Llama-style block, by hand.

    Args:
        tokens: tokens of all rows.
        visible_pairs: (query, key) pairs of all rows, for one head.
        config: sizes; key and value heads may be grouped.
    """
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    queries = config.num_attention_heads * head
    keys = (config.num_key_value_heads or config.num_attention_heads) * head
    projections = config.hidden_size * (2 * queries + 2 * keys + 3 * config.intermediate_size)
    return 2 * tokens * projections + 4 * visible_pairs * queries


def gpt2_block_flops(tokens: int, visible_pairs: int, config: GPT2Config) -> int:
    """FLOPs of one GPT-2 block, by hand; arguments as in `llama_block_flops`."""
    width = config.n_embd
    projections = width * (4 * width + 2 * (config.n_inner or 4 * width))
    return 2 * tokens * projections + 4 * visible_pairs * width


def opt_block_flops(tokens: int, visible_pairs: int, config: OPTConfig) -> int:
    """FLOPs of one OPT block, by hand; arguments as in `llama_block_flops`."""
    width = config.hidden_size
    return 4 * tokens * width * (2 * width + config.ffn_dim) + 4 * visible_pairs * width


def gpt_neox_block_flops(tokens: int, visible_pairs: int, config: GPTNeoXConfig) -> int:
    """FLOPs of one GPT-NeoX block, by hand; arguments as in `llama_block_flops`."""
    width = config.hidden_size
    return 4 * tokens * width * (2 * width + config.intermediate_size) + 4 * visible_pairs * width


def head_flops(tokens: int, config: PreTrainedConfig) -> int:
    """FLOPs of projecting the hidden states of `tokens` tokens onto the vocabulary."""
    return int(2 * tokens * config.hidden_size * config.vocab_size)
