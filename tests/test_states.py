"""States in files: every state can be loaded, and no other content is accepted."""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from damage import mutated, rounds
from installed import MISSING
from law_forms import WITHOUT_ROTARY, fits
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from contextlab import backbone as backbones
from contextlab import registry
from contextlab.errors import UserError
from contextlab.method import ContextMethod, Lengths
from contextlab.states import State, is_count, joined

FAMILIES = ("tiny-llama", "tiny-gpt2")
SETTINGS: dict[str, dict[str, Any]] = {
    "full": {},
    "full, 4 bits": {"cache": "int4"},
    "window": {"N": 24},
    "sliding": {"N": 24, "recent": 9},
    "sliding, 8 bits": {"N": 50, "recent": 70, "cache": "int8"},
    "sinks": {"sinks": 2, "recent": 21},
    "sinks, 4 bits": {"sinks": 2, "recent": 90, "cache": "int4"},
    "snapkv": {"N": 24, "keep": 20, "window": 6},
    "snapkv, 4 bits": {"N": 40, "keep": 70, "window": 6, "cache": "int4"},
    "h2o": {"N": 24, "keep": 20},
    "press": {"options": {"window_size": 6}},
    "press, windows": {"when": "window", "N": 24, "options": {"window_size": 6}},
    "press, all inputs": {"name": "ExpectedAttention"},
    "selfextend": {"G": 4, "W": 20},
    "selfextend, 8 bits": {"G": 4, "W": 20, "cache": "int8"},
    "full, dynamic": {"rope": "dynamic"},
    "closed-book": {},
    "bm25": {"k": 2, "chunk": 7, "recent": 20, "query": 12},
    "dense": {"k": 2, "chunk": 7, "recent": 20, "query": 12},
    "drop": {"N": 20, "ratio": 0.3},
    "retrieval": {"N": 16, "K": 8, "csz": 2, "M": 40},
    "longmem": {"N": 32, "K": 16, "M": 64},
    "memtrm": {"N": 32, "K": 16, "M": 50},
    "memtrm, sliding": {"N": 24, "K": 4, "M": 64, "local": "sliding"},
    "trime": {"N": 32, "M": 40},
    "longmem, sliding": {"N": 16, "K": 8, "M": 40, "local": "sliding", "memory_layers": "0-3"},
    "evalm": {"W": 32, "c": 8, "remote_bias": -0.5, "overlap": True},
    "evalm, 4 bits": {"W": 72, "c": 8, "remote_bias": -0.5, "cache": "int4"},
    "longmem, 8 bits": {"N": 72, "K": 8, "M": 96, "cache": "int8"},
    "hso": {"context": 60, "k": 20},
    "hso, sliding": {"context": 60, "k": 20, "eviction": "sliding"},
    "hso, inputs": {"context": 60, "k": 20, "states": "inputs"},
    "dynamic-eval": {"N": 60, "segment": 20},
    "cartridge": {"p": 8, "N": 24, "context": 40, "study": 1, "study_tokens": 3, "steps": 2, "batch": 2},
    "finetune": {"N": 60, "context": 40, "epochs": 1, "lr": 1e-3},
    "finetune, update": {"N": 60, "context": 40, "epochs": 1, "what": "lora", "rank": 2},
    "ultragist": {"W": 24, "ratio": 4, "rank": 2, "M": 12},
    "generative-adapter": {"chunk": 40},
    "composed": {"method": "retrieval(N=16,K=8,csz=2,M=40)", "under": "generative-adapter(chunk=40)"},
    "least-squares": {"chunk": 40, "study": 1, "study_tokens": 4},
}


MADE = [name for name in SETTINGS if name.partition(",")[0] not in MISSING]


def takes(name: str, family: str) -> bool:
    """Whether a method with its settings takes a family of models."""
    return fits(name, family) and ("rope" not in SETTINGS[name] or family not in WITHOUT_ROTARY)


READ_WITH = [(name, family) for name in SETTINGS for family in FAMILIES if takes(name, family)]


@pytest.fixture(scope="module")
def models() -> dict[str, backbones.Backbone]:
    return {name: backbones.load(name, device="cpu") for name in FAMILIES}


def built(name: str, backbone: backbones.Backbone) -> ContextMethod:
    kind = registry.method_class(name.partition(",")[0])
    return kind(backbone, kind.Config.parse(SETTINGS[name]))


def read(method: ContextMethod, lengths: list[int], ahead: Lengths | None = None) -> Any:
    tokens = torch.randint(0, 257, (len(lengths), max(lengths)))
    return method.read(method.start(len(lengths), ahead=ahead), tokens, torch.tensor(lengths))[0]


def equal(first: Any, second: Any) -> bool:
    pairs = zip(first.tensors().items(), second.tensors().items(), strict=True)
    return all(name == other and torch.equal(a, b) for (name, a), (other, b) in pairs)


def test_every_registered_method_is_among_those_that_are_damaged() -> None:
    built_in = {name for name, package in registry.methods().items() if package == "contextlab"}
    assert {name.partition(",")[0] for name in SETTINGS} == built_in


@pytest.mark.parametrize(("name", "family"), READ_WITH)
def test_what_readings_leave_behind_is_loaded(name: str, family: str, models: Any, tmp_path: Path) -> None:
    """For any lengths, in forks and single rows too: the checks at loading refuse no valid state."""
    method = built(name, models[family])
    for lengths, ahead in (([0], None), ([1], None), ([60, 20], None), ([24, 0, 63], None), ([120, 137], None),
                           ([97], Lengths(97, 8)), ([50], Lengths(120, 13))):  # fmt: skip
        state = read(method, lengths, ahead)
        for each in (state, state.index([len(lengths) - 1]), state.fork(2)):
            each.save(tmp_path / "state")
            loaded = method.load_state(tmp_path / "state")
            assert type(loaded) is type(each)
            assert equal(each, loaded)


@pytest.mark.parametrize("name", MADE)
def test_damaged_states_are_refused_in_one_sentence(name: str, models: Any, tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    tried = refused = 0
    for draw in rounds(10, 1 / len(SETTINGS), name):
        method = built(name, models[draw.choice([family for family in FAMILIES if takes(name, family)])])
        read(method, [draw.randrange(130) for _ in range(draw.choice((1, 2)))]).save(path)
        whole = load_file(path)
        with safe_open(path, "pt") as file:
            kind, tensor = mutated(whole, file.metadata(), path, draw)
        tried += 1
        try:
            state = method.load_state(path)
        except UserError as error:
            refused += 1
            message = str(error)
            assert str(path) in message, (kind, tensor)
            assert "\n" not in message, (kind, tensor)
            continue
        loaded = state.tensors()
        same = all(torch.equal(loaded[key], whole[key]) for key in whole)
        assert same or kind == "value", (kind, tensor)
        if not same:
            # A number that another text could give cannot be detected, but it must be finite.
            assert not loaded[tensor].is_floating_point(), tensor
            assert (loaded[tensor] != whole[tensor]).sum() == 1
            assert int(loaded[tensor].max()) < 2**36 or tensor == "left_B", (tensor, loaded[tensor])
            assert int(loaded[tensor].min()) >= 0, tensor
        method.read(state, torch.randint(0, 257, (state.batch_size, 30)))
    assert refused > tried / 2
    print(f"{name}: {tried} tried, {refused} refused")


@pytest.mark.parametrize("name", MADE)
def test_a_state_belongs_to_one_method_with_its_settings_on_its_backbone(
    name: str, models: Any, tmp_path: Path
) -> None:
    method = built(name, models["tiny-llama"])
    state = read(method, [40])
    state.save(tmp_path / "state")
    others = [built(other, models["tiny-llama"]) for other in MADE if other != name]
    kind, changed = type(method), backbones.load("tiny-llama", device="cpu")
    next(changed.model.parameters()).data[0, 0] += 1
    others += [kind(changed, method.config)]
    others += [built(name, models["tiny-gpt2"])] if takes(name, "tiny-gpt2") else []
    for other in others:
        with pytest.raises(UserError, match="another method"):
            other.load_state(tmp_path / "state")
        for call in (
            lambda m: m.read(state, torch.tensor([[1]])),
            lambda m: m.score(state, [[1]]),
            lambda m: m.generate(state, [[1]], max_new_tokens=1),
            lambda m: m.next_logprobs(state),
        ):
            with pytest.raises(UserError, match=f"another method, backbone or settings \\({kind.__name__}\\)"):
                call(other)
    again = built(name, backbones.load("tiny-llama", device="cpu"))
    for own in (state, again.load_state(tmp_path / "state"), state.fork(2), state.to("cpu")):
        again.read(own, torch.tensor([[1]] * own.batch_size))


def test_settings_are_part_of_what_a_state_belongs_to(models: Any, tmp_path: Path) -> None:
    kind = registry.method_class("window")
    first, second = (kind(models["tiny-llama"], kind.Config.parse({"N": n})) for n in (24, 25))
    state = read(first, [10])
    state.save(tmp_path / "state")
    with pytest.raises(UserError, match="its settings differ"):
        second.load_state(tmp_path / "state")
    with pytest.raises(UserError, match="another method, backbone or settings"):
        second.read(state, torch.tensor([[1]]))


def test_a_file_that_does_not_say_whose_state_it_holds_is_refused(models: Any, tmp_path: Path) -> None:
    method = built("window", models["tiny-llama"])
    save_file({name: tensor.clone() for name, tensor in method.start().tensors().items()}, tmp_path / "state")
    with pytest.raises(UserError, match="holds no state"):
        method.load_state(tmp_path / "state")


def test_copies_and_pickles_do_not_hold_the_model(models: Any) -> None:
    state = read(built("window", models["tiny-llama"]), [10])
    for other in (copy.deepcopy(state), pickle.loads(pickle.dumps(state)), dataclasses.replace(state)):
        assert other.owner is None
        assert all(torch.equal(a, b) for a, b in zip(state.tensors().values(), other.tensors().values(), strict=True))
        built("window", models["tiny-llama"]).read(other, torch.tensor([[1]]))
    assert len(pickle.dumps(state)) < state.nbytes + 10_000


def test_a_state_is_written_as_a_whole_or_not_at_all(models: Any, tmp_path: Path, monkeypatch: Any) -> None:
    state = read(built("window", models["tiny-llama"]), [10])
    for path in (tmp_path / "absent" / "state", tmp_path):
        with pytest.raises(UserError, match="cannot be written"):
            state.save(path)
    state.save(tmp_path / "state")
    before = (tmp_path / "state").read_bytes()

    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UserError, match="no space left"):
        state.save(tmp_path / "state")
    assert (tmp_path / "state").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize("name", MADE)
def test_counts_of_rows_stay_on_the_host(name: str, models: Any) -> None:
    state = read(built(name, models["tiny-llama"]), [70, 33])
    for key, tensor in state.to("meta").tensors().items():
        assert tensor.device.type == ("cpu" if is_count(tensor) else "meta"), key
    assert is_count(state.length_B)


class Box:
    """An object that holds a tensor."""

    def __init__(self) -> None:
        self.tensor = torch.zeros(1, 3)


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a state."""

    content: Any


@dataclasses.dataclass(frozen=True)
class Memo(State):
    """A state with a field of any kind."""

    bank: Any


class Kind(enum.Enum):
    """A setting."""

    PLAIN = 1


def memo(bank: Any) -> Memo:
    return Memo(torch.zeros(1, dtype=torch.int64), torch.zeros(1, 4), bank)


CONTAINERS = [{}, [], set(), collections.deque(), bytearray(), b"", Box(), torch.zeros(2).numpy()]


@pytest.mark.parametrize("content", CONTAINERS, ids=[type(content).__name__ for content in CONTAINERS])
def test_what_would_not_be_counted_is_refused_in_one_sentence(content: Any, tmp_path: Path) -> None:
    kind = type(content).__name__
    calls: list[Callable[[State], Any]] = [
        lambda state: state.nbytes,
        lambda state: state.fork(2),
        lambda state: state.index([0]),
        lambda state: state.to("cpu"),
        lambda state: state.save(tmp_path / "state"),
        lambda state: joined([state, state]),
    ]
    for bank, name in ((content, "bank"), ((1, content), "bank.1"), (Part((content,)), "bank.content.0")):
        for call in calls:
            with pytest.raises(UserError) as refused:
                call(memo(bank))
            assert str(refused.value) == (
                f"Field {name} of Memo is of type {kind}, whose content would not be counted: keep tensors in tuples "
                "or dataclasses."
            )


@pytest.mark.parametrize(
    "content", [None, 1, 0.5, True, "int8", Kind.PLAIN, frozenset({1}), torch.int8, torch.device("cpu"), (), Part(())]
)
def test_what_says_how_to_understand_the_tensors_stays(content: Any) -> None:
    assert memo(content).nbytes == 24
    assert memo((content, torch.zeros(1))).fork(2).bank[0] == content
