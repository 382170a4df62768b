from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections import Counter

import pytest

from contextlab.benchmarks.data import phrases
from contextlab.benchmarks.data.sample import FAR, choices, documents, story
from contextlab.benchmarks.examples import Choice

# Results on generated stories are stored, so that the stories must not change.
STORIES = "c143a18630f5a65d7c7c982eb104ca08697d1c4b7860e200c4f5970d3683272e"
CHOICES = "33b89e45ff44e9ed93560ce358a7bcbbeb9a2adbf68b19b07e4b7ce0c9610ea3"
PROGRAM = """
import hashlib
from contextlab.benchmarks.data.sample import choices, documents
stories = [d.text for d in documents(3000, 2, 7)]
candidates = [t for c in choices(2048, 2, 7) for t in (c.context, *c.candidates)]
for texts in (stories, candidates):
    print(hashlib.sha256("\\0".join(texts).encode()).hexdigest())
"""
NAMES = [*phrases.WOMEN, *phrases.MEN, *phrases.THINGS, *phrases.PLACES, *phrases.SPOTS]
NAME = re.compile(rf"\b(?:{'|'.join(NAMES)})\b", re.IGNORECASE)


def named(text: str) -> Counter[str]:
    """The number of occurrences of each person, thing, place and spot."""
    return Counter(name.lower() for name in NAME.findall(text))


def last_words(text: str, count: int) -> str:
    return " ".join(text.split()[-count:]) if count > 0 else ""


@pytest.fixture(scope="module")
def examples() -> tuple[Choice, ...]:
    return choices(4096, 24, 0)


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_texts_follow_from_the_seed_alone(hash_seed: str) -> None:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.split() == [STORIES, CHOICES]


def test_a_story_does_not_depend_on_earlier_calls() -> None:
    assert choices(1024, 3, 5)[2] == choices(1024, 4, 5)[2]
    assert documents(500, 1, 5)[0].text == story(500, 5).text
    assert len({story(300, seed, index).text for seed in range(5) for index in range(5)}) == 25


@pytest.mark.parametrize("words", [1, 100, 1000, 6000, 50_000])
def test_stories_have_the_wanted_length(words: int) -> None:
    tale = story(words, 1)
    assert words <= sum(len(chapter.split()) for chapter in tale.chapters) <= words + 200
    assert tale.text.count("Chapter ") == len(tale.chapters)


@pytest.mark.parametrize("words", [512, 1024, 2048, 8192])
def test_contexts_have_the_wanted_length(words: int) -> None:
    for example in choices(words, 5, 3):
        assert words <= len(example.context.split()) <= words + 350


def test_nothing_is_left_unfilled() -> None:
    text = story(60_000, 4).text + "".join(text for example in choices(512, 20, 4) for text in example.candidates)
    assert not re.search(r"[\[\]{}|“”]|\b(\w+) \1\b|  |\n\n\n", text)
    assert text.isascii()


def test_facts_occur_once_at_their_distance() -> None:
    for index in range(5):
        tale = story(5000, 2, index)
        text = "\n\n".join(tale.chapters)
        assert len(tale.facts) >= 2
        for fact in tale.facts:
            thing = fact.question.removesuffix("?").rpartition(" the ")[2]
            telling = last_words(text, fact.distance)
            assert thing in telling.lower()
            assert all(part in telling for part in fact.answer.split(" at "))
            assert named(last_words(text, fact.distance - 80))[thing] == 0


@pytest.mark.parametrize("split", [re.compile(r"[\w']+"), re.compile(r"\S+")], ids=["words", "with marks"])
@pytest.mark.parametrize("context_words", [512, 1024, 4096])
def test_candidates_share_equally_many_word_sequences_with_the_context(
    split: re.Pattern[str], context_words: int
) -> None:
    right = Counter[int]()
    chance = random.Random(0)
    for example in choices(context_words, 24, 0):
        for n in range(1, 7):
            context = {*sequences(split.findall(example.context.lower()), n)}
            common = [
                sum(sequence in context for sequence in sequences(split.findall(candidate.lower()), n))
                for candidate in example.candidates
            ]
            assert len(set(common)) == 1
            right[n] += chance.choice([i for i in range(6) if common[i] == max(common)]) == example.answer
    assert all(right[n] <= 9 for n in range(1, 7))


def test_words_beside_what_is_exchanged_stand_nowhere_else_in_the_phrases() -> None:
    everything = [text for name, text in vars(phrases).items() if name.isupper() and name != "RETURNING"]
    elsewhere = {word.lower() for word in re.findall(r"[\w']+", repr(everything))}
    sentences = [sentence for row in phrases.RETURNING for sentence in row]
    beside = [
        word.lower() for sentence in sentences for word in re.findall(r"(\w+) {[RLH]} (\w+)", sentence) for word in word
    ]
    assert len(beside) == 2 * sum(len(re.findall(r"{[RLH]}", sentence)) for sentence in sentences)
    assert len(set(beside)) == len(beside)
    assert not set(beside) & elsewhere


def sequences(words: list[str], length: int) -> list[tuple[str, ...]]:
    return [tuple(words[start : start + length]) for start in range(len(words) - length + 1)]


def test_candidates_are_the_same_words_in_another_order(examples: tuple[Choice, ...]) -> None:
    for example in examples:
        assert len(set(example.candidates)) == 6
        assert len({tuple(sorted(re.findall(r"[\w']+", candidate))) for candidate in example.candidates}) == 1
        assert 110 <= len(example.candidates[0].split()) <= 155
        # Candidates differ before the token at which they are cut.
        assert len(named(" ".join(example.candidates[0].split()[: int(128 / 1.3)]))) == 15


def test_every_name_is_known_equally_well_and_only_from_far_back(examples: tuple[Choice, ...]) -> None:
    for example in examples:
        names_of_all, near = named(example.context), named(last_words(example.context, FAR))
        names = set(named(example.candidates[0]))
        assert len(names) == 15
        assert {names_of_all[name] for name in names} == {2}
        assert not names & near.keys()


def test_only_the_true_candidate_repeats_the_promises_of_the_context(examples: tuple[Choice, ...]) -> None:
    for example in examples:
        paragraphs = [set(named(paragraph)) for paragraph in example.context.split("\n\n")]
        for number, candidate in enumerate(example.candidates):
            promises = [set(named(sentence)) for sentence in candidate.split(". ")[1:4]]
            assert [len(names) for names in promises] == [5, 5, 5]
            right = sum(any(names <= paragraph for paragraph in paragraphs) for names in promises)
            assert right == (3 if number == example.answer else 0)


@pytest.mark.parametrize("words", [1024, 2048, 4096, 8192])
def test_promises_are_within_the_tokens_of_the_split(words: int) -> None:
    for example in choices(words, 10, 1):
        kept = last_words(example.context, int((words - 128) / 1.3))
        assert all(name in named(kept) for name in named(example.candidates[example.answer]))


def test_words_shared_with_the_near_context_tell_nothing() -> None:
    right, chance = 0.0, random.Random(0)
    many = choices(2048, 150, 9)
    for example in many:
        near = set(last_words(example.context, 300).lower().split())
        overlap = [
            sum(word in near for word in text.lower().split()) / len(text.split()) for text in example.candidates
        ]
        best = [i for i, value in enumerate(overlap) if value == max(overlap)]
        right += chance.choice(best) == example.answer
    assert 0.07 <= right / len(many) <= 0.27


def test_the_true_candidate_is_at_every_position() -> None:
    answers = Counter(example.answer for example in choices(512, 300, 2))
    assert set(answers) == set(range(6))
    assert max(answers.values()) < 80
