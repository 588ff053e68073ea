"""The model inside the page: what the browser computes is what the model says."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from neuronfair import Dataset, Decision, TableEncoding, load_dataset, parse_domain, wrap_model
from neuronfair.audits.stages import playground as playgrounds
from neuronfair.audits.stages.playground import playground
from neuronfair.errors import ModelError
from neuronfair.render.page import audit_page
from tests import reports
from tests.render.chromium import BROWSER, Browser

needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")


@pytest.fixture(scope="module")
def german():
    return load_dataset("german")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


def network(data, *parts):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(TableEncoding.of(data.domain).width, 6), *parts)


def shown(browser, tmp_path, game):
    path = tmp_path / "report.html"
    path.write_text(audit_page(reports.adult(), game), encoding="utf-8")
    browser.media()
    browser.width(1280)
    browser.open(path)
    return browser


@needs_browser
@pytest.mark.parametrize(
    ("parts", "decision"),
    [
        ((nn.ReLU(), nn.Linear(6, 2)), None),
        ((nn.GELU(), nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 2), nn.Softmax(dim=1)), None),
        ((nn.SiLU(), nn.Linear(6, 3), nn.LeakyReLU(0.3), nn.Linear(3, 1), nn.Sigmoid()), None),
        ((nn.Softplus(), nn.Linear(6, 1)), Decision("tolerance", 0.01)),
    ],
)
def test_the_browser_computes_the_scores_of_the_network(browser, tmp_path, german, parts, decision):
    opened = wrap_model(network(german, *parts), german.domain, german.rows, decision=decision)
    game = playground(opened, german)
    page = shown(browser, tmp_path, game)
    rows = torch.tensor(game.people[:40])
    seen = page.eval(f"{json.dumps(rows.tolist())}.map(document.getElementById('playground').scores)")
    torch.testing.assert_close(
        torch.tensor(seen, dtype=torch.float64), opened.model.double().scores(rows), rtol=0, atol=1e-5
    )
    assert page.errors == []


@needs_browser
def test_a_reader_changes_a_person_and_sees_the_decision_flip(browser, tmp_path, german):
    """The planted network decides by sex alone: every twin flips; with the sex changed, it is another person."""
    encoding = TableEncoding.of(german.domain)
    module = nn.Sequential(nn.Linear(encoding.width, 1), nn.ReLU(), nn.Linear(1, 2))
    sex = german.domain.column("sex")
    with torch.no_grad():
        module[0].weight.zero_()
        module[0].bias.zero_()
        module[0].weight[0, encoding.offset[sex]] = 10.0
        module[2].weight.copy_(torch.tensor([[0.0], [1.0]]))
        module[2].bias.copy_(torch.tensor([5.0, 0.0]))
    game = playground(wrap_model(module, german.domain, german.rows), german)
    page = shown(browser, tmp_path, game)
    said = "document.querySelector('#playground .said').textContent"
    assert page.eval(said) == "1 of 1 twins get a different decision."
    lines = "[...document.querySelectorAll('#playground tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))"
    before = page.eval(lines)
    shares = {line[1]: line[2] for line in before}  # the favourable class is good: e^5 against 1, and 1 against e^5
    assert shares == {"bad": "0.7%", "good": "99.3%"}
    assert [line[3] for line in before] == ["this person", "the decision flips"]
    page.eval(
        f"(() => {{ const control = document.querySelectorAll('#playground .fields label')[{sex}].lastChild;"
        "control.value = 1 - control.value; control.dispatchEvent(new Event('input')); })()"
    )
    after = page.eval(lines)
    assert [line[:3] for line in after] == [line[:3] for line in before][::-1]
    assert [line[3] for line in after] == ["this person", "the decision flips"]
    assert page.errors == []


RULED = """
sensitive = ["sex"]
[attributes]
sex = { kind = "flag", values = ["female", "male"] }
role = { kind = "nominal", values = ["husband", "other"] }
since = { kind = "ordinal", low = 2020-01-01, high = 2020-01-31, date = "iso" }
age = { kind = "ordinal", low = 18, high = 90, missing = "keep" }
[[rules]]
name = "a husband is male"
if = { role = ["husband"] }
then = { sex = ["male"] }
"""


@needs_browser
def test_twins_that_do_not_exist_do_not_count_and_dates_and_empty_cells_are_words(browser, tmp_path):
    domain = parse_domain(RULED)
    rows = torch.tensor([[1, 0, 3, 73], [1, 1, 3, 5]])  # a husband without an age, another man
    data = Dataset("people", domain, rows.repeat(20, 1), torch.full((40,), -1))
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(TableEncoding.of(domain).width, 4), nn.Tanh(), nn.Linear(4, 2))
    opened = wrap_model(module, domain, data.rows)
    game = playground(opened, data)
    page = shown(browser, tmp_path, game)
    found = page.eval(f"{json.dumps(rows.tolist())}.map(document.getElementById('playground').scores)")
    expected = opened.model.double().scores(rows)
    torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), expected, rtol=0, atol=1e-5)
    counts = {}
    for number, row in enumerate(game.people[:8]):
        page.eval(
            "(() => { const who = document.querySelector('#playground .who');"
            f"who.value = {number}; who.dispatchEvent(new Event('input')); }})()"
        )
        counts[row] = page.eval("document.querySelectorAll('#playground tbody tr').length")
    assert counts == {(1, 0, 3, 73): 1, (1, 1, 3, 5): 2}
    texts = page.eval("[...document.querySelectorAll('#playground .fields option')].map((o) => o.textContent)")
    assert {"2020-01-04", "missing"} <= {*texts}
    assert page.errors == []


def test_what_a_page_cannot_hold_is_refused_before_anything_is_searched(german, monkeypatch):
    opened = wrap_model(lambda table: [0.3] * len(table), german.domain, german.rows)
    with pytest.raises(ModelError, match=r"--interactive.*neither a network nor trees"):
        playground(opened, german)
    opened = wrap_model(network(german, nn.ReLU(), nn.Linear(6, 2)), german.domain, german.rows)
    monkeypatch.setattr(playgrounds, "LARGEST", 100)
    with pytest.raises(ModelError, match="a page may hold a model of 1 MB"):
        playground(opened, german)


def test_a_page_without_a_playground_holds_no_model(german):
    game = playground(wrap_model(network(german, nn.ReLU(), nn.Linear(6, 2)), german.domain, german.rows), german)
    assert 'id="playground"' not in audit_page(reports.adult())
    evil = replace(game, fields=(replace(game.fields[0], name="</script><b>"), *game.fields[1:]))
    assert "</script><b>" not in audit_page(reports.adult(), evil)


@needs_browser
def test_the_browser_computes_the_scores_of_trees(browser, tmp_path, german):
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder

    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(german.domain.to_table(german.rows))
    texts = [name for name in table.columns if table[name].dtype.kind not in "if"]
    before = make_column_transformer((OneHotEncoder(handle_unknown="ignore"), texts), remainder="passthrough")
    model = make_pipeline(before, RandomForestClassifier(5, max_depth=4, random_state=0))
    opened = wrap_model(model.fit(table, german.labels.numpy()), german.domain, german.rows)
    game = playground(opened, german)
    assert game.trees is not None
    page = shown(browser, tmp_path, game)
    rows = torch.tensor(game.people[:40])
    seen = page.eval(f"{json.dumps(rows.tolist())}.map(document.getElementById('playground').scores)")
    torch.testing.assert_close(torch.tensor(seen, dtype=torch.float64), opened.model.scores(rows), rtol=0, atol=1e-5)
    assert page.errors == []


def test_what_the_model_is_not_given_is_written_behind_its_inputs(german):
    attributes = german.domain.attributes
    domain = replace(
        german.domain, attributes=tuple(replace(a, encode="none") if a.name == "sex" else a for a in attributes)
    )
    data = replace(german, domain=domain)
    game = playground(wrap_model(network(data, nn.ReLU(), nn.Linear(6, 2)), domain, data.rows), data)
    sex = game.inputs[domain.column("sex")]
    assert (sex.offset, sex.block, sex.factor, sex.shift) == (game.layers[0].weight.columns, False, 0.0, 0.0)
    assert len({one.offset for one in game.inputs}) == len(attributes)
