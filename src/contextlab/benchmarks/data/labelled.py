"""The generated samples for classification: short texts whose class is obvious.

They have at most 35 characters, so that they are short enough for demonstrations with any tokenizer.
"""

from __future__ import annotations

import random
from itertools import product

TESTED = 24

Row = tuple[int, str]

OF_FILMS = "plot,film,script,acting,humor,ending,dialogue,romance,premise,pacing"

# By task: the format of a text with two parts, and by class the first and the second parts.
PARTS: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "sst2": (
        "the {} is {} .",
        [
            (OF_FILMS, "dull,lazy,stale,boring,clumsy,tedious,lifeless,dreadful,annoying,a mess"),
            (OF_FILMS, "warm,funny,clever,lovely,moving,superb,charming,gripping,brilliant,a delight"),
        ],
    ),
    "agnews": (
        "{}. {}.",
        [
            (
                "Truce holds,Envoys meet,Border closed,Voters queue,Army pulls out,Treaty signed,Rebels retreat",
                "UN sends aid,Talks go on,Ministers agree,Capital is calm,Refugees return,Election ahead",
            ),
            (
                "Late goal wins,Champion is out,Striker hurt,Coach resigns,Record broken,Cup is drawn,Team in form",
                "Fans celebrate,Replay on Sunday,Squad is changed,Stadium sold out,Season is over,Rivals beaten",
            ),
            (
                "Shares fall,Profit doubles,Bank cuts rates,Oil gets dearer,Merger agreed,Store chain sold,Bonds rally",
                "Investors worry,Markets react,Sales are weak,Analysts agree,Costs go up,Traders wait",
            ),
            (
                "Chip is faster,Comet is found,Browser updated,Virus spreads,Robot walks,Probe lands,Gene decoded",
                "Users download it,Software is free,Code is public,Data comes back,Patch is out,Telescope ready",
            ),
        ],
    ),
}


VERBS = (
    *("book", "cancel", "close", "count", "delay", "download", "explain", "find", "forget", "hide", "label", "lock"),
    *("mend", "move", "name", "open", "order", "paint", "record", "rent", "return", "sell", "share", "translate"),
)
WHOSE = ("my", "the", "our", "his")
OBJECTS = (
    *("alarm", "bicycle", "boat", "box", "card", "door", "flight", "garden"),
    *("letter", "list", "meeting", "photo", "room", "song", "ticket"),
)


def labelled(task: str) -> tuple[list[Row], list[Row]]:
    """Training and test rows of a task: class and text, no text twice; test rows alternate between the classes."""
    form, classes = PARTS[task]
    draw = random.Random(0).random
    texts = [
        sorted((form.format(*parts) for parts in product(*(words.split(",") for words in pair))), key=lambda _: draw())
        for pair in classes
    ]
    tested = TESTED // len(classes)
    test = [(label, rows[turn]) for turn in range(tested) for label, rows in enumerate(texts)]
    train = [(label, text) for label, rows in enumerate(texts) for text in rows[tested:]]
    return train, test


def many_labelled() -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Training and test texts with one of 24 labels, each the verb of its text."""
    draw = random.Random(0).random
    texts = {verb: sorted(map(" ".join, product([verb], WHOSE, OBJECTS)), key=lambda _: draw()) for verb in VERBS}
    test = [(texts[verb][turn], verb) for turn in range(2) for verb in VERBS]
    return [(text, verb) for verb in VERBS for text in texts[verb][2:]], test
