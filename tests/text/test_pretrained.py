"""Sequence classifiers of Hugging Face, built here from a configuration, without a download."""

import json
import os

import pytest
import torch

from neuronfair.errors import ModelError
from neuronfair.text.audit import TextSettings, audit_texts
from neuronfair.text.models import open_text_model
from tests.text.cases import made_domain

os.environ.setdefault("HF_HUB_OFFLINE", "1")
transformers = pytest.importorskip("transformers", reason="the package transformers is not installed")

TEXTS = [f"{who} said the {word} film was {how}" for who in ("she", "he") for word in ("funny", "sad", "strange")
         for how in ("good", "bad")]  # fmt: skip
VOCABULARY = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *["she", "he", "her", "his", "said", "the", "film", "was", "good", "bad", "funny", "sad"],
]
SIZES = {"vocab_size": len(VOCABULARY), "initializer_range": 1.0}
ONE_LAYER = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}


def save_model(folder, module, vocabulary=VOCABULARY, **options):
    module.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **options}))
    return folder


@pytest.fixture
def bert(tmp_path):
    torch.manual_seed(0)
    config = transformers.BertConfig(**SIZES, **ONE_LAYER, max_position_embeddings=16)
    return transformers.BertForSequenceClassification(config).eval()


def test_blocks_of_attention_and_gelu_are_layers_of_bert(bert, tmp_path):
    network = open_text_model(save_model(tmp_path, bert), TEXTS).tokens.network(made_domain(TEXTS))
    assert network.neurons == {
        "module.model.bert.encoder.layer.0.intermediate.intermediate_act_fn": 12,
        "module.model.bert.encoder.layer.0": 8,
        "module.model.bert.encoder.layer.1.intermediate.intermediate_act_fn": 12,
        "module.model.bert.encoder.layer.1": 8,
        "module.model.bert.pooler.activation": 8,
    }


def test_activations_of_a_block_are_its_hidden_states_averaged_over_tokens(bert, tmp_path):
    domain = made_domain(TEXTS)
    model = open_text_model(save_model(tmp_path, bert), TEXTS)
    network = model.tokens.network(domain)
    ids = network.encoding.ids(domain.rows)
    with torch.no_grad():
        states = bert(ids, attention_mask=(ids != 0).long(), output_hidden_states=True).hidden_states
        scores = bert(ids, attention_mask=(ids != 0).long()).logits
    activations = network.activations(domain.rows)
    assert torch.allclose(activations["module.model.bert.encoder.layer.1"], states[2].mean(1), atol=1e-5)
    assert torch.allclose(network.scores(domain.rows), scores, atol=1e-5)


def test_blocks_of_distilbert_are_layers(tmp_path):
    torch.manual_seed(0)
    config = transformers.DistilBertConfig(**SIZES, dim=8, n_layers=2, n_heads=2, hidden_dim=12)
    folder = save_model(tmp_path, transformers.DistilBertForSequenceClassification(config))
    report = audit_texts(folder, TEXTS, "gender", settings=TextSettings(starts=5, steps=3)).report
    blocks = [layer.name for layer in report.interpretation.layers if layer.units == 8]
    assert blocks == ["model.distilbert.transformer.layer.0", "model.distilbert.transformer.layer.1"]
    assert max(layer.auc for layer in report.interpretation.layers) > 0
    assert report.score_change.value > 0
    assert not any("same tokens" in note for note in report.notes)


def test_a_tokenizer_that_does_not_know_the_identity_terms_is_noted(bert, tmp_path):
    unknown = [f"x{i}" if word in ("she", "he") else word for i, word in enumerate(VOCABULARY)]
    folder = save_model(tmp_path, bert, unknown)
    report = audit_texts(folder, TEXTS, "gender", settings=TextSettings(starts=5, steps=3)).report
    assert report.largest_change == 0
    assert any("12 texts cannot flip" in note for note in report.notes)


def test_texts_longer_than_the_positions_of_a_model_are_cut_off(bert, tmp_path):
    texts = [*TEXTS, "she said " + "the film was good " * 10]
    model = open_text_model(save_model(tmp_path, bert), texts)
    assert model.tokens.ids(texts).shape[1] == 16
    assert model.answer(texts).scores.shape == (13, 2)


def test_a_folder_without_safetensors_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"config\.json and model\.safetensors"):
        open_text_model(tmp_path, TEXTS)
