"""The paper's own backbone ("GPT-2*"): parallel attention and MLP under one norm, ALiBi, an untied head with bias.

A small transformers-compatible model; the authors' released checkpoint is of this architecture.

Legend: B rows, T tokens, H heads, D head width, C width.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput

from contextlab.attention import Attend, CacheReader, Layout, empty_kv


class NewGPTConfig(PretrainedConfig):
    """Shape of the model; the defaults are the paper's 407M."""

    model_type = "contextlab-newgpt"

    def __init__(
        self,
        vocab_size: int = 51200,
        hidden_size: int = 1024,
        num_hidden_layers: int = 24,
        num_attention_heads: int = 16,
        max_position_embeddings: int = 1024,
        layer_norm_eps: float = 1e-6,
        **kwargs: Any,
    ) -> None:
        self.vocab_size, self.hidden_size = vocab_size, hidden_size
        self.num_hidden_layers, self.num_attention_heads = num_hidden_layers, num_attention_heads
        self.max_position_embeddings, self.layer_norm_eps = max_position_embeddings, layer_norm_eps
        super().__init__(**{"tie_word_embeddings": False, **kwargs})


def alibi_slopes(heads: int) -> Tensor:
    """`slopes_H`, float32: 2^(-8(i+1)/H); beyond a power of two, every second slope of the next one's."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2.0 ** (-8 * (i + 1) / power) for i in range(power)]
    slopes += [2.0 ** (-8 * (2 * i + 1) / (2 * power)) for i in range(heads - power)]
    return torch.tensor(slopes)


class NewGPTAttention(nn.Module):
    """Projections without bias; the attention itself is done by `attend`, in float32."""

    def __init__(self, config: NewGPTConfig, layer_idx: int) -> None:
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.heads, width = config.num_attention_heads, config.hidden_size
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x_BTC: Tensor, attend: Attend) -> Tensor:
        """Attention output after its projection."""
        q, k, v = (
            proj(x_BTC).unflatten(-1, (self.heads, -1)).transpose(1, 2).float()
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        out_BHTD = attend(self.layer_idx, q, k, v, q.shape[-1] ** -0.5, None)
        projected: Tensor = self.out_proj(out_BHTD.transpose(1, 2).flatten(2).to(x_BTC.dtype))
        return projected


class NewGPTBlock(nn.Module):
    """x + Attn(LN(x)) + MLP(LN(x)), one norm for both."""

    def __init__(self, config: NewGPTConfig, layer_idx: int) -> None:
        super().__init__()
        width = config.hidden_size
        self.ln_1 = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.attn = NewGPTAttention(config, layer_idx)
        self.mlp = nn.ModuleDict({"fc_in": nn.Linear(width, 4 * width), "fc_out": nn.Linear(4 * width, width)})
        self.act = nn.GELU(approximate="tanh")

    def forward(self, hidden_states: Tensor, attend: Attend, **_kwargs: Any) -> Tensor:
        """The block's output."""
        u_BTC = self.ln_1(hidden_states)
        update: Tensor = self.mlp["fc_out"](self.act(self.mlp["fc_in"](u_BTC)))
        attended: Tensor = self.attn(u_BTC, attend)
        return hidden_states + attended + update


class NewGPTPreTrained(PreTrainedModel):
    """Configuration and initialisation shared by the model with and without head."""

    config_class = NewGPTConfig
    config: NewGPTConfig
    base_model_prefix = "transformer"


class NewGPTModel(NewGPTPreTrained):
    """Embeddings, blocks and the final norm."""

    def __init__(self, config: NewGPTConfig) -> None:
        super().__init__(config)
        self.wte = nn.Embedding(config.vocab_size, config.hidden_size)
        self.h = nn.ModuleList(NewGPTBlock(config, i) for i in range(config.num_hidden_layers))
        self.ln_f = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.post_init()  # type: ignore[no-untyped-call]

    def get_input_embeddings(self) -> nn.Module:
        """The token embeddings."""
        embeddings: nn.Module = self.wte
        return embeddings

    def forward(self, input_ids: Tensor, attend: Attend | None = None, **_kwargs: Any) -> BaseModelOutput:
        """Final states; plain causal attention when no `attend` is given."""
        hidden = self.wte(input_ids)
        attend = attend or _causal(self.config, input_ids, hidden)
        for block in self.h:
            hidden = block(hidden, attend=attend)
        return BaseModelOutput(last_hidden_state=self.ln_f(hidden))


class NewGPTForCausalLM(NewGPTPreTrained):
    """The model with its untied head."""

    def __init__(self, config: NewGPTConfig) -> None:
        super().__init__(config)
        self.transformer = NewGPTModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=True)
        self.register_buffer("alibi_slopes", alibi_slopes(config.num_attention_heads), persistent=False)
        self.attention_dtype = torch.float32
        self.post_init()  # type: ignore[no-untyped-call]

    def get_output_embeddings(self) -> nn.Module:
        """The head."""
        head: nn.Module = self.lm_head
        return head

    def forward(self, input_ids: Tensor, attend: Attend | None = None, **_kwargs: Any) -> CausalLMOutput:
        """Logits of every position."""
        hidden = self.transformer(input_ids, attend=attend).last_hidden_state
        return CausalLMOutput(logits=self.lm_head(hidden))


class _Slopes:
    def __init__(self, slopes_H: Tensor) -> None:
        self.slopes_H: Tensor | None = slopes_H

    def rotary(self, positions: Tensor) -> None:
        """No rotary encoding."""


def _causal(config: NewGPTConfig, input_ids: Tensor, hidden: Tensor) -> Attend:
    width = config.hidden_size // config.num_attention_heads
    kv = empty_kv(config.num_hidden_layers, (len(input_ids), config.num_attention_heads, width), hidden.float())
    position_BT = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
    slopes_H = alibi_slopes(config.num_attention_heads).to(hidden.device)
    return CacheReader(_Slopes(slopes_H), kv, Layout(position_BT))
