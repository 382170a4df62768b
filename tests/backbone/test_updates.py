"""Updates added into the weights of a backbone: those of PEFT, and those that methods learned."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from installed import METHODS
from peft.utils import save_and_load
from safetensors.torch import load_file, save_file

import contextlab
from contextlab import backbone as backbones
from contextlab import cards, naming
from contextlab.backbone import loading, updates
from contextlab.errors import UserError
from contextlab.testing import laws

FAMILIES = ["tiny-llama", "tiny-gpt2", "tiny-opt", "tiny-qwen2"]
TARGETS = {"tiny-llama": ["q_proj", "v_proj", "down_proj"], "tiny-gpt2": ["c_attn", "c_proj"]}
TOYS = Path(__file__).parents[1] / "harness" / "toy_parts.py"
TOKENS_BT = torch.randint(0, 256, (2, 40), generator=torch.Generator().manual_seed(1))


def adapted(family: str, config: peft.PeftConfig | None = None) -> Any:
    """A model with an adapter that was trained for a few steps by PEFT alone."""
    model = backbones.load(family, device="cpu").model
    names = TARGETS.get(family, ["q_proj", "v_proj"])
    transposed = family == "tiny-gpt2"
    config = config or peft.LoraConfig(r=3, lora_alpha=7, target_modules=names, fan_in_fan_out=transposed)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        wrapped: Any = peft.get_peft_model(model, config)
        optimiser = torch.optim.AdamW([p for p in wrapped.parameters() if p.requires_grad], lr=0.03)
        for _ in range(4):
            wrapped(input_ids=TOKENS_BT, labels=TOKENS_BT).loss.backward()
            optimiser.step()
            optimiser.zero_grad()
    return wrapped.eval()


def logits_of(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=TOKENS_BT).logits.log_softmax(-1)


def logprobs(method: Any) -> torch.Tensor:
    _, logprobs_BT = method.read(method.start(2), TOKENS_BT)
    return logprobs_BT


def expected(model: Any) -> torch.Tensor:
    """Log-probabilities of all tokens but the first ones."""
    return logits_of(model)[:, :-1].gather(-1, TOKENS_BT[:, 1:, None])[..., 0]


@pytest.fixture
def lora(tmp_path: Path) -> Path:
    adapted("tiny-llama").save_pretrained(tmp_path / "lora")
    return tmp_path / "lora"


@pytest.mark.parametrize("family", FAMILIES)
def test_full_attention_predicts_what_peft_predicts(family: str, tmp_path: Path) -> None:
    model = adapted(family)
    model.save_pretrained(tmp_path / "lora")
    method = contextlab.load("full", f"{family}+{tmp_path / 'lora'}")
    plain = contextlab.load("full", family)
    assert (logprobs(method)[:, 1:] - expected(model)).abs().max() < 1e-5
    assert (logprobs(plain)[:, 1:] - expected(model)).abs().max() > 1e-2


CONFIGS: dict[str, peft.PeftConfig] = {
    "rslora": peft.LoraConfig(r=4, use_rslora=True, target_modules=["q_proj"]),
    "dora": peft.LoraConfig(r=2, use_dora=True, target_modules=["v_proj", "up_proj"]),
    "patterns": peft.LoraConfig(
        r=2, target_modules=["q_proj", "k_proj"], rank_pattern={"q_proj": 5}, alpha_pattern={"k_proj": 9}
    ),
    "all": peft.LoraConfig(r=2, target_modules="all-linear", modules_to_save=["norm"]),
    "embeddings": peft.LoraConfig(r=2, target_modules=["embed_tokens", "q_proj"]),
    "ia3": peft.IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]),
    "loha": peft.LoHaConfig(r=2, target_modules=["q_proj", "o_proj"]),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_kind_of_adapter_that_can_be_merged(kind: str, tmp_path: Path) -> None:
    model = adapted("tiny-llama", CONFIGS[kind])
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    model.save_pretrained(tmp_path / "adapter")
    wanted = expected(model)
    for backbone in (f"tiny-llama+{tmp_path / 'adapter'}", model):
        assert (logprobs(contextlab.load("full", backbone))[:, 1:] - wanted).abs().max() < 1e-5
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    assert torch.equal(expected(model), wanted)


def test_a_merged_model_shares_the_weights_without_adapter() -> None:
    model = adapted("tiny-llama")
    backbone = backbones.wrap(model)
    addresses = {parameter.data_ptr() for parameter in model.parameters()}
    own = [name for name, p in backbone.model.named_parameters() if p.data_ptr() not in addresses]
    assert own
    assert all(name.split(".")[-2] in TARGETS["tiny-llama"] for name in own)


def test_adapters_that_are_no_update_of_weights_are_refused(tmp_path: Path) -> None:
    prompts = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = adapted("tiny-llama", prompts)
    with pytest.raises(UserError, match="kind PROMPT_TUNING, which is no update of weights"):
        backbones.wrap(model)
    model.save_pretrained(tmp_path / "prompts")
    with pytest.raises(UserError, match="no update of weights"):
        backbones.load(f"tiny-llama+{tmp_path / 'prompts'}")


def test_adapters_inside_of_a_model_of_transformers_are_refused() -> None:
    model = backbones.load("tiny-llama").model
    model.add_adapter(peft.LoraConfig(target_modules=["q_proj"]))
    with pytest.raises(UserError, match="has adapters inside"):
        backbones.wrap(model)


def test_name_and_digest_are_those_of_both_parts(lora: Path, tmp_path: Path) -> None:
    plain, with_lora = backbones.load("tiny-llama"), backbones.load(f"tiny-llama+{lora}")
    assert with_lora.name == f"tiny-llama+{lora}"
    assert with_lora.digest == backbones.load(f"tiny-llama+{lora}").digest != plain.digest
    moved = lora.rename(tmp_path / "moved")
    assert backbones.load(f"tiny-llama+{moved}").digest == with_lora.digest
    twice = backbones.load(f"tiny-llama+{moved}+{moved}")
    assert twice.digest not in (plain.digest, with_lora.digest)
    config = json.loads((moved / "adapter_config.json").read_text())
    (moved / "adapter_config.json").write_text(json.dumps({**config, "lora_alpha": 8}))
    assert backbones.load(f"tiny-llama+{moved}").digest != with_lora.digest
    with torch.no_grad():
        with_lora.model.get_parameter("model.norm.weight").mul_(2)
    assert with_lora.digest != backbones.load(f"tiny-llama+{moved}").digest
    assert backbones.wrap(adapted("tiny-llama")).name == "LlamaForCausalLM+default"


def test_a_name_is_cut_at_signs_that_are_no_part_of_a_path(tmp_path: Path) -> None:
    strange, update = tmp_path / "a+b", tmp_path / "c+d"
    strange.mkdir()
    update.mkdir()

    def is_backbone(name: str) -> bool:
        return name == "tiny" or Path(name).is_dir()

    assert updates.parts("tiny", is_backbone) == ("tiny", [])
    assert updates.parts("owner/name+x+y", is_backbone) == ("owner/name", ["x", "y"])
    assert updates.parts(str(strange), is_backbone) == (str(strange), [])
    assert updates.parts(f"tiny+{update}+x", is_backbone) == ("tiny", [str(update), "x"])


def test_spellings_of_a_path_are_one_backbone_and_one_run(
    lora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for spelling in ("lora", "lora/", "./lora", ".//lora/."):
        assert backbones.load(f"tiny-llama+{spelling}").name == "tiny-llama+lora"
    assert backbones.load(f"tiny-llama+{lora}/+./lora").name == f"tiny-llama+{lora}+lora"
    runs = [
        contextlab.bench("full", f"{TOYS}:Letters", backbone=f"tiny-llama+{path}", device="cpu", limit=2, out="runs")
        for path in ("lora", "./lora/", lora)
    ]
    assert {results.runs[0].backbone for results in runs} == {"tiny-llama+lora"}
    assert len(list(Path("runs").glob("*/manifest.json"))) == 1


def test_a_folder_with_the_name_of_a_model_or_of_weights_keeps_its_spelling(
    lora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lora.rename("sliding-r8")
    base = backbones.load("tiny-llama")
    base.model.save_pretrained("tiny-gpt2")
    base.tokenizer.save_pretrained("tiny-gpt2")
    with_both = backbones.load("./tiny-gpt2+./sliding-r8")
    assert with_both.name == "./tiny-gpt2+./sliding-r8"
    assert with_both.family == "llama"


@pytest.fixture(scope="module")
def trained_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("trained")
    texts = folder / "texts"
    texts.mkdir()
    for number in range(5):
        (texts / f"{number}.txt").write_text(f"The text number {number} tells of {number} ships. " * 20)
    methods = {
        "low rank": "window(N=32,rank=2,targets=all)",
        "whole": "window(N=32,rank=full)",
        "longmem": "longmem(N=32,K=8)",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTEXTLAB_CACHE", str(folder / "cache"))
        for name, method in methods.items():
            options = {"tokens": 300, "segment": 32, "lr": 3e-3, "storage": "float32"}
            contextlab.train(method, texts, out=folder / name, backbone="tiny-llama", device="cpu", **options)
    return {name: folder / name for name in methods}


@pytest.mark.parametrize("kind", ["low rank", "whole"])
def test_what_a_baseline_learned_is_an_update(kind: str, trained_folders: dict[str, Path]) -> None:
    folder = trained_folders[kind]
    rank = "2,targets=all" if kind == "low rank" else "full"
    wanted = logprobs(contextlab.load(f"window(N=32,rank={rank},weights={folder})", "tiny-llama"))
    summed = contextlab.load("window(N=32)", f"tiny-llama+{folder}")
    assert (logprobs(summed) - wanted).abs().max() < 1e-5
    assert (logprobs(contextlab.load("window(N=32)", "tiny-llama")) - wanted).abs().max() > 1e-3
    assert summed.backbone.family == "llama"


def test_what_is_more_than_an_update_is_refused(trained_folders: dict[str, Path]) -> None:
    with pytest.raises(UserError, match=r"is no update of this backbone's weights \(it holds .*\): use it as --method"):
        backbones.load(f"tiny-llama+{trained_folders['longmem']}")
    with pytest.raises(UserError, match=r"was trained beside tiny-llama: write tiny-llama\+"):
        backbones.load(f"tiny-qwen2+{trained_folders['low rank']}")
    damaged = trained_folders["whole"] / cards.FILE
    damaged.write_bytes(damaged.read_bytes()[:-4] + b"abcd")
    with pytest.raises(UserError, match="sha256 differs"):
        backbones.load(f"tiny-llama+{trained_folders['whole']}")


def test_updates_that_are_not_there_or_do_not_fit(lora: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no update 'sliding-r9': did you mean 'sliding-r8'"):
        backbones.load("tiny-llama+sliding-r9")
    with pytest.raises(UserError, match=r"holds neither adapter_config.json nor trained weights"):
        backbones.load(f"tiny-llama+{tmp_path}")
    with pytest.raises(UserError, match=r"has no update after \+: name one"):
        backbones.load("tiny-llama+")
    with pytest.raises(UserError, match="does not fit this backbone"):
        backbones.load(f"tiny-gpt2+{lora}")
    weights = lora / updates.PEFT_WEIGHTS
    content = weights.read_bytes()
    weights.write_bytes(content[:-100])
    with pytest.raises(UserError, match=rf"^{re.escape(str(weights))} is damaged: copy the adapter again"):
        backbones.load(f"tiny-llama+{lora}")
    weights.unlink()
    with pytest.raises(UserError, match="save the adapter with safetensors"):
        backbones.load(f"tiny-llama+{lora}")


def test_an_adapter_without_its_model_is_refused_before_anybody_looks_for_one(
    lora: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_pretrained", lambda *_, **__: pytest.fail("it is loaded"))
    sentence = re.escape(f"{lora} is a PEFT adapter: write --backbone MODEL+{lora} with the model")
    for load in (backbones.load, backbones.load_tokenizer):
        with pytest.raises(UserError, match=sentence):
            load(str(lora))


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe"])
def test_an_adapter_whose_settings_are_damaged_is_no_adapter_of_another_model(content: bytes, lora: Path) -> None:
    config = lora / updates.PEFT_CONFIG
    config.write_bytes(content)
    with pytest.raises(UserError, match=rf"^{re.escape(str(config))} is damaged: copy the adapter again"):
        backbones.load(f"tiny-llama+{lora}")


def test_an_adapter_of_a_wider_model_says_which_shape_does_not_fit(lora: Path) -> None:
    weights = load_file(lora / updates.PEFT_WEIGHTS)
    first, second = sorted(weights)[:2]
    rows, columns = weights[first].shape
    wider = {name: torch.cat([weights[name]] * 2, dim=1) for name in (first, second)}
    save_file({**weights, **wider}, lora / updates.PEFT_WEIGHTS)
    sentence = (
        f"The adapter in {lora} does not fit this backbone ({first} has the shape ({rows}, {2 * columns}) and not "
        f"({rows}, {columns})): add it to the model that it was trained on."
    )
    with pytest.raises(UserError) as refused:
        backbones.load(f"tiny-llama+{lora}")
    assert str(refused.value) == sentence


def test_an_adapter_that_lacks_layers_or_has_no_finite_numbers_is_refused(lora: Path) -> None:
    weights = load_file(lora / updates.PEFT_WEIGHTS)
    first = min(weights)
    save_file({name: weight for name, weight in weights.items() if name != first}, lora / updates.PEFT_WEIGHTS)
    with pytest.raises(UserError, match="is missing or unknown"):
        backbones.load(f"tiny-llama+{lora}")
    save_file({**weights, first: weights[first] * torch.nan}, lora / updates.PEFT_WEIGHTS)
    with pytest.raises(UserError, match="has numbers that are not finite"):
        backbones.load(f"tiny-llama+{lora}")


def trained_on(base: Any, lora: Path) -> None:
    """Let an adapter say what it was trained on."""
    config = json.loads((lora / updates.PEFT_CONFIG).read_text())
    (lora / updates.PEFT_CONFIG).write_text(json.dumps({**config, "base_model_name_or_path": base}))


@pytest.mark.parametrize("base", ["tiny-llama", "owner/Tiny-Llama", "/models/tiny-llama/", "", None, 3])
def test_an_adapter_of_the_same_name_or_of_none_is_added_without_a_note(base: Any, lora: Path) -> None:
    trained_on(base, lora)
    assert backbones.load(f"tiny-llama+{lora}").notes == ()


def test_an_adapter_after_another_may_have_been_trained_on_the_sum(lora: Path, tmp_path: Path) -> None:
    second = shutil.copytree(lora, tmp_path / "second")
    trained_on(f"tiny-llama+{lora}", second)
    assert backbones.load(f"tiny-llama+{lora}+{second}").notes == ()
    trained_on("tiny-llama", second)
    assert backbones.load(f"tiny-llama+{lora}+{second}").notes == ()


def test_an_adapter_of_a_model_with_another_name_is_noted_and_nobody_asks_the_network(
    lora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained_on("meta-llama/Llama-2-7b-hf", lora)
    monkeypatch.setattr(save_and_load, "check_file_exists_on_hf_hub", lambda *_, **__: pytest.fail("it is asked"))
    heard: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        contextlab.bench(
            "full",
            f"{TOYS}:Letters",
            backbone=f"tiny-llama+{lora}",
            out=tmp_path / "runs",
            device="cpu",
            limit=2,
            progress=False,
            on_note=heard.append,
        )
    assert heard == [f"{lora} says that it was trained on meta-llama/Llama-2-7b-hf; here it is added to tiny-llama."]
    assert [warning for warning in caught if "peft" in warning.filename] == []


def test_adapted_embeddings_are_added_without_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = adapted("tiny-llama", CONFIGS["rslora"])
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(2)
    model.save_pretrained(tmp_path / "adapter", save_embedding_layers=True)
    monkeypatch.setattr(save_and_load, "check_file_exists_on_hf_hub", lambda *_, **__: pytest.fail("it is asked"))
    trained_on("owner/tiny-llama", tmp_path / "adapter")
    method = contextlab.load("full", f"tiny-llama+{tmp_path / 'adapter'}")
    assert (logprobs(method)[:, 1:] - expected(model)).abs().max() < 1e-5


@pytest.mark.parametrize("name", ["full", "sliding"])
def test_methods_keep_their_laws_on_an_updated_backbone(name: str, lora: Path) -> None:
    check_laws(name, lora)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_all_methods_keep_their_laws_on_an_updated_backbone(name: str, lora: Path) -> None:
    check_laws(name, lora)


def check_laws(name: str, lora: Path) -> None:
    results = laws.check(naming.single(name).build, (f"tiny-llama+{lora}",))
    assert results
    assert {result.law: result.detail for result in results if not result.passed} == {}


def test_bench_takes_a_model_in_memory_with_its_tokenizer(lora: Path, tmp_path: Path) -> None:
    base = backbones.load("tiny-llama")
    model = peft.PeftModel.from_pretrained(base.model, str(lora))
    options: dict[str, Any] = {"limit": 2, "progress": False}
    task = f"{TOYS}:Letters"
    by_name = contextlab.bench("full", task, backbone=f"tiny-llama+{lora}", out=tmp_path / "a", device="cpu", **options)
    in_memory = contextlab.bench("full", task, backbone=model, tokenizer=base.tokenizer, out=tmp_path / "b", **options)
    first, second = by_name.runs[0], in_memory.runs[0]
    assert second.backbone == "LlamaForCausalLM+default"
    for name, metric in first.metrics.items():
        assert second.metrics[name].value == pytest.approx(metric.value, abs=1e-5)
    with pytest.raises(UserError, match="give tokenizer="):
        contextlab.bench("full", task, backbone=model, out=tmp_path / "c", **options)
    with pytest.raises(UserError, match="leave both out"):
        contextlab.bench("full", task, backbone=model, device="cpu", out=tmp_path / "c", **options)
    with pytest.raises(UserError, match="not a int"):
        contextlab.bench("full", task, backbone=3, out=tmp_path / "c", **options)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="has its own tokenizer"):
        contextlab.load("full", "tiny-llama", tokenizer=base.tokenizer)
