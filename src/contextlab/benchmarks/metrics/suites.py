"""Scores of written answers as the code of other suites computes them: LongBench, InfiniteBench, HELMET and others.

Every function takes the text that was written and the question, and gives a number from 0 to 1. Where a suite's code
has a peculiarity that changes numbers, it is kept and said.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
import string
from collections.abc import Callable, Iterable, Sequence

from contextlab.benchmarks.examples import Question
from contextlab.benchmarks.metrics import lists, qa
from contextlab.errors import UserError

CHINESE_PUNCTUATION = (
    "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃"  # noqa: RUF001
    "》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏."  # noqa: RUF001
)
CHINESE = str.maketrans("", "", string.punctuation + CHINESE_PUNCTUATION + string.whitespace)
MARKS_OF_COMMENTS = ("`", "#", "//")
LETTER = re.compile(r"\b[A-D]\b(?!.*\b[A-D]\b)")
LETTER_OF_TEN = re.compile(r"\b[A-J]\b(?!.*\b[A-J]\b)")
STATED = tuple(re.compile(rf"The correct answer is {form}") for form in (r"\(([A-D])\)", "([A-D])"))
VALUE = re.compile(r"\d+\.\d+|\d+")
REFUSALS = (
    *("not mention", "n't mention", "no mention", "not provide", "not specif", "no information", "not enough"),
    *("insufficient", "do not know", "don't know", "not know", "cannot answer", "can't answer", "cannot determine"),
)
"""Words that say that the history does not answer the question; the list is this project's."""
Score = Callable[[str, Question], float]


def best(compare: Callable[[str, str], float], text: str, answers: Iterable[str]) -> float:
    """The best score over the answers."""
    return float(max(compare(text, answer) for answer in answers))


def f1(text: str, question: Question) -> float:
    """F1 of words after SQuAD's normalising, the best over the answers."""
    return qa.f1(text, question.answers)


def f1_chinese(text: str, question: Question) -> float:
    """F1 of the words that jieba finds, in lower case and without punctuation (LongBench)."""
    return best(
        lambda text, answer: qa.overlap_f1(_chinese_words(text), _chinese_words(answer)), text, question.answers
    )


def f1_characters(text: str, question: Question) -> float:
    """F1 of characters in lower case, without punctuation and white space (InfiniteBench)."""
    return best(lambda text, answer: qa.overlap_f1(_bare(text), _bare(answer)), text, question.answers)


def rouge_l_sentences(text: str, question: Question) -> float:
    """ROUGE-L of the package `rouge` (LongBench): F of the union of common subsequences over sentences."""
    return best(_rouge, text, question.answers)


def rouge_l_chinese(text: str, question: Question) -> float:
    """The same of the words that jieba finds."""
    return best(lambda text, answer: _rouge(_spaced(text), _spaced(answer)), text, question.answers)


def rouge_l_sum(text: str, question: Question) -> float:
    """ROUGE-Lsum of `rouge-score`, unstemmed (InfiniteBench); lines are its sentences."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeLsum"])
    return best(lambda text, answer: scorer.score(answer, text)["rougeLsum"].fmeasure, text, question.answers)


def classes(text: str, question: Question) -> float:
    """1 / the number of classes that occur in the text, if the right one is among them (LongBench).

    Classes whose names are a part of the right one do not count. As in upstream's loop, the class after one that was
    left out is not looked at, and counts.
    """
    named = [name for name in question.options if name in text]

    def score(_: str, answer: str) -> float:
        counted: list[str] = []
        left_out = False
        for name in named:
            left_out = not left_out and name in answer and name != answer
            counted += [] if left_out else [name]
        return 1 / len(counted) if answer in counted else 0.0

    return best(score, text, question.answers)


def numbers(text: str, question: Question) -> float:
    """The share of the numbers in the text that are the number of the answer (LongBench)."""
    written = re.findall(r"\d+", text)

    def score(_: str, answer: str) -> float:
        right = re.findall(r"\d+", answer)[:1]
        return sum([number] == right for number in written) / len(written) if written else 0.0

    return best(score, text, question.answers)


def code_line(text: str, question: Question) -> float:
    """Similarity to the first line that is no comment and no fence (LongBench).

    It is the ratio of `fuzzywuzzy` without `python-Levenshtein`: that of difflib, rounded to a hundredth.
    """
    rows = text.lstrip("\n").split("\n")
    line = next((row for row in rows if not any(mark in row for mark in MARKS_OF_COMMENTS)), "")

    def score(line: str, answer: str) -> float:
        if not line or not answer:
            return float(line == answer)
        return round(100 * difflib.SequenceMatcher(None, line, answer).ratio()) / 100

    return best(score, line, question.answers)


def first_number(text: str, question: Question) -> float:
    """1 when the first digits of the text are the answer (InfiniteBench)."""
    digits = re.search(r"[0-9]+", text)
    return float(digits is not None and digits[0] == question.answers[0])


def first_value(text: str, question: Question) -> float:
    """1 when the first number of the text, with or without decimals, equals the answer (InfiniteBench)."""
    value = VALUE.search(text)
    return float(value is not None and float(value[0]) == _number(question.answers[0]))


def last_integer(text: str, question: Question) -> float:
    """1 when the last word of the text is the answer (InfiniteBench)."""
    words = _without(text, "\n.`'\":").split()
    whole = re.fullmatch("[+-]?[0-9]+", words[-1] if words else "")
    return float(whole is not None and int(whole[0]) == _number(question.answers[0]))


def word(text: str, question: Question) -> float:
    """1 when the answer is a word of the text (InfiniteBench)."""
    return float(question.answers[0] in _without(text, "\n:\"'.,?!{}").split())


def contains(text: str, question: Question) -> float:
    """1 when an answer occurs in the text, whatever the case."""
    return qa.contains(text, question.answers)


def contains_normalised(text: str, question: Question) -> float:
    """1 when an answer occurs in the text, both normalised as SQuAD does (HELMET)."""
    return float(any(qa.normalise(answer) in qa.normalise(text) for answer in question.answers))


def letter(text: str, question: Question) -> float:
    """1 when the text names the right one of four options, whose text and letter are the answers (InfiniteBench).

    The last letter that stands alone in a line names it; else the letter at the beginning, the whole text, what follows
    an announcement as `answer is`, or the first word that is a letter.
    """
    text, right = text.strip(), question.answers
    alone = LETTER.search(text)
    if alone and alone[0] in right:
        return 1.0
    if text[:1] in tuple("ABCD"):
        return float(text[0] in right)
    if text in right:
        return 1.0
    text = _spaces(_without(text, "\n\"'.,?!{}"))
    announced = _announced(text, ("answer is:", "answer:", "answer is", "option is"), right)
    if announced is not None:
        return announced
    return next((float(word in right) for word in text.split() if word in "ABCD"), 0.0)


def letter_or_function(text: str, question: Question) -> float:
    """1 when the text names the right function, or the letter of its option (InfiniteBench)."""
    right = question.answers
    alone = LETTER_OF_TEN.search(text.strip())
    if alone and alone[0] == right[1]:
        return 1.0
    text = _without(text.strip(), "\n`'\"-*").replace("Option", " ").replace("option", " ")
    text = _spaces(text)
    if text.startswith((right[1], right[0])):
        return 1.0
    return _announced(text, ("answer is:", "is:", "answer:", "correct option is:"), right) or 0.0


def stated_letter(text: str, question: Question) -> float:
    """1 when the text says `The correct answer is (A)`, with the right letter (LongBench v2)."""
    plain = text.replace("*", "")
    stated = next((match[1] for match in (form.search(plain) for form in STATED) if match), "")
    return float(stated == question.answers[-1])


def f1_or_refusal(text: str, question: Question) -> float:
    """F1 of words; where the right answer is that there is none, 1 when the text says so (ours, for LongMemEval)."""
    if question.details["ability"] != "abstention":
        return f1(text, question)
    lowered = text.lower().replace("\u2019", "'")
    return float(any(refusal in lowered for refusal in REFUSALS))


SCORES: dict[str, Score] = {
    function.__name__: function
    for function in (
        *(f1, f1_chinese, f1_characters, rouge_l_sentences, rouge_l_chinese, rouge_l_sum, classes, numbers, code_line),
        *(first_number, first_value, last_integer, word, contains, contains_normalised, letter),
        *(letter_or_function, stated_letter, f1_or_refusal, *lists.SCORES),
    )
}
PACKAGES = {
    "f1_chinese": ("jieba",),
    "rouge_l_sentences": ("rouge",),
    "rouge_l_chinese": ("jieba", "rouge"),
    "rouge_l_sum": ("rouge_score",),
}
"""By metric, the packages it needs."""
EXTRAS = {"jieba": "longbench", "rouge": "longbench", "rouge_score": "rouge"}


def check_installed(metrics: Iterable[str]) -> None:
    """Refuse metrics whose packages are missing, before anything is read.

    Raises:
        UserError: naming the package.
    """
    for metric in metrics:
        for package in PACKAGES.get(metric, ()):
            if importlib.util.find_spec(package) is None:
                raise UserError(f"The metric {metric} needs {package}: pip install 'contextlab[{EXTRAS[package]}]'.")


def _bare(text: str) -> str:
    return text.lower().translate(CHINESE)


def _cut(text: str) -> list[str]:
    import jieba

    return list(jieba.cut(text, cut_all=False))


def _chinese_words(text: str) -> list[str]:
    return [word for word in map(_bare, _cut(text)) if word]


def _spaced(text: str) -> str:
    return " ".join(_cut(text))


def _rouge(text: str, answer: str) -> float:
    from rouge import Rouge

    # Upstream scores 0 where the package fails: on an empty text, or on a sentence of more than about 1,000 words.
    try:
        return float(Rouge(metrics=["rouge-l"]).get_scores([text], [answer])[0]["rouge-l"]["f"])
    except (ValueError, ZeroDivisionError, RecursionError):
        return 0.0


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _without(text: str, marks: str) -> str:
    """The text with a space in place of every one of these characters."""
    return text.translate(dict.fromkeys(map(ord, marks), " "))


def _spaces(text: str) -> str:
    return re.sub(" +", " ", text)


def _announced(text: str, announcements: Sequence[str], right: Sequence[str]) -> float | None:
    """Whether a right answer follows the first of these announcements; None where the text has none."""
    for words in announcements:
        _, separator, rest = text.partition(words)
        if separator:
            return float(rest[1:].startswith(tuple(right))) if rest else 0.0
    return None
