"""Our RULER beside that of lm-evaluation-harness: templates, parameters, and the score of the same records."""

from __future__ import annotations

import random
import re
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lm_eval.tasks.ruler import common_utils, cwe_utils, fwe_utils, niah_utils, prepare_niah, qa_utils, vt_utils

from contextlab.benchmarks.data.ruler.extraction import CommonWords, FrequentWords, example
from contextlab.benchmarks.data.ruler.needles import DEPTHS, Needles
from contextlab.benchmarks.data.ruler.variables import Variables
from contextlab.benchmarks.data.ruler.variants import NAMES, variant
from contextlab.benchmarks.data.ruler.words import listed, single_words
from contextlab.benchmarks.examples import Question
from contextlab.benchmarks.protocols.ruler import string_match

HAYSTACKS = {"noise": "repeat", "essay": "essay", "needle": "needle"}
ESSAY = [f"Sentence {n} is about nothing." for n in range(30)]
WRITTEN = st.lists(st.sampled_from(["ann", "BO", "7", "77", "\t", "\x01", "\n", " and "]), max_size=6).map("".join)


def theirs(name: str, units: int) -> tuple[str, list[str]]:
    """The whole prompt that the harness writes for a variant with needles, and the answers."""
    form = variant(name)
    numbers = {key: value for key, value in form.args.items() if key.startswith("num")}
    numbers["num_needle_k"] = max(numbers["num_needle_k"], numbers["num_needle_q"])
    kind = form.args["type_haystack"]
    haystack: Any = " ".join(ESSAY).split() if kind == "essay" else prepare_niah.get_haystack(HAYSTACKS[kind])
    text, answers, _ = prepare_niah.generate_input_output(
        units,
        haystack,
        type_haystack=HAYSTACKS[kind],
        type_needle_k=form.args["type_needle_k"],
        type_needle_v=form.args["type_needle_v"],
        template=niah_utils.TEMPLATE,
        **numbers,
    )
    return text, answers


def form_of(text: str) -> Counter[str]:
    """The words of a prompt, without what is drawn."""
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "UUID", text)
    text = re.sub(
        r"(?<=for )[\w'.-]+-[\w'.-]+(?= )|(?<=, )[\w'.-]+-[\w'.-]+(?=,)|(?<=and )[\w'.-]+-[\w'.-]+", "K", text
    )
    return Counter(re.sub(r"\d{7}", "N", re.sub(r"for \S+?(,?) ", r"for K\1 ", text)).split())


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("niah")])
def test_prompts_with_needles_have_the_same_words_apart_from_what_is_drawn(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare_niah, "cached_sent_tokenize", lambda text: re.split(r"(?<=\.) ", text))
    random.seed(0)
    form = variant(name)
    text, answers = theirs(name, 60)
    prompt = Needles(form, form.args["type_haystack"], ESSAY, "x", 42).prompt(60)
    assert form_of(prompt.context + prompt.question) == form_of(text)
    assert len(prompt.answers) == len(answers)


def test_words_and_depths_are_the_same() -> None:
    assert sorted(set(prepare_niah.adjs)) == list(listed("adjective"))
    assert sorted(set(prepare_niah.nouns)) == list(listed("noun"))
    assert sorted(cwe_utils.WORDS) == list(single_words())
    assert [int(depth) for depth in prepare_niah.DEPTHS] == list(DEPTHS)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("cwe", cwe_utils.CONFIG),
        ("fwe", fwe_utils.CONFIG),
        ("vt", vt_utils.CONFIG["variable_tracking"]),
        ("qa_1", qa_utils.CONFIG),
        ("qa_2", qa_utils.CONFIG),
    ],
)
def test_templates_are_the_same(name: str, config: dict[str, Any]) -> None:
    form = variant(name)
    assert form.template == config["template"]
    # The harness has a misspelled word, and gives the space before an answer apart.
    assert form.prefix.strip() == config["answer_prefix"].replace("assgined", "assigned").strip()
    assert form.new_tokens == config["tokens_to_generate"]
    assert variant("niah_single_1").template == niah_utils.TEMPLATE


@pytest.mark.parametrize("limit", [4095, 4096])
def test_words_are_as_common_as_there_and_so_is_the_example(limit: int) -> None:
    shown, text, answers = cwe_utils.generate_input_output(50, limit)
    prompt = CommonWords(variant("cwe"), "x", limit).prompt(50)

    def counts(written: str) -> list[int]:
        entries = written.partition("most often.\n")[2].partition("\nQuestion")[0]
        return sorted(Counter(re.findall(r"\d+\. (\D+?)(?= \d|$)", entries)).values())

    assert counts(prompt.context) == counts(text)
    assert counts(example(variant("cwe"), "x", limit)) == counts(shown)
    assert len(prompt.answers) == len(answers)


def test_coded_words_are_as_frequent_as_there() -> None:
    tokenizer = lambda text: SimpleNamespace(input_ids=text.split())  # noqa: E731
    limit = 1050
    text, answers, _ = fwe_utils.generate_input_output(10_000, tokenizer, num_words=900, vocab_size=20)
    prompt = FrequentWords(variant("fwe"), "x", limit).prompt(900)

    def counts(written: str) -> list[int]:
        return sorted(Counter(written.partition("coded words. ")[2].partition("\n")[0].split()).values())

    assert counts(prompt.context) == counts(text)
    assert len(prompt.answers) == len(answers)


def test_chains_are_written_as_there() -> None:
    names, ((first, *others),) = vt_utils.generate_chains(1, 4)
    shown = [line for line in Variables(variant("vt"), "x").prompt(9).context.split("\n") if line.startswith("VAR")]
    drawn = re.compile("[A-Z]{5}|[0-9]{5}")
    assert [drawn.sub("X", line) for line in shown] == [drawn.sub("X", line) for line in (first, *others)]
    assert len(names[0]) == len(shown)


@given(WRITTEN, st.lists(st.sampled_from(["Ann", "Bo", "7"]), min_size=1, max_size=4))
def test_a_record_has_the_score_of_the_harness(written: str, answers: list[str]) -> None:
    record = {"max_length": 4096, "outputs": answers}
    question = Question("1", "?", tuple(answers), details={"task": "vt"})
    assert string_match(written, question) == pytest.approx(common_utils.process_results(record, [written])["4096"])


@given(WRITTEN, st.sampled_from(["Ann", "Bo", "7"]))
def test_a_question_with_one_answer_has_the_score_of_the_harness(written: str, answer: str) -> None:
    record = {"max_length": 4096, "outputs": [answer]}
    question = Question("1", "?", (answer,), details={"task": "qa_1"})
    assert string_match(written, question) == common_utils.process_results_part(record, [written])["4096"]


def test_of_several_answers_the_harness_takes_the_share_and_upstream_any() -> None:
    record = {"max_length": 4096, "outputs": ["Ann", "Bo"]}
    question = Question("1", "?", ("Ann", "Bo"), details={"task": "qa_1"})
    assert common_utils.process_results_part(record, ["Ann"])["4096"] == 0.5
    assert string_match("Ann", question) == 1.0
