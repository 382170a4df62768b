"""A causal language model of transformers, its tokenizer, and the few facts that methods need.

Legend: B rows, T tokens, C width of the model, V vocabulary.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from contextlab import attention
from contextlab.backbone import steps
from contextlab.errors import UserError
from contextlab.tensors import Derived, versions, weights_digest

HEAD_TOKENS = 128
"""Tokens that are projected onto the vocabulary at one time on a CPU: few enough that the C library keeps their memory
for the next ones (32 MiB), instead of requesting it from the system every time."""
HEAD_BYTES = 2**28
"""Bytes of the logits that are computed at one time elsewhere, where few launches matter more."""
FAMILIES = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "phi3", "olmo2"), "llama"),
    "gpt2": "gpt2",
    "opt": "opt",
    "gpt_neox": "gpt_neox",
}
"""Model types of transformers by what their blocks compute, for models whose FLOPs follow from their sizes."""
BY_LENGTH = ("dynamic", "longrope")
"""Kinds of rotary positions whose frequencies depend on how long a text is."""
ADVICE = "choose a Llama-, GPT-2-, GPT-NeoX- or OPT-style model"
LEARNED_POSITIONS = ("wpe", "embed_positions", "position_embeddings")


class Backbone:
    """A frozen causal language model, its tokenizer, and the few facts that methods need.

    Attributes:
        model: a transformers causal language model, in evaluation mode.
        tokenizer: its tokenizer; None when a model was wrapped without one.
        name: as the user wrote it.
        max_positions: longest context the model was built for, in tokens.
        compiled: whether passes of one token per row are compiled.
        notes: sentences on its updates that a user is told.
    """

    compiled = False
    notes: tuple[str, ...] = ()

    def __init__(self, model: Any, tokenizer: Any, name: str, *, digest: str | None = None) -> None:
        self.model, self.tokenizer, self.name = model.eval(), tokenizer, name
        config = model.config.get_text_config()
        self.config = config
        try:
            self.layers: int = config.num_hidden_layers
            self.heads: int = config.num_attention_heads
            self.width: int = config.hidden_size
            self.vocab_size: int = config.vocab_size
            self.max_positions: int = config.max_position_embeddings
        except AttributeError as error:
            missing = str(error).rpartition("'")[0].rpartition("'")[2]
            raise UserError(
                f"{name} cannot be used: a {config.model_type} model has no {missing}, so its attention is not "
                f"reachable; {ADVICE}."
            ) from error
        self.kv_heads: int = getattr(config, "num_key_value_heads", None) or self.heads
        self.head_width: int = getattr(config, "head_dim", None) or self.width // self.heads
        attention.skip_rotation(self.model)
        self._digest, self._loaded = digest, versions(self.model)
        self._computed_digest, self._bos_hidden = Derived[str](), Derived[Tensor]()

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        where: torch.device = next(self.model.parameters()).device
        return where

    @property
    def dtype(self) -> torch.dtype:
        """Width of the weights."""
        width: torch.dtype = next(self.model.parameters()).dtype
        return width

    @property
    def attention_dtype(self) -> torch.dtype:
        """Width of queries, keys and values as attention sees them."""
        return getattr(self.model, "attention_dtype", None) or self.dtype

    @property
    def family(self) -> str | None:
        """Whose blocks these are, one of `llama`, `gpt2`, `opt` and `gpt_neox`; None where their FLOPs have no formula,
        because they are others, see a narrow window in some layers only, or are quantised.
        """
        kinds = set(getattr(self.config, "layer_types", None) or ())
        uneven = self.own_window is not None and len(kinds) > 1
        projected = getattr(self.config, "word_embed_proj_dim", self.width) != self.width
        if uneven or projected or getattr(self.model, "hf_quantizer", None) is not None:
            return None
        return FAMILIES.get(self.config.model_type)

    @property
    def own_window(self) -> int | None:
        """Tokens that a query sees at most, itself among them, in the layers with a sliding window of the model's own.

        None where there are no such layers, or their window is as wide as the model's positions.
        """
        window: int | None = getattr(self.config, "sliding_window", None)
        kinds = getattr(self.config, "layer_types", None)
        if window is None or window >= self.max_positions or (kinds and "sliding_attention" not in kinds):
            return None
        return window

    def check_differentiable(self) -> None:
        """Refuse a model without gradients.

        Raises:
            UserError: when it is quantised, or its tensors were made for inference only.
        """
        quantised = getattr(self.model, "hf_quantizer", None) is not None
        # Quantised models keep integers, some as buffers; others may have integer buffers that are no weights.
        weights = [*self.model.parameters(), *(self.model.buffers() if quantised else ())]
        if not all(x.is_floating_point() and x.itemsize > 1 and not x.is_inference() for x in weights):
            raise UserError(
                f"{self.name} is quantised or made for inference only and has no gradients: load it in float32 or "
                "bfloat16, outside of inference mode."
            )

    @property
    def digest(self) -> str:
        """sha256 of the weights, hexadecimal; of an embedded model the published one, until they are changed."""
        if self._digest is not None and versions(self.model) == self._loaded:
            return self._digest
        with self.exclusive():
            return self._computed_digest.of(lambda: weights_digest(self.model), self.model)

    @functools.cached_property
    def tokenizer_digest(self) -> str:
        """sha256 of the tokenizer's definition, hexadecimal."""
        return definition_digest(self.tokenizer)

    @property
    def bos(self) -> int:
        """The token from which the first token of an empty context is predicted."""
        for source in (self.tokenizer, self.config):
            for name in ("bos_token_id", "eos_token_id"):
                token = getattr(source, name, None)
                if isinstance(token, int):
                    return token
        return 0

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, without special tokens."""
        if self.tokenizer is None:
            raise UserError("This model was given without a tokenizer: pass one to read text.")
        return list(self.tokenizer.encode(text, add_special_tokens=False, verbose=False))

    def with_bos(self, tokens: list[int]) -> list[int]:
        """The tokens of a whole text: after BOS where the tokenizer begins texts with it, and otherwise as they are."""
        begins = self._begins_with_bos and tokens[:1] != [self.bos]
        return [self.bos, *tokens] if begins else tokens

    @functools.cached_property
    def _begins_with_bos(self) -> bool:
        return self.tokenizer is not None and self.tokenizer.encode("a", verbose=False)[:1] == [self.bos]

    def decode(self, tokens: list[int]) -> str:
        """The text of tokens."""
        return str(self.tokenizer.decode(tokens))

    @functools.cached_property
    def learned_positions(self) -> bool:
        """Whether positions are embeddings added to the input, so that cached states keep the ones they got."""
        return any(name.rsplit(".", 1)[-1] in LEARNED_POSITIONS for name, _ in self.model.named_modules())

    @property
    def slopes_H(self) -> Tensor | None:
        """ALiBi slopes per head, or None."""
        slopes: Tensor | None = getattr(self.model, "alibi_slopes", None)
        return slopes

    def rotary(self, positions: Tensor) -> tuple[Tensor, Tensor] | None:
        """Cosine and signed sine `(..., T, D)` for `attention.rotate`, or None for a model without rotary encoding.

        They are those of a rotation alone: `rotary_scale` is in the queries and keys that attention receives.
        """
        module = getattr(self.model.base_model, "rotary_emb", None)
        if module is None:
            return None
        cos, sin = module(torch.empty(0, device=positions.device), positions)
        if self.rotary_scale != 1:
            cos, sin = cos / self.rotary_scale, sin / self.rotary_scale
        return attention.signed(cos, sin)

    @property
    def rotary_scale(self) -> float:
        """The factor of queries and keys where the model rotates them; not 1 with YaRN."""
        return float(getattr(getattr(self.model.base_model, "rotary_emb", None), "attention_scaling", 1.0))

    def forward(self, tokens_BT: Tensor, position_BT: Tensor, attend: attention.Attend) -> Tensor:
        """`hidden_BTC` after the final norm, with every layer's attention done by `attend`.

        Positions reach only models that learn them; rotary encoding is left to `attend`.
        """
        return self._forward(position_BT, attend, input_ids=tokens_BT)

    def forward_embedded(self, embedding_BTC: Tensor, position_BT: Tensor, attend: attention.Attend) -> Tensor:
        """`forward` of what lies in the place of tokens' embeddings, before positions are added to them."""
        return self._forward(position_BT, attend, inputs_embeds=embedding_BTC)

    def _forward(self, position_BT: Tensor, attend: attention.Attend, **inputs: Tensor) -> Tensor:
        ids = position_BT % self.max_positions if self.learned_positions else torch.zeros_like(position_BT)
        # A mask of four dimensions is taken as it is, while none makes transformers look at the ids, which waits for
        # the device. Attention is a method's, and does not read it.
        mask = torch.zeros(1, 1, 1, 1, device=position_BT.device)
        run = self._compiled_base if self.compiles(position_BT) else self.model.base_model
        with attention.seam(self.config, self.rotary_scale):
            output = run(**inputs, attention_mask=mask, position_ids=ids, use_cache=False, attend=attend)
        hidden_BTC: Tensor = output.last_hidden_state
        return hidden_BTC

    def compiling(self) -> Self:
        """The same backbone, whose passes of one token per row are compiled.

        Raises:
            UserError: when nothing can be compiled for its device here.
        """
        steps.check(self.device)
        other = copy.copy(self)
        other.compiled = True
        return other

    def compiles(self, position_BT: Tensor) -> bool:
        """Whether a pass over so many tokens is compiled."""
        return self.compiled and position_BT.shape[1] == 1 and steps.possible()

    @functools.cached_property
    def _compiled_base(self) -> Any:
        return steps.compiled(self.model.base_model)

    @property
    def head_tokens(self) -> int:
        """Tokens that are projected onto the vocabulary at one time."""
        most = HEAD_BYTES // (torch.float32.itemsize * self.vocab_size)
        return HEAD_TOKENS if self.device.type == "cpu" else max(HEAD_TOKENS, most)

    def logits(self, hidden: Tensor) -> Tensor:
        """Vocabulary logits, float32, of final hidden states `(..., C)`."""
        logits: Tensor = self.model.get_output_embeddings()(hidden)
        return logits.float()

    def logprobs(self, hidden_BTC: Tensor, tokens_BT: Tensor) -> Tensor:
        """`logprobs_BT` of tokens, each under its hidden state, without ever holding all logits at once."""
        step = self.head_tokens
        pieces = zip(hidden_BTC.flatten(0, 1).split(step), tokens_BT.flatten().split(step), strict=True)
        losses = [cross_entropy(self.logits(hidden), tokens, reduction="none") for hidden, tokens in pieces]
        return -torch.cat(losses).view(tokens_BT.shape)

    def logprobs_of_all(self, hidden_BC: Tensor) -> Tensor:
        """`logprobs_BV`: the whole distribution under every hidden state."""
        return self.logits(hidden_BC).log_softmax(-1)

    @property
    def bos_hidden_C(self) -> Tensor:
        """The final hidden state after BOS alone."""
        with torch.no_grad():
            return self._bos_hidden.of(self.after_bos, self.model)

    def after_bos(self) -> Tensor:
        """`bos_hidden_C` computed again, with a graph where there is one."""
        tokens_BT = torch.tensor([[self.bos]], device=self.device)
        layout = attention.Layout(tokens_BT * 0)
        return self.forward(tokens_BT, torch.zeros_like(tokens_BT), self.reader(1, layout))[0, 0]

    def empty_kv(self, rows: int, layers: int | None = None) -> attention.KV:
        """A cache without tokens, for as many layers as this model has when `layers` is not given."""
        like = torch.empty(0, dtype=self.attention_dtype, device=self.device)
        return attention.empty_kv(layers or self.layers, (rows, self.kv_heads, self.head_width), like)

    def reader(self, rows: int, layout: attention.Layout) -> attention.CacheReader:
        """Causal attention over the new tokens alone."""
        return attention.CacheReader(self, self.empty_kv(rows), layout)

    def exclusive(self) -> AbstractContextManager[None]:
        """Use the model in no other thread for the duration of a block; others wait.

        Raises:
            UserError: when the model attends for a block of another thread.
        """
        return attention.exclusive(self.config)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """No gradients with respect to the weights, for the duration of a block."""
        weights = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        try:
            for parameter in weights:
                parameter.requires_grad_(False)
            yield
        finally:
            for parameter in weights:
                parameter.requires_grad_(True)

    def check_seam(self) -> None:
        """Compare one short forward pass with the model's own.

        Raises:
            UserError: when this architecture computes something that the seam does not carry.
        """
        if len({weight.device for weight in self.model.parameters()}) > 1:
            raise UserError(
                f"{self.name} cannot be used: it is divided over several devices, and methods keep all layers and "
                "their caches on one; load it without device_map."
            )
        kind = getattr(getattr(self.model.base_model, "rotary_emb", None), "rope_type", None)
        if kind in BY_LENGTH:
            raise UserError(
                f"{self.name} cannot be used: its rotary positions change with the length of the text "
                f"(rope_type={kind}), so that keys cannot be kept; choose a model with rope_type default, linear, "
                "llama3 or yarn."
            )
        with self.exclusive():
            self._check_seam()

    def _check_seam(self) -> None:
        length = min(16, self.max_positions)
        try:
            tokens_BT = torch.arange(length, device=self.device)[None] % self.vocab_size
            with torch.no_grad():
                own = self.model(input_ids=tokens_BT, use_cache=False).logits.float()
                if not bool(own.isfinite().all()):
                    raise UserError(
                        f"{self.name} cannot be used: it predicts numbers that are not finite; give an intact "
                        "checkpoint, or a wider --dtype."
                    )
                whole, halves = self._seam_logits(tokens_BT, length), self._seam_logits(tokens_BT, length // 2)
        except UserError:
            raise
        except Exception as error:  # code of any architecture
            message = f"{type(error).__name__}: {error}".partition("\n")[0]
            reason = self._obstacle() or f"its attention is not reachable ({message})"
            raise UserError(f"{self.name} cannot be used: {reason}; {ADVICE}.") from error
        tolerance = (1e-3 if self.dtype == torch.float32 else 0.25) * float(own.abs().max().clamp(min=1))
        if self._capped or not torch.allclose(own, whole, atol=tolerance):
            raise UserError(f"{self.name} cannot be used: {self._difference(tokens_BT, own, tolerance)}; {ADVICE}.")
        if not torch.allclose(own, halves, atol=tolerance):
            more = "it keeps more from token to token than keys and values"
            if getattr(self.model, "hf_quantizer", None) is not None:
                more = "its quantised layers compute a token otherwise beside others; set llm_int8_threshold=0"
            raise UserError(f"{self.name} cannot be used: {more}.")

    @property
    def _capped(self) -> bool:
        """Whether logits have a cap, which a random model's are too small to show."""
        return getattr(self.config, "final_logit_softcapping", None) is not None

    def _obstacle(self) -> str | None:
        """What keeps methods from the attention of some families, as far as it is known."""
        rope = getattr(self.config, "rope_parameters", None) or {}
        if not hasattr(sys.modules[type(self.model.base_model).__module__], "ALL_ATTENTION_FUNCTIONS"):
            return "its attention is not reachable, for its code does not use transformers' attention interface"
        if len(set(rope) & set(getattr(self.config, "layer_types", None) or ())) > 1:
            return (
                "its kinds of layers have different rotary positions, and methods rotate the keys of all layers alike"
            )
        return None

    def _difference(self, tokens_BT: Tensor, own_BTV: Tensor, tolerance: float) -> str:
        """Why the model's own logits are others than those of a pass through the seam."""
        with torch.no_grad():
            plain_BTV = self.logits(self.model.base_model(tokens_BT, use_cache=False).last_hidden_state)
        if self._capped or not torch.allclose(own_BTV, plain_BTV, atol=tolerance):
            return "it changes its logits after the output embedding, as with a cap or a factor"
        return self._obstacle() or "its attention does more than contextlab carries over"

    def _seam_logits(self, tokens_BT: Tensor, first: int) -> Tensor:
        """Logits of a text that is read in two parts, the first of them of that length."""
        kv, logits = self.empty_kv(1), []
        position_BT = torch.arange(tokens_BT.shape[1], device=self.device)[None]
        for part in (slice(0, first), slice(first, None)):
            if tokens_BT[:, part].numel():
                reader = attention.CacheReader(self, kv, attention.Layout(position_BT[:, part]))
                logits.append(self.logits(self.forward(tokens_BT[:, part], position_BT[:, part], reader)))
                if len(reader.k) != self.layers:
                    raise ValueError(f"{len(reader.k)} of {self.layers} layers have one that can be replaced")
                kv = reader.grown(torch.tensor([tokens_BT[:, part].shape[1]], device=self.device))
        return torch.cat(logits, dim=1)


def definition_digest(tokenizer: Any) -> str:
    """sha256 of a tokenizer's definition, hexadecimal."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    definition = backend.to_str() if backend is not None else repr(tokenizer)
    return hashlib.sha256(definition.encode()).hexdigest()
