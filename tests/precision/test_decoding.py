"""Writing with a key-value cache, against reading the whole text anew."""

import pytest
import torch

from ed_lib.ed.language import Transformer
from ed_lib.precision.decoding import Decoder


def network(**options):
    return Transformer(11, context=9, layers=3, heads=2, width=8, seed=4, **options)


def test_one_character_at_a_time_gives_the_scores_of_the_whole_text():
    net, text = network(), torch.tensor([[3, 0, 10, 10, 7, 1, 2, 5, 8]])
    for p in net.parameters.values():
        p.data.mul_(20)  # so that what is attended to matters
    decoder = Decoder(net)
    found = torch.stack([decoder.step(int(number)) for number in text[0]])
    assert torch.allclose(found, net.forward(text)[0], rtol=1e-4, atol=1e-5)


def test_products_are_made_of_weights_with_a_row_for_each_output():
    shapes = []
    Decoder(network(), lambda w: shapes.append(tuple(w.shape)) or w.is_contiguous())
    assert shapes == 3 * [(24, 8), (8, 8), (32, 8), (8, 32)]


def test_a_full_context_and_an_unknown_character_are_errors_that_change_nothing():
    decoder = Decoder(network())
    with pytest.raises(ValueError, match="11"):
        decoder.step(11)
    assert decoder.length == 0 and not decoder.keys.any()
    for _ in range(9):
        decoder.step(1)
    with pytest.raises(ValueError, match="9 characters are read"):
        decoder.step(1)
