import pytest
import torch
from torch import nn

from neuronfair.errors import ModelError
from neuronfair.model.profile import interpret
from neuronfair.text.domain import Replacements, WordClasses, read_replacements
from neuronfair.text.lexicon import examine
from neuronfair.text.models import open_text_model
from neuronfair.text.network import TokenModel
from tests.text.cases import SENTENCES, Bag, Convolution, made_domain, tokenizer

DOMAIN = made_domain()


def network_of(module):
    return TokenModel.of(module.eval(), tokenizer, SENTENCES).network(DOMAIN)


def test_scores_through_the_embedding_are_those_of_the_module():
    module = Convolution()
    tokens = TokenModel.of(module.eval(), tokenizer, SENTENCES)
    rows = DOMAIN.sample(30, torch.Generator().manual_seed(0))
    ids = tokens.ids(DOMAIN.write(rows), tokens.network(DOMAIN).encoding.length)
    assert torch.allclose(tokens.network(DOMAIN).scores(rows), module(ids).detach(), atol=1e-6)


def test_effects_of_a_linear_model_are_exact():
    network = network_of(Bag())
    rows = DOMAIN.sample(20, torch.Generator().manual_seed(1))
    gradient = network.gradient(rows, lambda scores: scores[:, 1]).flatten(1)
    codes = DOMAIN.neighbours(rows, torch.rand(20, DOMAIN.draws_per_row, dtype=torch.float64))
    effects = network.encoding.effects(gradient, rows, None, codes)
    before = network.scores(rows)[:, 1]
    for column in range(2, rows.shape[1]):
        moved = rows.clone()
        moved[:, column] = codes[:, column]
        change = network.scores(moved)[:, 1] - before
        assert torch.allclose(effects[:, column], change, atol=1e-4), column


def test_uphill_takes_the_word_with_the_largest_effect():
    network = network_of(Bag())
    rows = DOMAIN.rows
    gradient = network.gradient(rows, lambda scores: scores[:, 1]).flatten(1)
    best = network.scores(DOMAIN.clip(network.encoding.step_uphill(gradient, rows)))[:, 1]
    assert (best >= network.scores(rows)[:, 1] - 1e-6).all()
    one = DOMAIN.neighbours(rows, torch.rand(len(rows), DOMAIN.draws_per_row, dtype=torch.float64))
    assert (best >= network.scores(one)[:, 1] - 1e-6).all()


def test_neurons_are_units_averaged_over_tokens():
    network = network_of(Convolution())
    assert network.neurons == {"module.act": 6}
    rows = DOMAIN.rows
    with torch.no_grad():
        x = network.encoding.encode(rows)[..., :-1]
        inner = network.module.module.act(network.module.module.conv(x.transpose(1, 2)))
    assert torch.allclose(network.activations(rows)["module.act"], inner.mean(2), atol=1e-6)


def test_ablation_silences_a_unit_for_every_token():
    network = network_of(Convolution())
    with network.ablated("module.act", [0, 2]):
        assert (network.activations(DOMAIN.rows)["module.act"][:, [0, 2]] == 0).all()
        silenced = network.scores(DOMAIN.rows)
    assert not torch.allclose(silenced, network.scores(DOMAIN.rows))


def test_the_unit_that_reads_the_identity_is_named():
    module = Convolution()
    with torch.no_grad():
        module.words.weight[:, 0] = 0
        for word, value in (("she", 5.0), ("he", -5.0)):
            from tests.text.cases import VOCABULARY

            module.words.weight[VOCABULARY[word], 0] = value
            module.words.weight[VOCABULARY[word], 1:] = 0
        module.conv.weight[3] = 0
        module.conv.weight[3, 0, 1] = 1  # unit 3 reads the planted channel
        module.conv.weight[[0, 1, 2, 4, 5]] *= 0.01
    domain = made_domain(["She left.", "He arrived.", "he laughed loudly"])
    profile = interpret(TokenModel.of(module.eval(), tokenizer, SENTENCES).network(domain), domain, domain.rows)
    assert profile.worst.biased == (3,)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.Linear(3, 2)), "failed on token ids"),
        (nn.Embedding(1, 2), "failed on token ids"),
    ],
)
def test_a_module_of_something_else_is_refused(module, message):
    with pytest.raises(ModelError, match=message):
        TokenModel.of(module, tokenizer, SENTENCES)


def test_texts_of_equal_length_at_first_do_not_cut_off_longer_ones():
    texts = ["she left", "he left", "she said he left"]
    tokens = TokenModel.of(Bag().eval(), tokenizer, texts[:2])
    assert tokens.ids(texts).shape == (3, 4)
    whole = TokenModel.of(Bag().eval(), tokenizer, texts)
    assert torch.equal(tokens.scores(texts), whole.scores(texts))
    padding = TokenModel.of(Bag().eval(), lambda texts: [[*ids, *[0] * 9][:9] for ids in tokenizer(texts)], texts)
    assert padding.length == 9


def test_near_words_have_the_same_ending_and_frequency_and_stand_close_in_the_embedding():
    texts = [f"she likes a {word} story" for word in ("golden", "wooden", "sunken", "fallen", "golden", "wooden") * 2]
    texts += ["a sunken fallen film", "my rotten broken table"] * 2 + ["a rotten broken tree"] * 2
    words = sorted({word for text in texts for word in text.split()} - {"rotten", "broken"})
    module = Bag(width=2)
    module.words = nn.Embedding(len(words) + 1, 2)

    def tokens(texts):  # two words are unknown
        return [[words.index(word) + 1 if word in words else 0 for word in text.split()] for text in texts]

    with torch.no_grad():
        for word, vector in (("golden", (1, 0)), ("wooden", (0.9, 0.1)), ("sunken", (0, 1)), ("fallen", (0.7, 1.0))):
            module.words.weight[words.index(word) + 1] = torch.tensor(vector)
    model = TokenModel.of(module.eval(), tokens, texts)
    classes = WordClasses(texts, DOMAIN.lexicon)
    near = model.find_near_words(classes)
    # All occur four times. Sunken is far from golden and wooden, fallen lies between.
    assert near["golden"] == ("wooden", "fallen")
    assert near["wooden"] == ("golden", "fallen")
    assert near["sunken"] == ("fallen",)
    assert near["fallen"] == ("sunken", "wooden", "golden")
    assert "rotten" not in near
    replacements = Replacements(read_replacements().kinds, near)
    assert replacements.kind_by_word["film"].words == ("film", "movie")
    slots = replacements.slots(examine("She saw the film in a golden car.", DOMAIN.lexicon))
    assert [slot.words for slot in slots] == [("film", "movie"), ("golden", "wooden", "fallen")]


class TinyAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query = nn.Linear(width, width)

    def forward(self, x):
        return (self.query(x) @ x.mT).softmax(2) @ x


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention, self.gelu = TinyAttention(width), nn.GELU()
        self.last = nn.Linear(width, width)

    def forward(self, x):
        return (self.last(self.gelu(self.attention(x))) + x, None)


class Encoder(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(2000, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.out = nn.Linear(width, 2)

    def forward(self, ids):
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)[0]
        return self.out(x.mean(1))


def test_blocks_with_attention_and_activations_are_layers_in_forward_order():
    network = network_of(Encoder())
    assert network.layers == tuple(f"module.blocks.{i}{part}" for i in (0, 1) for part in (".gelu", ""))
    x = network.encoding.encode(DOMAIN.rows)[..., :-1]
    with torch.no_grad():
        first = network.module.module.blocks[0](x)[0]
    assert torch.allclose(network.activations(DOMAIN.rows)["module.blocks.0"], first.mean(1), atol=1e-6)


def test_a_module_needs_its_tokenizer():
    with pytest.raises(ModelError, match="needs its tokenizer"):
        open_text_model(Bag(), SENTENCES)


def test_layers_of_a_recurrent_network():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(2000, 4)
            self.rnn = nn.LSTM(4, 3, batch_first=True, bidirectional=True)
            self.out = nn.Linear(6, 2)

        def forward(self, ids):
            return self.out(self.rnn(self.words(ids))[0].amax(1))

    assert network_of(Recurrent()).neurons == {"module.rnn": 6}


def test_other_texts_of_a_batch_do_not_change_a_decision():
    class ReadsPadding(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.words = nn.Embedding(2000, 4)
            self.out = nn.Linear(4, 2)

        def forward(self, ids):
            return self.out(self.words(ids).mean(1))  # the mean runs over the padding, too

    tokens = TokenModel.of(ReadsPadding().eval(), tokenizer, SENTENCES)
    together = tokens.scores(list(SENTENCES))
    alone = torch.cat([tokens.scores([text]) for text in SENTENCES])
    assert torch.allclose(together, alone, atol=1e-6)
