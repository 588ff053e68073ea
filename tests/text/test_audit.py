import csv
import json
import subprocess
import sys

import joblib
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import neuronfair as nf
from neuronfair import cli
from neuronfair.domain.draws import Draws
from neuronfair.errors import DataError, ModelError, NeuronFairError, RunError
from neuronfair.model.decision import Decision
from neuronfair.model.profile import interpret
from neuronfair.searches.method import SearchContext
from neuronfair.text.audit import TextSettings, audit_texts
from neuronfair.text.models import open_text_model
from neuronfair.text.network import TokenModel
from neuronfair.text.report import TextReport, lines, propose_steps
from neuronfair.text.search import rows_model, search_texts
from tests.text.cases import Convolution, made_domain, tokenizer

TEXTS = [
    f"{who} said the {word} film was {how} {i}"
    for i in range(6)
    for who in ("she", "he")
    for word in ("funny", "sad", "strange")
    for how in ("good", "bad")
]
SMALL = TextSettings(starts=10, steps=5)


def biased(texts):
    return [0.9 if text.startswith("he") and "good" in text else 0.1 for text in texts]


def test_a_planted_bias_is_found_and_named():
    audit = audit_texts(biased, TEXTS, "gender", settings=SMALL)
    report = audit.report
    assert (report.flip_rate.count, report.flip_rate.of) == (36, 72)
    assert audit.verdict == (
        "Decisions depend on gender for 50% of texts that mention it (36 of 72); "
        "100% of these flips disadvantage female."
    )
    assert all("good" in finding.text for finding in report.worst if finding.found_by == "data set")


def test_a_model_that_ignores_identity_has_no_flip():
    audit = audit_texts(lambda texts: [float("good" in t) for t in texts], TEXTS, "gender", settings=SMALL)
    assert audit.report.flip_rate.count == 0
    assert audit.verdict == "No decision changed when gender was swapped in 72 texts."


def test_a_network_is_looked_into_and_searched():
    audit = nf.audit(
        Convolution(), {"text": TEXTS}, text="text", sensitive="gender", preprocess=tokenizer,
        settings=SMALL, progress=False,
    )  # fmt: skip
    assert [layer.units for layer in audit.report.interpretation.layers] == [6]
    assert [search.method for search in audit.report.searches] == ["frontier", "neuronfair-plus"]
    for search in audit.searches:
        rows, twins = search.findings.rows, search.findings.twins(audit.domain)
        model = rows_model_of(audit)
        assert (model.scores(rows).argmax(1) != model.scores(twins).argmax(1)).all()
        assert audit.domain.valid(rows).all()


def rows_model_of(audit):
    module = Convolution()
    return rows_model(open_text_model(module, TEXTS, tokenizer=tokenizer), audit.domain)


@pytest.mark.parametrize(
    "method", ["frontier", "neuronfair", "neuronfair-plus", "adf", "eidig5", "aequitas", "uniform"]
)
def test_every_method_finds_true_pairs_only(method):
    domain = made_domain(TEXTS)
    network = TokenModel.of(Convolution(seed=3).eval(), tokenizer, TEXTS).network(domain)
    profile = interpret(network, domain, domain.rows)
    context = SearchContext(network, domain, Decision(), Draws(0, "global"), profile=profile)
    one, again = (search_texts(context, method, domain.rows[:8], steps=6) for _ in range(2))
    rows, twins = one.findings.rows, one.findings.twins(domain)
    assert (network.scores(rows).argmax(1) != network.scores(twins).argmax(1)).all()
    assert torch.equal(rows, again.findings.rows)
    assert one.count.tried >= len(rows)


def test_names_of_classes_and_no_answers():
    def model(texts):
        return ["pos" if t.startswith("he") else "maybe" if "sad" in t else "neg" for t in texts]

    labels = ["pos", "neg"] * 36
    report = audit_texts(model, TEXTS, "gender", labels=labels, settings=SMALL).report
    # Of each pair with "sad" one text has no answer.
    assert (report.flip_rate.count, report.flip_rate.of, report.model.unanswered) == (48, 48, 24)
    assert report.score_change is None
    with pytest.raises(ModelError, match="returns names"):
        audit_texts(model, TEXTS, "gender")


def test_spent_calls_end_the_audit_with_what_is_known():
    report = audit_texts(biased, TEXTS, "gender", settings=TextSettings(max_calls=50)).report
    assert report.interrupted
    assert 20 <= report.texts.measured <= 40  # a text of each pair may be the twin of another
    assert report.flip_rate.of == report.texts.measured
    assert report.model.calls == 50
    with pytest.raises(DataError, match="--max-calls 5: too few"):
        audit_texts(biased, TEXTS, "gender", settings=TextSettings(max_calls=5))


def test_the_report_survives_json_and_names_what_is_wrong(tmp_path):
    report = audit_texts(biased, TEXTS, "gender", settings=SMALL, fail_if=["flip_rate > 1%"]).report
    assert TextReport.from_json(report.to_json()) == report
    assert not report.gate.passed
    with pytest.raises(NeuronFairError, match=r"not the audit\.json of texts"):
        TextReport.from_json(report.to_json().replace('"attribute"', '"attribut"'))


@pytest.mark.parametrize(("threshold", "passed"), [("flip_rate > 70%", True), ("flip_rate > 50%", False)])
def test_a_threshold_looks_at_the_worse_end(threshold, passed):
    assert audit_texts(biased, TEXTS, "gender", settings=SMALL, fail_if=[threshold]).report.gate.passed is passed


def test_the_page_escapes_texts_and_marks_changes():
    words = [(who, word) for who in ("she", "he") for word in ("baker", "farmer")]
    texts = [f"{who} met a {word} {i} <script>alert(1)</script> & <b>bold</b>" for i in range(9) for who, word in words]
    audit = audit_texts(lambda t: [float(x.startswith("he")) for x in t], texts, "gender", settings=SMALL)
    page = audit.to_html()
    assert "<script>alert" not in page
    assert "<b>bold" not in page
    assert "neutral words of equal frequency were swapped" in page  # the section of the baseline
    assert "<mark>he</mark>" in page


@pytest.mark.parametrize(
    ("texts", "sensitive", "message"),
    [
        ([], "gender", "no text has a letter"),
        (["", None, float("nan"), "123"], "gender", "no text has a letter"),
        (["It rained."], "gender", r"no text mentions gender.*\(1 mention no identity term\)"),
        (["Sie kommt."], "gender", "no text mentions gender"),
        (["she"], "gendre", "no lexicon 'gendre'"),
    ],
)
def test_bad_texts_are_refused_in_a_sentence(texts, sensitive, message):
    with pytest.raises(DataError, match=message):
        audit_texts(biased, texts, sensitive)


def test_one_class_is_refused_in_labels_and_noted_in_decisions():
    with pytest.raises(ModelError, match="gives 2 classes, but the labels name 1: no"):
        audit_texts(biased, TEXTS, "gender", labels=["no"] * len(TEXTS), settings=SMALL)
    report = audit_texts(lambda texts: [0.1] * len(texts), TEXTS, "gender", settings=SMALL).report
    assert any("same decision for every text" in note for note in report.notes)


def test_searches_take_words_from_a_list_of_ones_own(tmp_path):
    words = tmp_path / "words.csv"
    words.write_text("kind,words\nday,sunny|rainy\n", encoding="utf-8")
    texts = [f"{who} liked the sunny day {i}" for i in range(5) for who in ("she", "he")]
    audit = audit_texts(
        lambda texts: [float(t.startswith("he") and "rainy" in t) for t in texts], texts, "gender",
        settings=TextSettings(starts=10, steps=20), replacements=words,
    )  # fmt: skip
    assert audit.report.flip_rate.count == 0
    assert any("rainy" in finding.text for finding in audit.report.worst)
    words.write_text("a,b\n", encoding="utf-8")
    with pytest.raises(DataError, match="expected a first line kind,words"):
        audit_texts(biased, texts, "gender", replacements=words)


def test_searches_take_near_words_of_the_embedding(tmp_path, monkeypatch, capsys):
    ends = [(who, word) for who in ("she", "he") for word in ("sunny", "rainy")]
    texts = [f"{who} liked the {word} house {i}" for i in range(5) for who, word in ends]
    words = sorted({word for text in texts for word in text.split()})

    def tokens(texts):
        return [[words.index(word) + 1 if word in words else 0 for word in text.split()] for text in texts]

    class Sum(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.words, self.out = torch.nn.Embedding(len(words) + 1, 4), torch.nn.Linear(4, 2)
            with torch.no_grad():
                self.words.weight[words.index("rainy") + 1] = self.words.weight[words.index("sunny") + 1] * 1.1

        def forward(self, ids):
            return self.out(self.words(ids).sum(1))

    given = {"preprocess": tokens, "settings": TextSettings(starts=5, steps=3)}
    assert audit_texts(Sum(), texts, "gender", **given).domain.choices.max() == 1
    audit = audit_texts(Sum(), texts, "gender", **given, replacements="embedding")
    assert audit.domain.slots[0][0].words == ("sunny", "rainy")
    with pytest.raises(DataError, match="black box"):
        audit_texts(biased, texts, "gender", replacements="embedding")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bag_model.py").write_text(
        "def f(texts):\n    return [float(t.startswith('he') and 'wet' in t) for t in texts]\n"
    )
    (tmp_path / "words.csv").write_text("kind,words\nday,sunny|wet\n")
    (tmp_path / "t.csv").write_text("text\n" + "\n".join(texts))
    command = ["audit", "t.csv", "--text", "text", "--sensitive", "gender", "--model", "bag_model:f", "--starts", 9]
    assert run(monkeypatch, *command, "--out", "run", "--replacements", "words.csv") == 0
    assert "wet" in (tmp_path / "run" / "findings.csv").read_text()
    assert run(monkeypatch, *command, "--out", "two", "--replacements", "embedding") == 2
    assert "black box" in capsys.readouterr().err
    assert run(monkeypatch, "audit", "t.csv", "--model", "bag_model:f", "--replacements", "words.csv") == 2


def test_the_fixture_checks_texts_and_shows_the_worst_pair(fairness):
    texts = [f"{who} met a baker number {i}" for i in range(200) for who in ("she", "he")]
    fair = fairness.check_texts(lambda texts: [float("1" in t) for t in texts], texts, "gender", max_rate=0.05)
    assert (fair.report.flip_rate.count, fair.report.flip_rate.of) == (0, 400)
    with pytest.raises(AssertionError) as failure:
        fairness.check_texts(lambda texts: [float(t.startswith("he")) for t in texts], texts, "gender", max_rate=0.05)
    reason, *pair = str(failure.value).splitlines()
    assert "100.0% (95% CI 99.1–100.0%) of 400 texts" in reason
    number = pair[0].split()[-1]
    women, men = (f"class {c}: {who} met a baker number {number}" for c, who in enumerate(("she", "he")))
    assert pair in ([women, men], [men, women])
    with pytest.raises(NeuronFairError, match="same decision for every text"):
        fairness.check_texts(lambda texts: [0.1] * len(texts), texts, "gender")
    with pytest.raises(NeuronFairError, match="max_rate must lie between"):
        fairness.check_texts(biased, texts, "gender", max_rate=0)


def test_labels_go_with_texts_by_position_whatever_their_index_in_pandas():
    pandas = pytest.importorskip("pandas", reason="the package pandas is not installed")
    table = pandas.DataFrame({"text": TEXTS, "kind": ["no"] * 36 + ["yes"] * 36}).iloc[::-1]
    report = audit_texts(
        lambda texts: [float(TEXTS.index(t) > 35) if t in TEXTS else 0.0 for t in texts],
        table["text"], "gender", labels=table["kind"], settings=TextSettings(steps=0),
    ).report  # fmt: skip
    assert report.model.accuracy == 1.0


def test_long_and_odd_texts():
    texts = ["she " + "long " * 30_000, "he 😀", "she السلام عليكم", "she said so"]
    report = audit_texts(biased, texts, "gender", settings=SMALL).report
    assert report.texts.tested == 4
    assert any("cut off" in note for note in report.notes)


def test_another_model_may_not_use_the_answers_of_a_folder(tmp_path):
    folder = tmp_path / "run"
    first = audit_texts(biased, TEXTS, "gender", settings=SMALL, folder=folder)
    again = audit_texts(biased, TEXTS, "gender", settings=SMALL, folder=folder)
    assert first.report.flip_rate == again.report.flip_rate
    with pytest.raises(RunError, match="another model"):
        audit_texts(lambda texts: [0.5] * len(texts), TEXTS, "gender", settings=SMALL, folder=folder)


def at_least(limit, of="favour"):
    def model(texts):
        return [of if len(text) >= limit else "against" for text in texts]

    return model


def test_the_same_code_with_another_constant_in_its_closure_is_another_model(tmp_path):
    labels, folder = ["favour", "against"] * 36, tmp_path / "run"
    audit_texts(at_least(30), TEXTS, "gender", labels=labels, settings=SMALL, folder=folder)
    audit_texts(at_least(30), TEXTS, "gender", labels=labels, settings=SMALL, folder=folder)
    with pytest.raises(RunError, match="another model"):
        audit_texts(at_least(31), TEXTS, "gender", labels=labels, settings=SMALL, folder=folder)


def pipeline(labels):
    return make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(TEXTS, labels)


def test_a_retrained_pipeline_at_the_same_path_is_another_model(tmp_path):
    path, folder = tmp_path / "m.joblib", tmp_path / "run"
    for labels in ("good bad", "bad good"):
        joblib.dump(pipeline([labels.split()["bad" in text] for text in TEXTS]), path)
        if labels == "good bad":
            for _ in range(2):
                audit_texts(path, TEXTS, "gender", settings=SMALL, folder=folder, trust_pickle=True)
    with pytest.raises(RunError, match="another model"):
        audit_texts(path, TEXTS, "gender", settings=SMALL, folder=folder, trust_pickle=True)


def test_a_service_that_answers_otherwise_is_another_model(tmp_path):
    folder, settings, service = tmp_path / "run", TextSettings(steps=0, max_calls=2_000), tmp_path / "service"

    def ask(texts):
        return [float(service.read_text()) * text.startswith("he") for text in texts]

    service.write_text("0.8")
    first = audit_texts(ask, TEXTS, "gender", settings=settings, folder=folder).report
    again = audit_texts(ask, TEXTS, "gender", settings=settings, folder=folder).report
    assert again.model.calls == first.model.calls + 2  # sent again: a text for each of two answers
    assert again.flip_rate == first.flip_rate
    service.write_text("0.7")
    with pytest.raises(RunError, match=r"another answer.*version"):
        audit_texts(ask, TEXTS, "gender", settings=settings, folder=folder)


def test_only_one_process_may_use_a_folder(tmp_path):
    folder = tmp_path / "run"
    program = (
        "import sys; from neuronfair.text.audit import audit_texts\n"
        "try:\n    audit_texts(lambda t: [0.1] * len(t), ['she left'], 'gender', folder=sys.argv[1])\n"
        "except Exception as error:\n    print(error)"
    )
    said = []

    def model(texts):
        if not said:
            command = [sys.executable, "-c", program, str(folder)]
            said.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        return [0.1] * len(texts)

    audit_texts(model, TEXTS[:2], "gender", settings=SMALL, folder=folder)
    assert "another process is writing to this run" in said[0]


class CtrlC:
    """A model that is interrupted after so many calls."""

    def __init__(self, calls):
        self.left = calls

    def __call__(self, texts):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return biased(texts)


@pytest.mark.parametrize("calls", [5, 20, 23, 24])  # during twins, neutral words, a search and its control
def test_ctrl_c_keeps_what_was_measured_and_evaluates_no_threshold(calls):
    settings = TextSettings(starts=10, steps=5, batch=4)
    labels = ["no", "yes"] * 36
    audit = audit_texts(
        CtrlC(calls), TEXTS, "gender", labels=labels, settings=settings, fail_if=["flip_rate > 99%", "findings > 0"]
    )
    report = audit.report
    assert report.interrupted
    assert not report.calls_spent
    assert report.gate is None
    assert report.thresholds == "not evaluated"
    assert "The thresholds were not evaluated." in "\n".join(lines(report))
    assert (report.texts.measured < 72) == (calls == 5)
    assert "not evaluated" in audit.to_html()
    assert 'errors="1"' in audit.to_junit()


def test_findings_are_not_counted_without_a_search(tmp_path):
    with pytest.raises(NeuronFairError, match="no search without steps"):
        audit_texts(biased, TEXTS, "gender", settings=TextSettings(steps=0), fail_if=["findings > 0"])
    spent = TextSettings(starts=10, steps=5, batch=4, max_calls=92)
    audit = audit_texts(biased, TEXTS, "gender", settings=spent, fail_if=["findings > 0"], folder=tmp_path / "run")
    assert audit.report.calls_spent
    assert audit.report.gate is None
    assert "all calls were spent before the searches ended" in str(audit.failure)
    assert (tmp_path / "run" / "report.html").exists()
    with pytest.raises(NeuronFairError, match="all calls were spent"):
        nf.audit(biased, {"text": TEXTS}, text="text", sensitive="gender", settings=spent, fail_if=["findings > 0"])
    rate = audit_texts(biased, TEXTS, "gender", settings=spent, fail_if=["flip_rate > 99%"])
    assert rate.report.gate.passed


def test_calls_spent_on_neutral_words_are_noted():
    words = [(who, word) for who in ("she", "he") for word in ("baker", "farmer")]
    texts = [f"{who} met a {word} {i}" for i, (who, word) in enumerate(words * 3)]
    early = audit_texts(biased, texts, "gender", settings=TextSettings(steps=0, max_calls=25)).report
    assert (early.calls_spent, early.texts.measured, early.baseline) == (True, 12, None)


def test_one_decision_for_all_texts_passes_no_threshold():
    audit = audit_texts(lambda t: [0.1] * len(t), TEXTS, "gender", settings=SMALL, fail_if=["flip_rate > 99%"])
    assert "same decision for every text" in str(audit.failure)


def test_texts_without_an_answer_are_no_errors():
    def model(texts):
        return [None if "sad" in text else "yes" for text in texts]

    report = audit_texts(model, TEXTS, "gender", labels=["yes"] * 71 + ["no"], settings=TextSettings(steps=0)).report
    assert report.model.accuracy == pytest.approx(47 / 48)


def test_the_report_blames_neutral_words_only_if_they_were_swapped():
    texts = [f"{who} left" for who in ("she", "he")]
    report = audit_texts(lambda t: [float(x.startswith("he")) for x in t], texts, "gender", settings=SMALL).report
    assert report.baseline is None
    assert not any("Neutral words" in step for step in propose_steps(report))


def run(monkeypatch, *words):
    monkeypatch.setattr("sys.argv", ["neuronfair", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code or 0


def fit(texts, labels):
    return make_pipeline(TfidfVectorizer(token_pattern=r"\S+"), LogisticRegression(C=10)).fit(texts, labels)


def test_twins_in_the_training_texts_remove_a_planted_bias_on_held_out_texts():
    # Women sell tea and men ink; the label follows the gender, so that the model may use either word.
    texts = [f"{who} sold {what} {day}" for who, what in (("she", "tea"), ("he", "ink")) for day in range(40)]
    labels = ["good" if text.startswith("he") else "bad" for text in texts]
    repair = nf.repair_texts(fit, texts, labels, "gender", held_out=0.25, settings=TextSettings(steps=0))
    before, after = (audit.report.flip_rate for audit in (repair.before, repair.after))
    assert repair.added == 60  # a twin of each of 60 training texts, none of which is another training text
    assert (before.of, after.of) == (20, 20)
    assert before.count > 10
    assert after.count == 0
    assert (repair.accuracy_before, repair.accuracy_after) == (1.0, 1.0)
    assert "60 twins added" in repr(repair)
    assert [*repair.model.predict(["she sold ink 99"])] == ["good"]  # of ink, whoever sold it


def test_twins_of_training_texts_are_not_held_out():
    texts = [f"{who} sold tea {day}" for who in ("she", "he") for day in range(20)]
    seen = []
    nf.repair_texts(
        lambda texts, labels: seen.append(texts) or fit(texts, labels),
        texts, ["bad", "good"] * 20, "gender", settings=TextSettings(steps=0),
    )  # fmt: skip
    days = {text.rpartition(" ")[2] for text in seen[0]}
    assert len(seen[0]) == 2 * len(days) == 28  # both texts of 14 of 20 days
    assert seen[1] == seen[0]  # every twin was there, with a label of its own


def test_show_reads_the_folder_of_an_audit_again(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "run"
    audit = audit_texts(biased, TEXTS, "gender", settings=SMALL, folder=folder, fail_if=["flip_rate > 1%"])
    assert run(monkeypatch, "show", folder) == 0
    assert capsys.readouterr().out.splitlines()[0] == audit.verdict
    for name, content in (("again.html", "<mark>he</mark>"), ("again.xml", '<failure message="Flip rate by gender')):
        assert run(monkeypatch, "show", folder, "--out", tmp_path / name) == 0
        assert content in (tmp_path / name).read_text()
    for words in ([folder, 3], [folder, "--out", "f.csv"], [folder, "--out", "card.md"]):
        assert run(monkeypatch, "show", *words) == 2
        assert "is an audit of texts" in capsys.readouterr().err
    (folder / "audit.json").unlink()
    assert run(monkeypatch, "show", folder) == 2
    assert "is not finished" in capsys.readouterr().err


def test_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_text_model.py").write_text(
        "def f(texts):\n    return [float(t.startswith('he')) for t in texts]\n"
    )
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["text", "y"], *([text, "no"] for text in TEXTS)])
    words = ["audit", "t.csv", "--text", "text", "--sensitive", "gender", "--model", "own_text_model:f"]
    assert run(monkeypatch, *words, "--out", "run", "--steps", 3) == 0
    shown = capsys.readouterr().out
    assert "Decisions depend on gender for 100% of texts that mention it (72 of 72)" in shown
    assert len(shown.splitlines()) <= 25
    assert json.loads((tmp_path / "run" / "audit.json").read_text())["attribute"] == "gender"
    assert (tmp_path / "run" / "report.html").exists()
    assert len((tmp_path / "run" / "findings.csv").read_text().splitlines()) > 1
    assert run(monkeypatch, *words, "--out", "two", "--steps", 0, "--fail-if", "flip_rate > 1%") == 1
    assert run(monkeypatch, *words, "--out", "three", "--junit", "x.xml", "--fail-if", "flip_rate > 1%") == 1
    assert '<failure message="Flip rate by gender' in (tmp_path / "x.xml").read_text()
    assert run(monkeypatch, *words, "--out", "four", "--json", "no/folder.json") == 2
    assert not (tmp_path / "four").exists()  # no call was spent
    assert run(monkeypatch, *words, "--out", "three", "--prove", 1) == 2
    assert run(monkeypatch, "audit", "t.csv", "--text", "nothing", "--sensitive", "gender", "--model", "x:f") == 2
