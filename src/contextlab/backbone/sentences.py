"""Encoders of sentences: a text as one vector, the mean of the last hidden states of its tokens.

Legend: t tokens of the encoder, E width.
"""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import Any, Self

import torch
import transformers
from torch import Tensor
from torch.nn.functional import normalize

from contextlab import process, tensors
from contextlab.backbone.loading import loading
from contextlab.backbone.wrapper import definition_digest
from contextlab.errors import UserError

PROBE = "a"
SOURCE = ("_name_or_path", "transformers_version")
"""Fields of a configuration that only say where it comes from."""


class SentenceEncoder:
    """A model of transformers that gives a text a vector of length 1, by mean pooling, in float32.

    Attributes:
        name: of its folder, or on the hub.
        model: in evaluation mode, without gradients.
        tokenizer: of the model.
        width: of a vector.
        positions: the most tokens of a text, special ones included.
    """

    def __init__(self, name: str, model: Any, tokenizer: Any) -> None:
        self.name, self.tokenizer = name, tokenizer
        self.model: Any = model.eval().requires_grad_(False)
        self.width: int = model.config.hidden_size
        self.positions = min(tokenizer.model_max_length, _positions(model))

    @classmethod
    def load(cls, name: str, device: torch.device) -> Self:
        """The encoder of a folder, or with an id on the hub; code that it brings along is never run.

        Raises:
            UserError: when there is none, or it is none that encodes a text by itself.
        """
        folder = Path(name).expanduser()
        if not folder.is_dir() and (name.count("/") != 1 or name.startswith(("/", ".", "~"))):
            raise UserError(
                f"There is no folder {name}: give encoder= that of a sentence encoder, or an id on the hub."
            )
        source: Any = folder if folder.is_dir() else name
        # While transformers loads a model, it changes torch's default type and initialisers.
        with process.ALONE, loading(source, "Encoder"):
            tokenizer: Any = transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False)
            if len(tokenizer.get_vocab()) <= len(tokenizer.all_special_ids):
                raise ValueError("it has no vocabulary")
            load_model: Any = transformers.AutoModel.from_pretrained
            model, report = load_model(
                source, dtype=torch.float32, use_safetensors=True, trust_remote_code=False, output_loading_info=True
            )
            if getattr(model, "pooler", None) is not None:
                model.pooler = None  # of no use here, and many checkpoints have no weights for it
            lacking = [key for key in report["missing_keys"] if not key.startswith("pooler.")]
            if lacking:
                raise ValueError(f"it has no weights for {min(lacking)}")
            tensors.align(model)
            encoder = cls(name, model.to(device), tokenizer)
            if encoder(PROBE).shape != (encoder.width,):
                raise ValueError("its output is no vector of its width")
        return encoder

    @torch.no_grad()
    def __call__(self, text: str) -> Tensor:
        """`vector_E` of a text; zero where it has no token.

        Raises:
            UserError: when the text has more tokens than the encoder has positions.
        """
        tokens = self.tokenizer.encode(text, verbose=False)
        if len(tokens) > self.positions:
            raise UserError(
                f"A chunk or query has {len(tokens)} tokens of the encoder {self.name}, which reads {self.positions}: "
                "use a smaller chunk= or query=, or another encoder."
            )
        device = next(self.model.parameters()).device
        if not tokens:
            return torch.zeros(self.width, device=device)
        tokens_1t = torch.tensor([tokens], device=device)
        hidden_1tE = self.model(input_ids=tokens_1t, attention_mask=torch.ones_like(tokens_1t)).last_hidden_state
        return normalize(hidden_1tE[0].float().mean(0), dim=0)

    @functools.cached_property
    def digest(self) -> str:
        """sha256 of the weights, the architecture and the tokenizer, hexadecimal."""
        architecture = {key: value for key, value in self.model.config.to_dict().items() if key not in SOURCE}
        parts = (tensors.weights_digest(self.model), json.dumps(architecture, sort_keys=True, default=str))
        return hashlib.sha256("".join((*parts, definition_digest(self.tokenizer))).encode()).hexdigest()


def _positions(model: Any) -> int:
    """Tokens that a model reads; some learn positions only from the one after that of padding."""
    most: int = model.config.max_position_embeddings
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            most -= module.padding_idx + 1
    return most
