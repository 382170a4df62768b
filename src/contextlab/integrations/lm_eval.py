"""Methods as models of lm-evaluation-harness, which knows the model `contextlab` once this module is imported.

`contextlab lm_eval` is the harness's own command line with this model.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lm_eval._cli import HarnessCLI
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import model_registry
from lm_eval.config.evaluate_config import EvaluatorConfig
from lm_eval.utils import setup_logging, simple_parse_args_string
from rich.console import Console
from rich.progress import track

from contextlab import files
from contextlab.backbone import load_tokenizer
from contextlab.errors import UserError
from contextlab.method import Lengths, State
from contextlab.naming import load
from contextlab.paths import cache_dir
from contextlab.version import __version__
from contextlab.writing import pad

NAME = "contextlab"
BACKBONE = "smollm2-135m"
PIECE = 16
AT_ONCE = 16
MAX_NEW_TOKENS = 256
LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


class ContextLM(TemplateLM):
    """A context method for the harness's three kinds of requests.

    Every context is read once for all its continuations. As in the harness's `hf` model, an empty context is the BOS
    token, which stays in the context; without `keep_bos` it only predicts the first token, as in `contextlab bench`. A
    method with a largest context (`full`) reads only the last tokens of a longer request, also as in `hf`; all other
    methods read the whole request.

    Args:
        method: a registered name, or `path.py:Class`.
        backbone: a name, hub id, folder or GGUF file, with updates after a `+`.
        device: torch device; the GPU, where there is one, when None.
        dtype: of the backbone; bfloat16 on a GPU and float32 on a CPU when None.
        add_bos_token: whether texts begin with BOS; the tokenizer's default when None.
        keep_bos: whether the BOS of an empty context stays in the context.
        tokenizer: for tasks that write texts of a given length (RULER), which read it among the model's arguments; the
            model itself uses the backbone's.
        batch_size: ignored; the harness always passes one.
        max_batch_size: ignored.
        **settings: settings of the method.

    Raises:
        UserError: for an unknown method, backbone or setting.
    """

    def __init__(
        self,
        method: str = "full",
        backbone: str = BACKBONE,
        device: str | None = None,
        dtype: str | None = None,
        add_bos_token: bool | None = None,
        keep_bos: bool = True,
        tokenizer: str | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        # The harness passes this device on every machine.
        device = None if device == "cuda:0" and not torch.cuda.is_available() else device
        self.method = load(method, backbone, device, dtype, **settings)
        self.backbone = self.method.backbone
        self.tokenizer: Any = self.backbone.tokenizer
        self._name, self._add_bos_token, self._keep_bos = method, add_bos_token, keep_bos
        self._device: Any = self.backbone.device

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        end: int | None = self.tokenizer.eos_token_id
        return self.backbone.bos if end is None else end

    @property
    def prefix_token_id(self) -> int:
        """The token that replaces an empty context."""
        return self.backbone.bos

    @property
    def tokenizer_name(self) -> str:
        """The name of the tokenizer in the harness's cache of requests."""
        return self.backbone.tokenizer_digest

    def get_model_info(self) -> dict[str, Any]:
        """The fields that the harness stores with its results."""
        return {
            "contextlab": __version__,
            "method": self._name,
            "method_config": self.method.config.as_dict(),
            "backbone": self.backbone.name,
            "weights_sha256": self.backbone.digest,
        }

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Tokens of a text; BOS is not added to a text that already begins with it."""
        add = self._add_bos_token if add_special_tokens is None else add_special_tokens
        if add_special_tokens is None and string.startswith(self.tokenizer.decode(self.prefix_token_id)):
            add = False
        options = {} if add is None else {"add_special_tokens": add}
        return list(self.tokenizer.encode(string, verbose=False, **options))

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-probabilities of whole texts of any length, each read as one stream."""
        totals = []
        with torch.set_grad_enabled(self.method.capabilities.needs_gradients):
            for request in self._progress(requests, len(requests), disable_tqdm):
                tokens_BT = pad([self.tok_encode(request.args[0])], self._device)[0]
                # A whole text has no question, so the method divides it into segments by itself.
                _, logprobs_BT = self.method.read(self._read([self.prefix_token_id], None), tokens_BT)
                assert logprobs_BT is not None
                totals.append(float(logprobs_BT.double().sum()))
        return totals

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """For each request the continuation's log-probability, and whether it is the greedy continuation."""
        groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for number, (_, context, continuation) in enumerate(requests):
            groups[tuple(self._fitting(context, len(continuation)))].append(number)
        results: dict[int, tuple[float, bool]] = {}
        for context, numbers in self._progress(groups.items(), len(groups), bool(kwargs.get("disable_tqdm"))):
            candidates = [requests[number][2] for number in numbers]
            with torch.set_grad_enabled(self.method.capabilities.needs_gradients):
                state = self._read(list(context), max(map(len, candidates)))
                scores = zip(self._sums(state, candidates), self._greedy(state, candidates), strict=True)
                results.update(zip(numbers, scores, strict=True))
        return [results[number] for number in range(len(requests))]

    def _sums(self, state: State, candidates: list[list[int]]) -> Iterator[float]:
        for start in range(0, len(candidates), AT_ONCE):
            some = candidates[start : start + AT_ONCE]
            logprobs_NM = self.method.score(state, some)[0].double().cpu()
            yield from (float(row[: len(tokens)].sum()) for row, tokens in zip(logprobs_NM, some, strict=True))

    def _greedy(self, state: State, candidates: list[list[int]]) -> list[bool]:
        # Only continuations that begin with the most probable token can be greedy.
        written = [int(self.method.next_logprobs(state)[0].argmax())]
        longest = max((len(candidate) for candidate in candidates if candidate[:1] == written), default=0)
        if longest > 1:
            (written,) = self.method.generate(state, [[]], max_new_tokens=longest)
        return [candidate == written[: len(candidate)] for candidate in candidates]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Texts written after contexts, up to the first of the `until` strings or the end of text."""
        groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
        limits = [_limit(request.args[1]) for request in requests]
        for number, (request, limit) in enumerate(zip(requests, limits, strict=True)):
            # As in `hf`, the last written token has a position too.
            groups[tuple(self._fitting(self.tok_encode(request.args[0]), limit + 1))].append(number)
        results: dict[int, str] = {}
        for context, numbers in self._progress(groups.items(), len(groups), disable_tqdm):
            with torch.set_grad_enabled(self.method.capabilities.needs_gradients):
                state = self._read(list(context), max(limits[number] for number in numbers))
                for number in numbers:
                    results[number] = self._write(state, requests[number].args[1], limits[number])
        return [results[number] for number in range(len(requests))]

    def _write(self, state: State, options: dict[str, Any], limit: int) -> str:
        until = options.get("until") or []
        stops = [until] if isinstance(until, str) else [stop for stop in until if stop]
        temperature = float(options.get("temperature", 0.0)) if options.get("do_sample", True) else 0.0
        written: list[int] = []
        while True:
            tokens = min(PIECE, limit - len(written))
            (piece,) = self.method.generate(
                state,
                [written],
                max_new_tokens=tokens,
                stop=(self.eot_token_id,),
                temperature=temperature,
                seed=len(written),
            )
            written += piece
            text = str(self.tokenizer.decode(written, skip_special_tokens=True))
            ends = [text.index(stop) for stop in stops if stop in text]
            if ends or len(piece) < tokens or len(written) == limit:
                return text[: min(ends, default=len(text))]

    def _read(self, context: list[int], question: int | None) -> Any:
        if context == [self.prefix_token_id] and not self._keep_bos:
            context = []
        state = self.method.start(ahead=None if question is None else Lengths(len(context), question))
        if context:
            state, _ = self.method.read(state, pad([context], self._device)[0], logprobs=False)
        return state

    def _fitting(self, context: list[int], question: int) -> list[int]:
        """The last tokens of a context that fit before a question, whose last token is predicted and not read."""
        most = self.method.capabilities.max_context
        return context if most is None else context[-max(most + 1 - question, 1) :]

    def _progress(self, groups: Iterable[Any], total: int, disabled: bool) -> Iterable[Any]:
        show = sys.stderr.isatty() and not disabled
        return track(groups, self._name, total, console=Console(stderr=True), transient=True, disable=not show)


def _limit(options: dict[str, Any]) -> int:
    return int(next((options[name] for name in LIMITS if options.get(name) is not None), MAX_NEW_TOKENS))


def tokenizer_folder(backbone: str = BACKBONE) -> Path:
    """A folder with a backbone's tokenizer alone, which the harness's own tasks can load; it is written once.

    Raises:
        UserError: for an unknown backbone, a tokenizer that is no fast one, or a cache folder that cannot be written.
    """
    definition = getattr(load_tokenizer(backbone), "backend_tokenizer", None)
    if definition is None:
        raise UserError(f"The tokenizer of {backbone} is no fast one: name another in --metadata tokenizer=NAME.")
    text = definition.to_str()
    folder = cache_dir() / "tokenizers" / hashlib.sha256(text.encode()).hexdigest()[:16]
    try:
        if not folder.is_dir():
            _write_tokenizer(folder, text)
    except OSError as error:
        # Another process may have written it in the meantime.
        if not folder.is_dir():
            raise files.unwritable(folder.parent, error, "set CONTEXTLAB_CACHE") from error
    return folder


def _write_tokenizer(folder: Path, definition: str) -> None:
    with files.new_folder(folder) as fresh:
        files.write(fresh / "tokenizer.json", definition)
        # Without its own class, a checkpoint's tokenizer cannot bring code along.
        files.write(fresh / "tokenizer_config.json", json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


def main(words: Sequence[str]) -> None:
    """The harness's command line with this model, which gives tasks the tokenizer of its backbone.

    Args:
        words: arguments of the `lm_eval` command.

    Raises:
        UserError: as `ContextLM`.
    """
    # The harness reads its arguments there.
    before, sys.argv = sys.argv, ["contextlab lm_eval", *words]
    try:
        setup_logging()  # type: ignore[no-untyped-call]
        command = HarnessCLI()  # type: ignore[no-untyped-call]
        arguments = command.parse_args()
        if arguments.command == "run":
            settings = _settings(vars(arguments))
            if settings["model"] == NAME and "tokenizer" not in settings["model_args"] | settings["metadata"]:
                folder = tokenizer_folder(settings["model_args"].get("backbone", BACKBONE))
                arguments.metadata = {"tokenizer": str(folder), **settings["metadata"]}
        command.execute(arguments)
    finally:
        sys.argv = before


def _settings(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The model, its arguments and the metadata, from the command or else from its file."""
    file = EvaluatorConfig.load_yaml_config(arguments["config"]) if arguments.get("config") else {}
    model, *maps = (arguments.get(name) or file.get(name) for name in ("model", "model_args", "metadata"))
    model_args, metadata = (
        simple_parse_args_string(options) if isinstance(options, str) else options or {} for options in maps
    )
    return {"model": model, "model_args": model_args, "metadata": metadata}


def register() -> None:
    """Make the model known to the harness."""
    # The harness loads its own models only into an empty registry, so they are loaded first.
    importlib.import_module("lm_eval.models")
    if NAME not in model_registry:
        model_registry.register(NAME, target=ContextLM)


register()
