"""The pretrained encoder: equal to transformers', and checkpoints that do not fit."""

import os
import warnings

import pytest
import torch

from ed_lib import data, models
from ed_lib.precision import minilm

DATA = pytest.mark.skipif(not os.environ.get("ED_DATA"), reason="no data")
SMALL = {"layers": 2, "hidden": 12, "heads": 3, "vocabulary": 20, "positions": 9}


def bert(sizes, seed=0):
    """transformers' encoder of these sizes, with random weights that matter."""
    import transformers

    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=sizes["vocabulary"], hidden_size=sizes["hidden"], num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"], intermediate_size=4 * sizes["hidden"],
        max_position_embeddings=sizes["positions"],
    )  # fmt: skip
    theirs = transformers.BertModel(config).double().eval()
    for p in theirs.parameters():
        torch.nn.init.normal_(p)
    return theirs


@pytest.mark.oracle
@pytest.mark.parametrize("seed", range(3))
def test_it_is_transformers_encoder(seed):
    """On padded pairs, whatever the weights."""
    theirs, draw = bert(SMALL, seed), torch.Generator().manual_seed(seed)
    net = models.Encoder(**SMALL, eps=minilm.EPS).double()
    classes = net.classes.weight.clone()
    minilm.load_bert(net, theirs.state_dict() | {minilm.IGNORED: torch.arange(9)})
    assert torch.equal(net.classes.weight, classes), "the classes are not a BERT's"
    net.classes = torch.nn.Identity()
    tokens, mask = minilm.padded([torch.randint(20, (T,), generator=draw) for T in (9, 4, 1, 7)])
    segments = torch.randint(2, tokens.shape, generator=draw)
    with torch.no_grad():
        wanted = theirs(input_ids=tokens, token_type_ids=segments, attention_mask=mask.long())
        torch.testing.assert_close(net(tokens, segments, mask), wanted.pooler_output)
        torch.testing.assert_close(net.hidden(tokens, segments, mask)[mask], wanted.last_hidden_state[mask])


def test_a_checkpoint_that_does_not_fit_changes_nothing():
    net, theirs = models.Encoder(**SMALL, eps=minilm.EPS), bert(SMALL).state_dict()
    before = {name: p.clone() for name, p in net.state_dict().items()}
    missing = {name: each for name, each in theirs.items() if "pooler" not in name}
    name = "encoder.layer.0.intermediate.dense.weight"
    bad = {
        r"pooler.dense.bias, pooler.dense.weight \(2 in all\)": missing,
        r"net has no use for, cls.weight \(1 in all\)": theirs | {"cls.weight": theirs[name]},
        name + r": \(12, 48\); wanted \(48, 12\)": theirs | {name: theirs[name].T},
    }
    for message, each in bad.items():
        with pytest.raises(ValueError, match=message):
            minilm.load_bert(net, each)
    assert all(torch.equal(p, before[name]) for name, p in net.state_dict().items())


@pytest.fixture(scope="module")
def tokenizer():
    if not os.environ.get("ED_DATA"):
        pytest.skip("no data")
    return minilm.tokenizer()


@pytest.mark.oracle
@DATA
def test_with_the_published_weights_it_is_transformers_encoder_too(tokenizer):
    import transformers

    folder = data.minilm("tokenizer.json").parent
    theirs = transformers.BertModel.from_pretrained(folder).eval()
    tokens, segments = minilm.encode(tokenizer, ["A dog barks.", "Hi"], ["It is quiet here", "Nobody sings"])
    (tokens, mask), (segments, _) = minilm.padded(tokens), minilm.padded(segments)
    net = minilm.load()
    net.classes = torch.nn.Identity()
    with torch.no_grad():
        wanted = theirs(input_ids=tokens, token_type_ids=segments, attention_mask=mask.long()).pooler_output
        torch.testing.assert_close(net(tokens, segments, mask), wanted, atol=1e-5, rtol=0)


@pytest.mark.oracle
@DATA
def test_sentences_that_mean_the_same_are_near():
    """What the published weights are for, with no other library: a wrong mapping would not know it."""
    net, tokenizer = minilm.load(), minilm.tokenizer()
    says = ["A man is playing a guitar", "Someone plays an instrument", "The stock market fell on Monday"]
    vectors = minilm.embeddings(net, minilm.encode(tokenizer, says)[0], batch=2)  # (3, 384)
    near, far = (float(vectors[0] @ vectors[n]) for n in (1, 2))
    assert near > 0.5 and far < 0.2


def test_what_is_too_long_is_cut_and_said(tokenizer):
    with pytest.warns(UserWarning, match="1 of 2 have more than 6 tokens and were cut"):
        tokens, segments = minilm.encode(tokenizer, ["a b c d e f g h", "a"], ["i", "b"], positions=6)
    assert [len(each) for each in tokens] == [6, 5] == [len(each) for each in segments]
    assert segments[1].tolist() == [0, 0, 0, 1, 1], "[CLS] a [SEP], then b [SEP]"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        minilm.encode(tokenizer, ["a"], positions=3)
    with pytest.raises(ValueError, match="there are 1 first and 2 second sentences; wanted as many"):
        minilm.encode(tokenizer, ["a"], ["b", "c"])


@pytest.mark.oracle
def test_embeddings_are_means_over_the_tokens_in_the_order_given():
    net = models.Encoder(**SMALL, eps=minilm.EPS)
    sentences = [torch.tensor(tokens) for tokens in ([1, 4, 2, 3], [1, 2], [1, 5, 2])]
    found = minilm.embeddings(net, sentences, batch=2)
    for tokens, vector in zip(sentences, found, strict=True):
        with torch.no_grad():
            alone = net.hidden(tokens[None])[0].mean(0)  # (T, H) → (H,)
        torch.testing.assert_close(vector, alone / alone.norm())
