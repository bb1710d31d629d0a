"""Plain-torch twin of `kernels.sampling`: the sorted definition."""

from __future__ import annotations

import torch

from kernels.reference.noise import exponential_noise
from kernels.row_parameters import Column

_MAX = torch.finfo(torch.float32).max


def sample_tokens(
    logits: torch.Tensor, parameters: torch.Tensor, row_indices: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """As `kernels.sampling.sample_tokens`."""
    if not len(logits):
        return torch.empty(0, dtype=torch.int64, device=logits.device)
    rows = parameters[row_indices]
    clean = torch.where(logits.isnan(), -torch.inf, logits)
    greedy = _first_least(-clean)
    drawn = _first_least(race_times(logits, parameters, row_indices, positions))
    return torch.where(rows[:, Column.TEMPERATURE] == 0.0, greedy, drawn)


def race_times(
    logits: torch.Tensor, parameters: torch.Tensor, row_indices: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """float32 (R, vocab): what a drawn row takes the least of; inf for tokens that it may not take."""
    rows = parameters[row_indices]
    found = scaled_distances(logits, rows[:, Column.TEMPERATURE])
    times = exponential_noise(
        rows[:, Column.SEED_LOW].long() | (rows[:, Column.SEED_HIGH].long() << 32),
        rows[:, Column.INDEX].long(),
        positions,
        logits.shape[1],
    )
    times *= found.clamp(max=80.0).exp()
    return times.masked_fill_(~kept_tokens(found, rows) | (found == torch.inf), torch.inf)


def scaled_distances(logits: torch.Tensor, temperatures: torch.Tensor) -> torch.Tensor:
    """float32 (R, vocab): |(logit − largest) / temperature|. temperatures: float64 (R)."""
    clean = torch.where(logits.isnan(), -torch.inf, logits)
    below = (clean - clean.amax(-1, keepdim=True).clamp(-_MAX, _MAX)).clamp_(max=0.0)
    return (below / temperatures.float().clamp(min=1e-30).unsqueeze(1)).abs_()


def kept_tokens(found: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """bool (R, vocab): what top-k, then top-p, then min-p keep. found: distances. rows: each row's parameters."""
    vocab_size = found.shape[1]
    ordered, ids = found.sort(dim=-1, stable=True)
    weights = (-ordered).exp()
    places = torch.arange(vocab_size, device=found.device)
    top_k = rows[:, Column.TOP_K].long().unsqueeze(1)
    kept = (places < torch.where(top_k > 0, top_k, vocab_size)).expand_as(found).clone()
    sums = (weights * kept).double().cumsum(-1)
    top_p = rows[:, Column.TOP_P].unsqueeze(1)
    lengths = (sums / sums[:, -1:] < top_p).sum(-1, keepdim=True) + 1
    kept &= (places < lengths) | (top_p >= 1.0)
    kept &= weights >= rows[:, Column.MIN_P].float().unsqueeze(1)
    return torch.empty_like(kept).scatter_(1, ids, kept)


def _first_least(keys: torch.Tensor) -> torch.Tensor:
    """The lowest id of the least key. NOTE: which of several equal ones argmin takes is left open by torch."""
    ids = torch.arange(keys.shape[1], device=keys.device)
    return torch.where(keys == keys.amin(-1, keepdim=True), ids, keys.shape[1]).amin(-1)
