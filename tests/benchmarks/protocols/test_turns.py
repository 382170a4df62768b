"""Several questions about a context: what has been read when each of them is asked, and what that costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_answers import EXACT, OTHER, FakeMeter
from test_states import built

from contextlab import backbone as backbones
from contextlab import process, registry
from contextlab.accounting.ledger import Ledger, Meter
from contextlab.benchmarks.examples import Question, Reading
from contextlab.benchmarks.prompts import prompt
from contextlab.benchmarks.protocols import answers, turns
from contextlab.benchmarks.protocols.answers import AnswerProtocol, ContextForm, QuestionProtocol, RankProtocol
from contextlab.benchmarks.protocols.references import ReferenceProtocol
from contextlab.benchmarks.task import Options
from contextlab.errors import UserError
from contextlab.harness import together
from contextlab.method import Lengths

PROMPTS = ("document-question", "question")
SHORT = ("recall-question", "recall-question")
METHODS = ("full", "sliding", "longmem", "generative-adapter", "closed-book")
MODES: tuple[Any, ...] = ("requests", "gold", "own", "prompts")
WORDS = st.text("ab c.", min_size=1, max_size=9).filter(str.strip)


class Remembering(FakeMeter):
    """A byte model whose states are texts; it answers with the number of questions in what it has read."""

    def start(self, batch_size: int = 1, *, ahead: Lengths | None = None) -> Any:
        self.ahead = ahead
        self.asked: list[str] = getattr(self, "asked", [])
        return SimpleNamespace(text="", length_B=torch.zeros(1), device=torch.device("cpu"))

    def read(self, phase: str, state: Any, tokens_BT: Any, *, logprobs: bool) -> tuple[Any, None]:
        text = bytes(tokens_BT[0].tolist()).decode()
        if phase == "contextualize":
            self.read_texts.append(text)
        return SimpleNamespace(text=state.text + text, length_B=torch.zeros(1), device=state.device), None

    def generate(self, phase: str, state: Any, prompts: Sequence[Sequence[int]], **options: Any) -> list[list[int]]:
        texts = [state.text + bytes(tokens).decode() for tokens in prompts]
        self.asked += texts
        return [list(f" {self.written_by_model(text)}\nmore".encode()) for text in texts]

    def score(self, phase: str, state: Any, candidates: Sequence[Sequence[int]]) -> torch.Tensor:
        """Prefers the option `another`."""
        texts = [state.text + bytes(candidate).decode() for candidate in candidates]
        self.asked.append(texts[0])
        longest = max(map(len, candidates))
        return torch.tensor([[[-1.0 if text.endswith("another") else -2.0] * longest for text in texts]])

    @staticmethod
    def written_by_model(text: str) -> str:
        return f"{text.count('Question:')} seen"


def reading(*pairs: tuple[str, str], context: str = "It is told. Once.") -> Reading:
    questions = [
        Question(f"q{n}", text, (answer, "else"), (answer, "another")) for n, (text, answer) in enumerate(pairs)
    ]
    return Reading("own", "own", context, tuple(questions))


def answered(mode: Any, example: Reading, meter: Remembering, **options: Any) -> tuple[list[str], dict[str, Any]]:
    """What the method has read before each answer, and the record."""
    protocol = AnswerProtocol(PROMPTS, Options(turns=mode, **options), EXACT, max_new_tokens=9)
    record = protocol.evaluate(meter, example, OTHER)
    return meter.asked, record


def transcript(example: Reading, answers: Sequence[str]) -> list[str]:
    """What stands before each answer, where all earlier questions stay, with these answers."""
    text, before = example.context, []
    for question, answer in zip(example.questions, answers, strict=True):
        text += "\n\n" + prompt("document-question").format(text=question.text)
        before.append(text)
        text += f" {answer}" if answer else ""
    return before


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(WORDS, WORDS.map(str.strip)), min_size=1, max_size=4), st.booleans())
def test_every_mode_reads_what_it_says_before_an_answer(pairs: list[tuple[str, str]], exact: bool) -> None:
    example = reading(*pairs)
    protocol = AnswerProtocol(PROMPTS, Options(), EXACT)
    alone = [protocol.whole(example, question) for question in example.questions]
    for mode in ("requests", "prompts"):
        meter = Remembering(exact_streaming=exact)
        texts, record = answered(mode, example, meter)
        assert texts == alone
        assert meter.read_texts == [example.context] * (len(pairs) if mode == "prompts" else 1)
        assert all("turn" not in entry for entry in record["questions"])
    gold, record = answered("gold", example, Remembering(exact_streaming=exact))
    assert gold == transcript(example, [answer for _, answer in pairs])
    assert [entry["turn"] for entry in record["questions"]] == [n + 1 for n in range(len(pairs))]
    own, record = answered("own", example, Remembering(exact_streaming=exact))
    assert own == transcript(example, [entry["prediction"] for entry in record["questions"]])
    assert [entry["prediction"] for entry in record["questions"]] == [f"{n + 1} seen" for n in range(len(pairs))]


@pytest.mark.parametrize("exact", [True, False])
def test_the_option_that_stays_is_the_right_one_or_the_chosen_one(exact: bool) -> None:
    example = reading(("a", "one"), ("b", "two"))
    for mode, stays in (("gold", "one"), ("own", "another")):
        meter = Remembering(exact_streaming=exact)
        RankProtocol(SHORT, Options(turns=mode)).evaluate(meter, example, OTHER)
        assert meter.asked[-1] == f"It is told. Once.\n\nQuestion: a\nAnswer: {stays}\n\nQuestion: b\nAnswer: two"


@pytest.mark.parametrize("mode", ["gold", "own"])
def test_controls_and_methods_without_a_context(mode: Any) -> None:
    example = reading(("a", "one"), ("b", "two"))
    first, second = (prompt("question").format(text=text) for text in "ab")
    answer = {"gold": "one", "own": "1 seen"}[mode]
    assert answered(mode, example, Remembering(), context="none")[0] == [first, f"{first} {answer}\n\n{second}"]
    closed = Remembering(uses_context=False, exact_streaming=False)
    texts, _ = answered(mode, example, closed)
    assert [text.removeprefix(example.context) for text in texts][:1] == [first]
    assert closed.ahead == Lengths(17, len(first) + len(second) + (18 if mode == "own" else 9))
    wrong, _ = answered(mode, example, Remembering(), context="wrong")
    assert all(text.startswith(OTHER.context[-17:]) for text in wrong)


def test_a_method_without_a_context_is_asked_each_question_alone() -> None:
    example = reading(("a", "one"), ("b", "two"))
    meter = FakeMeter(uses_context=False, exact_streaming=False)
    AnswerProtocol(PROMPTS, Options(turns="gold"), EXACT).evaluate(meter, example, OTHER)
    assert meter.prompts == [[prompt("question").format(text=text)] for text in "ab"]


def test_turns_in_a_prompt_of_ones_own_and_in_a_chat_template() -> None:
    example = reading(("a", "one"), ("b", "two"))
    for tail, between in (("\nQ: {text}\nA:", "\n"), ("{text}", "\n\n")):
        meter = Remembering()
        form = ContextForm("Read: ", "")
        protocol = AnswerProtocol((tail, tail.lstrip()), Options(turns="gold"), EXACT, form=form)
        protocol.evaluate(meter, example, OTHER)
        first = "Read: It is told. Once." + tail.format(text="a")
        assert meter.asked == [first, f"{first} one{between}{tail.lstrip().format(text='b')}"]
    for wording, context in (("chat", "<u>It is told. Once.\n\n"), ("chat-question", "It is told. Once.<u>")):
        meter = Remembering()
        meter.backbone.tokenizer = SimpleNamespace(
            all_special_ids=[255], chat_template="x", bos_token="<s>", apply_chat_template=chat
        )
        protocol = AnswerProtocol(("Q: {text}", "{text}"), Options(turns="gold"), EXACT, wording=wording, bare="{text}")
        protocol.evaluate(meter, example, OTHER)
        q = "Q: " if wording == "chat" else ""
        assert meter.asked == [f"{context}{q}a</u>\n", f"{context}{q}a</u>\none</a>\n<u>{q}b</u>\n"]


def chat(messages: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool) -> str:
    assert add_generation_prompt
    return "<s>" + "".join(f"<{m['role'][0]}>{m['content']}</{m['role'][0]}>\n" for m in messages).replace("<a>", "")


def test_an_empty_answer_leaves_no_space_and_a_given_beginning_stays() -> None:
    silent = Remembering()
    silent.written_by_model = lambda text: ""  # type: ignore[method-assign]
    example = reading(("a", ""), ("b", "two"))
    assert (
        answered("own", example, silent)[0]
        == answered("gold", example, Remembering())[0]
        == transcript(example, ["", ""])
    )
    with_prefix = dataclasses.replace(example.questions[0], prefix=" The answer is", answers=("one",))
    example = dataclasses.replace(example, questions=(with_prefix, example.questions[1]))
    assert "Answer: The answer is one\n\n## Instruction" in answered("gold", example, Remembering())[0][1]
    spaced = dataclasses.replace(example.questions[1], id="q2", prefix=" It is: ")
    example = dataclasses.replace(example, questions=(example.questions[1], spaced, with_prefix))
    assert "Answer: It is: two\n\n## Instruction" in answered("gold", example, Remembering())[0][2]


@pytest.mark.parametrize("mode", ["gold", "own"])
def test_the_lengths_of_all_turns_are_announced_and_must_fit(mode: Any) -> None:
    example = reading(("a", "one"), ("b", "two"), ("c", "three"))
    meter = Remembering()
    texts, _ = answered(mode, example, meter)
    shorter = len(texts[-1]) + 9 if mode == "gold" else len(transcript(example, ["", "", ""])[-1]) + 3 * 9
    assert meter.ahead == Lengths(17, shorter - 17)
    answered(mode, example, Remembering(max_context=shorter))
    refused = Remembering(max_context=shorter - 1)
    with pytest.raises(UserError, match="reads at most"):
        answered(mode, example, refused)
    assert not refused.read_texts


def test_own_answers_that_need_more_tokens_than_they_were_written_with_are_refused_in_time() -> None:
    example = reading(("a", "one"), ("b", "two"), ("c", "three"))
    needed = len(transcript(example, ["x" * 900] * 3)[-1]) + 9
    for room in (needed, needed - 1):
        meter = Remembering(max_context=room)
        meter.written_by_model = lambda text: "x" * 900  # type: ignore[method-assign]
        if room == needed:
            answered("own", example, meter)
        else:
            with pytest.raises(UserError, match=f"reads at most {room} tokens"):
                answered("own", example, meter)
        assert len(meter.asked) == (3 if room == needed else 2)


def test_a_mode_with_turns_has_another_prompt_and_no_text_for_single_questions() -> None:
    example = reading(("a", "one"))
    protocols_by_mode = {mode: AnswerProtocol(PROMPTS, Options(turns=mode), EXACT) for mode in MODES}
    assert (
        protocols_by_mode["requests"].prompt == protocols_by_mode["prompts"].prompt == "\n\n".join(map(prompt, PROMPTS))
    )
    assert len({protocol.prompt for protocol in protocols_by_mode.values()}) == 3
    assert protocols_by_mode["prompts"].whole(example, example.questions[0]) == protocols_by_mode["requests"].whole(
        example, example.questions[0]
    )
    for mode in ("gold", "own"):
        with pytest.raises(UserError, match=f"With turns={mode} no question has a text of its own"):
            protocols_by_mode[mode].whole(example, example.questions[0])


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_turns_that_share_a_metric_follow_each_other(first: int, second: int) -> None:
    names = [turns.group(min(first, second)), turns.group(max(first, second))]
    bounds = [[int(end) for end in (*name.split("-"), *name.split("-"))][:: 3 if "-" in name else 1] for name in names]
    for turn, (low, high) in zip((min(first, second), max(first, second)), bounds, strict=True):
        assert low <= turn <= high
    assert names[0] == names[1] or bounds[0][1] < bounds[1][0]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=11), min_size=1, max_size=4))
def test_metrics_by_turn_are_means_over_the_questions_of_a_turn(groups: list[list[int]]) -> None:
    protocol = AnswerProtocol(PROMPTS, Options(turns="own"), EXACT)
    entries = [[{"turn": n + 1, "exact_match": value} for n, value in enumerate(group)] for group in groups]
    records = [{"id": str(n), "work": str(n), "questions": group} for n, group in enumerate(entries)]
    metrics = protocol.summarise(records)
    assert next(iter(metrics)) == "exact_match"
    assert metrics["exact_match"].n == sum(map(len, groups))
    for turn in range(1, 9):
        values = [group[turn - 1] for group in groups if len(group) >= turn]
        name = f"exact_match_turn_{turn}"
        assert (name in metrics) == bool(values)
        if values:
            assert metrics[name].value == pytest.approx(sum(values) / len(values))
            assert (metrics[name].low is None) == (len(values) == 1)
    assert sum(metric.n for name, metric in metrics.items() if "_turn_" in name) == metrics["exact_match"].n
    for group in entries:
        for entry in group:
            del entry["turn"]
    assert list(protocol.summarise(records)) == ["exact_match"]


@pytest.fixture(scope="module")
def tiny() -> Any:
    return backbones.load("tiny-llama", device="cpu")


TURNS = (("Who?", "Ada"), ("Where?", "in Rome"), ("Why so?", "b"))
BRIEF = ("Q {text}:", "Q {text}:")
PROTOCOLS: dict[str, Any] = {
    "written": lambda mode: AnswerProtocol(BRIEF, Options(turns=mode), EXACT, max_new_tokens=4),
    "ranked": lambda mode: RankProtocol(BRIEF, Options(turns=mode)),
    "references": lambda mode: ReferenceProtocol(BRIEF, Options(turns="gold" if mode == "own" else mode)),
}


def story(method: Any, turns: Sequence[tuple[str, str]] = TURNS) -> Reading:
    """A text of several segments, or one that fits with all its turns where a method reads no more."""
    return reading(*turns, context="Ada hid the key in Rome. " * (3 if method.capabilities.max_context is None else 1))


def evaluated(
    method: Any, kind: str, mode: Any, example: Reading, *, counting: bool = True
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The records of all questions, and the costs by phase."""
    meter = Meter(method, Ledger("cpu", counting=counting))
    with process.seeded(0), torch.set_grad_enabled(method.capabilities.needs_gradients):
        record = PROTOCOLS[kind](mode).evaluate(meter, example, OTHER)
    kept = ("flops", "flops_formula", "tokens")
    costs = meter.take()["cost"]
    return record["questions"], {phase: {name: cost[name] for name in kept} for phase, cost in costs.items()}


@pytest.mark.parametrize("kind", PROTOCOLS)
@pytest.mark.parametrize("name", METHODS)
def test_reading_the_context_again_changes_its_cost_alone(
    tiny: Any, name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "AT_ONCE", 1)
    method = built(name, tiny)
    (once, paid), (again, paid_again) = (
        evaluated(method, kind, mode, story(method)) for mode in ("requests", "prompts")
    )
    assert again == once
    assert paid_again["query"] == paid["query"]
    expected = {key: value and len(TURNS) * value for key, value in paid["contextualize"].items()}
    assert paid_again["contextualize"] == expected


@pytest.mark.parametrize("name", METHODS)
def test_every_token_of_the_turns_is_read_once_and_counted_by_formula(tiny: Any, name: str) -> None:
    method = built(name, tiny)
    example = story(method)
    _, paid = evaluated(method, "ranked", "gold", example)
    assert all(cost["flops"] == cost["flops_formula"] for cost in paid.values())
    assert paid["contextualize"]["tokens"] == len(example.context.rstrip())
    if method.capabilities.exact_streaming:
        options = sum(len(f" {option}") for question in example.questions for option in question.options)
        dialogue = "".join(f"\n\nQ {text}: {answer}" for text, answer in TURNS).removesuffix(f" {TURNS[-1][1]}")
        assert paid["query"]["tokens"] == len(dialogue) + options


@pytest.mark.parametrize("kind", PROTOCOLS)
@pytest.mark.parametrize("name", METHODS)
def test_the_first_turn_is_a_request(tiny: Any, name: str, kind: str) -> None:
    method = built(name, tiny)
    example = story(method, TURNS[:1])
    (request,), paid = evaluated(method, kind, "requests", example)
    for mode in ("gold", "own"):
        (turn,), costs = evaluated(method, kind, mode, example)
        assert turn == {**request, "turn": 1}
        assert costs == paid


def unchanged(method: Any, kind: str, mode: Any) -> bool:
    """Whether an answer stays bitwise the same when a later question is another one of the same length."""
    example = story(method)
    later = dataclasses.replace(example.questions[1], text="Whose?", answers=("in Oslo",), options=("in Oslo", "b"))
    changed = dataclasses.replace(example, questions=(example.questions[0], later, example.questions[2]))
    first, second = (evaluated(method, kind, mode, reading, counting=False)[0] for reading in (example, changed))
    return first[0] == second[0]


@pytest.mark.parametrize("mode", turns.MULTI_TURN)
@pytest.mark.parametrize("name", METHODS)
def test_no_later_question_changes_an_answer(tiny: Any, name: str, mode: Any) -> None:
    assert all(unchanged(built(name, tiny), kind, mode) for kind in PROTOCOLS)


def test_a_mode_that_reads_ahead_is_noticed(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug reads the second question before it answers the first."""

    def leaking(protocol: Any, meter: Any, example: Any, context: list[int]) -> Any:
        ahead = protocol.sequences(meter, example, 1, None, True)[0]
        return turns._multi_turn(protocol, meter, example, context + ahead)

    monkeypatch.setitem(turns.MODES, "gold", leaking)
    assert not unchanged(built("sliding", tiny), "ranked", "gold")


@pytest.mark.parametrize("kind", PROTOCOLS)
def test_turns_are_the_same_in_batches(tiny: Any, kind: str) -> None:
    method, protocol = built("sliding", tiny), PROTOCOLS[kind]("own")
    examples = [story(method, TURNS[:count]) for count in (1, 3, 2)]

    def evaluation(example: Reading) -> Any:
        return lambda meter: (protocol.evaluate(meter, example, OTHER), meter.take()["cost"]["query"]["flops"])

    with torch.no_grad():
        sides = [(evaluation(example), process.RandomTurns(0)) for example in examples]
        batch = together.evaluated(method, sides, counting=True)
        alone = [evaluation(example)(Meter(method, Ledger("cpu"))) for example in examples]
    for (record, flops), (expected, counted) in zip(batch, alone, strict=True):
        assert flops == counted
        for entry, other in zip(record["questions"], expected["questions"], strict=True):
            nats = {name: pytest.approx(other[name], abs=1e-4) for name in ("nats", "nats_per_token") if name in other}
            assert entry == {**other, **nats}


@pytest.mark.parametrize(
    "name", ["squad", "streamingqa", "msc", "locomo", "needle", "questions", "choices", "squad-icl", "metaicl"]
)
def test_tasks_with_several_questions_about_a_context_have_the_modes(name: str) -> None:
    plain = registry.task(name)
    split = plain.default_split
    for mode in MODES:
        task = registry.task(name, {"turns": mode})
        protocol = task.protocol(split)
        assert isinstance(protocol, QuestionProtocol)
        assert protocol.options.turns == mode
        default = mode == "requests"
        assert task.spelled(split) == (split if default else f"{split}(turns={mode})")
        assert (protocol.prompt == plain.protocol(split).prompt) == (mode in ("requests", "prompts"))
    with pytest.raises(UserError, match=f"turns='all' of {name} is not valid"):
        registry.task(name, {"turns": "all"})


@pytest.mark.parametrize("name", ["situatedqa", "msc-ppl", "pg22", "chapterbreak", "icl", "labels", "texts", "sst2"])
def test_other_tasks_refuse_them(name: str) -> None:
    with pytest.raises(UserError, match="turns"):
        registry.task(name, {"turns": "gold"})
