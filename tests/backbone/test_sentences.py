"""Encoders of sentences: what they compute, which folders are refused, and what their digest depends on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import encoders
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from contextlab.backbone import SentenceEncoder
from contextlab.errors import UserError

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> SentenceEncoder:
    return SentenceEncoder.load(encoders.saved(tmp_path_factory.mktemp("encoder")), CPU)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from([*encoders.WORDS, "Rome", "else"]), min_size=1, max_size=20))
def test_a_vector_is_the_mean_of_hidden_states_at_length_one(encoder: SentenceEncoder, words: list[str]) -> None:
    text = " ".join(words)
    torch.testing.assert_close(encoder(text), encoders.mean_pooled(encoders.bert(), text), atol=1e-5, rtol=1e-5)


def test_a_text_without_tokens_has_the_vector_zero(encoder: SentenceEncoder) -> None:
    assert encoder(" \n").tolist() == [0.0] * encoders.WIDTH


def test_nothing_is_drawn_for_what_a_checkpoint_lacks_and_nobody_reads(tmp_path: Path) -> None:
    """Without weights of the pooler, two loads have one digest."""
    name = encoders.saved(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    kept = {key: value for key, value in weights.items() if not key.startswith("pooler.")}
    assert len(kept) < len(weights)
    whole = SentenceEncoder.load(name, CPU)
    save_file(kept, tmp_path / "model.safetensors", {"format": "pt"})
    assert {SentenceEncoder.load(name, CPU).digest for _ in range(2)} == {whole.digest}


def test_the_digest_follows_weights_architecture_and_tokenizer(tmp_path: Path) -> None:
    name = encoders.saved(tmp_path / "first")
    copied = str(shutil.copytree(tmp_path / "first", tmp_path / "copied"))
    other = encoders.saved(tmp_path / "other", encoders.bert(seed=1))
    heads = encoders.bert()
    heads.config.num_attention_heads = 4
    split = encoders.saved(tmp_path / "heads", heads)
    cased = encoders.saved(tmp_path / "cased")
    plain = encoders.tokenizer()
    plain.backend_tokenizer.normalizer = None
    plain.save_pretrained(cased)
    digests = [SentenceEncoder.load(folder, CPU).digest for folder in (name, copied, other, split, cased)]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 4


def test_positions_behind_that_of_padding_are_counted(tmp_path: Path) -> None:
    """RoBERTa learns its positions from the one after its padding's."""
    config = transformers.RobertaConfig(
        vocab_size=len(encoders.WORDS), hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=12, pad_token_id=1,
    )  # fmt: skip
    encoder = SentenceEncoder.load(encoders.saved(tmp_path, transformers.RobertaModel(config)), CPU)
    assert encoder.positions == 10
    assert encoder("rome " * 10).isfinite().all()
    with pytest.raises(
        UserError, match=r"A chunk or query has 11 tokens of the encoder .*, which reads 10: use a smal"
    ):
        encoder("rome " * 11)


def without(*names: str) -> Any:
    def change(folder: Path) -> None:
        for path in folder.iterdir():
            if path.name.startswith(names):
                path.unlink()

    return change


def lacking(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["embeddings.word_embeddings.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (without("tokenizer"), "it has no vocabulary|.*tokenizer.*"),
        (without("config"), ".*"),
        (without("model"), ".*"),
        (lacking, "it has no weights for embeddings.word_embeddings.weight"),
    ],
)
def test_a_folder_that_is_not_whole_is_refused(tmp_path: Path, change: Any, reason: str) -> None:
    name = encoders.saved(tmp_path)
    change(tmp_path)
    with pytest.raises(UserError, match=rf"Encoder '.*' cannot be loaded \({reason}\): give a local folder"):
        SentenceEncoder.load(name, CPU)


@pytest.mark.parametrize("name", ["nowhere", "/no/where", "./nowhere", "a/b/c", "~/nowhere"])
def test_a_folder_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=f"There is no folder {name}: give encoder= that of a sentence encoder"):
        SentenceEncoder.load(name, CPU)


def test_a_model_that_encodes_no_text_by_itself_is_refused(tmp_path: Path) -> None:
    config = transformers.T5Config(
        vocab_size=len(encoders.WORDS), d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    with pytest.raises(UserError, match="cannot be loaded"):
        SentenceEncoder.load(encoders.saved(tmp_path, transformers.T5Model(config)), CPU)
