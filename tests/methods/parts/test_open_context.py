"""A context that has not ended: its tokens are kept for as long, and each row holds its own."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from contextlab.backbone import load
from contextlab.method import AnyMethod, Lengths
from contextlab.methods.cartridge import Cartridge, CartridgeConfig
from contextlab.methods.finetune import Finetune, FinetuneConfig
from contextlab.methods.parts.open_context import OpenContextState
from contextlab.states import Misfit

HOLDERS: dict[str, Any] = {
    "cartridge": lambda b: Cartridge(b, CartridgeConfig(p=8, N=24, lr=0)),
    "finetune": lambda b: Finetune(b, FinetuneConfig(N=24, lr=0)),
}


@pytest.fixture(params=HOLDERS)
def method(request: pytest.FixtureRequest) -> AnyMethod:
    return HOLDERS[request.param](load("tiny-llama"))


def state_after(method: AnyMethod, *lengths: int) -> OpenContextState:
    """Rows that have read so many tokens of a context of 20."""
    tokens_BT = torch.arange(len(lengths) * 20).view(len(lengths), 20)
    empty = method.start(len(lengths), ahead=Lengths(20))
    return method.read(empty, tokens_BT, torch.tensor(lengths), logprobs=False)[0]


def test_a_row_keeps_the_tokens_of_its_own_context_alone(method: AnyMethod) -> None:
    together = state_after(method, 3, 20, 7)
    assert together.open_B.tolist() == [True, False, True]
    for row, kept in enumerate((3, 0, 7)):
        alone = together.row(row)
        assert alone.tokens_BN.tolist() == together.tokens_BN[row : row + 1, :kept].tolist()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"context_B": torch.tensor([-1])}, "context_B"),
        ({"tokens_BN": torch.tensor([[1, 2, 100_000]])}, "tokens_BN"),
        ({"tokens_BN": torch.tensor([[1, 2]])}, "tokens of a context"),
    ],
)
def test_a_state_that_lacks_tokens_or_has_wrong_ones_is_refused(
    method: AnyMethod, changed: dict[str, Any], message: str
) -> None:
    state = state_after(method, 3)
    state.check_context(method.backbone.vocab_size)
    with pytest.raises(Misfit, match=message):
        dataclasses.replace(state, **changed).check_context(method.backbone.vocab_size)
