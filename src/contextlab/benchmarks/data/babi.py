"""bAbI (Weston et al. 2016): questions about short stories of facts, from its files or generated."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path

from contextlab.benchmarks.data import sources
from contextlab.benchmarks.data.noise import below, ordered
from contextlab.errors import UserError

FILES = {
    "qa1": "qa1_single-supporting-fact",
    "qa2": "qa2_two-supporting-facts",
    "qa3": "qa3_three-supporting-facts",
    "qa4": "qa4_two-arg-relations",
    "qa5": "qa5_three-arg-relations",
    "qa6": "qa6_yes-no-questions",
    "qa7": "qa7_counting",
    "qa8": "qa8_lists-sets",
    "qa9": "qa9_simple-negation",
    "qa10": "qa10_indefinite-knowledge",
}
FOLDER = "tasks_1-20_v1-2/en"


@dataclasses.dataclass(frozen=True)
class BabiQuestion:
    """A question about a story.

    Attributes:
        id: number in the file, from 0.
        story: number of its story in the file.
        facts: all facts of the story before the question, without earlier questions.
        text: the question.
        answer: the right answer; members of a list are joined by commas.
    """

    id: int
    story: int
    facts: tuple[str, ...]
    text: str
    answer: str


def path_of(task: str) -> str:
    """The path of a task's test questions below the folder of the data set."""
    return f"{FOLDER}/{FILES[task]}_test.txt"


def parsed(path: Path) -> list[BabiQuestion]:
    """The questions of a file, in its order.

    Raises:
        UserError: when the file cannot be read, or a line of it is broken.
    """
    text, _ = sources.read(path)
    questions: list[BabiQuestion] = []
    story, facts = -1, list[str]()
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        place, _, rest = line.partition(" ")
        sentence, *columns = rest.split("\t")
        if place == "1":
            story, facts = story + 1, []
        if not place.isdecimal() or story < 0 or not sentence.strip() or (columns and not columns[0].strip()):
            raise UserError(f"Line {number} of {path} is no fact or question of bAbI: replace it with an intact copy.")
        if columns:
            answer = columns[0].strip()
            questions.append(BabiQuestion(len(questions), story, tuple(facts), sentence.strip(), answer))
        else:
            facts.append(sentence.strip())
    if not questions:
        raise UserError(f"{path} holds no questions: replace it with an intact copy.")
    return questions


def sample(task: str, count: int, seed: int) -> list[BabiQuestion]:
    """Generated questions of the kind of a task, each with a story of its own; not bAbI's."""
    questions = []
    for number in range(count):
        world = _World(random.Random(f"{seed}/{task}/{number}"))
        text, answer = ASK[task](world)
        questions.append(BabiQuestion(number, number, tuple(world.facts), text, answer))
    return questions


PEOPLE = ("Daniel", "John", "Mary", "Sandra")
PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
THINGS = ("apple", "football", "milk")
NUMBERS = ("none", "one", "two", "three")
OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}


class _World:
    """People who walk about and carry things, and the facts that were said about them."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.facts: list[str] = []
        self.people, self.places, self.things = (ordered(names, draw) for names in (PEOPLE, PLACES, THINGS))
        self.carried: dict[str, list[str]] = {name: [] for name in PEOPLE}

    def chance(self) -> bool:
        return self.draw.random() < 0.5

    def move(self, name: str, place: str) -> None:
        self.facts.append(f"{name} {('went', 'walked')[self.chance()]} to the {place}.")

    def take(self, name: str, thing: str) -> None:
        self.carried[name].append(thing)
        self.facts.append(f"{name} took the {thing}.")

    def drop(self, name: str, thing: str) -> None:
        self.carried[name].remove(thing)
        self.facts.append(f"{name} put down the {thing}.")

    def bystanders(self) -> None:
        """Some moves of the people whom no question is about."""
        for name in self.people[2:]:
            for _ in range(below(3, self.draw)):
                self.move(name, self.places[below(len(PLACES), self.draw)])

    def walk(self) -> tuple[str, str]:
        """One walks through several places; a person and the last place."""
        name, stops = self.people[0], self.places[: 1 + below(3, self.draw)]
        for place in stops:
            self.move(name, place)
            self.bystanders()
        return name, stops[-1]

    def carry(self) -> None:
        """Things are taken, and some of them put down."""
        for thing in self.things[: below(len(THINGS) + 1, self.draw)]:
            self.take(self.people[0], thing)
            self.bystanders()
            if self.chance():
                self.drop(self.people[0], thing)
        self.move(self.people[0], self.places[0])


def _where(world: _World) -> tuple[str, str]:
    name, place = world.walk()
    return f"Where is {name}?", place


def _where_thing(world: _World) -> tuple[str, str]:
    thing = world.things[0]
    world.take(world.people[0], thing)
    _, place = world.walk()
    return f"Where is the {thing}?", place


def _where_before(world: _World) -> tuple[str, str]:
    thing = world.things[0]
    world.take(world.people[0], thing)
    _, place = world.walk()
    later = world.places[-1]
    world.move(world.people[0], later)
    return f"Where was the {thing} before the {later}?", place


def _direction(world: _World) -> tuple[str, str]:
    first, middle, last = world.places[:3]
    toward, other = ordered(tuple(OPPOSITE), world.draw)[:2]
    world.facts += [f"The {first} is {toward} of the {middle}.", f"The {last} is {other} of the {middle}."]
    if world.chance():
        return f"What is {toward} of the {middle}?", first
    return f"What is the {middle} {OPPOSITE[other]} of?", last


def _gift(world: _World) -> tuple[str, str]:
    (giver, receiver), thing = ordered(("Bill", "Fred", "Jeff", "Mary"), world.draw)[:2], world.things[0]
    world.facts.append(f"{giver} took the {thing}.")
    world.bystanders()
    world.facts.append(f"{giver} gave the {thing} to {receiver}.")
    questions = (
        (f"Who gave the {thing} to {receiver}?", giver),
        (f"What did {giver} give to {receiver}?", thing),
        (f"Who did {giver} give the {thing} to?", receiver),
    )
    return questions[below(len(questions), world.draw)]


def _is_there(world: _World) -> tuple[str, str]:
    name, place = world.walk()
    there = world.chance()
    return f"Is {name} in the {place if there else world.places[-1]}?", "yes" if there else "no"


def _how_many(world: _World) -> tuple[str, str]:
    world.carry()
    name = world.people[0]
    return f"How many objects is {name} carrying?", NUMBERS[len(world.carried[name])]


def _what(world: _World) -> tuple[str, str]:
    world.carry()
    name = world.people[0]
    return f"What is {name} carrying?", ",".join(world.carried[name]) or "nothing"


def _no_longer(world: _World) -> tuple[str, str]:
    name, place = world.walk()
    has_left = world.chance()
    if has_left:
        world.facts.append(f"{name} is no longer in the {place}.")
    return f"Is {name} in the {place}?", "no" if has_left else "yes"


def _either(world: _World) -> tuple[str, str]:
    name, place = world.walk()
    if world.chance():
        return f"Is {name} in the {place}?", "yes"
    maybe = world.places[3:5]
    world.facts.append(f"{name} is either in the {maybe[0]} or the {maybe[1]}.")
    return (f"Is {name} in the {maybe[0]}?", "maybe") if world.chance() else (f"Is {name} in the {place}?", "no")


ASK: dict[str, Callable[[_World], tuple[str, str]]] = {
    "qa1": _where,
    "qa2": _where_thing,
    "qa3": _where_before,
    "qa4": _direction,
    "qa5": _gift,
    "qa6": _is_there,
    "qa7": _how_many,
    "qa8": _what,
    "qa9": _no_longer,
    "qa10": _either,
}
"""By task, what happens in a generated story and the question with its answer."""
