"""The networks: transformers against torch's own layers, sizes against the sources, seeds."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ed_lib import models

SMALL = dict(layers=2, hidden=24, heads=3, vocabulary=50, positions=20)


def torchs_layer(layer):
    """torch's encoder layer with the weights of ours."""
    hidden = layer.out.in_features
    theirs = nn.TransformerEncoderLayer(
        hidden, layer.heads, 4 * hidden, dropout=0.0, activation="gelu", batch_first=True,
        norm_first=layer.causal, layer_norm_eps=layer.norm1.eps, dtype=torch.float64,
    )  # fmt: skip
    pairs = {"self_attn.in_proj_": layer.queries_keys_values, "self_attn.out_proj.": layer.out,
             "linear1.": layer.wide, "linear2.": layer.narrow,
             "norm1.": layer.norm1, "norm2.": layer.norm2}  # fmt: skip
    state = {
        name + kind: getattr(part, kind)
        for name, part in pairs.items()
        for kind in ("weight", "bias")
    }
    theirs.load_state_dict(state)
    return theirs


def shaken(net, seed=0):
    """The network in float64, with every parameter moved at random: as made, biases of LayerNorm
    are zero.
    """
    net.double()
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in net.parameters():
            p += 0.1 * torch.randn(p.shape, generator=draw, dtype=torch.float64)
    return net


@pytest.mark.oracle
@pytest.mark.parametrize("how", ["bert", *models.RECOMPUTE])
@pytest.mark.parametrize(
    ("hidden", "heads", "B", "T"), [(24, 3, 5, 7), (16, 1, 1, 1), (32, 8, 2, 11)]
)
def test_a_block_is_torchs(how, hidden, heads, B, T):
    """BERT's, and GPT's whatever it computes again."""
    if how == "bert":
        ours, masks = shaken(models.Block(hidden, heads, causal=False, eps=1e-12)), {}
    else:
        ours = shaken(models.Block(hidden, heads, how))
        masks = {"src_mask": nn.Transformer.generate_square_subsequent_mask(T, dtype=torch.float64)}
    theirs = torchs_layer(ours)
    h, g = torch.randn(2, B, T, hidden, dtype=torch.float64)
    mine, yours = h.clone().requires_grad_(), h.clone().requires_grad_()
    y, wanted = ours(mine), theirs(yours, **masks)
    torch.testing.assert_close(y, wanted)
    y.backward(g)
    wanted.backward(g)
    torch.testing.assert_close(mine.grad, yours.grad)
    torch.testing.assert_close(
        ours.queries_keys_values.weight.grad, theirs.self_attn.in_proj_weight.grad
    )


@pytest.mark.oracle
def test_gpt_is_embeddings_torchs_layers_and_the_embeddings_again():
    net = shaken(models.GPT(50, 9, 24, 3, 2))
    tokens, mask = torch.randint(0, 50, (3, 9)), nn.Transformer.generate_square_subsequent_mask(9)
    h = net.tokens.weight[tokens] + net.positions.weight
    for block in net.blocks:
        h = torchs_layer(block)(h, src_mask=mask.double())
    h = F.layer_norm(h, (24,), net.norm.weight, net.norm.bias)
    torch.testing.assert_close(net(tokens), F.linear(h, net.tokens.weight))


@pytest.mark.oracle
def test_the_encoder_is_embeddings_torchs_layers_and_a_pooler():
    net = shaken(models.Encoder(**SMALL, classes=4))
    tokens = torch.randint(0, 50, (3, 9))
    h = net.tokens.weight[tokens] + net.positions.weight[None, :9] + net.segments.weight[0]
    h = F.layer_norm(h, (24,), net.norm.weight, net.norm.bias)
    for layer in net.layers:
        h = torchs_layer(layer)(h)
    first = torch.tanh(h[:, 0] @ net.pooler.weight.T + net.pooler.bias)
    torch.testing.assert_close(net(tokens), first @ net.classes.weight.T + net.classes.bias)


@pytest.mark.oracle
def test_sizes_are_those_of_the_sources():
    """BERT-base without its classes (the count of Devlin et al.'s published checkpoint), and d2l's
    LeNet.
    """
    with torch.device("meta"):
        count = {name: p.numel() for name, p in models.Encoder().named_parameters()}
    classes = count.pop("classes.weight") + count.pop("classes.bias")
    assert sum(count.values()) == 109_482_240 and classes == 3 * 768 + 3
    assert sum(p.numel() for p in models.lenet().parameters()) == 129_068
    assert (
        sum(p.numel() for p in models.mlp().parameters()) == 784 * 256 + 256 + 256 * 257 + 10 * 257
    )
    assert models.lenet()(torch.zeros(3, 1, 28, 28)).shape == (3, 10)
    assert models.mlp((7, 5, 2))(torch.zeros(4, 7)).shape == (4, 2)
    assert [type(m) for m in models.mlp((7, 5, 2))] == [nn.Linear, nn.ReLU, nn.Linear]


@pytest.mark.parametrize("make", [models.mlp, models.lenet, partial(models.GPT, 50, 9),
                                  partial(models.Encoder, **SMALL)])  # fmt: skip
def test_a_seed_says_what_the_weights_are_and_leaves_the_global_state(make):
    before = torch.get_rng_state()
    one, other = make(seed=3), make(seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    for p, same, another in zip(
        *(net.parameters() for net in (one, make(seed=3), other)), strict=True
    ):
        assert torch.equal(p, same)
        assert p.dim() == 1 or not torch.equal(p, another)  # LayerNorm's are alike under any seed


@pytest.mark.parametrize("how", models.RECOMPUTE)
def test_a_network_computes_where_it_is(how):
    """On the device "meta", which refuses what stayed on the CPU."""
    tokens = torch.zeros(2, 9, dtype=torch.long, device="meta")
    gpt = models.GPT(50, 9, 24, 3, 2, how).to("meta")
    assert gpt(tokens).device.type == "meta"
    mask = torch.ones(2, 9, dtype=torch.bool, device="meta")
    assert models.Encoder(**SMALL).to("meta")(tokens, tokens, mask).device.type == "meta"
    assert models.lenet().to("meta")(torch.zeros(2, 1, 28, 28, device="meta")).shape == (2, 10)


@pytest.mark.oracle
def test_the_encoders_matrices_start_as_berts():
    net = models.Encoder(layers=1, hidden=64, heads=4, vocabulary=1000)
    for matrix in (p for p in net.parameters() if p.dim() == 2 and p.numel() > 4000):
        assert abs(matrix.std().item() - 0.02) < 0.001 and abs(matrix.mean().item()) < 0.002
