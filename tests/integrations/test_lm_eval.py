from __future__ import annotations

import importlib
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("lm_eval")

from lm_eval.api.registry import get_model, model_registry
from lm_eval.models.huggingface import HFLM

from contextlab.integrations import lm_eval_plugin
from contextlab.integrations.lm_eval import ContextLM, _limit
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
    return [SimpleNamespace(args=one if isinstance(one, tuple) else (one,)) for one in arguments]


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
        return requests(*[(context, dict(one)) for context in ("The capital of", "One two", LONG) for one in options])

    ours, theirs = (model.generate_until(instances(), disable_tqdm=True) for model in (full, hf))
    assert ours == theirs
    assert len(set(ours)) > 3


def test_greedy_continuations_are_recognised_at_every_length(full: ContextLM) -> None:
    tokens = full.tok_encode("Some context")
    (written,) = full.method.generate(full._read(tokens, 6), [[]], max_new_tokens=6)
    changed = [*written[:-1], (written[-1] + 1) % 256]
    candidates = [written[:1], written[:3], written, changed, changed[-1:]]
    greedy = [flag for _, flag in full._loglikelihood_tokens([(("", ""), tokens, one) for one in candidates])]
    assert greedy[:4] == [True, True, True, False]


def test_every_context_is_read_once(window: ContextLM, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(window.method, monkeypatch)
    pairs = [(context, f" option {n}") for n in range(4) for context in ("one context", "another", "one context ")]
    result = window.loglikelihood(requests(*pairs), disable_tqdm=True)
    contexts = [window.tokenizer.decode(one) for one in calls.contexts]
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
    assert sorted(len(one) for one in calls.contexts) == [3, 3]
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


def test_the_model_is_announced_when_the_harness_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert get_model("contextlab") is ContextLM
    assert "hf" in model_registry
    lm_eval_plugin.register()
    monkeypatch.setattr(lm_eval_plugin, "register", lambda: 1 / 0)
    lm_eval_plugin.announce()
    monkeypatch.delitem(sys.modules, "lm_eval")
    lm_eval_plugin.announce()


def test_announcing_imports_neither_torch_nor_the_harness() -> None:
    code = "import sys; from contextlab.integrations import lm_eval_plugin as p; p.announce(); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "lm_eval", "pydantic"} & set(loaded)


def test_a_users_mistake_is_one_sentence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    main = importlib.import_module("lm_eval.__main__")
    monkeypatch.setattr(main, "cli_evaluate", lambda: ContextLM("windo", "tiny-llama"))
    assert lm_eval_plugin.main() == 2
    assert capsys.readouterr().err == "contextlab: There is no method 'windo': did you mean 'window'?\n"
    monkeypatch.setattr(main, "cli_evaluate", lambda: None)
    assert lm_eval_plugin.main() == 0


@pytest.mark.slow
def test_the_harness_command_finds_an_installed_contextlab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "site" / "found-1.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: found\nVersion: 1\n")
    (record / "entry_points.txt").write_text(
        "[torch.backends]\ncontextlab-lm-eval = contextlab.integrations.lm_eval_plugin:announce\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    command = ["-m", "lm_eval", "run", "--model", "contextlab", "--model_args", "method=window,backbone=tiny-llama"]
    command += ["--tasks", "contextlab_icl_sst2", "--include_path", str(FOLDER), "--limit", "2"]
    answer = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert "contextlab_icl_sst2" in answer.stdout, answer.stderr


@pytest.mark.parametrize(("options", "most"), [({}, 256), ({"max_gen_toks": None}, 256), ({"max_gen_toks": 7}, 7)])
def test_without_a_limit_256_tokens_are_written_as_by_the_harness(options: dict[str, Any], most: int) -> None:
    assert _limit(options) == most


@pytest.mark.parametrize("command", ["lm_eval", "lm-eval", "lm_eval/__main__.py"])
def test_a_mistake_ends_the_harness_s_own_command_with_one_sentence(command: str, tmp_path: Path) -> None:
    """Whatever the harness does with the error, the user reads one sentence."""
    script = tmp_path / command
    script.parent.mkdir(exist_ok=True)
    script.write_text(
        "import sys, lm_eval, torch\n"
        "from contextlab.integrations import lm_eval_plugin\n"
        "lm_eval_plugin.announce()\n"
        "import contextlab\n"
        "contextlab.load('no such\\x1b method', 'tiny-llama') if len(sys.argv) < 2 else 1 / 0\n"
    )
    answer = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    last = answer.stderr.splitlines()[-1]
    assert last.startswith(r"contextlab: There is no method 'no such\x1b method'")
    assert "Traceback" not in answer.stderr
    other = subprocess.run([sys.executable, str(script), "x"], capture_output=True, text=True, check=False)
    assert other.returncode == 1
    assert "ZeroDivisionError" in other.stderr
