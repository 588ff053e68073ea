"""Models of text: what a user passes becomes something that gives scores, or no answer, for a list of strings."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from neuronfair.atomic import write_text
from neuronfair.errors import ModelError, NeuronFairError, RunError, did_you_mean, one_line, require
from neuronfair.limits import TREE_FACTOR, read_bytes
from neuronfair.model.decision import Decision
from neuronfair.model.open import estimators, user_code
from neuronfair.model.open.opened import ModelFile
from neuronfair.model.weights import fingerprint
from neuronfair.text.network import TokenModel

Answer = list[float] | str | None  # scores, a label, or None: no answer
TEXTS_PER_CALL, TRIES_PER_CALL, SECONDS_TO_RETRY = 32, 3, 0.2
MAX_FAILED_CALLS = 5  # in a row, after which the service is taken for broken
ANSWERS, FINGERPRINT = "answers.jsonl", "model.txt"  # in the folder of an audit


class CallsSpent(NeuronFairError):  # noqa: N818 - read as a sentence
    """All calls that are allowed are spent; what was answered before is known."""


@dataclass
class Service:
    """A function from a list of texts to one answer each, called once for each text.

    Answers are remembered, in a folder as well if there is one: after a kill the same audit sends no text twice. A
    call that fails is tried again; what still has no answer is `None`. `spent` counts the texts that were sent; a
    second try of a call does not count.
    """

    function: Callable[[list[str]], Any]
    max_calls: int | None = None
    folder: Path | None = None
    batch: int = TEXTS_PER_CALL
    spent: int = 0
    wait: float = SECONDS_TO_RETRY
    known: dict[str, Answer] = field(default_factory=dict)
    unchecked: bool = False  # whether answers were kept, and no call was left to compare them with the model
    _failures: int = 0

    def begin(self, fingerprint: str) -> None:
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
            self.known, self.spent = dict(lines), len(lines)

    def compare(self, texts: Sequence[str]) -> None:
        """Send a few texts again that got different answers before: from the same model they get these again."""
        answers = ((text, self.known.get(_key(text))) for text in texts)
        unlike = {str(answer): (text, answer) for text, answer in answers if answer is not None}
        kept = dict(list(unlike.values())[:TRIED_TEXTS])
        left = len(kept) if self.max_calls is None else max(0, self.max_calls - self.spent)
        self.unchecked = bool(kept) and not left
        some = list(kept)[:left]
        if not some:
            return
        differ = sum(not _agree(kept[text], now) for text, now in zip(some, self._answers(some), strict=True))
        if differ:
            raise RunError(
                f"{self.folder}: this audit was begun with another model: {differ} of {len(some)} texts that were sent "
                "again got another answer. Choose another --out, or --force. If the answers vary by chance, give the "
                "function an attribute version, such as predict.version = '2026-11'"
            )
        self._remember({_key(text): kept[text] for text in some})  # a line more: they were sent
        self.spent += len(some)

    def ask(self, texts: Sequence[str]) -> list[Answer]:
        """Return one answer for each text."""
        keys = [_key(text) for text in texts]
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in self.known}
        waiting = list(missing.items())
        for start in range(0, len(waiting), self.batch):
            self._ask_batch(dict(waiting[start : start + self.batch]))
        return [self.known[key] for key in keys]

    def _ask_batch(self, batch: dict[str, str]) -> None:
        """Ask about a batch, at most as many texts as are left, and remember the answers."""
        left = len(batch) if self.max_calls is None else max(0, self.max_calls - self.spent)
        sent = dict(list(batch.items())[:left])
        if sent:
            self._remember(dict(zip(sent, self._answers(list(sent.values())), strict=True)))
            self.spent += len(sent)
        if len(sent) < len(batch):
            raise CallsSpent(f"all {self.max_calls:,} calls are spent. Raise --max-calls to measure more")

    def _answers(self, texts: list[str]) -> list[Answer]:
        """Ask, again if it fails; what still fails has no answer."""
        for tried in range(TRIES_PER_CALL):
            try:
                answers = as_answers(self.function(texts), len(texts))
                self._failures = 0
                return answers
            except ModelError:
                raise
            except Exception as error:  # the user's own code, or the service behind it
                problem = one_line(error)
                if tried + 1 < TRIES_PER_CALL:
                    time.sleep(self.wait * 2**tried)
        self._failures += 1
        if self._failures >= MAX_FAILED_CALLS:
            raise ModelError(
                f"the model failed in {MAX_FAILED_CALLS} calls in a row, {TRIES_PER_CALL} tries each: {problem}. "
                "Answers so far are kept"
            )
        return [None] * len(texts)

    def _remember(self, answers: dict[str, Answer]) -> None:
        self.known |= answers
        if self.folder is None:
            return
        path = self.folder / ANSWERS
        lines = "".join(f"{json.dumps({'text': key, 'answer': answer})}\n" for key, answer in answers.items())
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RunError(f"{path}: cannot be written ({error.strerror or error})") from error


def _key(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _agree(one: Answer, other: Answer) -> bool:
    """Return whether two answers are the same but for rounding; no answer agrees with every other."""
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return bool(np.allclose(one, other, rtol=1e-5, atol=1e-8))
    return other is None or one == other


def as_answers(found: Any, texts: int) -> list[Answer]:
    """Return what a function gave for some texts as one answer each; anything else is an error."""
    if hasattr(found, "detach"):
        found = found.detach().cpu().numpy()
    elif hasattr(found, "to_numpy"):
        found = found.to_numpy()
    listed = found.tolist() if isinstance(found, np.ndarray) else list(found)
    if len(listed) != texts:
        raise ModelError(f"the model must give one answer for each of {texts} texts, got {len(listed)}")
    return [_answer(one) for one in listed]


def _answer(one: Any) -> Answer:
    if one is None or isinstance(one, str):
        return one
    if isinstance(one, (bool, np.bool_)):
        return [float(one)]
    numbers = [float(x) for x in one] if isinstance(one, (list, tuple, np.ndarray)) else [float(one)]
    return numbers if all(map(math.isfinite, numbers)) else None


def read_answers(path: Path) -> list[tuple[str, Answer]]:
    """Read the answers that an audit has kept; a last line that a kill has cut off is left out."""
    content = read_bytes(path, times=TREE_FACTOR).decode("utf-8", "replace")
    found = []
    lines = content.split("\n")
    for number, line in enumerate(lines[:-1], 1):
        try:
            entry = json.loads(line)
            key, answer = entry["text"], entry["answer"]
            if not isinstance(key, str) or not (answer is None or isinstance(answer, (str, list))):
                raise TypeError
            found.append((key, answer if answer is None else _answer(answer)))
        except (ValueError, KeyError, TypeError):
            raise RunError(f"{path}: line {number} is damaged. Remove the file to ask again") from None
    if lines[-1]:  # cut off: the next line must not be glued to it
        with path.open("r+b") as file:
            file.truncate(len(content.encode()) - len(lines[-1].encode()))
    return found


TRIED_TEXTS = 4  # that a function is tried on
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
            scores = self._scores(self.service.ask(texts))
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

    def _scores(self, answers: Sequence[Answer]) -> np.ndarray:
        """Return answers as scores; what is none of the classes is no answer."""
        scores = np.full((len(answers), self.outputs), np.nan)
        place = {name.strip().casefold(): number for number, name in enumerate(self.classes)}
        for line, answer in enumerate(answers):
            if isinstance(answer, str):
                number = place.get(answer.strip().casefold())
                if number is not None:
                    scores[line] = np.arange(len(self.classes)) == number
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
    cut: Callable[[list[str]], Any] | None = (
        user_code.import_object(file, tokenizer) if isinstance(tokenizer, str) else tokenizer
    )
    if isinstance(model, (str, Path)):
        model, cut = _read(file, cut)
    service = service or Service(list)
    if isinstance(model, nn.Module):
        if cut is None:
            raise ModelError(f"{source}: a torch module of text needs its tokenizer. Give it as --preprocess")
        print_of = fingerprint(model)
        service.begin(print_of)
        tokens = TokenModel.of(model, cut, texts)
        scores = tokens.scores(list(texts[:16])).double().numpy()
        chosen = decision or _decision(scores, probability=False)
        names, logits = _named(source, classes, scores.shape[1]), not _are_probabilities(scores)
        made = TextModel(
            source,
            "torch",
            names,
            chosen,
            print_of,
            Service(list),
            tokens=tokens,
            outputs=scores.shape[1],
            are_logits=logits,
        )
    else:
        made = _black_box(source, model, texts, classes, decision, service)
    made.decision.check(made.outputs)
    return made


def _read(file: ModelFile, tokenizer: Any) -> tuple[Any, Any]:
    """Return the model that a file, a folder or a name stands for, and its tokenizer."""
    if file.path.is_dir():
        return _pretrained(file)
    if file.path.suffix.lower() in (".skops", ".joblib", ".pkl", ".pickle"):
        if file.path.suffix.lower() != ".skops" and not file.trust_pickle:
            raise file.error("can run a program when it is opened. If you trust it: --trust-pickle")
        return estimators.read_file(file)[0], tokenizer
    if ":" not in file.source:
        raise file.error("expected a .skops file, the folder of a Hugging Face model, or package.module:name")
    found = user_code.import_object(file, file.source)
    return (found() if user_code.makes_model(found) else found), tokenizer


def _pretrained(file: ModelFile) -> tuple[nn.Module, Callable[[list[str]], Any]]:
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

    def tokens(texts: list[str]) -> Any:
        return tokenizer(texts, padding=True, truncation=True, return_tensors="pt")["input_ids"]

    tokens.pad = tokenizer.pad_token_id or 0  # type: ignore[attr-defined]
    return _Logits(module, tokens.pad), tokens  # type: ignore[attr-defined]


class _Logits(nn.Module):
    """A sequence classifier of Hugging Face that takes token ids and returns its logits."""

    def __init__(self, model: nn.Module, pad: int) -> None:
        super().__init__()
        self.model, self.pad = model, pad

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of token ids: (n, classes)."""
        logits: Tensor = self.model(input_ids=ids, attention_mask=(ids != self.pad).long()).logits
        return logits


def _black_box(
    source: str,
    model: Any,
    texts: Sequence[str],
    classes: Sequence[str],
    decision: Decision | None,
    service: Service,
) -> TextModel:
    """Return a pipeline or a function as a model of text."""
    function, kind = model, "Python function"
    own: Sequence[str] = ()
    if estimators.is_estimator(model):
        kind = "scikit-learn"
        name = next((n for n in ("predict_proba", "decision_function", "predict") if hasattr(model, n)), None)
        function = getattr(model, name or "predict")
        own = [str(one) for one in getattr(model, "classes_", ())]
        if name == "predict":
            predict = function
            function = lambda texts: [str(one) for one in predict(texts)]  # noqa: E731
    if not callable(function):
        raise ModelError(
            f"{source}: expected a torch module, a pipeline that takes texts, or a function from a list of texts, got "
            f"{type(model).__name__}"
        )
    service.function, contents, first = function, Contents(), list(dict.fromkeys(texts[:TRIED_TEXTS]))
    print_of = contents.fingerprint(function)
    service.begin(print_of)
    if not contents.is_complete:
        service.compare(texts)
    tried = service.ask(first)
    graded = next((answer for answer in tried if isinstance(answer, list)), None)
    if graded is None:
        names = tuple(own or classes)
        if len(names) < 2:
            raise ModelError(f"{source}: returns names. Say which there are: give the column of labels (--target)")
        wrong = next((answer for answer in tried if isinstance(answer, str)), None)
        if wrong is not None and not any(
            isinstance(a, str) and a.strip().casefold() in {n.strip().casefold() for n in names} for a in tried
        ):
            raise ModelError(f"{source}: returned '{wrong}', none of the classes. {did_you_mean(wrong, names)}")
        return TextModel(source, kind, names, Decision(), print_of, service, graded=False, outputs=len(names))
    scores = np.array([a for a in tried if isinstance(a, list) and len(a) == len(graded)])
    chosen = decision or _decision(scores, probability=bool(((scores >= 0) & (scores <= 1)).all()))
    names = _named(source, own or classes, len(graded))
    logits = not _are_probabilities(scores)
    return TextModel(source, kind, names, chosen, print_of, service, outputs=len(graded), are_logits=logits)


def _are_probabilities(scores: np.ndarray) -> bool:
    """Return whether the scores of each text are shares of one."""
    return bool((scores >= 0).all() and np.allclose(scores.sum(1), 1, atol=0.01))


def _decision(scores: np.ndarray, *, probability: bool) -> Decision:
    """Return what counts as another decision: the largest score, or a threshold for a single one."""
    if scores.shape[1] > 1:
        return Decision()
    return Decision("threshold", 0.5 if probability else 0.0)


def _named(source: str, classes: Sequence[str], outputs: int) -> tuple[str, ...]:
    """Return the names of the decisions; a single score decides between two."""
    wanted = max(2, outputs)
    if classes and len(classes) != wanted:
        raise ModelError(f"{source}: gives {wanted} classes, but the labels name {len(classes)}: {', '.join(classes)}")
    return tuple(classes) or tuple(f"class {number}" for number in range(wanted))


class Contents:
    """Everything in a model that decides: code, constants, defaults, closures, globals by name, and fitted values.

    `is_complete` says afterwards whether this is all. A function of the user may call a service, and the state of some
    objects cannot be read; then models with one fingerprint may still differ.

    >>> def at_least(limit):
    ...     return lambda texts: [len(text) >= limit for text in texts]
    >>> Contents().fingerprint(at_least(5)) == Contents().fingerprint(at_least(7))
    False
    """

    def __init__(self) -> None:
        self.is_complete = True
        self._known: dict[int, tuple[object, str]] = {}  # the objects are kept, so that no number is used again

    def fingerprint(self, function: Callable[..., Any]) -> str:
        """Return the digest of a function or a bound method; one with an attribute `version` is known by that."""
        version = getattr(function, "version", None)
        if isinstance(version, str):
            return _key(f"{getattr(function, '__qualname__', type(function).__qualname__)}, version {version}")
        return _key(self._digest(function))

    def _digest(self, one: object) -> str:
        if one is None or one is ... or isinstance(one, (str, bytes, bytearray, bool, int, float, complex)):
            return f"{type(one).__name__} {one!r}"
        if id(one) not in self._known:
            self._known[id(one)] = one, "itself"  # where it contains itself
            try:
                parts = [part if isinstance(part, str) else self._digest(part[0]) for part in self._parts(one)]
            except Exception:  # a lock, a connection: any code of a library may refuse
                self.is_complete, parts = False, [type(one).__qualname__]
            self._known[id(one)] = one, _key("\n".join(parts))
        return self._known[id(one)][1]

    def _parts(self, one: Any) -> Iterable[str | tuple[object]]:
        """Yield what an object consists of: texts, and other objects as tuples of one."""
        yield type(one).__qualname__
        if isinstance(one, (set, frozenset)):
            yield from sorted(map(self._digest, one))
        elif isinstance(one, (list, tuple)):
            yield from ((part,) for part in one)
        elif isinstance(one, dict):
            yield from sorted(f"{self._digest(key)}: {self._digest(value)}" for key, value in one.items())
        elif isinstance(one, Tensor):
            yield f"{one.dtype} {tuple(one.shape)}"
            yield (one.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy(),)
        elif isinstance(one, np.ndarray):
            yield f"{one.dtype} {one.shape}"
            data = one.tolist() if one.dtype.hasobject else hashlib.sha256(one.tobytes()).hexdigest()
            yield (data,)
        elif isinstance(one, CodeType):
            yield from ((one.co_code,), (one.co_consts,), (one.co_names,), (one.co_varnames,))
        elif isinstance(one, MethodType):
            yield from ((one.__func__,), (one.__self__,))
        elif isinstance(one, (type, FunctionType, ModuleType)):
            name = one.__name__ if isinstance(one, ModuleType) else f"{one.__module__}.{one.__qualname__}"
            yield name
            if not _is_library(name.partition(".")[0]):
                self.is_complete = False
                yield from self._written(one)
        elif hasattr(one, "__wrapped__"):
            yield (one.__wrapped__,)
        else:
            made = one.__reduce_ex__(4)
            yield from (
                (made,) if isinstance(made, str) else ((list(p) if isinstance(p, Iterator) else p,) for p in made)
            )

    def _written(self, one: type | FunctionType | ModuleType) -> Iterable[str | tuple[object]]:
        """Yield what the user wrote: the file of a module, the attributes of a class, or the parts of a function."""
        if isinstance(one, ModuleType):
            file = getattr(one, "__file__", None)
            yield hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""
        elif isinstance(one, type):
            yield (one.__bases__,)
            own = {name: getattr(v, "__func__", getattr(v, "fget", v)) for name, v in vars(one).items()}
            yield ({name: value for name, value in own.items() if name not in ("__doc__", "__firstlineno__")},)
        else:
            yield from ((one.__code__,), (one.__defaults__,), (one.__kwdefaults__,))
            yield from ((cell.cell_contents,) for cell in one.__closure__ or ())
            yield ({name: one.__globals__[name] for name in _names(one.__code__) if name in one.__globals__},)


def _names(code: CodeType) -> set[str]:
    """Return the names that code uses, those of functions in it included."""
    return {*code.co_names}.union(*(_names(one) for one in code.co_consts if isinstance(one, CodeType)))


def _is_library(package: str) -> bool:
    """Return whether a package belongs to Python or is installed, and so is known by the names in it."""
    parts = Path(getattr(sys.modules.get(package), "__file__", None) or "").parts
    is_installed = "site-packages" in parts or "dist-packages" in parts
    return is_installed or (package in sys.stdlib_module_names and package != "__main__")
