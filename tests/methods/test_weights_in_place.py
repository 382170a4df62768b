"""What a method says of its weights stays true when they change in the process."""

from __future__ import annotations

import pytest
import torch
from installed import METHODS
from law_forms import fits

from contextlab import registry
from contextlab.backbone import load

NORMS = {"tiny-gpt2": "transformer.ln_f", "tiny-llama": "model.norm"}
"""The last norm of a model by its name."""
LEARNED = {"longmem": "side", "evalm": "summaries", "generative-adapter": "generator"}


def changed(module: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(0.1)


@pytest.mark.parametrize("name", LEARNED)
def test_digest_training_and_baseline_follow_the_weights(name: str) -> None:
    method = registry.method_class(name)(load("tiny-llama", device="cpu"))
    digest = method.weights_digest
    assert method.untrained
    assert method.baseline() is not None
    start = method.start().pending_BC.clone()
    changed(getattr(method, LEARNED[name]))
    assert not method.untrained
    assert method.baseline() is None
    assert method.weights_digest != digest
    assert torch.equal(method.start().pending_BC, start) == (name != "longmem")


@pytest.mark.parametrize("name", METHODS)
def test_the_first_prediction_is_that_of_the_weights_as_they_are(name: str) -> None:
    backbone = load(next(family for family in NORMS if fits(name, family)), device="cpu")
    method = registry.method_class(name)(backbone)
    before, digest = method.start().pending_BC.clone(), backbone.digest
    with torch.no_grad():
        backbone.model.get_submodule(NORMS[backbone.name]).weight.mul_(2)
    assert backbone.digest != digest
    assert not torch.equal(backbone.bos_hidden_C, before[0])
    if name == "trime":  # whose state has a representation behind it
        assert torch.equal(method.start().pending_BC[0, : backbone.width], backbone.bos_hidden_C)
    elif name != "longmem":  # whose final norm is a copy of the backbone's
        assert torch.equal(method.start().pending_BC[0], backbone.bos_hidden_C)
