"""Keys and values of what a layer's attention is given, made as the model itself makes them.

Legend: B rows, S tokens, H query heads, K key/value heads, D head width, C width of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from contextlab.attention import in_this_thread
from contextlab.backbone.low_rank import linear_layers
from contextlab.backbone.wrapper import Backbone
from contextlab.errors import UserError

FUSED = {"c_attn": False, "qkv_proj": False, "query_key_value": True}
"""Linear layers that make queries, keys and values at once; whether their outputs are ordered by head first."""
CHECKED_TOKENS = 4


class KeyValueProjections:
    """Makes the keys, before rotation, and values of any layer from the inputs of its attention.

    Attributes:
        attention: the attention of every layer.
    """

    def __init__(self, backbone: Backbone) -> None:
        """Find them.

        Raises:
            UserError: when the model makes keys or values in a way that is not known.
        """
        self.backbone = backbone
        paths = {layer.block: layer.path.rpartition(".")[0] for layer in linear_layers(backbone) if layer.of_attention}
        self.attention: list[Any] = [backbone.model.get_submodule(path) for path in paths.values()]
        supported = all(hasattr(module, "k_proj") or self._fused(module) for module in self.attention)
        if not self.attention or not supported or not self._agree():
            raise UserError(
                f"{backbone.name} makes its keys and values in a way that is not known: use a Llama-, GPT-2-, "
                "GPT-NeoX- or OPT-style model, or a method that caches keys and values."
            )

    def __call__(self, layer: int, x_BSC: Tensor) -> tuple[Tensor, Tensor]:
        """`k_BKSD` without rotation, as the seam hands them to an attention, and `v_BKSD`."""
        module, heads = self.attention[layer], self.backbone.kv_heads
        separate = hasattr(module, "k_proj")
        k_BSE, v_BSE = (module.k_proj(x_BSC), module.v_proj(x_BSC)) if separate else self._sliced(module, x_BSC)
        norm = getattr(module, "k_norm", None)
        by_head = norm is not None and norm.weight.numel() != k_BSE.shape[-1]
        if norm is not None and not by_head:
            k_BSE = norm(k_BSE)
        k_BSKD, v_BSKD = (x.unflatten(-1, (heads, -1)) for x in (k_BSE, v_BSE))
        if norm is not None and by_head:
            k_BSKD = norm(k_BSKD)
        if self.backbone.rotary_scale != 1:
            k_BSKD = k_BSKD * self.backbone.rotary_scale
        return k_BSKD.transpose(1, 2), v_BSKD.transpose(1, 2)

    @contextmanager
    def watching(self, enter: Callable[[int, Tensor], Tensor]) -> Iterator[None]:
        """While entered, every attention is given what `enter` makes of the layer and its input `x_BTC`."""

        def hook(layer: int) -> Callable[..., Any]:
            def entered(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                if args:
                    return (enter(layer, args[0]), *args[1:]), kwargs
                return args, {**kwargs, "hidden_states": enter(layer, kwargs["hidden_states"])}

            return in_this_thread(entered)

        with ExitStack() as stack:
            for layer, module in enumerate(self.attention):
                stack.callback(module.register_forward_pre_hook(hook(layer), with_kwargs=True).remove)
            yield

    def _fused(self, module: nn.Module) -> str | None:
        return next((name for name in FUSED if hasattr(module, name)), None)

    def _sliced(self, module: Any, x_BSC: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values `(B, S, K D)` without the queries of a fused layer."""
        name = str(self._fused(module))
        layer, D = getattr(module, name), self.backbone.head_width
        weight_OC = layer.weight.T if isinstance(layer, Conv1D) else layer.weight
        if FUSED[name]:
            parameters = (_of_each_head(x, D) for x in (weight_OC, layer.bias))
        else:
            queries = self.backbone.heads * D
            parameters = (None if x is None else x[queries:] for x in (weight_OC, layer.bias))
        weight, bias = parameters
        assert weight is not None
        k_BSE, v_BSE = functional.linear(x_BSC, weight, bias).chunk(2, dim=-1)
        return k_BSE, v_BSE

    @torch.no_grad()
    def _agree(self) -> bool:
        """Whether a few tokens have the keys and values that their attention receives."""
        backbone, agree, inputs = self.backbone, [], dict[int, Tensor]()

        def enter(layer: int, x_BTC: Tensor) -> Tensor:
            inputs[layer] = x_BTC
            return x_BTC

        def attend(
            layer: int, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, scale: float, window: int | None
        ) -> Tensor:
            del scale, window
            for own, projected in zip((k_BKTD, v_BKTD), self(layer, inputs[layer]), strict=True):
                near = 1e-3 if own.dtype == torch.float32 else 0.1
                agree.append(
                    own.shape == projected.shape and torch.allclose(own.float(), projected.float(), near, near)
                )
            return torch.zeros_like(q_BHTD)

        position_1T = torch.arange(CHECKED_TOKENS, device=backbone.device)[None]
        with self.watching(enter):
            backbone.forward(position_1T % backbone.vocab_size, position_1T, attend)
        return len(agree) == 2 * backbone.layers and all(agree)


def _of_each_head(x_OX: Tensor | None, D: int) -> Tensor | None:
    """Of outputs that are ordered by head, those of all keys, then those of all values."""
    if x_OX is None:
        return None
    of_heads = x_OX.unflatten(0, (-1, 3, D))
    return torch.cat((of_heads[:, 1].flatten(0, 1), of_heads[:, 2].flatten(0, 1)))
