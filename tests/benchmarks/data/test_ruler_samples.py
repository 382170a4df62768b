from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextlab.benchmarks.data.questions import estimated_tokens
from contextlab.benchmarks.data.ruler import documents, variables
from contextlab.benchmarks.data.ruler.documents import DocumentSample
from contextlab.benchmarks.data.ruler.extraction import CommonWords, FrequentWords
from contextlab.benchmarks.data.ruler.needles import DEPTHS, EssayHaystack, Needles, needle
from contextlab.benchmarks.data.ruler.readings import Material, Samples
from contextlab.benchmarks.data.ruler.sizing import NEAR, most_units
from contextlab.benchmarks.data.ruler.variables import Variables
from contextlab.benchmarks.data.ruler.variants import NAMES, Variant, content, variant
from contextlab.benchmarks.examples import Reading
from contextlab.errors import UserError

ESSAY = [f"Sentence {n} says nothing at all about anything of interest." for n in range(40)]
NIAH = [name for name in NAMES if name.startswith("niah")]
INSTRUCTION = variant("qa_1").template.partition("{context}")[2].lstrip().removesuffix("{query}")
NOISE = content()["noise_sentence"]


def words(text: str) -> int:
    """Tokens nearly as a tokenizer for English counts them."""
    return round(estimated_tokens(text))


def characters(text: str) -> int:
    """Tokens of a tokenizer of bytes."""
    return len(text.encode())


def material(tokens: int) -> Material:
    tales = documents.stories(tokens)
    return Material(ESSAY, {"qa_1": documents.of_stories(tales), "qa_2": documents.of_two_stories(tales)})


def readings(
    name: str, tokens: int, count: Callable[[str], int] = words, samples: int = 2, seed: int = 1, haystack: str = ""
) -> list[Reading]:
    return list(Samples([name], tokens, samples, seed, haystack, material(tokens), count).readings())


def text_of(reading: Reading) -> str:
    (question,) = reading.questions
    return reading.context + question.text + question.prefix


def unit(reading: Reading, form: Variant, count: Callable[[str], int]) -> int:
    """The most tokens of one line or document of a reading."""
    if form.kind == "qa":
        return max(map(count, reading.context.split("\n\nDocument "))) + count("Document 100:\n\n")
    lines = reading.context.splitlines() if "essay" not in form.args.values() else ["three or four words"]
    longest = max(lines, key=len) if form.kind in ("niah", "variable_tracking") else "1000. incomprehensible " * 3
    return count(longest) + 2


@pytest.mark.parametrize(
    ("tokens", "count"), [(512, words), (1024, words), (4096, words), (9000, words), (4096, characters)]
)
@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_with_its_answer_fills_the_limit_and_never_exceeds_it(
    name: str, tokens: int, count: Callable[[str], int]
) -> None:
    form = variant(name)
    for reading in readings(name, tokens, count):
        length = count(text_of(reading)) + form.new_tokens
        assert reading.questions[0].details["length"] == length <= tokens
        assert tokens - length <= max(tokens / 100, unit(reading, form, count))
        assert reading.questions[0].max_new_tokens == form.new_tokens


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_always_makes_the_same_samples(name: str) -> None:
    first = readings(name, 1024)
    assert first == readings(name, 1024)
    assert first[0].context != first[1].context
    assert first[0].context != readings(name, 1024, seed=2)[0].context


@pytest.mark.parametrize("name", NAMES)
def test_the_prompt_is_the_template_with_its_places_filled(name: str) -> None:
    form = variant(name)
    whole = re.escape(form.template + form.prefix).replace(r"\{context\}", "(?s:.+)")
    pattern = re.sub(r"\\{\w+\\}", "(.+)", whole)
    if len(readings(name, 1024)[0].questions[0].answers) == 1 and form.kind == "niah":
        pattern = pattern.replace("Some", "A").replace(r"are\ all", "is").replace("are", "is")
    for reading in readings(name, 1024):
        # A worked example may stand before it.
        assert re.search(pattern + r"\Z", text_of(reading))
        question = reading.questions[0]
        assert question.text == question.text.lstrip()
        assert reading.context[-1] == "\n"
        assert not re.search(r"\{\w+\}", text_of(reading))


@pytest.mark.parametrize("name", NIAH)
def test_every_value_of_an_asked_key_is_hidden_once_and_is_an_answer(name: str) -> None:
    form = variant(name)
    key_count, values = form.args["num_needle_q"], form.args["num_needle_v"]
    for reading in readings(name, 4096):
        needles = re.findall(r"magic (\w+) for (\S+) is: (\S+)\.", reading.context)
        assert {kind for kind, _, _ in needles} == {form.args["type_needle_v"]}
        of_key: dict[str, list[str]] = {}
        for _, key, value in needles:
            of_key.setdefault(key, []).append(value)
        question = reading.questions[0]
        keys = [key for key in of_key if re.search(rf"\b{re.escape(key)}(,| mentioned)", question.text)]
        assert len(keys) == key_count
        assert sorted(question.answers) == sorted(value for key in keys for value in of_key[key])
        assert len(question.answers) == key_count * values
        if form.args["type_haystack"] != "needle":
            assert len(needles) == max(form.args["num_needle_k"], key_count) * values


@pytest.mark.parametrize(("kind", "pattern"), [("numbers", r"[1-9]\d{6}"), ("uuids", r"[0-9a-f]{8}-.{4}-4.{3}-.{17}")])
def test_values_have_their_form(kind: str, pattern: str) -> None:
    name = "niah_single_1" if kind == "numbers" else "niah_multikey_3"
    for reading in readings(name, 4096, samples=4):
        assert all(re.fullmatch(pattern, answer) for answer in reading.questions[0].answers)


def test_needles_stand_between_whole_lines_at_distinct_places() -> None:
    form, seed = variant("niah_multivalue"), 3
    sample = Needles(form, "noise", (), "x", seed)
    for units in (4, 5, 30):
        lines = sample.prompt(units).context.splitlines()[1:]
        assert Counter(lines)[NOISE] == units
        assert len(lines) == units + 4
        # A line of noise lies between two needles.
        assert all(NOISE in pair for pair in itertools.pairwise(lines))
    orders = {tuple(line for line in sample.prompt(n).context.splitlines() if "One of" in line) for n in (4, 9, 30)}
    assert len(orders) == 1


def test_an_essay_keeps_its_words_in_order_and_needles_lie_at_ends_of_sentences() -> None:
    form = variant("niah_single_2")
    sample, hidden = Needles(form, "essay", ESSAY, "x", 0), set()
    for units in (1, 17, 90, 1000):
        context = sample.prompt(units).context.partition("\n")[2].rstrip("\n")
        (sentence,) = re.findall(r"One of the special magic numbers for \S+ is: \d+\.", context)
        before, _, after = context.partition(sentence)
        rest = (before + after).split()
        assert rest == (" ".join(ESSAY * 3).split())[:units]
        assert before.rstrip()[-1:] in ("", ".", rest[-1][-1])
        hidden.add(len(before.split()) / units)
    assert len(hidden) > 1


def test_depths_are_forty_from_the_beginning_to_the_end() -> None:
    assert (len(DEPTHS), DEPTHS[0], DEPTHS[-1], DEPTHS[1], DEPTHS[20]) == (40, 0, 100, 3, 51)


def test_a_haystack_of_another_kind_replaces_the_own() -> None:
    (reading, *_) = readings("niah_single_2", 1024, haystack="needle")
    assert reading.context.count("One of the special magic numbers") > 10
    assert NOISE in readings("niah_multikey_3", 1024, haystack="noise")[0].context


def test_variables_follow_from_the_value_in_the_order_of_the_text() -> None:
    form = variant("vt")
    for reading in readings("vt", 2048):
        question = reading.questions[0]
        value = re.findall(r"value (\d{5}) in the text", question.text)[0]
        *_, text = reading.context.split(form.template[:20])
        lines = [line for line in text.splitlines() if line.startswith("VAR ")]
        names = [re.fullmatch(r"VAR ([A-Z]{5}) = (?:\d{5}|VAR [A-Z]{5} )", line)[1] for line in lines]  # type: ignore[index]
        assert names == list(question.answers)
        assert lines[0] == f"VAR {names[0]} = {value}"
        assert lines[1:] == [f"VAR {name} = VAR {earlier} " for earlier, name in itertools.pairwise(names)]
        assert f", {len(names)} variables are assigned" in question.prefix


def test_a_worked_example_of_variables_is_short_and_solved() -> None:
    form = variant("vt")
    shown = variables.example(form, "x", words)
    assert shown.endswith("\n\n")
    unsolved, _, answers = shown.rstrip().rpartition("they are: ")
    names = re.findall(r"^VAR ([A-Z]{3}) = ", shown, re.MULTILINE)
    assert answers.split() == names
    assert 480 < words(unsolved + "they are: ") <= 500
    first, second = (reading.context for reading in readings("vt", 2048))
    assert first[:900] != second[:900]


@pytest.mark.parametrize(("name", "parts"), [("vt", 2), ("cwe", 2)])
def test_an_example_that_leaves_no_room_is_left_out(name: str, parts: int) -> None:
    beginning = variant(name).template[:20]
    assert readings(name, 4096)[0].context.count(beginning) == parts
    assert readings(name, 512)[0].context.count(beginning) == 1


@pytest.mark.parametrize(("limit", "often", "seldom"), [(4096, 30, 3), (4095, 6, 1)])
def test_ten_words_are_more_common_than_all_others(limit: int, often: int, seldom: int) -> None:
    form = variant("cwe")
    prompt = CommonWords(form, "x", limit).prompt(60)
    numbered = re.findall(r"(\d+)\. (\D+?) ?(?=\d+\.|\n)", prompt.context)
    assert [int(number) for number, _ in numbered] == list(range(1, len(numbered) + 1))
    counts = Counter(word for _, word in numbered)
    assert {word for word, count in counts.items() if count == often} == set(prompt.answers)
    assert Counter(counts.values()) == {often: 10, seldom: 50}


def test_pairs_of_words_follow_when_single_words_are_used_up() -> None:
    sample = CommonWords(variant("cwe"), "x", 131_072)
    text = sample.prompt(9000).context
    assert len(re.findall(r"\d+\. ", text)) == 10 * 30 + 8990 * 3
    assert len(set(re.findall(r"\d+\. ([^\d]+?)(?= \d|\n)", text))) == 9000


@given(st.integers(53, 4000))
def test_three_coded_words_are_the_most_frequent_after_the_dots(units: int) -> None:
    prompt = FrequentWords(variant("fwe"), "x", 4096).prompt(units)
    coded = prompt.context.partition("coded words. ")[2].split()
    ranked = Counter(coded).most_common(5)
    assert ranked[0][0] == "..."
    assert {word for word, _ in ranked[1:4]} == set(prompt.answers)
    assert len(ranked) == 4 or ranked[3][1] > ranked[4][1]
    assert all(re.fullmatch("[a-z]{6}", word) for word in set(coded) - {"..."})


@pytest.mark.parametrize("name", ["qa_1", "qa_2"])
def test_own_documents_are_there_once_and_no_other_document_answers_otherwise(name: str) -> None:
    corpus = material(4096).corpora[name]
    for reading in readings(name, 4096, samples=6):
        question = reading.questions[0]
        shown = re.split(r"(?:\A|\n\n)Document \d+:\n", reading.context.rstrip("\n").partition("documents.\n\n")[2])[1:]
        held = {number for number, text in enumerate(corpus.documents) if text in shown}
        assert len(held) == len(shown) == question.details["units"]
        same = [candidate for candidate in corpus.questions if question.text == INSTRUCTION + candidate.text]
        (candidate,) = (candidate for candidate in same if set(candidate.own) <= held and not held & candidate.barred)
        assert len(candidate.own) == int(name[-1])
        assert question.answers == candidate.answers
        last = corpus.documents[candidate.own[-1]].lower()
        assert all(part.lower() in last for part in question.answers[0].split(" at the "))


def test_related_documents_come_before_all_others() -> None:
    corpus = documents.DocumentCorpus(tuple("abcdefgh"), (documents.DocumentQuestion("?", ("a",), (0,), (3, 4, 5)),))
    for units in range(1, 9):
        sample = DocumentSample(variant("qa_1"), corpus, corpus.questions[0], "x")
        held = set(re.findall(r"Document \d+:\n(\w)", sample.prompt(units).context))
        assert len(held) == units
        assert "a" in held
        assert held <= set("adef") if units <= 4 else set("adef") <= held
    assert sample.most == 8


def test_questions_are_not_repeated_and_their_end_is_said() -> None:
    tales = documents.stories(512)[:12]
    corpus = documents.of_stories(tales)
    samples = Samples(["qa_1"], 4096, 500, 0, "", Material((), {"qa_1": corpus}), words)
    texts: list[str] = []
    with pytest.raises(UserError, match=r"qa_1 has no text of at most 4096 tokens .*: raise tokens=, or lower samples"):
        texts.extend(reading.questions[0].text for reading in samples.readings())
    assert sorted(texts) == sorted(f"{INSTRUCTION}{question.text}" for question in corpus.questions)


def test_tasks_alternate_and_have_the_samples_that_they_have_alone() -> None:
    both = list(Samples(["fwe", "vt"], 1024, 2, 1, "", Material(), words).readings())
    assert [reading.id for reading in both] == ["fwe/0", "vt/0", "fwe/1", "vt/1"]
    assert both[1::2] == readings("vt", 1024)


@given(
    st.integers(1, 40), st.integers(0, 500), st.integers(1, 3000), st.integers(1, 300), st.none() | st.integers(0, 99)
)
def test_one_unit_more_is_too_much(per_unit: int, fixed: int, limit: int, least: int, more: int | None) -> None:
    most = None if more is None else least + more
    tried: list[int] = []

    def tokens(units: int) -> int:
        tried.append(units)
        return fixed + per_unit * units + units % 3

    units = most_units(tokens, limit, least, most)
    if units is None:
        assert tokens(least) > limit
        return
    assert least <= units <= (units if most is None else most)
    assert tokens(units) <= limit
    assert units == most or tokens(units) >= NEAR * limit or tokens(units + 1) > limit
    assert len(tried) < 40


def test_a_needle_is_upstreams_sentence() -> None:
    assert needle("numbers", "a-b", "7") == "One of the special magic numbers for a-b is: 7."


def test_an_essay_begins_again_at_its_end() -> None:
    text = EssayHaystack(["One two.", "Three."]).hiding(["N."], 7, random.Random(0))
    assert text.replace("N.", "").split() == ["One", "two.", "Three.", "One", "two.", "Three.", "One"]


def test_names_of_a_chain_differ() -> None:
    assert all(len(set(Variables(variant("vt"), str(n), 3).prompt(5).answers)) == 5 for n in range(200))
