"""Networks of token ids as white boxes: gradients reach the words through the embedding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from neuronfair.errors import ModelError, one_line
from neuronfair.limits import check_size
from neuronfair.model.network import ACTIVATIONS, ATTENTION, Network, eval_mode
from neuronfair.text.domain import WORDS, TextDomain, WordClasses

TEXTS_PER_PASS = 256
HIDDEN_LAYERS = (nn.Linear, nn.Conv1d, nn.LSTM, nn.GRU, nn.RNN)
MAX_TOKENS = 512  # of a text; a longer one is cut off
MAX_NEAR_WORDS, MIN_SIMILARITY = 3, 0.5  # words for each word, and their least cosine to it in the embedding


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
        sample = list(texts[:8])
        id_lists = [_read_ids(tokenizer, [text])[0] for text in sample]
        doubled = _read_ids(tokenizer, [f"{sample[0]} {sample[0]}"])[0]
        pads_to_one_length = len({len(token_ids) for token_ids in [*id_lists, doubled]}) == 1
        ids = _pad_ids(id_lists, pad, None)
        embeddings = list[nn.Embedding]()
        hooks = [
            part.register_forward_hook(
                lambda part, given, _: embeddings.append(part) if given and _are_same_ids(given[0], ids) else None
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
        if not embeddings:
            raise ModelError("the module looks its token ids up in no nn.Embedding, so its gradients reach no word")
        return TokenModel(module, tokenizer, embeddings[0], pad, len(id_lists[0]) if pads_to_one_length else None)

    def ids(self, texts: list[str], length: int | None = None) -> Tensor:
        """Return the token ids of texts: (n, tokens), padded to one length."""
        return _pad_ids(_read_ids(self.tokenizer, texts), self.pad, length or self.length)

    def scores(self, texts: list[str]) -> Tensor:
        """Return what the module computes for each text alone, so that no other text of a batch changes its padding."""
        id_lists = [_read_ids(self.tokenizer, [text])[0] for text in texts]
        by_length: dict[int, list[int]] = {}
        for index, token_ids in enumerate(id_lists):
            by_length.setdefault(len(token_ids), []).append(index)
        parts, order = [torch.empty(0, 1)], list[int]()
        with torch.no_grad(), eval_mode(self.module.modules()):
            for indices in by_length.values():
                for start in range(0, len(indices), TEXTS_PER_PASS):
                    batch = indices[start : start + TEXTS_PER_PASS]
                    ids = _pad_ids([id_lists[i] for i in batch], self.pad, self.length)
                    parts.append(_as_scores(self.module(ids), len(ids)))
                    order += batch
        if not order:
            return parts[0]
        scores = torch.cat(parts[1:])
        return scores[torch.tensor(order).argsort()]

    def find_near_words(self, classes: WordClasses) -> dict[str, tuple[str, ...]]:
        """Return for words the nearest ones in the embedding, among those of the same frequency class and ending.

        Words that the tokenizer cannot tell from others have none.
        """
        words = [word for group in classes.words.values() for word in group if len(group) > 1]
        ids = dict(zip(words, _read_ids(self.tokenizer, words), strict=True)) if words else {}
        special = set[int]().union(*ids.values()).intersection(*map(set, ids.values()))  # such as [CLS] and padding
        ids = {word: [i for i in line if i not in special] for word, line in ids.items()}
        owners = Counter(map(tuple, ids.values()))
        near_words: dict[str, tuple[str, ...]] = {}
        for group in classes.words.values():
            candidates = [word for word in group if len(word) > 3 and ids.get(word) and owners[tuple(ids[word])] == 1]
            if len(candidates) < 2:
                continue
            vectors = normalize(torch.stack([self.embedding.weight.detach()[ids[word]].mean(0) for word in candidates]))
            count = min(MAX_NEAR_WORDS + 1, len(candidates))  # the word itself is among them
            parts = [(part @ vectors.T).topk(count) for part in torch.split(vectors, TEXTS_PER_PASS)]
            similarities, indices = (torch.cat(side).tolist() for side in zip(*parts, strict=True))
            for word, *nearest in zip(candidates, similarities, indices, strict=True):
                near = [candidates[i] for similarity, i in zip(*nearest, strict=True) if similarity >= MIN_SIMILARITY]
                near_words[word] = tuple(other for other in near if other != word)
        return {word: near for word, near in near_words.items() if near}

    def network(self, domain: TextDomain) -> TextNetwork:
        """Return the module as a white box of the rows of a domain.

        Its layers are the outputs of activations and of blocks with attention; where there are none, those of all
        parts with weights but the last one.
        """
        module, encoding = _FromEmbedding(self.module, self.embedding), TextEncoding(self, domain)
        blocks = find_transformer_layers(module)
        try:
            return TextNetwork(module, encoding, layers=blocks or None)
        except ModelError:
            parts = [name for name, part in module.named_modules() if isinstance(part, HIDDEN_LAYERS)]
            return TextNetwork(module, encoding, layers=parts[:-1])


def find_transformer_layers(module: nn.Module) -> list[str]:
    """Return the names of the blocks with attention and of the activations in a transformer of another library.

    A block is what a list of modules holds and has a part named after attention, as in Hugging Face's encoders. The
    layers of torch's own transformers are found by `Network`.
    """
    holders = [(name, part) for name, part in module.named_modules() if isinstance(part, nn.ModuleList)]
    blocks = {f"{name}.{key}": block for name, holder in holders for key, block in holder.named_children()}
    names = [name for name, block in blocks.items() if not isinstance(block, ATTENTION) and has_attention(block)]
    outer = [name for name in names if not any(name.startswith(f"{other}.") for other in names)]
    activations = [name for name, part in module.named_modules() if is_activation(part)]
    return [*outer, *activations] if outer else []


def has_attention(block: nn.Module) -> bool:
    """Return whether a part of a module is named after attention."""
    return any(type(part).__name__.endswith("Attention") for part in block.modules())


def is_activation(part: nn.Module) -> bool:
    """Return whether a module is an activation of torch or of Hugging Face, such as GELUActivation."""
    return isinstance(part, ACTIVATIONS) or type(part).__module__ == "transformers.activations"


def _are_same_ids(argument: Any, ids: Tensor) -> bool:
    return isinstance(argument, Tensor) and argument.shape == ids.shape and bool((argument == ids).all())


def _as_scores(result: Any, texts: int) -> Tensor:
    if not isinstance(result, Tensor) or not result.is_floating_point() or len(result) != texts:
        raise ModelError(f"the module must return scores ({texts}, classes), got {type(result).__name__}")
    return result[:, None] if result.dim() == 1 else result


def _read_ids(tokenizer: Callable[[list[str]], Any], texts: list[str]) -> list[list[int]]:
    """Return the ids of each text; a tokenizer may give a tensor, lists, or a dictionary with input_ids."""
    try:
        output = tokenizer(texts)
    except Exception as error:  # the user's own code
        raise ModelError(f"the tokenizer failed on {len(texts)} texts: {one_line(error)}") from error
    if hasattr(output, "keys") and "input_ids" in output:
        output = output["input_ids"]
    id_lists = output.tolist() if isinstance(output, Tensor) else [list(map(int, token_ids)) for token_ids in output]
    if len(id_lists) != len(texts):
        raise ModelError(f"the tokenizer must give ids for each of {len(texts)} texts, got {len(id_lists)}")
    return [token_ids[:MAX_TOKENS] for token_ids in id_lists]


def _pad_ids(id_lists: Sequence[Sequence[int]], pad: int, length: int | None) -> Tensor:
    width = max([1, *(len(ids_of_text) for ids_of_text in id_lists)]) if length is None else length
    ids = torch.full((len(id_lists), width), pad, dtype=torch.int64)
    for index, ids_of_text in enumerate(id_lists):
        token_ids = torch.tensor(list(ids_of_text[:width]), dtype=torch.int64)
        ids[index, : len(token_ids)] = token_ids
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
        rest_of_shape = [size for index, size in enumerate(shape, 1) if index != axis]
        units = units.view(*units.shape[:rows], *rest_of_shape).unsqueeze(rows + axis - 1)
        return units.expand(*units.shape[:rows], *shape)

    def _token_axis(self, shape: Sequence[int]) -> int | None:
        """Return the axis of an activation that runs over the tokens; None for a layer that has none."""
        tokens = self.encoding.length
        if len(shape) < 3:
            return None
        padding_by_axis = {axis: tokens - size for axis, size in enumerate(shape) if axis and 0 <= tokens - size < 16}
        return min(padding_by_axis, key=lambda axis: (padding_by_axis[axis], axis)) if padding_by_axis else None


class TextEncoding:
    """How a network of tokens reads the rows of a domain of texts, and what replacing a word does to first order."""

    def __init__(self, tokens: TokenModel, domain: TextDomain) -> None:
        self.tokens, self.domain = tokens, domain
        family = [domain.write(domain.member(domain.rows, torch.tensor(g))) for g in range(len(domain.lexicon.groups))]
        longest = max(len(line) for texts in family for line in _read_ids(tokens.tokenizer, texts))
        limit = int(getattr(tokens.tokenizer, "max_tokens", MAX_TOKENS))
        self.length = tokens.length or min(limit, longest + 4)  # replaced words may have more tokens
        self.width = tokens.embedding.embedding_dim
        self.shape = (self.length, self.width + 1)
        check_size(TEXTS_PER_PASS * self.length * (self.width + 1) * 4, "the texts of a pass", times=16)
        self.device, self.rows_per_pass = torch.device("cpu"), TEXTS_PER_PASS
        self.example = domain.rows[torch.tensor([0, len(domain.texts) - 1])]  # to try a model on
        self._ids_by_text: dict[str, list[int]] = {}

    def ids(self, rows: Tensor) -> Tensor:
        """Return the token ids of rows: (n, tokens). Each text is cut into tokens once."""
        texts = self.domain.write(rows)
        new = list({text for text in texts if text not in self._ids_by_text})
        if len(self._ids_by_text) + len(new) > 200_000:
            self._ids_by_text.clear()
            new = list(set(texts))
        self._ids_by_text |= dict(zip(new, _read_ids(self.tokens.tokenizer, new), strict=True)) if new else {}
        return _pad_ids([self._ids_by_text[text] for text in texts], self.tokens.pad, self.length)

    def count_equal_twins(self) -> int:
        """Return how many texts have a twin with the same token ids, so that the module cannot tell the two apart."""
        twins, valid = self.domain.twins(self.domain.rows)
        twin_ids = self.ids(twins.flatten(0, 1)).view(*valid.shape, -1)
        are_equal = (twin_ids == self.ids(self.domain.rows)[:, None]).all(-1)
        return int((are_equal & valid).any(1).sum())

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
        new_rows = rows[:, None].repeat(1, columns.shape[1], 1).scatter(2, columns[..., None], codes[..., None])
        changed = columns >= WORDS
        result = torch.zeros(columns.shape, dtype=gradient.dtype)
        pairs = (changed & (codes != rows.gather(1, columns))).nonzero()
        if len(pairs):
            line, move = pairs.unbind(1)
            new = self.domain.clip(new_rows[line, move])
            slopes = gradient.view(len(rows), *self.shape)[line, :, :-1]
            result[line, move] = self._replacement_effects(slopes, rows[line], new)
        return result

    def _replacement_effects(self, gradient: Tensor, rows: Tensor, new: Tensor) -> Tensor:
        """Return the first-order effect of taking each row to another: (n,)."""
        old_ids, new_ids = self.ids(rows), self.ids(new)
        before = (old_ids != new_ids).int().argmax(1)  # the first token that differs
        ends = [(ids != self.tokens.pad).int() for ids in (old_ids, new_ids)]
        sizes = [self.length - end.flip(1).argmax(1) for end in ends]
        positions = torch.arange(self.length)
        common_end = torch.zeros(len(rows), dtype=torch.int64)
        still_equal = torch.ones(len(rows), dtype=torch.bool)
        for step in range(1, self.length):  # tokens in common at the end
            old_end, new_end = ((size - step).clamp(min=0) for size in sizes)
            still_equal &= (old_end >= before) & (new_end >= before)
            still_equal &= (old_ids.gather(1, old_end[:, None]) == new_ids.gather(1, new_end[:, None]))[:, 0]
            common_end += still_equal
            if not bool(still_equal.any()):
                break
        weight = self.tokens.embedding.weight.detach().to(gradient.dtype)
        inner = [(positions >= before[:, None]) & (positions < (size - common_end)[:, None]) for size in sizes]
        vectors = [
            (weight[ids] * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
            for ids, mask in zip((old_ids, new_ids), inner, strict=True)
        ]
        slope = (gradient * inner[0][..., None]).sum(1)
        return (slope * (vectors[1] - vectors[0])).sum(1)

    def step_uphill(self, gradient: Tensor, rows: Tensor) -> Tensor:
        """Return the codes with the word of each place that has the largest effect; no change where none gains."""
        effects, codes = self._effects_of_all_words(gradient, rows)
        best = effects.max(2)
        new = codes.gather(2, best.indices[..., None])[..., 0]
        return torch.cat([rows[:, :WORDS], torch.where(best.values > 0, new, rows[:, WORDS:])], 1)

    def step_where_agreed(self, gradient: Tensor, other: Tensor, rows: Tensor) -> Tensor:
        """Return the codes that both gradients lead to, uphill, and the old ones where they disagree: (n, d)."""
        codes = self.step_uphill(gradient, rows)
        return torch.where(codes == self.step_uphill(other, rows), codes, rows)

    def influence(self, gradient: Tensor, rows: Tensor) -> Tensor:
        """Return the largest effect of replacing each word, without sign: (n, d)."""
        effects, _ = self._effects_of_all_words(gradient, rows)
        return torch.cat([torch.zeros(len(rows), WORDS, dtype=gradient.dtype), effects.abs().amax(2)], 1)

    def _effects_of_all_words(self, gradient: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the effect of every word in every place, and the words: (n, places, choices) both."""
        slots, choices = rows.shape[1] - WORDS, int(self.domain.sizes[WORDS])
        codes = torch.arange(choices).expand(len(rows), slots, choices)
        columns = (torch.arange(slots) + WORDS)[:, None].expand(len(rows), slots, choices)
        exists = codes < self.domain.choices[rows[:, 0]][..., None]
        own_codes = rows[:, WORDS:, None].expand_as(codes)
        new_codes = torch.where(exists, codes, own_codes)
        effects = self.effects(gradient, rows, columns.flatten(1), new_codes.flatten(1))
        return effects.view(len(rows), slots, choices), new_codes
