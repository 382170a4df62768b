"""Writing of text: tokens chosen from distributions, several rows at a time.

Legend: B rows, N sequences of a row, T or M tokens of the longest sequence, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from contextlab.errors import UserError


def pad(sequences: Sequence[Sequence[int]], device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Right-pad token lists to `tokens_BT` with `lengths_B`, both int64."""
    lengths = [len(sequence) for sequence in sequences]
    tokens_BT = torch.zeros(len(sequences), max(lengths, default=0), dtype=torch.int64)
    for row, sequence in enumerate(sequences):
        tokens_BT[row, : lengths[row]] = torch.as_tensor(sequence, dtype=torch.int64)
    return tokens_BT.to(device), torch.tensor(lengths, dtype=torch.int64, device=device)


def pad_rows(rows: Sequence[Sequence[Sequence[int]]], device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Right-pad every row's own token lists to `tokens_BNM` with `lengths_BN`, both int64; 0 where a row has fewer."""
    most = max(map(len, rows), default=0)
    tokens, lengths = pad([sequence for row in rows for sequence in (*row, *[()] * (most - len(row)))], device)
    return tokens.view(len(rows), most, -1), lengths.view(len(rows), most)


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
        self._generator = torch.Generator().manual_seed(seed)

    def write(self, rows: int, after: Callable[[Tensor | None], Tensor]) -> list[list[int]]:
        """The tokens of every row; `after(chosen_B)` is `logprobs_BV` after one more token, at first after none."""
        written: list[list[int]] = [[] for _ in range(rows)]
        open_rows = set(range(rows))
        chosen_B = None
        while open_rows and max(map(len, written)) < self.max_new_tokens:
            chosen_B = _choose(after(chosen_B).cpu(), self.temperature, self._generator)
            for row in sorted(open_rows):
                token = int(chosen_B[row])
                if token in self.stop:
                    open_rows.discard(row)
                else:
                    written[row].append(token)
        return written


def _choose(logprobs_BV: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    if bool(logprobs_BV.isnan().any()):
        raise UserError("The probabilities of the next token are not numbers: try float32, or other weights.")
    if temperature == 0:
        return logprobs_BV.argmax(dim=-1)
    return torch.multinomial((logprobs_BV / temperature).softmax(-1), 1, generator=generator)[:, 0]
