from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from contextlab import backbone as backbones
from contextlab.accounting.memory import PeakMemory
from contextlab.backbone.wrapper import Backbone
from contextlab.errors import UserError
from contextlab.method import ContextMethod, Lengths
from contextlab.methods.longmem import LongMem, LongMemConfig
from contextlab.methods.window import Window

FAMILIES = ["tiny-llama", "tiny-gpt2"]


@pytest.fixture(params=FAMILIES, scope="module")
def backbone(request: pytest.FixtureRequest) -> Any:
    return backbones.load(request.param)


def tokens(rows: int, length: int, seed: int = 0) -> Any:
    return torch.randint(0, 257, (rows, length), generator=torch.Generator().manual_seed(seed))


def test_untrained_identity_equals_the_window_bitwise(backbone: Backbone) -> None:
    text = tokens(2, 300)
    method, window = LongMem(backbone, LongMemConfig(K=16)), Window(backbone)
    assert torch.equal(method.read(method.start(2), text)[1], window.read(window.start(2), text)[1])


def test_copied_layers_do_not_equal_the_window(backbone: Backbone) -> None:
    method = LongMem(backbone, LongMemConfig(init="paper", K=16))
    assert method.baseline() is None
    window = Window(backbone)
    text = tokens(1, 100)
    assert not torch.allclose(method.read(method.start(), text)[1], window.read(window.start(), text)[1], atol=0.1)


def test_memory_reaches_over_segments_and_the_window_does_not(backbone: Backbone) -> None:
    method = LongMem(backbone, LongMemConfig(init="paper", K=16, N=32))
    text, other = tokens(1, 96), tokens(1, 96)
    other[:, :32] = tokens(1, 32, seed=1)
    far, changed = (method.read(method.start(), x)[1][:, 65:] for x in (text, other))
    assert (far - changed).abs().max() > 1e-3
    window = Window(backbone, Window.Config(N=32))
    near, same = (window.read(window.start(), x)[1][:, 65:] for x in (text, other))
    assert torch.equal(near, same)


def test_contextualising_without_scores_leaves_the_same_state(backbone: Backbone) -> None:
    method = LongMem(backbone, LongMemConfig(init="paper", K=16, N=32))
    text = tokens(2, 150)
    scored, _ = method.read(method.start(2), text)
    silent, nothing = method.read(method.start(2), text, logprobs=False)
    assert nothing is None
    for name, tensor in scored.tensors().items():
        torch.testing.assert_close(silent.tensors()[name], tensor, atol=2e-3, rtol=2e-3)


def test_what_is_ahead_moves_the_boundaries(backbone: Backbone) -> None:
    method = LongMem(backbone, LongMemConfig(K=16, N=32))
    state, _ = method.read(method.start(ahead=Lengths(20)), tokens(1, 52))
    assert state.bank.count_B.tolist() == [13]
    assert state.kv.used_B.tolist() == [0]


def test_bank_is_bounded_by_M(backbone: Backbone) -> None:
    method = LongMem(backbone, LongMemConfig(K=8, N=16, M=64))
    state, _ = method.read(method.start(), tokens(1, 200), logprobs=False)
    assert state.bank.count_B.tolist() == [16]


def test_state_size_is_bank_plus_segment(backbone: Backbone) -> None:
    method = LongMem(backbone, LongMemConfig(K=8, N=32, storage_dtype="float16"))
    state, _ = method.read(method.start(), tokens(1, 64 + 8), logprobs=False)
    per_token = backbone.kv_heads * backbone.head_width * 2
    chunks = 64 // 4
    bank = 64 * per_token * 2 + chunks * (per_token // 2) * 4 + 2 * 8
    caches = 8 * per_token * 4 * (backbone.layers + len(method.side.blocks)) + 2 * 8
    assert state.nbytes == bank + caches + 8 + 8 + backbone.width * 4


def test_weights_file_is_loaded_and_digested(backbone: Backbone, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    method = LongMem(backbone, LongMemConfig(init="paper", K=8))
    path = tmp_path / "side.safetensors"
    save_file({k: v.clone() for k, v in method.side.state_dict().items()}, path)
    loaded = LongMem(backbone, LongMemConfig(weights=path, K=8))
    assert (method.untrained, loaded.untrained) == (True, False)
    assert loaded.weights_digest == method.weights_digest
    assert loaded.baseline() is None
    with pytest.raises(UserError, match="does not hold LongMem weights"):
        LongMem(backbone, LongMemConfig(weights=path, K=8, reduction=4))


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"reduction": 3}, "choose a divisor of 4"), ({"memory_layer": 9}, "layers 0 to 3"), ({"N": 4096}, "use N=128")],
)
def test_settings_that_do_not_fit_the_backbone(backbone: Backbone, settings: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        LongMem(backbone, LongMemConfig(**settings))


def test_parameters_are_counted_and_the_backbone_is_not_touched(backbone: Backbone) -> None:
    before = backbones.weights_digest(backbone.model)
    method = LongMem(backbone, LongMemConfig(init="paper", K=8))
    method.read(method.start(), tokens(1, 40))
    assert backbones.weights_digest(backbone.model) == before
    assert method.added_parameters == sum(p.numel() for p in method.side.parameters())
    assert all(parameter.requires_grad for parameter in method.side.parameters())


def shared(backbone: Backbone, **settings: Any) -> Any:
    return LongMem(backbone, LongMemConfig(**{"N": 16, "K": 8, "init": "paper", "bank_scope": "shared", **settings}))


def test_rows_that_share_a_bank_must_be_equally_long() -> None:
    method, tokens = shared(backbones.load("tiny-llama")), torch.randint(0, 256, (2, 40))
    state, _ = method.read(method.start(2), tokens)
    assert state.bank.count_B.tolist() == [2 * 32 // 4] * 2
    for lengths in ([40, 39], [16, 32], [5, 0]):
        with pytest.raises(UserError, match="give rows of equal length"):
            method.read(method.start(2), tokens, torch.tensor(lengths))


def test_candidates_behind_a_shared_bank_do_not_enter_each_others() -> None:
    method = shared(backbones.load("tiny-llama"))
    state, _ = method.read(method.start(), torch.randint(0, 256, (1, 30)))
    candidates = [torch.randint(0, 256, (length,)).tolist() for length in (40, 3, 25)]
    together = method.score(state, candidates)
    for n, candidate in enumerate(candidates):
        assert torch.equal(together[:, n, : len(candidate)], method.score(state, [candidate])[:, 0])
        assert bool((together[:, n, len(candidate) :] == 0).all())
    written = method.generate(state, candidates, max_new_tokens=20)
    assert written == [method.generate(state, [candidate], max_new_tokens=20)[0] for candidate in candidates]


def test_a_chunk_longer_than_a_segment_is_refused() -> None:
    with pytest.raises(UserError, match="use a smaller csz or a larger N"):
        shared(backbones.load("tiny-llama"), N=4, csz=8, K=8)


PROMPTS = [[3, 5, 7, 9], [], [11], [20, 21, 22, 23, 24, 25], [4, 4]]


@pytest.mark.parametrize("scope", ["per_row", "shared"])
@pytest.mark.parametrize("length", [0, 5, 70, 64])
def test_continuations_share_the_bank_and_equal_those_of_copies(backbone: Backbone, scope: str, length: int) -> None:
    """Also where a segment ends inside of them (after 70 tokens of segments of 24), which makes copies needed."""
    method = LongMem(backbone, LongMemConfig(init="paper", K=16, N=24, bank_scope=scope))
    state, _ = method.read(method.start(), tokens(1, length))
    scores = method.score(state, PROMPTS)
    for prompt, logprobs in zip(PROMPTS, scores[0], strict=True):
        alone = ContextMethod.score(method, state, [prompt])[0, 0]
        torch.testing.assert_close(logprobs[: len(prompt)], alone, atol=1e-5, rtol=1e-5)
        assert not logprobs[len(prompt) :].any()
    written = method.generate(state, PROMPTS, max_new_tokens=5)
    assert written == [ContextMethod.generate(method, state, [prompt], max_new_tokens=5)[0] for prompt in PROMPTS]


def test_rows_are_scored_behind_their_own_banks(backbone: Backbone) -> None:
    method = LongMem(backbone, LongMemConfig(init="paper", K=16, N=24))
    state, _ = method.read(method.start(3), tokens(3, 60), torch.tensor([60, 7, 30]))
    scores, copies = method.score(state, PROMPTS), ContextMethod.score(method, state, PROMPTS)
    torch.testing.assert_close(scores, copies, atol=1e-5, rtol=1e-5)


def test_many_continuations_do_not_copy_the_bank() -> None:
    method = LongMem(backbones.load("tiny-llama"), LongMemConfig(K=16, N=32))
    state, _ = method.read(method.start(), tokens(1, 6000), logprobs=False)
    bank_bytes = sum(tensor.nbytes for name, tensor in state.tensors().items() if name.startswith("bank."))
    with PeakMemory() as memory:
        method.score(state, PROMPTS)
        method.generate(state, PROMPTS, max_new_tokens=3)
    assert memory.peak_bytes < len(PROMPTS) * bank_bytes / 2
