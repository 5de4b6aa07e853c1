"""The pretrained encoder: equal to transformers'; checkpoints that do not fit; and its
fine-tuning.
"""

import os
import warnings
from functools import partial

import pytest
import torch

from ed_lib import data, models
from ed_lib.precision import minilm
from ed_lib.precision.scaler import GradScaler

DATA = pytest.mark.skipif(not os.environ.get("ED_DATA"), reason="no data")
SMALL = {"layers": 2, "hidden": 12, "heads": 3, "vocabulary": 20, "positions": 9}


def bert(sizes, seed=0):
    """transformers' encoder of these sizes, with random weights that matter."""
    import transformers

    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=sizes["vocabulary"],
        hidden_size=sizes["hidden"],
        num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"],
        intermediate_size=4 * sizes["hidden"],
        max_position_embeddings=sizes["positions"],
    )
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
    minilm.load_bert(net, theirs.state_dict() | {"embeddings.position_ids": torch.arange(9)})
    assert torch.equal(net.classes.weight, classes), "the classes are not a BERT's"
    net.classes = torch.nn.Identity()
    tokens, mask = minilm.padded([torch.randint(20, (T,), generator=draw) for T in (9, 4, 1, 7)])
    segments = torch.randint(2, tokens.shape, generator=draw)
    with torch.no_grad():
        wanted = theirs(input_ids=tokens, token_type_ids=segments, attention_mask=mask.long())
        torch.testing.assert_close(net(tokens, segments, mask), wanted.pooler_output)
        torch.testing.assert_close(
            net.hidden(tokens, segments, mask)[mask], wanted.last_hidden_state[mask]
        )


def test_a_checkpoint_that_does_not_fit_changes_nothing():
    net, theirs = models.Encoder(**SMALL, eps=minilm.EPS), bert(SMALL).state_dict()
    before = {name: p.clone() for name, p in net.state_dict().items()}
    missing = {name: each for name, each in theirs.items() if "pooler" not in name}
    name = "encoder.layer.0.intermediate.dense.weight"
    key = "encoder.layer.1.attention.self.key.weight"
    bad = {
        "pooler.dense.bias, pooler.dense.weight; wanted": missing,
        "net has no use for, cls.weight; wanted": theirs | {"cls.weight": theirs[name]},
        r"self.key.weight has the shape \(12, 11\); wanted \(12, 12\)": theirs
        | {key: theirs[key][:, :11]},
        name + r" has the shape \(12, 48\); wanted \(48, 12\)": theirs | {name: theirs[name].T},
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
    tokens, segments = minilm.tokenize(
        tokenizer, ["A dog barks.", "Hi"], ["Silence", "Nobody sings"]
    )
    (tokens, mask), (segments, _) = minilm.padded(tokens), minilm.padded(segments)
    net = minilm.load()
    net.classes = torch.nn.Identity()
    with torch.no_grad():
        wanted = theirs(
            input_ids=tokens, token_type_ids=segments, attention_mask=mask.long()
        ).pooler_output
        torch.testing.assert_close(net(tokens, segments, mask), wanted, atol=1e-5, rtol=0)


@pytest.mark.oracle
@DATA
def test_sentences_that_mean_the_same_are_near():
    """What the published weights are for, with no other library: a wrong mapping would not know
    it.
    """
    net, tokenizer = minilm.load(), minilm.tokenizer()
    says = [
        "A man is playing a guitar",
        "Someone plays an instrument",
        "The stock market fell on Monday",
    ]
    vectors = minilm.embeddings(net, minilm.tokenize(tokenizer, says)[0], batch=2)  # (3, 384)
    near, far = (float(vectors[0] @ vectors[n]) for n in (1, 2))
    assert near > 0.5 and far < 0.2


def test_pairs_have_segments_and_what_is_too_long_is_cut(tokenizer):
    tokens, segments = minilm.tokenize(tokenizer, ["a b " * 400, "a"], ["i", "b"])
    assert [len(each) for each in tokens] == [512, 5] == [len(each) for each in segments]
    assert segments[1].tolist() == [0, 0, 0, 1, 1], "[CLS] a [SEP], then b [SEP]"
    with pytest.raises(ValueError, match="argument 2 is longer than argument 1"):
        minilm.tokenize(tokenizer, ["a"], ["b", "c"])


@pytest.mark.oracle
def test_embeddings_are_means_over_the_tokens_in_the_order_given():
    net = models.Encoder(**SMALL, eps=minilm.EPS)
    sentences = [torch.tensor(tokens) for tokens in ([1, 4, 2, 3], [1, 2], [1, 5, 2])]
    found = minilm.embeddings(net, sentences, batch=2)
    for tokens, vector in zip(sentences, found, strict=True):
        with torch.no_grad():
            alone = net.hidden(tokens[None])[0].mean(0)  # (T, H) → (H,)
        torch.testing.assert_close(vector, alone / alone.norm())


# Fine-tuning


small = partial(
    models.Encoder, layers=1, hidden=16, heads=2, vocabulary=30, positions=12, eps=minilm.EPS
)


def task(n, seed=0, classes=3):
    """Sequences of different lengths whose class is the first token's."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 10, (n,), generator=draw)
    tokens = [torch.randint(3, 30, (int(length),), generator=draw) for length in lengths]
    labels = torch.tensor([int(each[0]) % classes for each in tokens])
    return minilm.Examples(tokens, [torch.zeros_like(each) for each in tokens], labels)


def test_it_learns():
    net, train, test = small(), task(600), task(200, seed=1)
    history = minilm.finetune(net, train, test, rate=3e-3, epochs=6)
    assert history.accuracy[0] < 0.6 and history.accuracy[-1] > 0.9
    assert history.accuracy[-1] == minilm.accuracy(net, test, batch=7), "whatever the batch"


@pytest.mark.oracle
def test_the_rate_warms_up_and_falls_and_only_matrices_decay(monkeypatch):
    rates, decays = [], {}
    step = torch.optim.AdamW.step

    def watched(self, *args):
        rates.append(self.param_groups[0]["lr"])
        for group in self.param_groups:
            decays.update({p.dim(): group["weight_decay"] for p in group["params"]})
        return step(self, *args)

    monkeypatch.setattr(torch.optim.AdamW, "step", watched)
    minilm.finetune(small(), task(100), rate=1.0, epochs=2, batch=10, warmup=0.2)
    assert rates[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0]) and rates[-1] == pytest.approx(1 / 16)
    assert rates[3:] == sorted(rates[3:], reverse=True) and len(rates) == 20
    assert decays == {1: 0.0, 2: 0.01}


def test_in_few_bits_with_a_scaler():
    net, bfloat16 = small(), partial(torch.autocast, "cpu", torch.bfloat16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        history = minilm.finetune(
            net, task(64), epochs=2, context=bfloat16, scaler=GradScaler("cpu")
        )
    assert len(history.loss) == 4 and net.classes.weight.dtype == torch.float32


@pytest.mark.parametrize(
    "scaler", [GradScaler("cpu"), torch.amp.GradScaler("cpu")], ids=["ours", "torch's"]
)
def test_the_schedule_waits_while_steps_are_skipped(monkeypatch, scaler):
    rates, step, found_inf = [], torch.optim.AdamW.step, [torch.inf] * 3

    def watched(self, *args):
        if not getattr(
            self, "found_inf", 0
        ):  # torch's scaler lets a fused optimizer skip by itself
            rates.append(self.param_groups[0]["lr"])
        return step(self, *args)

    scale = scaler.scale  # overflows in the first three steps
    monkeypatch.setattr(
        scaler, "scale", lambda loss: scale(loss * (found_inf.pop() if found_inf else 1))
    )
    monkeypatch.setattr(torch.optim.AdamW, "step", watched)
    minilm.finetune(small(), task(100), rate=1.0, epochs=1, batch=10, warmup=1.0, scaler=scaler)
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]), (
        "as many rates as steps taken"
    )
