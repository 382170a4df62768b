from __future__ import annotations

import pytest
import torch
from eager_attention import weights_of
from torch import Tensor

from contextlab.backbone import Backbone, load
from contextlab.method import Lengths
from contextlab.methods.full import Full
from contextlab.methods.parts.local_cache import LocalCache, LocalConfig
from contextlab.methods.parts.scored import ScoredMethod, ScoredState

SEGMENT, KEPT = 12, 9


class Heaviest(ScoredMethod[LocalConfig]):
    """Keeps the tokens with the most attention."""

    Config = LocalConfig

    def __init__(self, backbone: Backbone, config: LocalConfig | None = None) -> None:
        super().__init__(backbone, config)
        self.local = LocalCache(self.config.length(backbone.max_positions), keep_first=1, keep_last=KEPT - 1)

    def importance(self, state: ScoredState) -> tuple[Tensor, ...]:
        """The scores."""
        return state.score_BKS


class LastHeaviest(Heaviest):
    """Only the last query of a segment votes."""

    accumulates = False
    voters = 1


@pytest.fixture(scope="module", params=["tiny-llama", "tiny-gpt2"])
def backbone(request: pytest.FixtureRequest) -> Backbone:
    return load(request.param, device="cpu")


def tokens(rows: int, count: int) -> Tensor:
    return torch.randint(1, 90, (rows, count), generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize("parts", [[11], [4, 7], [1] * 11])
def test_scores_are_the_attention_that_the_model_itself_pays(backbone: Backbone, parts: list[int]) -> None:
    method = Heaviest(backbone, LocalConfig(N=SEGMENT))
    text_BT = tokens(2, sum(parts))
    state = method.start(2)
    for part in text_BT.split(parts, dim=1):
        state, _ = method.read(state, part, logprobs=False)
    for score_BKS, weights_BKTS in zip(state.score_BKS, weights_of(backbone, text_BT), strict=True):
        torch.testing.assert_close(score_BKS, weights_BKTS.sum(2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [Heaviest, LastHeaviest])
def test_every_head_keeps_its_own_heaviest_tokens_in_their_order(backbone: Backbone, kind: type[Heaviest]) -> None:
    """The values that stay are those of the slots with the highest scores; the first one stays whatever its score."""
    method, text_BT = kind(backbone, LocalConfig(N=SEGMENT)), tokens(1, SEGMENT)
    state, _ = method.read(method.start(), text_BT)
    full, _ = Full(backbone).read(Full(backbone).start(), text_BT)
    for layer, weights_BKTS in enumerate(weights_of(backbone, text_BT)):
        score_KS = (weights_BKTS.sum(2) if kind is Heaviest else weights_BKTS[:, :, -1])[0]
        score_KS[:, 0] = torch.inf
        for head, score_S in enumerate(score_KS):
            slots = score_S.topk(KEPT).indices.sort().values
            torch.testing.assert_close(state.kv.v[layer][0, head], full.kv.v[layer][0, head, slots])
            kept = state.score_BKS[layer][0, head]
            expected_S = weights_BKTS[0, head].sum(0)[slots] if kind is Heaviest else torch.zeros(KEPT)
            torch.testing.assert_close(kept, expected_S, rtol=1e-4, atol=1e-5)


def test_keys_have_the_positions_of_the_slots_that_they_move_to() -> None:
    """Every head that keeps tokens 0, 2, 3 and so on holds what the tokens without the others would leave there."""
    backbone = load("tiny-llama", device="cpu")
    method, text_BT = Heaviest(backbone, LocalConfig(N=SEGMENT)), tokens(1, SEGMENT)
    state, _ = method.read(method.start(), text_BT)
    layer = 0  # whose keys depend on their own tokens alone
    for head, weights_TS in enumerate(weights_of(backbone, text_BT)[layer][0]):
        score_S = weights_TS.sum(0)
        score_S[0] = torch.inf
        slots = score_S.topk(KEPT).indices.sort().values
        alone, _ = Full(backbone).read(Full(backbone).start(), text_BT[:, slots])
        torch.testing.assert_close(state.kv.k[layer][0, head], alone.kv.k[layer][0, head], rtol=1e-4, atol=1e-5)


def test_rows_whose_segments_end_at_other_times_keep_what_they_keep_alone(backbone: Backbone) -> None:
    method, text_BT = Heaviest(backbone, LocalConfig(N=SEGMENT)), tokens(2, 30)
    first, _ = method.read(method.start(2), text_BT[:, :10], torch.tensor([10, 3]), logprobs=False)
    both, logprobs_BT = method.read(first, text_BT[:, 10:])
    assert logprobs_BT is not None
    for row, count in enumerate((10, 3)):
        alone, _ = method.read(method.start(), text_BT[row : row + 1, :count], logprobs=False)
        alone, expected_1T = method.read(alone, text_BT[row : row + 1, 10:])
        assert expected_1T is not None
        torch.testing.assert_close(logprobs_BT[row], expected_1T[0], rtol=1e-4, atol=1e-5)
        used = int(alone.kv.used_B)
        assert int(both.kv.used_B[row]) == used
        for mine, theirs in zip(both.score_BKS, alone.score_BKS, strict=True):
            torch.testing.assert_close(mine[row, :, :used], theirs[0], rtol=1e-4, atol=1e-5)


def test_a_segment_as_long_as_the_text_is_full_attention(backbone: Backbone) -> None:
    method, text_BT = Heaviest(backbone, LocalConfig(N=64)), tokens(1, 60)
    read = [reader.read(reader.start(ahead=Lengths(60)), text_BT)[1] for reader in (method, Full(backbone))]
    assert read[0] is not None
    torch.testing.assert_close(*read)
