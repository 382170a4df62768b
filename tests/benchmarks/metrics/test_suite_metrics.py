"""Scores of other suites: their rules, and the same numbers as lm-evaluation-harness where it has them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from contextlab.benchmarks.examples import Question
from contextlab.benchmarks.metrics import lists
from contextlab.benchmarks.metrics.suites import EXTRAS, PACKAGES, SCORES, check_installed
from contextlab.errors import UserError

WORDS = st.lists(st.sampled_from(["the", "Red", "red.", "dog", "a", "42", "7", "Paragraph", "#", "x = 1", "\n", ","]))
TEXTS = WORDS.map(" ".join)
CHINESE = st.text("我在北京大学\uff0c。 aA\n", max_size=12)
CHOICES = st.lists(
    st.sampled_from(["A", "B", "D.", "answer is", "answer is:", "blue", "BLUE car", "the", "\n", "Option", "AB", "is:"])
).map(" ".join)


def question(answers: Sequence[str], options: Sequence[str] = (), **details: Any) -> Question:
    return Question("q", "?", tuple(answers), tuple(options), details)


def score(metric: str, text: str, *answers: str, **more: Any) -> float:
    return SCORES[metric](text, question(answers, **more))


def longbench() -> Any:
    for package in ("jieba", "rouge", "fuzzywuzzy"):
        pytest.importorskip(package)
    return pytest.importorskip("lm_eval.tasks.longbench.metrics")


def infinitebench() -> Any:
    return pytest.importorskip("lm_eval.tasks.infinitebench.utils")


# By metric: the function of lm-eval, which strips the text of an answer first.
LONGBENCH = {
    "f1": "qa_f1_score",
    "f1_chinese": "qa_f1_zh_score",
    "rouge_l_sentences": "rouge_score",
    "rouge_l_chinese": "rouge_zh_score",
    "code_line": "code_sim_score",
}


@pytest.mark.parametrize("metric", LONGBENCH)
@given(data=st.data())
def test_longbench_scores_are_lm_evals(metric: str, data: st.DataObject) -> None:
    texts = CHINESE if "chinese" in metric else TEXTS
    text, answer = data.draw(texts), data.draw(texts.filter(str.strip))
    if metric == "code_line":
        text = "\n".join(line for line in text.split("\n") if line.strip())
    expected = getattr(longbench(), LONGBENCH[metric])(text, answer)
    assert math.isclose(score(metric, text, answer), expected, abs_tol=1e-12)


@given(TEXTS, st.sampled_from(["7", "42", "12"]))
def test_numbers_are_lm_evals(text: str, answer: str) -> None:
    utils = longbench()
    assert score("numbers", text, answer) == utils.count_score(text, answer)
    assert score("numbers", text, f"Paragraph {answer}") == utils.retrieval_score(text, f"Paragraph {answer}")
    assert score("numbers", text, f"段落{answer}") == utils.retrieval_zh_score(text, f"段落{answer}")


CLASSES = ["ab", "abc", "abcd", "b", "bc", "e"]


@given(st.text("abcde ", max_size=12), st.sampled_from(CLASSES), st.permutations(CLASSES))
@example("ab abc abcd", "abcd", CLASSES)
def test_classes_are_lm_evals_with_the_one_that_is_passed_over(text: str, answer: str, names: list[str]) -> None:
    expected = longbench().classification_score(text, answer, all_classes=names)
    assert score("classes", text, answer, options=names) == expected


INFINITEBENCH = {
    "word": "process_results_kv",
    "first_number": "process_results_int_match",
    "first_value": "process_results_math",
    "last_integer": "process_results_code_run",
    "contains": "process_results",
}


@pytest.mark.parametrize("metric", INFINITEBENCH)
@given(text=TEXTS, answer=st.sampled_from(["42", "7"]))
def test_infinitebench_scores_are_lm_evals(metric: str, text: str, answer: str) -> None:
    function = getattr(infinitebench(), INFINITEBENCH[metric])
    assert score(metric, text, answer) == function({"answer": [answer]}, [text])["score"]


@given(TEXTS, TEXTS.filter(str.strip))
def test_characters_and_words_are_lm_evals(text: str, answer: str) -> None:
    expected = infinitebench().process_results_qa_chn({"answer": [answer]}, [text])["score"]
    assert math.isclose(score("f1_characters", text, answer), expected)


@given(CHOICES)
@example("The answer is: blue")
@example("I would say D. Or rather B")
def test_what_lm_eval_takes_for_the_right_choice_is_right(text: str) -> None:
    """The reverse does not hold: where the letter that stands alone is wrong, only upstream's code looks further."""
    record = {"answer": ["blue"], "options": ["red", "blue", "green", "white"]}
    line = text.replace("\n", " ")
    if infinitebench().process_results_choice(record, [line])["score"] == 1:
        assert score("letter", line, "blue", "B") == 1


@pytest.mark.parametrize(
    ("metric", "text", "answers", "value"),
    [
        ("letter", "B", ("blue", "B"), 1),
        ("letter", "B is wrong, D", ("blue", "B"), 1),
        ("letter", "blue", ("blue", "B"), 1),
        ("letter", "The answer is: blue", ("blue", "B"), 1),
        ("letter", "The answer is: red", ("blue", "B"), 0),
        ("letter", "", ("blue", "B"), 0),
        ("letter_or_function", "load_all", ("load_all", "C"), 1),
        ("letter_or_function", "The answer is: load_all", ("load_all", "C"), 1),
        ("letter_or_function", "E", ("load_all", "C"), 0),
        ("letter_or_function", "E, then C", ("load_all", "C"), 1),
        ("stated_letter", "**The correct answer is (C)**", ("C",), 1),
        ("stated_letter", "The correct answer is C.", ("C",), 1),
        ("stated_letter", "C", ("C",), 0),
        ("code_line", "# note\n```\nreturn 3\nx", ("return 3",), 1),
        ("code_line", "return 3", ("return 4",), 0.88),
        ("code_line", "`", ("return 4",), 0),
        ("last_integer", "It is -7.", ("-7",), 1),
        ("last_integer", "", ("-7",), 0),
        ("first_value", "about 3.50 of 4", ("3.5",), 1),
        ("contains_normalised", "It was the Beatles, he said", ("Beatles",), 1),
        ("contains_normalised", "Beat les", ("Beatles",), 0),
        ("rouge_l_sum", "one two\nthree", ("one two\nthree",), 1),
        ("listed_answer", "TITLE: x | ID: 3\n**Final Answer: ['the day']**", ("Day", "x"), 1),
        ("listed_answer", "the day", ("day",), 0),
        ("listed_all", "Final Answer: ['the moon', 'sun']", ("Sun", "Moon"), 1),
        ("listed_all", "Final Answer: ['moon']", ("Sun", "Moon"), 0),
        ("listed_all", "Final Answer: []", ("Sun",), 0),
        ("recall_1", "Final Answer: [3, 4]", ("4", "3"), 0.5),
        ("recall_all_2", "Final Answer: ['3', '4', '5']", ("4", "3", "9"), 1),
        ("recall_all_3", "Final Answer: [3, 4]", ("4", "3"), 1),
        ("recall_all_5", "Final Answer: [3]", ("4", "3"), 0),
    ],
)
def test_answers_have_the_score_of_the_rule(metric: str, text: str, answers: tuple[str, ...], value: float) -> None:
    if metric == "rouge_l_sum":
        pytest.importorskip("rouge_score")
    assert score(metric, text, *answers) == pytest.approx(value)


def test_abstention_is_told_by_words_and_all_else_by_f1() -> None:
    abstention = question(["You did not mention it."], ability="abstention")
    for text, value in (
        ("You didn\u2019t mention a cat.", 1.0),
        ("There is no information on it.", 1.0),
        ("Two.", 0.0),
    ):
        assert SCORES["f1_or_refusal"](text, abstention) == value
    assert SCORES["f1_or_refusal"]("two dogs", question(["dogs"], ability="multi-session")) == pytest.approx(2 / 3)


@given(st.lists(st.text("ab' 1", max_size=5).map(str.strip).filter(lambda text: not set(text) & {"'"})))
def test_a_written_list_is_read_again(items: list[str]) -> None:
    assert lists.listed(f"Because.\nFinal Answer: {items}\n[9]") == items


@pytest.mark.parametrize("text", ["", "[", "]", "[a]", "[1", "x ] [", "[[", "[" * 5000 + "]" * 5000, "['a' 'b', {}"])
def test_what_is_no_list_has_no_items(text: str) -> None:
    assert all(isinstance(item, str) for item in lists.listed(text))


@pytest.mark.parametrize("metric", SCORES)
@settings(max_examples=30)
@given(text=st.one_of(TEXTS, CHOICES, CHINESE), answers=st.lists(TEXTS.filter(str.strip), min_size=2, max_size=3))
def test_every_score_is_a_number_from_0_to_1(metric: str, text: str, answers: list[str]) -> None:
    for package in PACKAGES.get(metric, ()):
        pytest.importorskip(package)
    value = SCORES[metric](text, question(answers, answers, ability="multi-session"))
    assert 0 <= value <= 1


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check_installed(["f1", "numbers"])
    with pytest.raises(UserError, match=r"rouge_l_chinese needs jieba: pip install 'contextlab\[longbench\]'\."):
        check_installed(["f1", "rouge_l_chinese"])
    assert {package for packages in PACKAGES.values() for package in packages} == EXTRAS.keys()
