"""The seam into transformers' attention, through which every method attends.

A forward pass is given an `attend` function. Each attention layer of the model hands it the queries, keys and values
of the new tokens, *before* rotary position encoding, and takes back the attention output. Caches, positions and masks
are therefore the method's business, transformers' own cache is never used, and nothing is stored in the model.

While a pass runs, the model's configuration names our attention, in all threads. One thread at a time has a model
(`exclusive`), so that the name of its own attention always returns; calls of the model itself in other threads get that
attention in the meantime.

Legend: B rows, T new tokens, H query heads, K key/value heads, D head width, C model width.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from contextlab.errors import UserError

SEAM = "contextlab"
BEYOND = {
    "softcap": "caps its scores with a tanh",
    "s_aux": "has learned sinks in its softmax",
    "position_bias": "adds a learned bias to its scores",
}
"""What some models hand to their attention beside queries, keys and values, by its name in transformers."""


class Attend(Protocol):
    """Attention of one layer: `(layer, q_BHTD, k_BKTD, v_BKTD, scale, window) -> out_BHTD`."""

    def __call__(
        self, layer: int, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, scale: float, window: int | None
    ) -> Tensor:
        """Attend with the new tokens' queries; `window` is the sliding window the model itself was trained with."""


@dataclasses.dataclass
class _Use:
    """The lock of a model and the name of its own attention, one for each configuration object.

    Attributes:
        lock: of the thread that uses it.
        own: name of the model's own attention; None before the first use.
        attending: the thread for which the model attends in a block; None outside of such blocks.
    """

    lock: threading.RLock = dataclasses.field(default_factory=threading.RLock)
    own: str | None = None
    attending: int | None = None


_USES: dict[int, _Use] = {}
_NEW_USE = threading.Lock()


class _Pass(threading.local):
    """What runs in this thread; not in context variables, which `torch.compile` cannot read.

    Attributes:
        routed: whether a pass through `attend` runs.
        identity: whether the model's own rotation changes nothing in it.
        thread: which one this is.
    """

    routed = identity = False

    def __init__(self) -> None:
        self.thread = threading.get_ident()


_PASS = _Pass()
ROTATION = "apply_rotary_pos_emb"
"""The function that rotates queries and keys in transformers' files."""


def _use(config: Any) -> _Use:
    """By configuration, because a model and its copies of modules have one in common."""
    with _NEW_USE:
        if id(config) not in _USES:
            _remember(config, _Use())
        return _USES[id(config)]


def _remember(config: Any, use: _Use) -> None:
    _USES[id(config)] = use
    weakref.finalize(config, _USES.pop, id(config), None).atexit = False


def share_use(config: Any, original: Any) -> None:
    """Let the configuration of a copied model, which shares weights, have one lock with that of the original."""
    use = _use(original)
    with _NEW_USE:
        _remember(config, use)


@contextmanager
def exclusive(config: Any) -> Iterator[None]:
    """Use the model with this configuration, and all that shares its weights, in no other thread; others wait.

    Raises:
        UserError: when the model attends for a block of another thread, which may be long.
    """
    use = _use(config)
    with use.lock:
        if use.attending not in (None, threading.get_ident()):
            raise UserError(
                "Another thread has given this model a method's attention: wait until its block has ended, or load the "
                "model a second time."
            )
        yield


def _seam(
    module: nn.Module,
    q_BHTD: Tensor,
    k_BKTD: Tensor,
    v_BKTD: Tensor,
    mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    attend: Attend | None = kwargs.get("attend")
    if attend is None:
        if _is_routed(module.config):
            raise UserError(
                "This model's attention does not receive contextlab's seam: use a Llama-, GPT-2- or OPT-style model."
            )
        own = _own_attention(module)
        return own(module, q_BHTD, k_BKTD, v_BKTD, mask, scaling=scaling, **kwargs)  # type: ignore[no-any-return]
    for feature, does in BEYOND.items():
        if kwargs.get(feature) is not None:
            raise UserError(
                f"This model cannot be used: its attention {does} ({feature}), which that of methods does not; "
                "choose a model without it."
            )
    scale = scaling if scaling is not None else q_BHTD.shape[-1] ** -0.5
    layer: int = module.layer_idx  # type: ignore[assignment]
    out_BHTD = attend(layer, q_BHTD, k_BKTD, v_BKTD, scale, kwargs.get("sliding_window"))
    return out_BHTD.transpose(1, 2).contiguous(), None


def _own_attention(module: nn.Module) -> Any:
    """The attention that a model has outside of `seam`, for a call of it in another thread."""
    file = sys.modules[type(module).__module__]
    interface: Any = getattr(file, "ALL_ATTENTION_FUNCTIONS", AttentionInterface())
    return interface.get(_own_name(module.config), getattr(file, "eager_attention_forward", None))


def _mask(*args: Any, config: Any, **kwargs: Any) -> Any:
    """No mask for a pass through `attend`; the model's own for a call of it in another thread."""
    return None if _is_routed(config) else AttentionMaskInterface()[_own_name(config)](*args, config=config, **kwargs)


def _is_routed(config: Any) -> bool:
    """Whether calls in this thread go through an `attend`."""
    return _PASS.routed or _use(config).attending is not None


def _own_name(config: Any) -> str:
    # A copy that was made during a pass has no attention of its own; this is what transformers takes by default.
    return _use(config).own or "sdpa"


AttentionInterface.register(SEAM, _seam)
AttentionMaskInterface.register(SEAM, _mask)


@contextmanager
def attention_functions_kept() -> Iterator[None]:
    """Leave transformers' table of attention functions as it is, whatever is imported in the block."""
    before = dict(ALL_ATTENTION_FUNCTIONS.items())
    try:
        yield
    finally:
        for name in [name for name, own in before.items() if ALL_ATTENTION_FUNCTIONS[name] is not own]:
            # What was set lies before what is registered, and would hide it for ever.
            del ALL_ATTENTION_FUNCTIONS[name]
            if ALL_ATTENTION_FUNCTIONS.get(name) is not before[name]:
                ALL_ATTENTION_FUNCTIONS[name] = before[name]


@contextmanager
def seam(config: Any, rotary_scale: float) -> Iterator[None]:
    """Route the attention of every module with this configuration through `attend`, for the duration of a block.

    Args:
        config: of the model, all of whose tokens have position 0 as far as it rotates them.
        rotary_scale: the factor of queries and keys where the model rotates them.
    """
    with exclusive(config), _switched(config):
        before = _PASS.routed, _PASS.identity
        _PASS.routed, _PASS.identity = True, rotary_scale == 1
        try:
            yield
        finally:
            _PASS.routed, _PASS.identity = before


def config_of(block: nn.Module) -> Any:
    """The configuration that a block of a model computes with."""
    return next(module.config for module in block.modules() if hasattr(module, "config"))


def seam_again(block: nn.Module) -> Callable[[], AbstractContextManager[None]]:
    """What enters the seam of this pass once more, for one of its blocks that is computed again later."""
    return functools.partial(seam, config_of(block), 1.0 if _PASS.identity else 0.0)


def skip_rotation(model: Any) -> None:
    """Let passes through `attend` do without the rotation by position 0 in the files that a model is written in."""
    for file in {sys.modules[type(module).__module__] for module in model.modules()}:
        own = getattr(file, ROTATION, None)
        if own is not None and not hasattr(own, SEAM) and [*inspect.signature(own).parameters][:2] == ["q", "k"]:
            setattr(file, ROTATION, _unless_identity(own))


def _unless_identity(own: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    @functools.wraps(own)
    def rotation(q_BHTD: Tensor, k_BKTD: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return (q_BHTD, k_BKTD) if _PASS.identity else own(q_BHTD, k_BKTD, *args, **kwargs)

    setattr(rotation, SEAM, own)
    return rotation


@contextmanager
def _switched(config: Any) -> Iterator[None]:
    before = config._attn_implementation
    if before != SEAM:
        _use(config).own = before
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
        UserError: in a call with padding on the left, a ready-made mask, position ids, or a cache; when the model
            attends for a block of another thread.
    """
    base, config = model.base_model, model.config.get_text_config()
    use = _use(config)

    def enter(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if kwargs.get("attend") is not None:  # a method's own pass, which brings its attention and positions
            return args, kwargs
        inputs = next(x for x in (*args, kwargs.get("input_ids"), kwargs.get("inputs_embeds")) if x is not None)
        rows, length = inputs.shape[:2]
        _check_whole(length, **kwargs)
        ids_BT = positions(length).to(inputs.device).expand(rows, -1)
        return args, {**kwargs, "position_ids": ids_BT, "use_cache": False, "attend": attend}

    with exclusive(config):
        outer, use.attending = use.attending, threading.get_ident()
    # OPT's head calls the decoder inside its base model.
    hook = getattr(base, "decoder", base).register_forward_pre_hook(enter, with_kwargs=True)
    try:
        # The lock is not held here: blocks may be long, and threads that wait for one could wait for each other.
        with _switched(config):
            yield
    finally:
        hook.remove()
        use.attending = outer


def in_this_thread(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook of one of the model's modules that changes nothing in calls of other threads."""
    thread = _PASS.thread

    def called(*args: Any, **kwargs: Any) -> Any:
        return hook(*args, **kwargs) if _PASS.thread == thread else None

    return called


def _check_whole(
    length: int,
    past_key_values: Any = None,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    **_kwargs: Any,
) -> None:
    if past_key_values is not None:
        raise UserError("This attention reads whole sequences and keeps no cache: call the model with use_cache=False.")
    # No token follows padding on the right, so that no mask is needed.
    mask = attention_mask
    if mask is not None and (mask.dim() != 2 or bool((mask[:, 1:] > mask[:, :-1]).any())):
        raise UserError("This attention takes padding on the right only: pad with tokenizer.padding_side='right'.")
    if position_ids is not None:
        other_BT = position_ids != torch.arange(length, device=position_ids.device)
        if bool((other_BT if mask is None else other_BT & (mask != 0)).any()):
            raise UserError("This attention counts positions from 0 itself: call the model without position_ids.")


@dataclasses.dataclass(frozen=True)
class Anatomy:
    """The parts of a Llama-, GPT-2- or GPT-NeoX-style model, for methods that run it layer by layer.

    Attributes:
        base: the model without its head.
        layers: its blocks, in order.
        norm: the norm after the last block.
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
        UserError: when it is not built like Llama, GPT-2 or GPT-NeoX.
    """
    base = model.base_model
    for layers, norm in (("layers", "norm"), ("h", "ln_f"), ("layers", "final_layer_norm")):
        if hasattr(base, layers) and hasattr(base, norm):
            return Anatomy(base, getattr(base, layers), getattr(base, norm))
    raise UserError(
        f"{type(model).__name__} is not built like Llama, GPT-2 or GPT-NeoX: choose another backbone for this method."
    )


def run_layer(layer: nn.Module, hidden_BTC: Tensor, attend: Attend, rotary_scale: float) -> Tensor:
    """One block, inside `seam`, with its attention done by `attend` and rotary encoding left to it.

    Args:
        layer: the block.
        hidden_BTC: what enters it.
        attend: its attention.
        rotary_scale: the model's factor of queries and keys.
    """
    scale = hidden_BTC.new_full((1, 1, 1), rotary_scale)
    out = layer(hidden_BTC, position_embeddings=(scale, torch.zeros_like(scale)), attend=attend)
    hidden: Tensor = out[0] if isinstance(out, tuple) else out
    return hidden
