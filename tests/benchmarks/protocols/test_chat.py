from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_answers import EXACT, OTHER, OWN, PROMPTS, FakeMeter

from contextlab import backbone as backbones
from contextlab import registry
from contextlab.benchmarks.examples import Question
from contextlab.benchmarks.prompts import prompt, user_turn
from contextlab.benchmarks.protocols.answers import AnswerProtocol, RankProtocol
from contextlab.benchmarks.task import Options
from contextlab.errors import UserError

TASKS = {"squad": "512", "streamingqa": "512", "msc": "self-instruct", "metaicl": "k4", "metaicl-written": "k4-written"}


def chatting(**capabilities: Any) -> FakeMeter:
    meter = FakeMeter(**capabilities)

    def apply(messages: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool) -> str:
        assert add_generation_prompt
        assert not tokenize
        return f"<s>[{messages[0]['role']}] {messages[0]['content']} [/]"

    meter.backbone.tokenizer = SimpleNamespace(
        all_special_ids=[255], chat_template="x", bos_token="<s>", apply_chat_template=apply
    )
    return meter


def put(wording: Any, meter: FakeMeter | None = None, **options: Any) -> tuple[dict[str, Any], FakeMeter]:
    meter = meter or chatting()
    protocol = AnswerProtocol(PROMPTS, Options(**options), EXACT, wording=wording)
    return protocol.evaluate(meter, OWN, OTHER), meter  # type: ignore[arg-type]


def test_instruction_and_question_are_apart_by_an_empty_line() -> None:
    for name in ("document-question", "question"):
        instruction, question = prompt(name).split("\n\n")
        assert instruction.startswith("## Instruction: ")
        assert question == "Question: {text}\nAnswer:"
    instruction, item = prompt("metaicl-instructed").split("\n\n")
    assert instruction.startswith("## Instruction: ")
    assert item == prompt("metaicl-item")


def test_context_instruction_and_question_are_one_turn() -> None:
    record, meter = put("chat")
    assert meter.read_texts == ["[user] It is told. Once."]
    (prompts,) = meter.prompts
    question = prompt("document-question").format(text="What is 0?")
    assert prompts[0] == f"\n\n{question} [/]"
    assert record["context_tokens"] == record["own_context_tokens"] == len("[user] It is told. Once.")


def test_the_bare_question_is_a_turn_after_the_plain_context() -> None:
    _, meter = put("chat-question")
    assert meter.read_texts == ["It is told. Once."]
    assert meter.prompts[0][0] == "[user] What is 0? [/]"


def test_white_space_before_an_option_is_read_once() -> None:
    backbone = backbones.load("tiny-llama", device="cpu")
    protocol = RankProtocol(PROMPTS, Options(), wording="chat")
    question = Question("1", "Who?", ("one",), ("one", "two"))
    for text in ("Who? [/]", "Who? [/]\n", "Who? [/] \n\n"):
        prompt, *options = protocol.tokenise(backbone, "Once.", "\n\n" + text, question)
        assert [backbone.decode(prompt + option) for option in options] == [f"\n\n{text} one", f"\n\n{text} two"]


def test_without_a_context_the_turn_is_whole() -> None:
    alone = prompt("question").format(text="What is 0?")
    for _, meter in (put("chat", context="none"), put("chat", chatting(uses_context=False))):
        assert meter.prompts[0][0] == f"[user] {alone} [/]"
    assert put("chat-question", context="none")[1].prompts[0][0] == "[user] What is 0? [/]"
    assert put("chat", context="none")[0]["context_tokens"] == 0


def test_the_wrong_context_is_in_the_same_turn() -> None:
    record, meter = put("chat", context="wrong", tokens=5)
    assert meter.read_texts == ["[user] " + OTHER.context[-5:]]
    assert record["context_tokens"] == record["own_context_tokens"] == 12


def test_a_backbone_without_a_template_is_refused() -> None:
    tiny = backbones.load("tiny-llama", device="cpu")
    with pytest.raises(UserError, match="tiny-llama has no chat template: leave prompt= or chat= out"):
        user_turn(tiny)


def test_the_bos_token_is_not_repeated() -> None:
    assert user_turn(chatting().backbone) == ("[user] ", " [/]")


def test_a_bos_token_that_marks_turns_stays() -> None:
    """As `<|im_start|>` of SmolLM2: without it the first turn would be the only one without its mark."""
    meter = chatting()
    meter.backbone.tokenizer.bos_token = "<turn>"
    meter.backbone.tokenizer.apply_chat_template = lambda messages, **_: (
        f"<turn>user {messages[0]['content']}<end><turn>assistant "
    )
    assert user_turn(meter.backbone) == ("<turn>user ", "<end><turn>assistant ")


@pytest.mark.parametrize("metric", ["f1", "choice"])
def test_questions_of_a_file_are_one_turn_with_their_text(metric: str, tmp_path: Path) -> None:
    row = {"context": "Ada lives in Rome.", "question": "Where is Ada?", "answer": "Rome", "options": ["Rome", "Oslo"]}
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(row) + "\n")
    settings = {"path": str(path), "chat": True, "prompt": "Read this: {context}\\nAsked: {question}", "metric": metric}
    task = registry.task("questions", settings)
    (reading,) = task.load("all", None).examples
    meter = chatting()
    protocol: Any = task.protocol("all")
    sequences = protocol._sequences(meter, reading, reading.questions[0], True)
    context = meter.backbone.decode(protocol._contexts(meter.backbone, reading, reading)[1])
    assert context == "[user] Read this: Ada lives in Rome."
    assert meter.backbone.decode(sequences[0]) == "\nAsked: Where is Ada? [/]"


@pytest.mark.parametrize("name", TASKS)
def test_every_task_of_generative_adapter_has_the_chat_prompt(name: str) -> None:
    task, split = registry.task(name.removesuffix("-written")), TASKS[name]
    protocols: dict[str, Any] = {
        wording: type(task)(task.Config.parse({"prompt": wording})).protocol(split)
        for wording in ("plain", "chat", "chat-question")
    }
    assert {wording: protocol.wording for wording, protocol in protocols.items()} == {w: w for w in protocols}
    assert len({protocol.prompt for protocol in protocols.values()}) == 3
    assert protocols["plain"].prompt == task.protocol(split).prompt
    plain, chat = (registry.task(task.name, {"prompt": wording}) for wording in ("plain", "chat"))
    assert (plain.spelled(split), chat.spelled(split)) == (split, f"{split}(prompt=chat)")
    assert chat.load(split, None) == task.load(split, None)
    reading = task.load(split, None).examples[0]
    with pytest.raises(UserError, match="prompt=chat needs a backbone"):
        protocols["chat"].whole(reading, reading.questions[0])
    with pytest.raises(UserError, match=f"prompt='loud' of {task.name} is not valid"):
        registry.task(task.name, {"prompt": "loud"})
