"""Writing of text: tokens chosen from distributions, several rows at a time.

Legend: B rows, N sequences of a row, T or M tokens of the longest sequence, t other tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from contextlab.errors import UserError


def pad(sequences: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Right-pad token lists to `tokens_BT`, on a device, with `lengths_B`, on the host; both int64."""
    lengths = [len(sequence) for sequence in sequences]
    tokens_BT = torch.zeros(len(sequences), max(lengths, default=0), dtype=torch.int64)
    for row, sequence in enumerate(sequences):
        tokens_BT[row, : lengths[row]] = torch.as_tensor(sequence, dtype=torch.int64)
    return tokens_BT.to(device), torch.tensor(lengths, dtype=torch.int64)


def pad_rows(rows: Sequence[Sequence[Sequence[int]]], device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Right-pad every row's own token lists; see `pad`: `tokens_BNM` with `lengths_BN`, 0 where a row has fewer."""
    most = max(map(len, rows), default=0)
    tokens, lengths = pad([sequence for row in rows for sequence in (*row, *[()] * (most - len(row)))], device)
    return tokens.view(len(rows), most, -1), lengths.view(len(rows), most)


def put(tokens_BT: Tensor, new_Bt: Tensor, begin_B: Tensor, lengths_B: Tensor) -> Tensor:
    """Tokens with each row's first `lengths_B` of others in the places from `begin_B` on; wider, where these end later.

    Both counts are on the host.
    """
    wider_BT = torch.nn.functional.pad(tokens_BT, (0, max(int((begin_B + lengths_B).max()) - tokens_BT.shape[1], 0)))
    if not new_Bt.shape[1]:
        return wider_BT
    begin_B, lengths_B = begin_B.to(tokens_BT.device), lengths_B.to(tokens_BT.device)
    index_BT = torch.arange(wider_BT.shape[1], device=tokens_BT.device) - begin_B[:, None]
    placed_BT = (index_BT >= 0) & (index_BT < lengths_B[:, None])
    return torch.where(placed_BT, new_Bt.gather(1, index_BT.clamp(0, new_Bt.shape[1] - 1)), wider_BT)


NO_TOKEN = -1


class Writer:
    """Chooses tokens, one row beside the other, until all rows have ended.

    Args:
        max_new_tokens: the most tokens written per row.
        stop: tokens that end a row.
        temperature: 0 takes the most probable token, otherwise samples.
        seed: of the sampling.
    """

    def __init__(self, max_new_tokens: int, stop: Sequence[int], temperature: float, seed: int) -> None:
        self.max_new_tokens, self.stop, self.temperature = max_new_tokens, stop, temperature
        self.seed = seed
        self._generator: torch.Generator | None = None

    def write(self, rows: int, after: Callable[[Tensor | None], Tensor]) -> list[list[int]]:
        """The tokens of every row; `after(chosen_B)` is `logprobs_BV` after one more token, at first after none."""
        written: list[list[int]] = [[] for _ in range(rows)]
        open_rows = set(range(rows))
        chosen_B = None
        while open_rows and max(map(len, written)) < self.max_new_tokens:
            chosen_B = self._choose(after(chosen_B))
            tokens = chosen_B.tolist()
            if NO_TOKEN in tokens:
                raise UserError("The probabilities of the next token are not numbers: try float32, or other weights.")
            for row in sorted(open_rows):
                if tokens[row] in self.stop:
                    open_rows.discard(row)
                else:
                    written[row].append(tokens[row])
        return written

    def _choose(self, logprobs_BV: Tensor) -> Tensor:
        """A token of every row, on the device of the probabilities; `NO_TOKEN` where one of these is no number."""
        broken_B = logprobs_BV.isnan().any(-1)
        if self.temperature == 0:
            return logprobs_BV.argmax(dim=-1).masked_fill(broken_B, NO_TOKEN)
        if self._generator is None:
            self._generator = torch.Generator(logprobs_BV.device).manual_seed(self.seed)
        weights_BV = (logprobs_BV / self.temperature).softmax(-1).masked_fill(broken_B[:, None], 1.0)
        drawn_B = torch.multinomial(weights_BV, 1, generator=self._generator)[:, 0]
        return drawn_B.masked_fill(broken_B, NO_TOKEN)
