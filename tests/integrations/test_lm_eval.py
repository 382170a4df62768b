from __future__ import annotations

import importlib
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("lm_eval")

from lm_eval._cli import HarnessCLI
from lm_eval.api.registry import get_model, model_registry
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from contextlab.errors import UserError
from contextlab.integrations.lm_eval import PIECE, ContextLM, _limit, main, register, tokenizer_folder
from contextlab.integrations.lm_eval_tasks import FOLDER
from contextlab.methods.window import WindowConfig

LONG = "a long text that goes on and on; " * 5
PAIRS = [
    ("The cat sat on", " the mat"),
    ("The cat sat on ", "the mat"),
    ("The cat sat on", " a dog"),
    ("", "Hello world"),
    ("", "\n"),
    ("A b\n", "c d"),
    (LONG, "the end"),
    (LONG, " or not"),
    ("<|end|>The cat", " sat"),
]


def requests(*arguments: Any) -> Any:
    return [SimpleNamespace(args=argument if isinstance(argument, tuple) else (argument,)) for argument in arguments]


@pytest.fixture(scope="module", params=["tiny-llama", "tiny-gpt2"])
def full(request: Any) -> ContextLM:
    return ContextLM("full", request.param, device="cpu")


@pytest.fixture(scope="module")
def hf(full: ContextLM) -> Any:
    model, positions = full.backbone.model, full.backbone.max_positions
    return HFLM(pretrained=model, tokenizer=full.tokenizer, device="cpu", batch_size=1, max_length=positions)


@pytest.fixture
def window() -> ContextLM:
    return ContextLM("window", "tiny-llama", device="cpu", N=48)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Calls:
    """Counts the calls of a method."""

    def __init__(self, method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count: Counter[str] = Counter()
        self.contexts: list[list[int]] = []
        for name in ("start", "score", "generate"):
            monkeypatch.setattr(method, name, self.counted(name, getattr(method, name)))
        read = method.read

        def reading(state: Any, tokens_BT: Any, lengths_B: Any = None, *, logprobs: bool = True) -> Any:
            if not logprobs and not int(state.length_B.sum()):
                self.contexts.append(tokens_BT[0].tolist())
            return read(state, tokens_BT, lengths_B, logprobs=logprobs)

        monkeypatch.setattr(method, "read", reading)

    def counted(self, name: str, call: Any) -> Any:
        def counting(*args: Any, **kwargs: Any) -> Any:
            self.count[name] += 1
            return call(*args, **kwargs)

        return counting


def test_full_scores_like_the_harness_own_model(full: ContextLM, hf: Any) -> None:
    ours, theirs = (model.loglikelihood(requests(*PAIRS), disable_tqdm=True) for model in (full, hf))
    for (own, greedy), (other, other_greedy) in zip(ours, theirs, strict=True):
        assert own == pytest.approx(other, abs=1e-4)
        assert greedy == other_greedy


def test_full_reads_whole_texts_like_the_harness_own_model(full: ContextLM, hf: Any) -> None:
    texts = requests("Hello there, my friend", "x", "y" * full.backbone.max_positions)
    ours, theirs = (model.loglikelihood_rolling(texts, disable_tqdm=True) for model in (full, hf))
    assert ours == pytest.approx(theirs, abs=1e-4 * 128)


def test_full_writes_like_the_harness_own_model(full: ContextLM, hf: Any) -> None:
    def instances() -> Any:
        options: list[dict[str, Any]] = [
            {"until": ["\x1c"], "max_gen_toks": 24},
            {"until": "q", "max_gen_toks": 20, "do_sample": False, "temperature": 1.0},
            {"max_gen_toks": 5},
        ]
        return requests(
            *[(context, dict(option)) for context in ("The capital of", "One two", LONG) for option in options]
        )

    ours, theirs = (model.generate_until(instances(), disable_tqdm=True) for model in (full, hf))
    assert ours == theirs
    assert len(set(ours)) > 3


def test_every_piece_of_a_sampled_text_has_draws_of_its_own(window: ContextLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the same request has the same text."""
    seeds: list[int] = []
    generate = window.method.generate

    def seeded(*arguments: Any, **options: Any) -> Any:
        seeds.append(options["seed"])
        return generate(*arguments, **options)

    monkeypatch.setattr(window.method, "generate", seeded)
    options = {"until": ["\x1c"], "max_gen_toks": 4 * PIECE, "temperature": 1.0}
    texts = [window.generate_until(requests(("A text", options)), disable_tqdm=True) for _ in range(2)]
    assert texts[0] == texts[1]
    half = len(seeds) // 2
    assert seeds[:half] == seeds[half:]
    assert len(set(seeds[:half])) == half > 1


def test_greedy_continuations_are_recognised_at_every_length(full: ContextLM) -> None:
    tokens = full.tok_encode("Some context")
    (written,) = full.method.generate(full._read(tokens, 6), [[]], max_new_tokens=6)
    changed = [*written[:-1], (written[-1] + 1) % 256]
    candidates = [written[:1], written[:3], written, changed, changed[-1:]]
    greedy = [
        flag for _, flag in full._loglikelihood_tokens([(("", ""), tokens, candidate) for candidate in candidates])
    ]
    assert greedy[:4] == [True, True, True, False]


def test_every_context_is_read_once(window: ContextLM, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(window.method, monkeypatch)
    pairs = [(context, f" option {n}") for n in range(4) for context in ("one context", "another", "one context ")]
    result = window.loglikelihood(requests(*pairs), disable_tqdm=True)
    contexts = [window.tokenizer.decode(context) for context in calls.contexts]
    assert sorted(contexts) == ["another", "one context"]
    assert (calls.count["start"], calls.count["score"]) == (2, 2)
    # Results are in the order of the requests.
    for index in (0, 5, 7):
        (alone,) = window.loglikelihood(requests(pairs[index]), disable_tqdm=True)
        assert result[index][0] == pytest.approx(alone[0], abs=1e-4)


def test_texts_are_written_after_a_context_that_is_read_once(
    window: ContextLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(window.method, monkeypatch)
    pairs = [("one", {"max_gen_toks": 3}), ("two", {"max_gen_toks": 3}), ("one", {"max_gen_toks": 40})]
    short, _, long = window.generate_until(requests(*pairs), disable_tqdm=True)
    assert sorted(len(context) for context in calls.contexts) == [3, 3]
    assert long.startswith(short.rstrip("\ufffd"))


def test_writing_stops_at_the_first_stop_in_the_text(window: ContextLM, monkeypatch: pytest.MonkeyPatch) -> None:
    says = list(b"abcdefghijklmnopqrstuvwxyz, and so on. ")

    def generate(state: Any, prompts: Any, *, max_new_tokens: int, **_: Any) -> list[list[int]]:
        done = len(prompts[0])
        return [window.backbone.encode(bytes(says[done : done + max_new_tokens]).decode())]

    monkeypatch.setattr(window.method, "generate", generate)

    def write(**options: Any) -> str:
        return window.generate_until(requests(("context", options)), disable_tqdm=True)[0]

    assert write(until=["so", "uvw", "v"]) == "abcdefghijklmnopqrst"
    assert write(until=[""], max_tokens=7) == "abcdefg"
    assert write(until=None) == bytes(says).decode()


def test_other_methods_read_all_of_a_long_text(window: ContextLM, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(window.method, monkeypatch)
    window.loglikelihood(requests((LONG, "the end")), disable_tqdm=True)
    assert len(calls.contexts[0]) == len(LONG.rstrip())
    (total,) = window.loglikelihood_rolling(requests(LONG), disable_tqdm=True)
    state, _ = window.method.read(window.method.start(), torch.tensor([[window.prefix_token_id]]))
    _, logprobs = window.method.read(state, torch.tensor([window.tok_encode(LONG)]))
    assert logprobs is not None
    assert total == pytest.approx(float(logprobs.sum()), abs=1e-2)


def test_without_bos_in_the_context_the_score_is_that_of_bench() -> None:
    lm = ContextLM("full", "tiny-llama", device="cpu", keep_bos=False)
    tokens_BT = torch.tensor([lm.backbone.encode("Hello world")])
    _, logprobs_BT = lm.method.read(lm.method.start(), tokens_BT)
    assert logprobs_BT is not None
    ((total, _),) = lm.loglikelihood(requests(("", "Hello world")), disable_tqdm=True)
    assert total == pytest.approx(float(logprobs_BT.sum()), abs=1e-4)
    assert lm.loglikelihood_rolling(requests("Hello world"), disable_tqdm=True) == pytest.approx([total], abs=1e-4)


def test_arguments_come_from_the_harness_command() -> None:
    arguments = "method=window,backbone=tiny-llama,N=16,add_bos_token=True"
    lm = ContextLM.create_from_arg_string(arguments, {"batch_size": 4, "max_batch_size": None, "device": "cpu"})
    assert lm.get_model_info()["method_config"] == WindowConfig(N=16).as_dict()
    assert (lm.get_model_info()["backbone"], len(lm.tokenizer_name)) == ("tiny-llama", 64)
    assert (lm.rank, lm.world_size, lm.eot_token_id) == (0, 1, 256)


def test_the_harness_knows_the_model_beside_its_own() -> None:
    register()
    assert get_model("contextlab") is ContextLM
    assert "hf" in model_registry


def test_a_task_that_writes_its_own_texts_gets_the_backbones_tokenizer(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wonderwords")
    # The task writes 500 texts, one after the other; its module takes ten seconds to import.
    prepare_niah = importlib.import_module("lm_eval.tasks.ruler.prepare_niah")
    written = prepare_niah.generate_samples
    monkeypatch.setattr(prepare_niah, "generate_samples", lambda *a, **kw: written(*a, **{**kw, "num_samples": 20}))
    folder = tokenizer_folder("tiny-llama")
    assert folder.parent == cache / "tokenizers"
    assert tokenizer_folder("tiny-gpt2") == folder  # the same bytes
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    metadata: dict[str, Any] = {"tokenizer": str(folder), "max_seq_lengths": [512]}
    docs = TaskManager(metadata=metadata).load(["niah_single_1"])["tasks"]["niah_single_1"].eval_docs
    assert 10 < len(docs) <= 20  # the task leaves out texts that do not fit
    longest = max(len(doc["input"].encode()) for doc in docs)
    assert 300 < longest <= 512 - 128  # the task leaves room for an answer


def test_a_cache_that_cannot_be_written_is_one_sentence(cache: Path) -> None:
    cache.write_text("a file")
    with pytest.raises(UserError, match="CONTEXTLAB_CACHE"):
        tokenizer_folder("tiny-llama")


def test_an_unknown_backbone_has_no_tokenizer_either() -> None:
    with pytest.raises(UserError, match="did you mean 'tiny-llama'"):
        tokenizer_folder("tiny-llam")


RUN = ("run", "--tasks", "niah_single_1", "--model", "contextlab")
OF_TINY = ("--model_args", "method=window,backbone=tiny-llama")


def metadata_of(words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a command gives to the tasks, beside the arguments of the model."""
    arguments: list[Any] = []
    monkeypatch.setattr(HarnessCLI, "execute", lambda _, namespace: arguments.append(namespace))
    before = list(sys.argv)
    main(words)
    assert sys.argv == before
    return arguments[0].metadata


@pytest.mark.parametrize(
    ("words", "others"),
    [
        ((*RUN, *OF_TINY), {}),
        ((*RUN[1:], *OF_TINY), {}),
        ((*RUN, *OF_TINY, "--metadata", '{"max_seq_lengths": [512]}'), {"max_seq_lengths": [512]}),
    ],
)
def test_the_command_names_the_tokenizer_by_itself(
    words: Sequence[str], others: dict[str, Any], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert metadata_of(words, monkeypatch) == {"tokenizer": str(tokenizer_folder("tiny-llama")), **others}


def test_the_command_reads_the_model_in_its_file_too(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("model: contextlab\nmodel_args: {backbone: tiny-llama}\ntasks: [x]\nmetadata: split=4k\n")
    expected = {"tokenizer": str(tokenizer_folder("tiny-llama")), "split": "4k"}
    assert metadata_of(["run", "--config", str(file)], monkeypatch) == expected


@pytest.mark.parametrize(
    "words",
    [
        (*RUN, "--model_args", "method=window,tokenizer=gpt2"),
        (*RUN, *OF_TINY, "--metadata", "tokenizer=gpt2"),
        (*RUN[:-1], "hf", "--model_args", "pretrained=gpt2"),
    ],
)
def test_a_named_tokenizer_and_other_models_stay_as_they_are(
    words: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (metadata_of(words, monkeypatch) or {}).get("tokenizer") in (None, "gpt2")


def test_the_model_accepts_what_such_tasks_read_among_its_arguments() -> None:
    assert ContextLM("window", "tiny-llama", device="cpu", tokenizer="gpt2").tok_encode("abc") == [64, 65, 66]


@pytest.mark.slow
def test_the_command_runs_tasks_of_the_harness_and_ours() -> None:
    pytest.importorskip("wonderwords")
    command = ["lm_eval", "--model", "contextlab", *OF_TINY, "--tasks", "niah_single_1,contextlab_icl_sst2"]
    command += ["--include_path", str(FOLDER), "--limit", "2", "--metadata", '{"max_seq_lengths": [512]}']
    program = [sys.executable, "-c", "import sys; from contextlab.cli.main import main; sys.exit(main())"]
    answer = subprocess.run([*program, *command], capture_output=True, text=True, check=False)
    assert all(task in answer.stdout for task in ("niah_single_1", "contextlab_icl_sst2")), answer.stderr


@pytest.mark.parametrize(("options", "most"), [({}, 256), ({"max_gen_toks": None}, 256), ({"max_gen_toks": 7}, 7)])
def test_without_a_limit_256_tokens_are_written_as_by_the_harness(options: dict[str, Any], most: int) -> None:
    assert _limit(options) == most
