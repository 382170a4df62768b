from __future__ import annotations

import copy
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

import contextlab
from contextlab import backbone, registry
from contextlab.accounting import COUNTING
from contextlab.benchmarks.task import Options
from contextlab.errors import UserError
from contextlab.files import digests_of
from contextlab.harness import identity as identities
from contextlab.harness.store import run_id

EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.fixture(autouse=True)
def _ask_git_again() -> Any:
    identities.commit.cache_clear()
    yield
    identities.commit.cache_clear()


def package_below(folder: Path, subfolder: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A repository with one commit, and the package at `subfolder` in it; the commit."""
    git = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    (folder / subfolder).mkdir(parents=True)
    monkeypatch.setattr(identities, "PACKAGE", (folder / subfolder).resolve())
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    return head.stdout.strip()


def test_the_commit_is_that_of_the_packages_own_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = package_below(tmp_path, "src/contextlab", monkeypatch)
    assert identities.commit() == head


def test_an_environment_inside_another_checkout_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package_below(tmp_path, ".venv/lib/contextlab", monkeypatch)
    assert identities.commit() is None


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert identities.commit() is None


def test_a_protocol_without_a_prompt_has_the_digest_of_nothing() -> None:
    assert identities.prompt_digest("") == EMPTY
    assert identities.prompt_digest("Read: ") != EMPTY


def test_a_backbone_counts_without_the_folders_of_its_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("models/llama").mkdir(parents=True)
    for name in ("models/llama", "./models/llama/", f"{tmp_path}/models/llama"):
        assert identities.without_folders(name) == "llama"
        assert identities.without_folders(f"tiny-llama+{name}+domain-r16") == "tiny-llama+llama+domain-r16"
    for name in ("smollm2-135m", "smollm2-135m+domain-r16", "owner/llama", "LlamaForCausalLM+default"):
        assert identities.without_folders(name) == name


def test_another_chat_template_or_bos_token_is_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A template counts where a task uses it, and not elsewhere."""
    model = backbone.load("tiny-llama", device="cpu")
    monkeypatch.setattr(model, "tokenizer", copy.deepcopy(model.tokenizer))

    def run(prompt: str) -> str:
        task = registry.task("squad", {"prompt": prompt})
        dataset, protocol = task.load("512", None), task.protocol("512")
        key = identities.identity(
            ("window", registry.method_class("window")(model)), ("squad", task), "512", Options(), dataset, protocol, 0
        )
        return run_id(key)

    runs = []
    for turn in ("<{{m.role}}>{{m.content}}", "[{{m.role}}]{{m.content}}"):
        model.tokenizer.chat_template = f"{{% for m in messages %}}{turn}{{% endfor %}}"
        runs.append((run("chat"), run("plain")))
    model.tokenizer.bos_token = "!"
    runs.append((run("chat"), run("plain")))
    (first, plain), (second, same), (third, other) = runs
    assert len({first, second, third, plain, other}) == 5
    assert same == plain


def test_provenance_holds_time_machine_code_and_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/some/where/contextlab", "bench", "--set", "a=b c"])
    method = contextlab.load("window", backbone="tiny-llama", device="cpu", dtype="float64")
    task = registry.task("needle")
    provenance = identities.provenance(method, task, task.protocol(task.default_split), 7)
    assert provenance.command == "contextlab bench --set 'a=b c'"
    assert timedelta(0) <= datetime.now(UTC) - datetime.fromisoformat(provenance.started) < timedelta(minutes=1)
    assert (provenance.dtype, provenance.seed) == ("float64", 7)
    assert provenance.weights_sha256 == method.backbone.digest
    assert (provenance.counting, provenance.threads) == (COUNTING, torch.get_num_threads())
    names = ("attention.cache", "backbone.wrapper", "methods.window", "benchmarks.tasks.needle")
    assert {f"contextlab.{name}" for name in names} <= (provenance.code or {}).keys()


def test_the_hardware_is_described_in_words() -> None:
    words = identities.hardware(torch.device("cpu"))
    assert words.startswith("cpu (")
    assert words.endswith(" cores)")


def test_the_content_of_every_path_in_a_configuration_counts(tmp_path: Path) -> None:
    method_file, folder = tmp_path / "one", tmp_path / "folder"
    method_file.write_text("a")
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "two").write_text("b")
    config = {"weights": method_file, "deep": {"list": [1, (folder,)]}, "word": "one", "none": None}
    before = digests_of(config)
    assert set(before) == {str(method_file), str(folder / "deep" / "two")}
    assert digests_of(config) == before
    for path in (method_file, folder / "deep" / "two"):
        path.write_text(path.read_text() + "!")
        assert digests_of(config) != before
        before = digests_of(config)
    with pytest.raises(UserError, match="cannot be read"):
        digests_of({"weights": tmp_path / "none"})
