"""Training of a cartridge: a cache of keys and values, by gradients through the frozen backbone.

Legend: M tokens of the context, n texts, t tokens of a text, N positions of several texts, k tokens of a teacher, p
tokens of the cartridge, K key/value heads, D head width; 1 stands for a single row.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from contextlab import calls
from contextlab.attention import KV, CacheReader, Layout
from contextlab.backbone import Backbone
from contextlab.backbone.distillation import best, cross_entropies
from contextlab.errors import UserError
from contextlab.kernels.buffers import wide
from contextlab.methods.cartridge.config import CartridgeConfig, CartridgeSizes
from contextlab.methods.full import Full
from contextlab.methods.parts.rules import Adam
from contextlab.writing import pad

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


@dataclasses.dataclass(frozen=True)
class Lesson:
    """A text from which the cartridge learns to predict every token after the first one.

    Attributes:
        tokens: at least two.
        ids_Nk: the teacher's most probable tokens in the place of each of these; None where itself is learned.
        logprobs_Nk: their log-probabilities.
    """

    tokens: list[int]
    ids_Nk: Tensor | None = None
    logprobs_Nk: Tensor | None = None


def bounds(count: int, chunk: int) -> list[tuple[int, int]]:
    """Begin and end of as few chunks as hold so many tokens; their lengths differ by one at most."""
    chunks = -(-count // chunk)
    return [(i * count // chunks, (i + 1) * count // chunks) for i in range(chunks)]


def batches(count: int, config: CartridgeConfig) -> Iterator[list[int]]:
    """Numbers of the texts of every update: all of them in a random order, then in another one."""
    draw, waiting = random.Random(config.seed), list[int]()
    size = min(config.batch, count)
    for _ in range(config.steps):
        if len(waiting) < size:
            waiting += draw.sample(range(count), count)
        yield waiting[:size]
        waiting = waiting[size:]


class CartridgeFit:
    """Trains a cartridge on a context; every context begins with the same random numbers.

    Args:
        backbone: that reads.
        config: how.
        sizes: of the cartridge, of chunks and of texts of self-study.
    """

    def __init__(self, backbone: Backbone, config: CartridgeConfig, sizes: CartridgeSizes) -> None:
        backbone.check_differentiable()
        self.backbone, self.config, self.sizes = backbone, config, sizes
        self.plain = Full(backbone)
        self.rule = Adam(config.lr, BETA1, BETA2, EPS)

    def __call__(self, tokens_1M: Tensor) -> KV:
        """The cartridge of a context; one of at most p tokens is its own cache, and nothing is trained.

        Raises:
            UserError: when its numbers are not finite.
        """
        # Gradients are needed here even where the caller has switched them off.
        with torch.inference_mode(False), torch.no_grad(), self.backbone.frozen():
            tokens_1M = tokens_1M.clone()
            begin, _ = self._pass(self.backbone.empty_kv(1), tokens_1M[:, : self.sizes.p])
            if not self.config.lr or tokens_1M.shape[1] <= self.sizes.p:
                return begin
            return self._trained(begin, self._lessons(tokens_1M))

    def hidden(self, kv: KV, tokens_nt: Tensor) -> Tensor:
        """`hidden_ntC` of texts that follow a cache."""
        return self._pass(kv, tokens_nt)[1]

    def _pass(self, kv: KV, tokens_nt: Tensor) -> tuple[KV, Tensor]:
        """A cache with texts appended to it, and their hidden states."""
        layout = Layout(kv.next_positions(tokens_nt.shape[1]))
        reader = CacheReader(self.backbone, kv, layout)
        hidden_ntC = self.backbone.forward(tokens_nt, layout.position_BT, reader)
        return reader.grown(torch.full_like(kv.used_B, tokens_nt.shape[1])), hidden_ntC

    def _lessons(self, tokens_1M: Tensor) -> list[Lesson]:
        """Texts of all chunks of a context."""
        chunks = bounds(tokens_1M.shape[1], self.sizes.chunk)
        if self.config.objective == "self-study":
            return [lesson for begin, end in chunks for lesson in self._studied(tokens_1M[:, begin:end], begin)]
        # Each chunk with the token after it, so that all tokens but the context's first are learned.
        texts = [tokens_1M[0, begin : end + 1].tolist() for begin, end in chunks]
        return [Lesson(text) for text in texts if len(text) > 1]

    def _studied(self, chunk_1t: Tensor, number: int) -> list[Lesson]:
        """What the backbone writes after a chunk, and what it predicts there; `number` tokens are before the chunk."""
        config, count = self.config, self.config.study
        with calls.within(self.plain):
            state, _ = self.plain.read(self.plain.start(), chunk_1t, logprobs=False)
            texts = self.plain.generate(
                state,
                [[]] * count,
                max_new_tokens=self.sizes.studied,
                temperature=1.0,
                seed=config.seed + number,
            )
        tokens_nt, _ = pad(texts, self.backbone.device)
        hidden_ntC = self.hidden(state.fork(count).kv, tokens_nt[:, :-1])
        ids_Nk, logprobs_Nk = best(self.backbone, hidden_ntC.flatten(0, 1), min(config.k, self.backbone.vocab_size))
        positions = self.sizes.studied - 1
        targets = zip(ids_Nk.split(positions), logprobs_Nk.split(positions), strict=True)
        return [Lesson(text, *target) for text, target in zip(texts, targets, strict=True)]

    def _trained(self, begin: KV, lessons: Sequence[Lesson]) -> KV:
        frozen = self.config.frozen
        weights = [x[:, :, frozen:].to(wide(x), copy=True) for x in (*begin.k, *begin.v)]
        m, v = ([torch.zeros_like(w) for w in weights] for _ in range(2))
        for count, chosen in enumerate(batches(len(lessons), self.config), start=1):
            leaves = [w.detach().requires_grad_() for w in weights]
            with torch.enable_grad():
                loss = self._loss(self._cache(begin, leaves, len(chosen)), [lessons[number] for number in chosen])
                gradients = torch.autograd.grad(loss, leaves)
            self.rule.update(weights, gradients, m, v, count)
        if not all(bool(w.isfinite().all()) for w in weights):
            raise UserError(
                "Training the cartridge diverged: its numbers are not finite; use a smaller lr than "
                f"{self.config.lr:g}, or fewer steps."
            )
        return self._cache(begin, weights, 1)

    def _cache(self, begin: KV, weights: Sequence[Tensor], rows: int) -> KV:
        """The cartridge in so many rows: what is frozen as it began, and what is trained."""
        whole = [
            torch.cat((x[:, :, : self.config.frozen], w.to(x.dtype)), dim=2).expand(rows, -1, -1, -1)
            for x, w in zip((*begin.k, *begin.v), weights, strict=True)
        ]
        layers = len(begin.k)
        return begin.replace(tuple(whole[:layers]), tuple(whole[layers:]), begin.used_B.expand(rows))

    def _loss(self, cartridge: KV, lessons: Sequence[Lesson]) -> Tensor:
        """The mean over all positions of texts that follow the cartridge."""
        tokens_nt, lengths_n = pad([lesson.tokens for lesson in lessons], self.backbone.device)
        step_t = torch.arange(tokens_nt.shape[1] - 1, device=tokens_nt.device)
        real_nt = step_t < lengths_n.to(step_t.device)[:, None] - 1
        hidden_NC = self.hidden(cartridge, tokens_nt[:, :-1])[real_nt]
        ids = [lesson.ids_Nk for lesson in lessons if lesson.ids_Nk is not None]
        logprobs = [lesson.logprobs_Nk for lesson in lessons if lesson.logprobs_Nk is not None]
        if ids:
            return cross_entropies(self.backbone, hidden_NC, torch.cat(ids), torch.cat(logprobs)).mean()
        return -self.backbone.logprobs(hidden_NC[None], tokens_nt[:, 1:][real_nt][None]).mean()
