import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from neuronfair.errors import ModelError, RunError
from neuronfair.text.models import ANSWERS, CallsSpent, Service, fingerprint_function, read_answers


def test_each_text_is_asked_about_once():
    asked = []

    def model(texts):
        asked.extend(texts)
        return [len(text) for text in texts]

    service = Service(model, batch=2)
    assert service.ask(["a", "bb", "a", "ccc"]) == [[1.0], [2.0], [1.0], [3.0]]
    assert service.ask(["bb"]) == [[2.0]]
    assert asked == ["a", "bb", "ccc"]
    assert service.spent == 3


def test_calls_are_bounded_and_what_was_answered_is_known():
    service = Service(lambda texts: ["yes"] * len(texts), max_calls=3, batch=2)
    with pytest.raises(CallsSpent, match="all 3 calls"):
        service.ask(list("abcdef"))
    assert service.ask(["a", "b", "c"]) == ["yes"] * 3
    assert service.spent == 3


def test_a_failure_is_tried_again():
    calls = []

    def model(texts):
        calls.append(len(texts))
        if len(calls) < 3:
            raise ConnectionError("busy")
        return [1.0] * len(texts)

    assert Service(model, wait=0).ask(["a"]) == [[1.0]]
    assert calls == [1, 1, 1]


def test_a_model_that_only_fails_is_an_error():
    def model(texts):
        raise ConnectionError("no route")

    with pytest.raises(ModelError, match="failed in 5 calls in a row, 3 tries each: no route"):
        Service(model, batch=1, wait=0).ask(list("abcdefgh"))


@pytest.mark.parametrize("answer", [None, float("nan"), [0.5, float("inf")]])
def test_nonsense_is_no_answer(answer):
    assert Service(lambda texts: [answer] * len(texts)).ask(["a"]) == [None]


def test_a_pipeline_fitted_again_to_the_same_texts_has_the_same_fingerprint():
    def fit(labels):
        pipeline = make_pipeline(TfidfVectorizer(stop_words=["the"]), LogisticRegression())
        return pipeline.fit(["the cat", "a dog", "a cat", "the dog"], labels)

    first, again, other = (
        fingerprint_function(fit(y).predict_proba) for y in ([0, 1, 0, 1], [0, 1, 0, 1], [1, 0, 1, 0])
    )
    assert first == again != other


HASHED = """
import threading, torch
from neuronfair.text.models import fingerprint_function
torch.manual_seed(0)
network, words, lock = torch.nn.Linear(3, 2), {"the", "a", "of", "zebra"}, threading.Lock()

def helper(text):
    return text in {"q", "w", "e"}

class Model:
    def __init__(self):
        self.network, self.key, self.lock = network, lambda text: len(text) + 3, lock

    def __call__(self, texts):
        return [self.key(text) for text in texts if text not in words and helper(text)]

def function(texts):
    return [network(torch.zeros(3)) for text in texts if helper(text)]

print(fingerprint_function(Model()), fingerprint_function(function))
"""


def test_a_function_has_the_same_fingerprint_in_every_process():
    def run(program, seed):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        return subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
        ).stdout.split()

    first, again = run(HASHED, "1"), run(HASHED, "2")
    assert first == again
    for change in (("manual_seed(0)", "manual_seed(1)"), ('"e"}', '"f"}')):
        assert all(a != b for a, b in zip(first, run(HASHED.replace(*change), "1"), strict=True))


def test_a_wrong_number_of_answers_is_an_error():
    with pytest.raises(ModelError, match="one answer for each of 2 texts, got 1"):
        Service(lambda texts: [1.0]).ask(["a", "b"])


def test_a_torn_line_is_forgotten_and_a_damaged_one_refused(tmp_path):
    path = tmp_path / ANSWERS
    Service(lambda texts: [0.5] * len(texts), folder=tmp_path).ask(["a", "b"])
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"text": "abc", "ans')
    assert len(read_answers(path)) == 2
    assert path.read_bytes() == whole
    path.write_bytes(b"not json\n" + whole)
    with pytest.raises(RunError, match="line 1 is damaged"):
        read_answers(path)
    path.write_bytes(b'{"text": 3, "answer": [1.0]}\n')
    with pytest.raises(RunError, match="line 1 is damaged"):
        read_answers(path)


class Stub(BaseHTTPRequestHandler):
    """A decision service with latency, errors and nonsense; it counts how often it is asked about each text."""

    asked: dict[str, int] = {}  # noqa: RUF012
    lock = threading.Lock()
    requests = 0

    def do_POST(self):
        texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(0.02)
        with self.lock:
            type(self).requests += 1
            if self.requests % 5 == 3:
                self.send_error(503)
                return
            for text in texts:
                self.asked[text] = self.asked.get(text, 0) + 1
        answers = [
            "As a language model, I cannot" if "film" in t else "yes" if " he " in f" {t} " else "no" for t in texts
        ]
        body = json.dumps(answers).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    @staticmethod
    def answer(text):
        if "film" in text:
            return "As a language model, I cannot"
        return "yes" if " he " in f" {text} " else "no"

    def log_message(self, *_):
        pass


PROGRAM = """
import json, sys, urllib.request
from neuronfair.text.audit import audit_texts
from neuronfair.text.audit import TextSettings

def model(texts):
    request = urllib.request.Request("http://127.0.0.1:%d", json.dumps(texts).encode())
    return json.load(urllib.request.urlopen(request))

model.version = "stub 1"

ends = [(who, what) for who in ("he", "she") for what in ("film", "car")]
texts = [f"{who} wrote letter {i} about the {what}" for i in range(30) for who, what in ends]
labels = ["yes", "no"] * 60
settings = TextSettings(steps=0, batch=4, max_calls=int(sys.argv[2]))
audit = audit_texts(model, texts, "gender", labels=labels, settings=settings, folder=sys.argv[1])
print(json.dumps([audit.report.flip_rate.count, audit.report.flip_rate.of, audit.report.model.calls,
                  audit.report.model.unanswered]))
"""


@pytest.mark.slow
def test_an_audit_of_a_service_is_bounded_and_resumes_after_a_kill(tmp_path):
    Stub.asked = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Stub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        program = PROGRAM % server.server_port
        command = [sys.executable, "-c", program, str(tmp_path / "run"), "100000"]
        first = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while sum(Stub.asked.values()) < 40 and first.poll() is None:
            time.sleep(0.01)
        first.kill()
        first.wait()
        answered = len(read_answers(tmp_path / "run" / ANSWERS))
        assert answered > 0
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        flips, of, calls, unanswered = json.loads(done.stdout)
        # 60 texts about cars: every one flips. Those about films have no answer.
        assert (flips, of, unanswered) == (60, 60, 60)
        assert calls == len(Stub.asked)
        assert sum(count > 1 for count in Stub.asked.values()) <= 4  # the batch that the kill met
        small = [sys.executable, "-c", program, str(tmp_path / "small"), "50"]
        bounded = subprocess.run(small, capture_output=True, text=True, check=True)
        assert json.loads(bounded.stdout)[2] == 50
    finally:
        server.shutdown()
        server.server_close()
