"""Questions to a decision service: in batches, tried again, remembered on the disk, and no more than are allowed."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from neuronfair.errors import ModelError, NeuronFairError, RunError, one_line
from neuronfair.limits import TREE, read_bytes

Answer = list[float] | str | None  # scores, a label, or None: no answer
BATCH, TRIES, WAIT = 32, 3, 0.2  # texts a call, tries of a call, and seconds before the second try
FAILURES = 5  # calls in a row without any answer, after which the service is taken for broken
ANSWERS = "answers.jsonl"  # in the folder of an audit


class CallsSpent(NeuronFairError):  # noqa: N818 - read as a sentence
    """All calls that are allowed are spent; what was answered before is known."""


@dataclass
class Service:
    """A function from a list of texts to one answer each, asked about each text once.

    Answers are remembered, in a file as well if there is one: after a kill the same audit asks about no text twice. A
    call that fails is tried again; what still has no answer is `None`. `spent` counts the texts that were sent.
    """

    function: Callable[[list[str]], Any]
    max_calls: int | None = None
    file: Path | None = None
    batch: int = BATCH
    spent: int = 0
    unanswered: int = 0
    wait: float = WAIT
    known: dict[str, Answer] = field(default_factory=dict)
    _failures: int = 0

    def __post_init__(self) -> None:
        if self.file is not None and self.file.exists():
            self.known = dict(read_answers(self.file))
            self.spent = len(self.known)

    def ask(self, texts: Sequence[str]) -> list[Answer]:
        """Return one answer for each text."""
        keys = [_key(text) for text in texts]
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in self.known}
        asked = list(missing.items())
        for start in range(0, len(asked), self.batch):
            self._ask_batch(dict(asked[start : start + self.batch]))
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
        for tried in range(TRIES):
            try:
                answers = as_answers(self.function(texts), len(texts))
                self._failures = 0
                self.unanswered += sum(answer is None for answer in answers)
                return answers
            except ModelError:
                raise
            except Exception as error:  # the user's own code, or the service behind it
                problem = one_line(error)
                if tried + 1 < TRIES:
                    time.sleep(self.wait * 2**tried)
        self._failures += 1
        self.unanswered += len(texts)
        if self._failures >= FAILURES:
            raise ModelError(
                f"the model failed in {FAILURES} calls in a row, {TRIES} tries each: {problem}. Answers so far are kept"
            )
        return [None] * len(texts)

    def _remember(self, answers: dict[str, Answer]) -> None:
        self.known |= answers
        if self.file is None:
            return
        lines = "".join(f"{json.dumps({'text': key, 'answer': answer})}\n" for key, answer in answers.items())
        try:
            with self.file.open("a", encoding="utf-8") as file:
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise RunError(f"{self.file}: cannot be written ({error.strerror or error})") from error


def _key(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


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
    content = read_bytes(path, times=TREE).decode("utf-8", "replace")
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
