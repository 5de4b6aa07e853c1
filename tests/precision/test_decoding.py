"""Writing with a key-value cache, against reading the whole text anew."""

import pytest
import torch

from ed_lib import models
from ed_lib.precision import decoding


def test_one_token_at_a_time_gives_the_scores_of_the_whole_text():
    net = models.GPT(11, 9, 8, 2, 3, seed=4)
    for p in net.parameters():
        p.data.mul_(5)  # so that what is attended to matters
    texts, caches = (
        torch.tensor([[3, 0, 10, 10, 7, 1, 2, 5, 8], [1, 1, 2, 3, 5, 8, 0, 9, 9]]),
        [[], [], []],
    )
    with torch.no_grad():
        found = torch.stack(
            [decoding.decode_step(net, tokens, caches) for tokens in texts.T], dim=1
        )
        torch.testing.assert_close(found, net(texts), rtol=1e-4, atol=1e-4)
    for wrong in ([[]] * 3, [[], []], [[]] * 2):
        with pytest.raises(ValueError, match="wanted one of its own for each of 3 blocks"):
            decoding.decode_step(net, texts[:, 0], wrong)
        assert not any(wrong), "nothing was written into them"
    with pytest.raises(ValueError, match="9 tokens are read; wanted fewer than the positions, 9"):
        decoding.decode_step(net, texts[:, 0], caches)
    assert all(kept.shape == (2, 2, 9, 4) for cache in caches for kept in cache), (
        "keys, values: (B, a, T, d)"
    )
