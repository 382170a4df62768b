"""Presses of kvpress: what they keep, against kvpress's own pipeline, whose results are stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from installed import MISSING
from law_forms import PARTS, broken
from own_pipeline import BOS, CONTEXT, QUESTION, SETTINGS, context, model, places
from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from contextlab.accounting.products import ProductCounter
from contextlab.backbone import Backbone, load
from contextlab.errors import UserError
from contextlab.formula import Formula, Row
from contextlab.method import Lengths
from contextlab.methods.full import Full
from contextlab.methods.press import Press, PressConfig, PressState, presses
from contextlab.methods.press.choice import AROUND, REFUSED, SINGLE
from contextlab.methods.snapkv import SnapKV, SnapKVConfig

STORED = json.loads((Path(__file__).parent / "own_pipeline.json").read_text("utf-8"))
AHEAD = Lengths(70, 20)
needs_kvpress = pytest.mark.skipif("press" in MISSING, reason="kvpress is not installed")


@pytest.fixture(scope="module")
def llama() -> Backbone:
    return load("tiny-llama", device="cpu")


@pytest.fixture(scope="module")
def theirs() -> Backbone:
    """The model that kvpress's own pipeline ran with."""
    return Backbone(model(), None, "theirs")


def text(length: int, rows: int = 1) -> Tensor:
    return torch.randint(0, 256, (rows, length), generator=torch.Generator().manual_seed(0))


def read(method: Any, tokens_BT: Tensor, *cuts: int, ahead: Lengths | None = None) -> Any:
    state = method.start(len(tokens_BT), ahead=ahead)
    for part_BT in tokens_BT.tensor_split(cuts, dim=1):
        state, _ = method.read(state, part_BT, logprobs=False)
    return state


def of_pipeline(backbone: Backbone, name: str) -> Press:
    window = {"N": CONTEXT} if "when" in SETTINGS[name] else {}
    return Press(backbone, PressConfig.parse({**SETTINGS[name], **window}))


@needs_kvpress
@pytest.mark.parametrize("name", SETTINGS)
def test_every_head_keeps_what_kvpress_itself_keeps(name: str, theirs: Backbone) -> None:
    tokens_1T, ahead = torch.tensor([context()]), Lengths(CONTEXT, len(QUESTION))
    state, whole = (read(reader, tokens_1T, 40, ahead=ahead) for reader in (of_pipeline(theirs, name), Full(theirs)))
    layers = zip(state.kv.v, whole.kv.v, strict=True)
    assert [places(kept_1KSD[0], all_1KSD[0]) for kept_1KSD, all_1KSD in layers] == STORED["results"][name]["kept"]


@needs_kvpress
@pytest.mark.parametrize("name", SETTINGS)
def test_what_follows_is_written_as_by_kvpress_itself(name: str, theirs: Backbone) -> None:
    """So that keys and what follows them have the positions that they have there."""
    method, written = of_pipeline(theirs, name), STORED["results"][name]["written"]
    state = read(method, torch.tensor([context()]), ahead=Lengths(CONTEXT, len(QUESTION)))
    (answer,) = method.generate(state, [list(QUESTION)], max_new_tokens=12)
    assert [token for token in answer if token != BOS] == written  # which leaves out special tokens


def test_the_stored_results_are_of_the_presses_that_are_compared() -> None:
    assert STORED["results"].keys() == SETTINGS.keys()
    assert STORED["versions"]["kvpress"] == "0.5.5"
    assert {settings["name"].partition("(")[0] for settings in SETTINGS.values()} == {*SINGLE, *AROUND}


@needs_kvpress
def test_every_press_of_kvpress_can_be_used_or_has_a_reason() -> None:
    names = {name.removesuffix("Press") for name in presses.kvpress().__all__ if name.endswith("Press")}
    assert names - {"Base", "Scorer"} == {*SINGLE, *AROUND, *REFUSED}
    assert not {*SINGLE, *AROUND} & REFUSED.keys()


def test_the_page_says_why_presses_cannot_be_used() -> None:
    page = (Path(__file__).parents[3] / "docs/methods/press.md").read_text("utf-8")
    for name, reason in REFUSED.items():
        assert f"| {name} | {reason} |" in page
    for name in (*SINGLE, *AROUND):
        assert f"`{name}`" in page or f"`{name}(...)`" in page


@needs_kvpress
def test_the_import_of_kvpress_leaves_attention_as_it_is() -> None:
    presses.kvpress()
    assert all(function.__module__ != "kvpress.attention_patch" for function in ALL_ATTENTION_FUNCTIONS.values())


class Announced(Press):
    """Every text has a context of a known length."""

    def start(self, batch_size: int = 1, *, ahead: Lengths | None = None) -> PressState:
        return super().start(batch_size, ahead=ahead or AHEAD)

    def formula(self, ahead: Lengths | None = None) -> Formula | None:
        return super().formula(ahead or AHEAD)


SNAPKV: dict[str, Any] = {"options": {"window_size": 6}}
FORMS: dict[str, Any] = {
    "window": lambda b: Press(b, PressConfig(when="window", N=24, **SNAPKV)),
    "window, no inputs": lambda b: Press(b, PressConfig(name="KeyDiff", when="window", N=30, ratio=0.3)),
    "context": lambda b: Announced(b, PressConfig(**SNAPKV)),
    "context, all inputs": lambda b: Announced(b, PressConfig(name="ExpectedAttention")),
}


@needs_kvpress
@pytest.mark.parametrize("around", PARTS)
@pytest.mark.parametrize("name", FORMS)
def test_forms_keep_the_laws(name: str, around: bool) -> None:
    assert broken(FORMS[name], "tiny-llama", around=around) == {}


@needs_kvpress
@pytest.mark.parametrize("name", ["SnapKV", "ExpectedAttention", "Knorm"])
def test_rows_with_contexts_of_other_lengths_keep_what_they_keep_alone(name: str, llama: Backbone) -> None:
    """Rows of one state that were announced apart, as those of forks and restarts are."""
    method = Press(llama, PressConfig(name=name, options=SNAPKV["options"] if name == "SnapKV" else {}))
    lengths, tokens_BT = (50, 90), text(120, rows=2)
    first, second = (method.start(2, ahead=Lengths(length, 10)) for length in lengths)
    both = first.where(torch.tensor([True, False]), second)
    both, _ = method.read(both, tokens_BT[:, :45], torch.tensor([45, 30]), logprobs=False)
    both, logprobs_BT = method.read(both, tokens_BT[:, 45:115])
    assert logprobs_BT is not None
    for row, (count, length) in enumerate(zip((45, 30), lengths, strict=True)):
        alone = read(method, tokens_BT[row : row + 1, :count], ahead=Lengths(length, 10))
        alone, expected_1T = method.read(alone, tokens_BT[row : row + 1, 45:115])
        torch.testing.assert_close(logprobs_BT[row], expected_1T[0], rtol=1e-4, atol=1e-4)
        assert int(both.kv.used_B[row]) == int(alone.kv.used_B)


@needs_kvpress
def test_a_context_of_unknown_length_is_full_attention(llama: Backbone) -> None:
    tokens_1T = text(120)
    scores = [reader.read(reader.start(), tokens_1T)[1] for reader in (Press(llama), Full(llama))]
    assert torch.equal(*scores)


@needs_kvpress
def test_a_context_that_is_too_short_stays_whole(llama: Backbone) -> None:
    method = Press(llama, PressConfig(options={"window_size": 20}))
    for length, kept in ((19, 19), (20, 20), (21, 10)):
        assert int(read(method, text(length), ahead=Lengths(length, 5)).kv.used_B) == kept


@needs_kvpress
@pytest.mark.parametrize("name", ["Knorm", "SnapKV", "ExpectedAttention"])
def test_a_state_holds_what_stays_alone_once_the_context_has_ended(name: str, llama: Backbone) -> None:
    method = Press(llama, PressConfig(name=name, ratio=0.75, options=SNAPKV["options"] if name == "SnapKV" else {}))
    before, after = (read(method, text(length), ahead=Lengths(80, 10)) for length in (79, 80))
    inputs = {"Knorm": 0, "SnapKV": 6, "ExpectedAttention": 79}[name]
    assert (int(before.kv.used_B), int(before.inputs.used_B)) == (79, inputs)
    assert (int(after.kv.used_B), int(after.inputs.used_B)) == (20, 0)
    assert after.nbytes == read(Full(llama), text(20)).nbytes + 3 * 8
    assert int(after.dropped_B) == 60


@needs_kvpress
def test_windows_keep_what_snapkv_does(llama: Backbone) -> None:
    ours = SnapKV(llama, SnapKVConfig(N=40, keep=20, window=6))
    method = Press(llama, PressConfig(when="window", N=40, **SNAPKV))
    states = [read(reader, text(40)) for reader in (method, ours)]
    for mine, other in zip(*(state.kv.k for state in states), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)


@needs_kvpress
def test_a_context_that_does_not_fit_is_compressed_as_far_as_it_is_in_view(llama: Backbone) -> None:
    method, ahead = Press(llama, PressConfig(name="Knorm")), Lengths(150, 20)
    used = [int(read(method, text(length), ahead=ahead).kv.used_B) for length in (127, 128, 149, 150, 151)]
    assert used == [127, 0, 21, 11, 12]


@needs_kvpress
@pytest.mark.parametrize("name", SETTINGS)
def test_the_products_of_every_press_are_counted(name: str, theirs: Backbone) -> None:
    """Exactly where there is a formula; else they are more than those of full attention."""
    method, ahead = of_pipeline(theirs, name), Lengths(CONTEXT, 3)
    method.start()  # which computes what follows BOS, once
    with ProductCounter() as counter:
        read(method, torch.tensor([context()]), ahead=ahead)
    formula, full = method.formula(ahead), Full(theirs).formula()
    assert full is not None
    if formula is not None:
        assert counter.flops == formula.read([Row(0, CONTEXT)], logprobs=False)
    else:
        plain = full.read([Row(0, CONTEXT)], logprobs=False)
        assert plain is not None
        assert counter.flops > plain


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"name": "AdaKV"}, "neither memory nor time is saved"),
    ({"name": "Block(ThinK)"}, "changes keys or values"),
    ({"name": "Block"}, "name it as in name=Block"),
    ({"name": "Snap"}, "did you mean 'SnapKV'"),
    ({"name": "SnapKV(Knorm)"}, "There is no press around another 'SnapKV'"),
    ({"N": 20}, "say when=window"),
    ({"when": "window", "N": 65}, "use N=64"),
]
OF_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"options": {"window": 3}}, "did you mean 'window_size'"),
    ({"options": {"window_size": -3}}, "give a value like 64"),
    ({"options": {"window_size": True}}, "give a value like 64"),
    ({"options": {"window_size": 10**20}}, "tiny-llama has 128 positions"),
    ({"options": {"window_size": 0}}, "cannot choose among"),
    ({"options": {"kernel_size": 4}}, "cannot choose among"),
    ({"name": "CUR", "options": {"use_random_leverage": True}}, "global generator"),
    ({"name": "ExpectedAttention", "when": "window"}, "use when=context"),
    ({"when": "window", "N": 20}, "use N=65"),
]


@pytest.mark.parametrize(("settings", "sentence"), REFUSALS)
def test_presses_that_cannot_be_used_are_refused(settings: dict[str, Any], sentence: str, llama: Backbone) -> None:
    with pytest.raises(UserError, match=sentence):
        Press(llama, PressConfig.parse(settings))


@needs_kvpress
@pytest.mark.parametrize(("settings", "sentence"), OF_OPTIONS)
def test_options_that_do_not_fit_are_refused(settings: dict[str, Any], sentence: str, llama: Backbone) -> None:
    with pytest.raises(UserError, match=sentence):
        Press(llama, PressConfig.parse(settings))


@needs_kvpress
def test_presses_that_need_queries_know_few_models() -> None:
    olmo = load("tiny-olmo2", device="cpu")
    with pytest.raises(UserError, match="choose Knorm or KeyDiff"):
        Press(olmo)
    assert int(read(Press(olmo, PressConfig(name="Knorm")), text(40), ahead=Lengths(40)).kv.used_B) == 20


def test_without_kvpress_it_says_how_to_install_it(llama: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presses.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"pip install --no-deps kvpress==0\.5\.5 && pip install cachetools"):
        Press(llama)


@needs_kvpress
def test_a_press_that_does_more_than_choose_is_refused(llama: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = presses.kvpress().KnormPress
    compress = kind.compress
    monkeypatch.setattr(kind, "compress", lambda *args: [x * 2 for x in compress(*args)])
    with pytest.raises(UserError, match="changes keys or values"):
        Press(llama, PressConfig(name="Knorm"))
