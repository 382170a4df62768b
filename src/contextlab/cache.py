"""The one file that touches transformers' attention: one seam through which every method attends.

A forward pass is given an `attend` function. Each attention layer of the model hands it the queries, keys and values
of the new tokens, *before* rotary position encoding, and takes back the attention output. Caches, positions and masks
are therefore the method's business, transformers' own cache is never used, and nothing is stored in the model.

Legend: B rows, T new tokens, S tokens in the cache, H query heads, K key/value heads, D head width, C model width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from contextlab import states
from contextlab.errors import UserError

SEAM = "contextlab"


class Attend(Protocol):
    """Attention of one layer: `(layer, q_BHTD, k_BKTD, v_BKTD, scale, window) -> out_BHTD`."""

    def __call__(
        self, layer: int, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, scale: float, window: int | None
    ) -> Tensor:
        """Attend with the new tokens' queries; `window` is the sliding window the model itself was trained with."""


def _seam(
    module: nn.Module,
    q_BHTD: Tensor,
    k_BKTD: Tensor,
    v_BKTD: Tensor,
    _mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    attend: Attend | None = kwargs.get("attend")
    if attend is None:
        raise UserError(
            "This model's attention does not receive contextlab's seam: use a Llama-, GPT-2- or OPT-style model."
        )
    for feature in ("softcap", "s_aux", "position_bias"):
        if kwargs.get(feature) is not None:
            raise UserError(
                f"This model's attention uses '{feature}', which contextlab does not support: choose another."
            )
    scale = scaling if scaling is not None else q_BHTD.shape[-1] ** -0.5
    layer: int = module.layer_idx  # type: ignore[assignment]
    out_BHTD = attend(layer, q_BHTD, k_BKTD, v_BKTD, scale, kwargs.get("sliding_window"))
    return out_BHTD.transpose(1, 2).contiguous(), None


AttentionInterface.register(SEAM, _seam)
# An attention without a mask function of the same name silently gets no mask; ours wants none and says so.
AttentionMaskInterface.register(SEAM, lambda *_args, **_kwargs: None)


@contextmanager
def seam(config: Any) -> Iterator[None]:
    """Route the attention of every module with this configuration through `attend`, for the duration of a block."""
    before = config._attn_implementation
    config._attn_implementation = SEAM
    try:
        yield
    finally:
        config._attn_implementation = before


@contextmanager
def attending(model: Any, attend: Attend, positions: Callable[[int], Tensor]) -> Iterator[None]:
    """Let an unmodified model attend through `attend` wherever it is called, for the duration of a block.

    Args:
        model: a causal language model; its weights and settings are what they were afterwards.
        attend: attention of every layer, for calls of whole sequences; rotary encoding is left to it.
        positions: position ids of a sequence of that length; zeros for rotary models, whose rotation they undo.

    Raises:
        UserError: in a call with padding on the left, a ready-made mask, position ids, or a cache.
    """
    base = model.base_model

    def enter(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if kwargs.get("attend") is not None:  # a method's own pass, which brings its attention and positions
            return args, kwargs
        given = next(x for x in (*args, kwargs.get("input_ids"), kwargs.get("inputs_embeds")) if x is not None)
        rows, length = given.shape[:2]
        _check_whole(length, **kwargs)
        ids_BT = positions(length).to(given.device).expand(rows, -1)
        return args, {**kwargs, "position_ids": ids_BT, "use_cache": False, "attend": attend}

    # OPT's head calls the decoder inside its base model.
    hook = getattr(base, "decoder", base).register_forward_pre_hook(enter, with_kwargs=True)
    try:
        with seam(model.config.get_text_config()):
            yield
    finally:
        hook.remove()


def _check_whole(
    length: int,
    past_key_values: Any = None,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    **_kwargs: Any,
) -> None:
    if past_key_values is not None:
        raise UserError("This attention reads whole sequences and keeps no cache: call the model with use_cache=False.")
    # Behind padding on the right stands nothing that could see it, so that no mask is needed.
    mask = attention_mask
    if mask is not None and (mask.dim() != 2 or bool((mask[:, 1:] > mask[:, :-1]).any())):
        raise UserError("This attention takes padding on the right only: pad with tokenizer.padding_side='right'.")
    if position_ids is not None:
        other_BT = position_ids != torch.arange(length, device=position_ids.device)
        if bool((other_BT if mask is None else other_BT & (mask != 0)).any()):
            raise UserError("This attention counts positions from 0 itself: call the model without position_ids.")


@dataclasses.dataclass(frozen=True)
class KV:
    """Keys (before rotation) and values of every layer, rows packed to the left.

    Attributes:
        k: per layer, `k_BKSD`.
        v: per layer, `v_BKSD`.
        used_B: slots in use per row; what lies behind them is padding.
    """

    k: tuple[Tensor, ...]
    v: tuple[Tensor, ...]
    used_B: Tensor

    @property
    def slots(self) -> int:
        """S: slots of the longest row."""
        return self.k[0].shape[2]

    def take(self, slots_BS: Tensor, used_B: Tensor) -> KV:
        """The given slots of every row, in the given order."""
        if slots_BS.shape[1] == 0:
            return KV(tuple(k[:, :, :0] for k in self.k), tuple(v[:, :, :0] for v in self.v), used_B)
        return KV(tuple(_pick(k, slots_BS) for k in self.k), tuple(_pick(v, slots_BS) for v in self.v), used_B)

    def check(self, name: str, most: int) -> None:
        """Refuse a loaded cache whose layers differ, or with more slots in use than there are or than `most`.

        Raises:
            states.Misfit: naming it.
        """
        states.same_slots(name, (*self.k, *self.v), self.used_B, most)

    def keep(self, first: int, last: int, rows_B: Tensor) -> KV:
        """Cut the given rows back to their first and last slots; the other rows stay as they are."""
        if not bool(rows_B.any()):
            return self
        kept_B = torch.where(rows_B, self.used_B.clamp(max=first + last), self.used_B)
        slots = torch.arange(int(kept_B.max()), device=rows_B.device)
        skipped_B = self.used_B - kept_B
        return self.take(torch.where(slots < first, slots, slots + skipped_B[:, None]), kept_B)


def empty_kv(layers: int, shape_BKD: tuple[int, int, int], like: Tensor) -> KV:
    """A cache without tokens, of `like`'s dtype and device."""
    rows, heads, width = shape_BKD
    none = like.new_zeros(rows, heads, 0, width)
    used_B = torch.zeros(rows, dtype=torch.int64, device=like.device)
    return KV((none,) * layers, (none,) * layers, used_B)


def _pick(x_BKSD: Tensor, slots_BS: Tensor) -> Tensor:
    index = slots_BS.clamp(max=x_BKSD.shape[2] - 1)[:, None, :, None]
    return x_BKSD.gather(2, index.expand(-1, x_BKSD.shape[1], -1, x_BKSD.shape[3]))


class Positions(Protocol):
    """How a backbone encodes positions inside attention."""

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor] | None:
        """Cosine and signed sine for the given positions, or None for a model without rotary encoding."""

    @property
    def slopes_H(self) -> Tensor | None:
        """ALiBi slopes per head, or None."""


def rotate(x: Tensor, rotary: tuple[Tensor, Tensor] | None) -> Tensor:
    """Rotary position encoding of `x[..., T, D]`.

    Args:
        x: queries or keys.
        rotary: cosine and sine of the same trailing shape (or narrower), the sine with its sign turned in the first
            half of the width; None leaves `x` as it is.
    """
    if rotary is None:
        return x
    cos, sin = (part.to(x.dtype) for part in rotary)
    width = cos.shape[-1]
    if width < x.shape[-1]:
        return torch.cat((rotate(x[..., :width], rotary), x[..., width:]), dim=-1)
    return torch.addcmul(x * cos, x.roll(width // 2, dims=-1), sin)


def sdpa(q_BHTD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Softmax attention with grouped heads; plain causal over equal lengths when `mask` is None."""
    groups = q_BHTD.shape[1] // k_BKSD.shape[1]
    # CUDA has no fused kernel for grouped heads with a mask; without this it would build the whole score matrix.
    if groups > 1 and mask is not None and q_BHTD.is_cuda:
        k_BKSD, v_BKSD = (x.repeat_interleave(groups, dim=1) for x in (k_BKSD, v_BKSD))
        groups = 1
    return F.scaled_dot_product_attention(
        q_BHTD, k_BKSD, v_BKSD, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=groups > 1
    )


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the new tokens of one forward pass stand.

    Attributes:
        position_BT: position of every new token, counted like the slots of the cache.
        group_T: which candidate a new token belongs to; candidates see the cache and themselves, not each other.
        band: tokens that a query sees behind itself, itself included; None for all.
        first: slots at the beginning that every query sees whatever the band.
        tail_position_BP: positions of the cache's last P slots, where earlier tokens of the candidates lie side by
            side behind the slots in use.
        tail_group_P: which candidate each of these belongs to.
    """

    position_BT: Tensor
    group_T: Tensor | None = None
    band: int | None = None
    first: int = 0
    tail_position_BP: Tensor | None = None
    tail_group_P: Tensor | None = None

    @property
    def plain(self) -> bool:
        """Whether the new tokens see all that is before them."""
        return self.group_T is None and self.band is None


class CacheReader:
    """Causal attention over a cache and the new tokens; a token's position is its slot.

    Call it as `attend` of one forward pass, then take the grown cache with `grown`.
    """

    def __init__(self, positions: Positions, kv: KV, layout: Layout) -> None:
        self.positions, self.kv, self.layout = positions, kv, layout
        rows = layout.position_BT.shape[0]
        self.cached = kv.slots
        tail_BP = layout.tail_position_BP if layout.tail_position_BP is not None else layout.position_BT[:, :0]
        self.shared = self.cached - tail_BP.shape[1]
        slots_BS = torch.arange(self.shared, device=layout.position_BT.device).expand(rows, -1)
        self.key_position_BS = torch.cat((slots_BS, tail_BP, layout.position_BT), dim=1)
        self.k: list[Tensor] = []
        self.v: list[Tensor] = []
        self._q_rotary = self._rotary(layout.position_BT)
        self._k_rotary = self._rotary(self.key_position_BS)
        self._masks: dict[int | None, Tensor | None] = {}

    def __call__(
        self, layer: int, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, scale: float, window: int | None = None
    ) -> Tensor:
        """Append the new keys and values of a layer and attend."""
        k_BKSD, v_BKSD = self.append(k_BKTD, v_BKTD)
        q_BHTD, k_BKSD = rotate(q_BHTD, self._q_rotary), rotate(k_BKSD, self._k_rotary)
        return sdpa(q_BHTD, k_BKSD, v_BKSD, self.mask(window, q_BHTD.dtype), scale)

    def append(self, k_BKTD: Tensor, v_BKTD: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the next layer: the cache's, then the new ones. Layers come in order."""
        layer = len(self.k)
        if self.cached:
            k_BKTD = torch.cat((self.kv.k[layer], k_BKTD), dim=2)
            v_BKTD = torch.cat((self.kv.v[layer], v_BKTD), dim=2)
        self.k.append(k_BKTD)
        self.v.append(v_BKTD)
        return k_BKTD, v_BKTD

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor | None:
        """Added to scores, broadcastable to BHTS: -inf for what is not seen; None for plain causal attention."""
        if window not in self._masks:
            self._masks[window] = self._build_mask(window, dtype)
        return self._masks[window]

    def visible(self, window: int | None = None) -> Tensor:
        """`visible_BTS`: which keys each new token sees."""
        query, key = self.layout.position_BT[:, :, None], self.key_position_BS[:, None, :]
        seen_BTS = key <= query
        slot = torch.arange(key.shape[-1], device=key.device)
        seen_BTS &= (slot >= self.shared) | (slot < self.kv.used_B[:, None, None])
        if self.layout.group_T is not None:
            of_cache = self.layout.group_T.new_full((self.shared,), -1)
            tail_P = self.layout.tail_group_P if self.layout.tail_group_P is not None else of_cache[:0]
            group_S = torch.cat((of_cache, tail_P, self.layout.group_T))
            seen_BTS &= (group_S == -1) | (group_S == self.layout.group_T[:, None])
        if self.layout.band is not None:
            seen_BTS &= (key > query - self.layout.band) | (key < self.layout.first)
        if window is not None:
            seen_BTS &= key > query - window
        return seen_BTS

    def grown(self, lengths_B: Tensor) -> KV:
        """The cache with each row's first `lengths_B` new tokens appended."""
        grown = KV(tuple(self.k), tuple(self.v), self.kv.used_B + lengths_B)
        new = self.layout.position_BT.shape[1]
        if bool((self.kv.used_B == self.cached).all()) and bool((lengths_B == new).all()):
            return grown
        slots = torch.arange(int(grown.used_B.max()), device=lengths_B.device)
        gap_B = self.cached - self.kv.used_B
        return grown.take(torch.where(slots < self.kv.used_B[:, None], slots, slots + gap_B[:, None]), grown.used_B)

    def _build_mask(self, window: int | None, dtype: torch.dtype) -> Tensor | None:
        slopes_H = self.positions.slopes_H
        narrow = window is not None and window < self.key_position_BS.shape[1]
        if self.cached == 0 and self.layout.plain and slopes_H is None and not narrow:
            return None
        seen = _shared(self.visible(window if narrow else None))[:, None]
        if slopes_H is None:
            # As numbers, which every layer would otherwise make of it anew.
            return torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, float("-inf"))
        distance = self.key_position_BS[:, None, None, :] - self.layout.position_BT[:, None, :, None]
        bias = slopes_H.to(dtype)[:, None, None] * distance.to(dtype)
        return bias.masked_fill(~seen, float("-inf"))

    def _rotary(self, positions_BT: Tensor) -> tuple[Tensor, Tensor] | None:
        rotary = self.positions.rotary(_shared(positions_BT))
        return None if rotary is None else (rotary[0][:, None], rotary[1][:, None])


def _shared(x: Tensor) -> Tensor:
    """One row for all where the rows are equal, so that masks and rotations are built once."""
    return x[:1] if x.shape[0] > 1 and bool((x == x[:1]).all()) else x


@dataclasses.dataclass(frozen=True)
class Anatomy:
    """The parts of a Llama- or GPT-2-style model, for methods that run it layer by layer.

    Attributes:
        base: the model without its head.
        layers: its blocks, in order.
        norm: the norm behind the last block.
    """

    base: Any
    layers: nn.ModuleList
    norm: nn.Module

    def embed(self, tokens_BT: Tensor, position_BT: Tensor) -> Tensor:
        """`hidden_BTC` that enters the first block."""
        hidden_BTC: Tensor = self.base.get_input_embeddings()(tokens_BT)
        table = getattr(self.base, "wpe", None)
        return hidden_BTC if table is None else hidden_BTC + table(position_BT)


def anatomy(model: Any) -> Anatomy:
    """The parts of a model.

    Raises:
        UserError: when it is not built like Llama or GPT-2.
    """
    base = model.base_model
    for layers, norm in (("layers", "norm"), ("h", "ln_f")):
        if hasattr(base, layers) and hasattr(base, norm):
            return Anatomy(base, getattr(base, layers), getattr(base, norm))
    raise UserError(
        f"{type(model).__name__} is not built like Llama or GPT-2: choose another backbone for this method."
    )


def run_layer(layer: nn.Module, hidden_BTC: Tensor, attend: Attend) -> Tensor:
    """One block, inside `seam`, with its attention done by `attend` and rotary encoding left to it."""
    one = hidden_BTC.new_ones(1, 1, 1)
    out = layer(hidden_BTC, position_embeddings=(one, one.new_zeros(1, 1, 1)), attend=attend)
    hidden: Tensor = out[0] if isinstance(out, tuple) else out
    return hidden
