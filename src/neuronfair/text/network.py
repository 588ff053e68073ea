"""Networks of token ids as white boxes: gradients reach the words through the embedding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from neuronfair.errors import ModelError, one_line
from neuronfair.limits import check_size
from neuronfair.model.network import Network, eval_mode
from neuronfair.text.domain import WORDS, TextDomain

TEXTS_PER_PASS = 256
HIDDEN_LAYERS = (nn.Linear, nn.Conv1d, nn.LSTM, nn.GRU, nn.RNN)
MAX_TOKENS = 512  # of a text; a longer one is cut off


@dataclass(frozen=True, eq=False)
class TokenModel:
    """A torch module of token ids, and the tokenizer that it was trained with."""

    module: nn.Module
    tokenizer: Callable[[list[str]], Any]
    embedding: nn.Embedding
    pad: int
    length: int | None = None  # of the ids, where the tokenizer pads all texts to one length

    @staticmethod
    def of(module: nn.Module, tokenizer: Callable[[list[str]], Any], texts: Sequence[str]) -> TokenModel:
        """Return a module whose embedding of tokens was found: the first that it looks token ids up in."""
        pad = int(getattr(tokenizer, "pad", getattr(tokenizer, "pad_token_id", None) or 0))
        some = list(texts[:8])
        lines = [_ids(tokenizer, [text])[0] for text in some]
        equal = len({len(line) for line in lines}) == 1 and len(some) > 1
        ids = _padded(lines, pad, None)
        found = list[nn.Embedding]()
        hooks = [
            part.register_forward_hook(
                lambda part, given, _: found.append(part) if given and _same(given[0], ids) else None
            )
            for part in module.modules()
            if isinstance(part, nn.Embedding)
        ]
        try:
            with torch.no_grad(), eval_mode(module.modules()):
                module(ids)
        except Exception as error:  # the user's own code
            raise ModelError(f"the module failed on token ids {tuple(ids.shape)}: {one_line(error)}") from error
        finally:
            for hook in hooks:
                hook.remove()
        if not found:
            raise ModelError("the module looks its token ids up in no nn.Embedding, so its gradients reach no word")
        return TokenModel(module, tokenizer, found[0], pad, len(lines[0]) if equal else None)

    def ids(self, texts: list[str], length: int | None = None) -> Tensor:
        """Return the token ids of texts: (n, tokens), padded to one length."""
        return _padded(_ids(self.tokenizer, texts), self.pad, length or self.length)

    def scores(self, texts: list[str]) -> Tensor:
        """Return what the module computes for each text alone, so that no other text of a batch changes its padding."""
        lines = [_ids(self.tokenizer, [text])[0] for text in texts]
        by_length: dict[int, list[int]] = {}
        for number, line in enumerate(lines):
            by_length.setdefault(len(line), []).append(number)
        parts, order = [torch.empty(0, 1)], list[int]()
        with torch.no_grad(), eval_mode(self.module.modules()):
            for same in by_length.values():
                for start in range(0, len(same), TEXTS_PER_PASS):
                    some = same[start : start + TEXTS_PER_PASS]
                    ids = _padded([lines[i] for i in some], self.pad, self.length)
                    parts.append(_as_scores(self.module(ids), len(ids)))
                    order += some
        if not order:
            return parts[0]
        scores = torch.cat(parts[1:])
        return scores[torch.tensor(order).argsort()]

    def network(self, domain: TextDomain) -> TextNetwork:
        """Return the module as a white box of the rows of a domain.

        Its layers are the outputs of activations and of attention; where there are none, those of all parts with
        weights but the last one.
        """
        module, encoding = _FromEmbedding(self.module, self.embedding), TextEncoding(self, domain)
        try:
            return TextNetwork(module, encoding)
        except ModelError:
            parts = [name for name, part in module.named_modules() if isinstance(part, HIDDEN_LAYERS)]
            return TextNetwork(module, encoding, layers=parts[:-1])


def _same(given: Any, ids: Tensor) -> bool:
    return isinstance(given, Tensor) and given.shape == ids.shape and bool((given == ids).all())


def _as_scores(result: Any, texts: int) -> Tensor:
    if not isinstance(result, Tensor) or not result.is_floating_point() or len(result) != texts:
        raise ModelError(f"the module must return scores ({texts}, classes), got {type(result).__name__}")
    return result[:, None] if result.dim() == 1 else result


def _ids(tokenizer: Callable[[list[str]], Any], texts: list[str]) -> list[list[int]]:
    """Return the ids of each text; a tokenizer may give a tensor, lists, or a dictionary with input_ids."""
    try:
        found = tokenizer(texts)
    except Exception as error:  # the user's own code
        raise ModelError(f"the tokenizer failed on {len(texts)} texts: {one_line(error)}") from error
    if hasattr(found, "keys") and "input_ids" in found:
        found = found["input_ids"]
    lines = found.tolist() if isinstance(found, Tensor) else [list(map(int, line)) for line in found]
    if len(lines) != len(texts):
        raise ModelError(f"the tokenizer must give ids for each of {len(texts)} texts, got {len(lines)}")
    return [line[:MAX_TOKENS] for line in lines]


def _padded(lines: Sequence[Sequence[int]], pad: int, length: int | None) -> Tensor:
    width = max([1, *(len(line) for line in lines)]) if length is None else length
    ids = torch.full((len(lines), width), pad, dtype=torch.int64)
    for number, line in enumerate(lines):
        kept = torch.tensor(list(line[:width]), dtype=torch.int64)
        ids[number, : len(kept)] = kept
    return ids


class _FromEmbedding(nn.Module):
    """A module of token ids that takes their embeddings, with the ids as the last channel: (n, tokens, e + 1)."""

    def __init__(self, module: nn.Module, embedding: nn.Embedding) -> None:
        super().__init__()
        self.module, self.embedding = module, embedding

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores."""
        ids, vectors = x[..., -1].round().long(), x[..., :-1]

        def replace(_: nn.Module, __: Any, output: Tensor) -> Tensor | None:
            return vectors if output.shape == vectors.shape else None

        hook = self.embedding.register_forward_hook(replace)
        try:
            return _as_scores(self.module(ids), len(ids))
        finally:
            hook.remove()


class TextNetwork(Network):
    """A network whose neurons are units: what a unit computes for the tokens of a text is averaged over them."""

    encoding: TextEncoding

    def flat(self, output: Tensor) -> Tensor:
        """Return the activations of a layer with the mean over its tokens: (n, units)."""
        axis = self._token_axis(output.shape)
        return output.flatten(1) if axis is None else output.mean(axis).flatten(1)

    def spread(self, units: Tensor, shape: Sequence[int]) -> Tensor:
        """Return what belongs to each unit for every token of an activation of this shape: (n, *shape) or (*shape)."""
        rows = units.dim() - 1
        axis = self._token_axis((1, *shape))
        if axis is None:
            return units.view(*units.shape[:rows], *shape)
        rest = [size for place, size in enumerate(shape, 1) if place != axis]
        return units.view(*units.shape[:rows], *rest).unsqueeze(rows + axis - 1).expand(*units.shape[:rows], *shape)

    def _token_axis(self, shape: Sequence[int]) -> int | None:
        """Return the axis of an activation that runs over the tokens; None for a layer that has none."""
        tokens = self.encoding.length
        if len(shape) < 3:
            return None
        near = {axis: tokens - size for axis, size in enumerate(shape) if axis and 0 <= tokens - size < 16}
        return min(near, key=lambda axis: (near[axis], axis)) if near else None


class TextEncoding:
    """How a network of tokens reads the rows of a domain of texts, and what replacing a word does to first order."""

    def __init__(self, tokens: TokenModel, domain: TextDomain) -> None:
        self.tokens, self.domain = tokens, domain
        family = [domain.write(domain.member(domain.rows, torch.tensor(g))) for g in range(len(domain.lexicon.groups))]
        longest = max(len(line) for texts in family for line in _ids(tokens.tokenizer, texts))
        self.length = tokens.length or min(MAX_TOKENS, longest + 4)  # replaced words may have more tokens
        self.width = tokens.embedding.embedding_dim
        self.shape = (self.length, self.width + 1)
        check_size(TEXTS_PER_PASS * self.length * (self.width + 1) * 4, "the texts of a pass", times=16)
        self.device, self.rows_per_pass = torch.device("cpu"), TEXTS_PER_PASS
        self.example = domain.rows[torch.tensor([0, len(domain.texts) - 1])]  # to try a model on
        self._known: dict[str, list[int]] = {}

    def ids(self, rows: Tensor) -> Tensor:
        """Return the token ids of rows: (n, tokens). Each text is cut into tokens once."""
        texts = self.domain.write(rows)
        new = list({text for text in texts if text not in self._known})
        if len(self._known) + len(new) > 200_000:
            self._known.clear()
            new = list(set(texts))
        self._known |= dict(zip(new, _ids(self.tokens.tokenizer, new), strict=True)) if new else {}
        return _padded([self._known[text] for text in texts], self.tokens.pad, self.length)

    def encode(self, rows: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the embeddings of the tokens of rows, and their ids: (…, tokens, width + 1)."""
        ids = self.ids(rows.reshape(-1, rows.shape[-1]))
        vectors = self.tokens.embedding.weight.detach().to(dtype)[ids]
        return torch.cat([vectors, ids[..., None].to(dtype)], -1).view(*rows.shape[:-1], *self.shape)

    def effects(self, gradient: Tensor, rows: Tensor, columns: Tensor | None, codes: Tensor) -> Tensor:
        """Return the first-order effect of replacing single words: (n, m).

        The tokens that two texts have in common at their beginning and at their end stay; between them the gradients
        are averaged over the old tokens and multiplied by what the new ones add.
        """
        if columns is None:
            columns = torch.arange(rows.shape[1]).expand_as(codes)
        moved = rows[:, None].repeat(1, columns.shape[1], 1).scatter(2, columns[..., None], codes[..., None])
        changed = columns >= WORDS
        result = torch.zeros(columns.shape, dtype=gradient.dtype)
        pairs = (changed & (codes != rows.gather(1, columns))).nonzero()
        if len(pairs):
            line, move = pairs.unbind(1)
            new = self.domain.clip(moved[line, move])
            result[line, move] = self._replaced(gradient.view(len(rows), *self.shape)[line, :, :-1], rows[line], new)
        return result

    def _replaced(self, gradient: Tensor, rows: Tensor, new: Tensor) -> Tensor:
        """Return the first-order effect of taking each row to another: (n,)."""
        old_ids, new_ids = self.ids(rows), self.ids(new)
        before = (old_ids != new_ids).int().argmax(1)  # the first token that differs
        ends = [(ids != self.tokens.pad).int() for ids in (old_ids, new_ids)]
        sizes = [self.length - end.flip(1).argmax(1) for end in ends]
        place = torch.arange(self.length)
        same = torch.zeros(len(rows), dtype=torch.int64)
        going = torch.ones(len(rows), dtype=torch.bool)
        for step in range(1, self.length):  # tokens in common at the end
            at = [(size - step).clamp(min=0) for size in sizes]
            going &= (at[0] >= before) & (at[1] >= before)
            going &= old_ids.gather(1, at[0][:, None])[:, 0] == new_ids.gather(1, at[1][:, None])[:, 0]
            same += going
            if not bool(going.any()):
                break
        weight = self.tokens.embedding.weight.detach().to(gradient.dtype)
        inner = [(place >= before[:, None]) & (place < (size - same)[:, None]) for size in sizes]
        vectors = [
            (weight[ids] * m[..., None]).sum(1) / m.sum(1, keepdim=True).clamp(min=1)
            for ids, m in zip((old_ids, new_ids), inner, strict=True)
        ]
        slope = (gradient * inner[0][..., None]).sum(1)
        return (slope * (vectors[1] - vectors[0])).sum(1)

    def step_uphill(self, gradient: Tensor, rows: Tensor) -> Tensor:
        """Return the codes with the word of each place that has the largest effect; no change where none gains."""
        effects, codes = self._all_effects(gradient, rows)
        best = effects.max(2)
        new = codes.gather(2, best.indices[..., None])[..., 0]
        return torch.cat([rows[:, :WORDS], torch.where(best.values > 0, new, rows[:, WORDS:])], 1)

    def step_where_agreed(self, gradient: Tensor, other: Tensor, rows: Tensor) -> Tensor:
        """Return the codes that both gradients lead to, uphill, and the old ones where they disagree: (n, d)."""
        codes = self.step_uphill(gradient, rows)
        return torch.where(codes == self.step_uphill(other, rows), codes, rows)

    def influence(self, gradient: Tensor, rows: Tensor) -> Tensor:
        """Return the largest effect of replacing each word, without sign: (n, d)."""
        effects, _ = self._all_effects(gradient, rows)
        return torch.cat([torch.zeros(len(rows), WORDS, dtype=gradient.dtype), effects.abs().amax(2)], 1)

    def _all_effects(self, gradient: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the effect of every word in every place, and the words: (n, places, choices) both."""
        places, choices = rows.shape[1] - WORDS, int(self.domain.sizes[WORDS])
        codes = torch.arange(choices).expand(len(rows), places, choices)
        columns = (torch.arange(places) + WORDS)[:, None].expand(len(rows), places, choices)
        exists = codes < self.domain.choices[rows[:, 0]][..., None]
        own = rows[:, WORDS:, None].expand_as(codes)
        replaced = torch.where(exists, codes, own)
        found = self.effects(gradient, rows, columns.flatten(1), replaced.flatten(1))
        return found.view(len(rows), places, choices), replaced
