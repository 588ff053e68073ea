"""Models of text: what a user passes becomes something that gives scores, or no answer, for a list of strings."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from joblib.hashing import NumpyHasher
from torch import Tensor, nn

from neuronfair.atomic import write_text
from neuronfair.errors import ModelError, NeuronFairError, RunError, did_you_mean, one_line, require
from neuronfair.limits import TREE_FACTOR, read_bytes
from neuronfair.model.decision import Decision
from neuronfair.model.formats import ModelFile
from neuronfair.model.open import estimators, user_code
from neuronfair.model.weights import fingerprint
from neuronfair.text.network import MAX_TOKENS, TokenModel

Answer = list[float] | str | None  # scores, a label, or None: no answer
TEXTS_PER_CALL, TRIES_PER_CALL, SECONDS_TO_RETRY = 32, 3, 0.2
MAX_FAILED_CALLS = 5  # in a row, after which the service is taken for broken
ANSWERS, FINGERPRINT = "answers.jsonl", "model.txt"  # in the folder of an audit


class CallsSpent(NeuronFairError):  # noqa: N818 - read as a sentence
    """All calls that are allowed are spent; what was answered before is known."""


@dataclass
class AnswerCache:
    """The answers of a model by text; in a folder also in a file, with a line for each text that was sent."""

    folder: Path | None = None
    answers: dict[str, Answer] = field(default_factory=dict)
    lines: int = 0

    def open(self, fingerprint: str) -> None:
        """Read the answers in the folder; those of a model with another fingerprint are refused."""
        if self.folder is None:
            return
        path = self.folder / FINGERPRINT
        if path.exists() and path.read_text(encoding="utf-8", errors="replace").strip() != fingerprint:
            raise RunError(
                f"{self.folder}: this audit was begun with another model. Choose another --out, or --force. If it is "
                f"the same model, delete {path}"
            )
        write_text(path, fingerprint + "\n")
        if (self.folder / ANSWERS).exists():
            lines = read_answers(self.folder / ANSWERS)
            self.answers, self.lines = dict(lines), len(lines)

    def find(self, text: str) -> Answer:
        """Return the answer to a text, `None` where there is none."""
        return self.answers.get(_hash_text(text))

    def add(self, answers: Mapping[str, Answer]) -> None:
        """Keep answers by text."""
        by_key = {_hash_text(text): answer for text, answer in answers.items()}
        self.answers |= by_key
        self.lines += len(by_key)
        if self.folder is None:
            return
        path = self.folder / ANSWERS
        try:
            with path.open("a", encoding="utf-8") as file:
                file.writelines(f"{json.dumps({'text': key, 'answer': answer})}\n" for key, answer in by_key.items())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RunError(f"{path}: cannot be written ({error.strerror or error})") from error


@dataclass
class Service:
    """A function from a list of texts to one answer each, called once for each text.

    Answers are remembered, in a folder as well if there is one: after a kill the same audit sends no text twice. A
    call that fails is tried again; what still has no answer is `None`. `spent` counts the texts that were sent; a
    second try of a call does not count.
    """

    function: Callable[[list[str]], Any]
    max_calls: int | None = None
    folder: InitVar[Path | None] = None
    batch: int = TEXTS_PER_CALL
    wait: float = SECONDS_TO_RETRY
    unchecked: bool = False  # whether answers were kept, and no call was left to compare them with the model
    _failures: int = 0

    def __post_init__(self, folder: Path | None) -> None:
        self.cache = AnswerCache(folder)

    @property
    def spent(self) -> int:
        """How many texts were sent, before a kill as well."""
        return self.cache.lines

    def resume(self, fingerprint: str, texts: Sequence[str]) -> None:
        """Read the answers in the folder; send a few texts again that got different ones: the same model repeats them.

        What a function does may depend on a service or a file, which the fingerprint does not show; without `texts`
        nothing is sent.
        """
        self.cache.open(fingerprint)
        text_by_answer = {str(self.cache.find(text)): text for text in texts if self.cache.find(text) is not None}
        sample = list(text_by_answer.values())[:TRIED_TEXTS]
        sent = self._affordable(sample)
        self.unchecked = bool(sample) and not sent
        answers = dict(zip(sent, self._request(sent), strict=True)) if sent else {}
        changed = sum(not _agree(self.cache.find(text), answer) for text, answer in answers.items())
        if changed:
            raise RunError(
                f"{self.cache.folder}: this audit was begun with another model: {changed} of {len(sent)} texts that "
                "were sent again got another answer. Choose another --out, or --force. If the answers vary by chance, "
                "give the function an attribute version, such as predict.version = '2026-11'"
            )
        self.cache.add({text: self.cache.find(text) for text in sent})  # a line more: they were sent

    def ask(self, texts: Sequence[str]) -> list[Answer]:
        """Return one answer for each text."""
        missing = [text for text in dict.fromkeys(texts) if _hash_text(text) not in self.cache.answers]
        for start in range(0, len(missing), self.batch):
            batch = missing[start : start + self.batch]
            sent = self._affordable(batch)
            if sent:
                self.cache.add(dict(zip(sent, self._request(sent), strict=True)))
            if len(sent) < len(batch):
                raise CallsSpent(f"all {self.max_calls:,} calls are spent. Raise --max-calls to measure more")
        return [self.cache.find(text) for text in texts]

    def _affordable(self, texts: list[str]) -> list[str]:
        """Return as many of the texts as may still be sent."""
        return texts if self.max_calls is None else texts[: max(0, self.max_calls - self.spent)]

    def _request(self, texts: list[str]) -> list[Answer]:
        """Call the function, again if it fails; what still fails has no answer."""
        for attempt in range(TRIES_PER_CALL):
            try:
                answers = as_answers(self.function(texts), len(texts))
                self._failures = 0
                return answers
            except ModelError:
                raise
            except Exception as error:  # the user's own code, or the service behind it
                problem = one_line(error)
                if attempt + 1 < TRIES_PER_CALL:
                    time.sleep(self.wait * 2**attempt)
        self._failures += 1
        if self._failures >= MAX_FAILED_CALLS:
            raise ModelError(
                f"the model failed in {MAX_FAILED_CALLS} calls in a row, {TRIES_PER_CALL} tries each: {problem}. "
                "Answers so far are kept"
            )
        return [None] * len(texts)


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _agree(answer: Answer, other: Answer) -> bool:
    """Return whether two answers are the same but for rounding; no answer agrees with every other."""
    if isinstance(answer, list) and isinstance(other, list) and len(answer) == len(other):
        return bool(np.allclose(answer, other, rtol=1e-5, atol=1e-8))
    return other is None or answer == other


def as_answers(output: Any, texts: int) -> list[Answer]:
    """Return what a function gave for some texts as one answer each; anything else is an error."""
    if hasattr(output, "detach"):
        output = output.detach().cpu().numpy()
    elif hasattr(output, "to_numpy"):
        output = output.to_numpy()
    cells = output.tolist() if isinstance(output, np.ndarray) else list(output)
    if len(cells) != texts:
        raise ModelError(f"the model must give one answer for each of {texts} texts, got {len(cells)}")
    return [_read_answer(cell) for cell in cells]


def _read_answer(cell: Any) -> Answer:
    if cell is None or isinstance(cell, str):
        return cell
    numbers = [float(x) for x in cell] if isinstance(cell, (list, tuple, np.ndarray)) else [float(cell)]
    return numbers if all(map(math.isfinite, numbers)) else None


def read_answers(path: Path) -> list[tuple[str, Answer]]:
    """Read the answers that an audit has kept; a last line that a kill has cut off is left out."""
    content = read_bytes(path, times=TREE_FACTOR).decode("utf-8", "replace")
    answers = []
    lines = content.split("\n")
    for number, line in enumerate(lines[:-1], 1):
        try:
            entry = json.loads(line)
            key, answer = entry["text"], entry["answer"]
            if not isinstance(key, str) or not (answer is None or isinstance(answer, (str, list))):
                raise TypeError
            answers.append((key, _read_answer(answer)))
        except (ValueError, KeyError, TypeError):
            raise RunError(f"{path}: line {number} is damaged. Remove the file to ask again") from None
    if lines[-1]:  # cut off: the next line must not be glued to it
        with path.open("r+b") as file:
            file.truncate(len(content.encode()) - len(lines[-1].encode()))
    return answers


TRIED_TEXTS = 4  # texts that a function is tried on
NO_ANSWER = -1  # the decision where a model gave none


@dataclass(frozen=True)
class Answers:
    """What a model says of some texts: scores, decisions (`NO_ANSWER` where it gave none), one line each."""

    scores: np.ndarray  # (n, outputs); NaN where there is no answer
    decisions: np.ndarray  # (n,)


@dataclass
class TextModel:
    """A model that is ready for a test of texts.

    `classes` are the names of its decisions; `graded` says whether scores are more than decisions.
    """

    source: str
    kind: str
    classes: tuple[str, ...]
    decision: Decision
    fingerprint: str
    service: Service
    graded: bool = True
    tokens: TokenModel | None = None  # a torch module whose neurons can be read
    outputs: int = 1
    are_logits: bool = False  # whether several scores are turned into probabilities to compare them

    @property
    def white_box(self) -> bool:
        """Whether its neurons can be read and its scores differentiated."""
        return self.tokens is not None

    def answer(self, texts: Sequence[str]) -> Answers:
        """Return what the model says of texts."""
        if self.tokens is not None:
            scores = self.tokens.scores(list(texts)).double().numpy()
        else:
            scores = self._as_scores(self.service.ask(texts))
        tensor = torch.from_numpy(np.nan_to_num(scores))
        decisions = self.decision.decide(tensor).numpy() if len(tensor) else np.empty(0, dtype=np.int64)
        return Answers(scores, np.where(np.isnan(scores).any(1), NO_ANSWER, decisions))

    def accuracy(self, texts: Sequence[str], labels: Sequence[str]) -> float | None:
        """Return the share of answered texts whose decision is their label."""
        decisions = self.answer(texts).decisions
        right = [self.classes[d] == label for d, label in zip(decisions, labels, strict=True) if d != NO_ANSWER]
        return float(np.mean(right)) if right else None

    def score_of(self, answers: Answers, favourable: int) -> np.ndarray:
        """Return the score of the favourable class; of two classes, a single score is that of the second."""
        scores = answers.scores
        if scores.shape[1] == 1:
            return scores[:, 0] if favourable == 1 else -scores[:, 0]
        if self.are_logits and len(scores):
            scores = np.exp(scores - np.max(scores, axis=1, keepdims=True))
            scores = scores / scores.sum(1, keepdims=True)
        return np.asarray(scores[:, favourable])

    def _as_scores(self, answers: Sequence[Answer]) -> np.ndarray:
        """Return answers as scores; what is none of the classes is no answer."""
        scores = np.full((len(answers), self.outputs), np.nan)
        class_index = {name.strip().casefold(): index for index, name in enumerate(self.classes)}
        for line, answer in enumerate(answers):
            if isinstance(answer, str):
                index = class_index.get(answer.strip().casefold())
                if index is not None:
                    scores[line] = np.arange(len(self.classes)) == index
            elif answer is not None:
                if len(answer) != self.outputs:
                    raise ModelError(f"the model gave {self.outputs} scores a text at first and {len(answer)} now")
                scores[line] = answer
        return scores


def open_text_model(
    model: Any,
    texts: Sequence[str],
    *,
    classes: Sequence[str] = (),
    tokenizer: Callable[[list[str]], Any] | str | None = None,
    decision: Decision | None = None,
    trust_pickle: bool = False,
    service: Service | None = None,
) -> TextModel:
    """Open a model of text: a torch module with its tokenizer, a fitted pipeline, a function, or the name of one.

    `classes` are the names of the decisions, in the order of the scores; a function that returns names returns these.
    The first texts are tried, so that a model that cannot be used is refused now.
    """
    source = str(model) if isinstance(model, (str, Path)) else getattr(model, "__qualname__", type(model).__name__)
    file = ModelFile(source, trust_pickle=trust_pickle)
    read_tokens = user_code.import_object(file, tokenizer) if isinstance(tokenizer, str) else tokenizer
    if isinstance(model, (str, Path)):
        model, read_tokens = _read_model(file, read_tokens)
    service = service or Service(list)
    if not isinstance(model, nn.Module):
        text_model = _open_black_box(source, model, texts, classes, decision, service)
    elif read_tokens is None:
        raise ModelError(f"{source}: a torch module of text needs its tokenizer. Give it as --preprocess")
    else:
        digest = fingerprint(model)
        service.cache.open(digest)
        tokens = TokenModel.of(model, read_tokens, texts)
        scores = tokens.scores(list(texts[:16])).double().numpy()
        text_model = TextModel(
            source,
            "torch",
            _name_classes(source, classes, scores.shape[1]),
            decision or _choose_decision(scores, probability=False),
            digest,
            Service(list),
            tokens=tokens,
            outputs=scores.shape[1],
            are_logits=not _are_probabilities(scores),
        )
    text_model.decision.check(text_model.outputs)
    return text_model


def _read_model(file: ModelFile, tokenizer: Any) -> tuple[Any, Any]:
    """Return the model that a file, a folder or a name stands for, and its tokenizer."""
    if file.path.is_dir():
        return _read_pretrained(file)
    if file.path.suffix.lower() in (".skops", ".joblib", ".pkl", ".pickle"):
        if file.path.suffix.lower() != ".skops" and not file.trust_pickle:
            raise file.error("can run a program when it is opened. If you trust it: --trust-pickle")
        return estimators.read_file(file)[0], tokenizer
    if ":" not in file.source:
        raise file.error("expected a .skops file, the folder of a Hugging Face model, or package.module:name")
    model = user_code.import_object(file, file.source)
    return (model() if user_code.makes_model(model) else model), tokenizer


def _read_pretrained(file: ModelFile) -> tuple[nn.Module, Callable[[list[str]], Any]]:
    """Open a sequence classifier of Hugging Face from its folder: safetensors only, no code of its own, no network."""
    if not (file.path / "config.json").exists() or not any(file.path.glob("*.safetensors")):
        raise file.error("expected a folder with config.json and model.safetensors, as save_pretrained() writes it")
    transformers = require("transformers", "text", "a Hugging Face model")
    options = {"local_files_only": True, "trust_remote_code": False}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(file.source, **options)
        module = transformers.AutoModelForSequenceClassification.from_pretrained(
            file.source, use_safetensors=True, **options
        )
    except Exception as error:  # a damaged folder can fail anywhere in the library
        raise file.error(f"cannot be opened ({type(error).__name__}: {one_line(error)})") from error

    limits = (tokenizer.model_max_length, getattr(module.config, "max_position_embeddings", None) or MAX_TOKENS)
    read_tokens = _PretrainedTokens(tokenizer, tokenizer.pad_token_id or 0, min(MAX_TOKENS, *limits))
    return _Logits(module, read_tokens.pad), read_tokens


@dataclass(frozen=True)
class _PretrainedTokens:
    """A tokenizer of Hugging Face as a function from texts to token ids."""

    tokenizer: Any
    pad: int
    max_tokens: int

    def __call__(self, texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = self.tokenizer(texts, truncation=True, max_length=self.max_tokens)["input_ids"]
        return ids


class _Logits(nn.Module):
    """A sequence classifier of Hugging Face that takes token ids and returns its logits."""

    def __init__(self, model: nn.Module, pad: int) -> None:
        super().__init__()
        self.model, self.pad = model, pad

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of token ids: (n, classes)."""
        logits: Tensor = self.model(input_ids=ids, attention_mask=(ids != self.pad).long()).logits
        return logits


def _open_black_box(
    source: str,
    model: Any,
    texts: Sequence[str],
    classes: Sequence[str],
    decision: Decision | None,
    service: Service,
) -> TextModel:
    """Return a pipeline or a function as a model of text."""
    function, kind = model, "Python function"
    if estimators.is_estimator(model):
        kind = "scikit-learn"
        name = next((n for n in ("predict_proba", "decision_function", "predict") if hasattr(model, n)), "predict")
        function = getattr(model, name)
        classes = [str(label) for label in getattr(model, "classes_", ())] or classes
        if name == "predict":
            predict = function
            function = lambda texts: list(map(str, predict(texts)))  # noqa: E731
    if not callable(function):
        raise ModelError(
            f"{source}: expected a torch module, a pipeline that takes texts, or a function from a list of texts, got "
            f"{type(model).__name__}"
        )
    service.function, digest = function, fingerprint_function(function)
    is_versioned = isinstance(getattr(function, "version", None), str)
    service.resume(digest, [] if is_versioned else texts)
    answers = service.ask(list(dict.fromkeys(texts[:TRIED_TEXTS])))
    graded = next((answer for answer in answers if isinstance(answer, list)), None)
    if graded is None:
        _check_names(source, answers, classes)
        names = tuple(classes)
        return TextModel(source, kind, names, Decision(), digest, service, graded=False, outputs=len(names))
    scores = np.array([answer for answer in answers if isinstance(answer, list) and len(answer) == len(graded)])
    chosen = decision or _choose_decision(scores, probability=bool(((scores >= 0) & (scores <= 1)).all()))
    names = _name_classes(source, classes, len(graded))
    logits = not _are_probabilities(scores)
    return TextModel(source, kind, names, chosen, digest, service, outputs=len(graded), are_logits=logits)


def _check_names(source: str, answers: Sequence[Answer], classes: Sequence[str]) -> None:
    """Refuse a model that returns names of which none is a class."""
    if len(classes) < 2:
        raise ModelError(f"{source}: returns names. Say which there are: give the column of labels (--target)")
    names = [answer for answer in answers if isinstance(answer, str)]
    class_names = {name.strip().casefold() for name in classes}
    if names and class_names.isdisjoint(name.strip().casefold() for name in names):
        raise ModelError(f"{source}: returned '{names[0]}', none of the classes. {did_you_mean(names[0], classes)}")


def _are_probabilities(scores: np.ndarray) -> bool:
    """Return whether the scores of each text are shares of one."""
    return bool((scores >= 0).all() and np.allclose(scores.sum(1), 1, atol=0.01))


def _choose_decision(scores: np.ndarray, *, probability: bool) -> Decision:
    """Return what counts as another decision: the largest score, or a threshold for a single one."""
    if scores.shape[1] > 1:
        return Decision()
    return Decision("threshold", 0.5 if probability else 0.0)


def _name_classes(source: str, classes: Sequence[str], outputs: int) -> tuple[str, ...]:
    """Return the names of the decisions; a single score decides between two."""
    count = max(2, outputs)
    if classes and len(classes) != count:
        raise ModelError(f"{source}: gives {count} classes, but the labels name {len(classes)}: {', '.join(classes)}")
    return tuple(classes) or tuple(f"class {index}" for index in range(count))


def fingerprint_function(function: Callable[..., Any]) -> str:
    """Return the digest of all that decides in a function: code, constants, closures, globals by name, fitted values.

    A function with an attribute `version` is known by that. What cannot be read, such as a connection, is known by its
    type only.

    >>> def at_least(limit):
    ...     return lambda texts: [len(text) >= limit for text in texts]
    >>> fingerprint_function(at_least(5)) == fingerprint_function(at_least(7))
    False
    """
    version = getattr(function, "version", None)
    if isinstance(version, str):
        return _hash_text(f"{getattr(function, '__qualname__', type(function).__qualname__)}, version {version}")
    return _hash_text(_ContentHasher(hash_name="sha1").hash(function))


class _ContentHasher(NumpyHasher):  # type: ignore[misc]
    """Hashes code, closures and tensors too, which pickle refuses or knows by name only."""

    def __init__(self, hash_name: str) -> None:
        super().__init__(hash_name)
        self._parts_of: dict[int, tuple[object, object]] = {}  # the objects are kept, so that no number is used again

    def save(self, obj: object) -> None:
        """Write an object to the stream that is hashed."""
        if isinstance(obj, (Tensor, frozenset, CodeType, MethodType, type, FunctionType, ModuleType)):
            if id(obj) in self._parts_of:
                obj = "itself"  # where it contains itself, or stands there twice
            else:
                self._parts_of[id(obj)] = obj, (parts := _list_parts(obj))
                obj = parts
        if isinstance(obj, dict) and "_stop_words_id" in obj:  # scikit-learn: where a list lies in memory
            obj = {key: value for key, value in obj.items() if key != "_stop_words_id"}
        try:
            super().save(obj)
        except Exception:  # a lock, a connection: any code of a library may refuse
            super().save(type(obj).__qualname__)


def _list_parts(value: Any) -> object:
    """Return what a tensor, a set, a piece of code, a class, a function or a module consists of."""
    if isinstance(value, Tensor):
        return str(value.dtype), value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    if isinstance(value, frozenset):
        return set(value)
    if isinstance(value, CodeType):
        return value.co_code, value.co_consts, value.co_names, value.co_varnames
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    name = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}"
    if _is_library(name.strip(".").partition(".")[0]):
        return name
    if isinstance(value, ModuleType):
        file = getattr(value, "__file__", None)
        return name, Path(file).read_bytes() if file else b""
    if isinstance(value, type):
        methods = {key: getattr(v, "__func__", getattr(v, "fget", v)) for key, v in vars(value).items()}
        return (
            name,
            value.__bases__,
            {key: v for key, v in methods.items() if key not in ("__doc__", "__firstlineno__")},
        )
    variables = {key: value.__globals__[key] for key in _find_names(value.__code__) if key in value.__globals__}
    cells = [cell.cell_contents for cell in value.__closure__ or ()]
    return name, value.__code__, value.__defaults__, value.__kwdefaults__, cells, variables


def _find_names(code: CodeType) -> set[str]:
    """Return the names that code uses, those of functions in it included."""
    return {*code.co_names}.union(*(_find_names(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def _is_library(package: str) -> bool:
    """Return whether a package belongs to Python or is installed, and so is known by the names in it."""
    parts = Path(getattr(sys.modules.get(package), "__file__", None) or "").parts
    is_installed = "site-packages" in parts or "dist-packages" in parts
    return is_installed or (package in sys.stdlib_module_names and package != "__main__")
