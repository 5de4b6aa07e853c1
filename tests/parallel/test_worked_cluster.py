"""The worked cluster's rows against counts by hand and against published rules of thumb."""

import itertools

import pytest

from ed_lib.parallel import worked_cluster
from ed_lib.parallel.worked_cluster import CLUSTER, SPLITS, balance, row, table
from ed_lib.parallel.workload import Layout

# By hand: a layer has four products of attention and three of the feed-forward part.
PARAMETERS = 32 * (4 * 4096**2 + 3 * 4096 * 11_008) + 32_000 * 4096
# Of one sequence, in 16 bits: a layer keeps the inputs of two norms, queries, keys, values, the
# output of attention, and two wide products; then come the logits, in 32 bits and in 16.
KEPT = 2 * 4096 * 32 * (6 * 4096 + 2 * 11_008) + 6 * 4096 * 32_000
TOKENS = 1024 * 4096
SENT = "GB sent a device and step"
PAYS = "tokens a device from which it pays"


def test_the_model_is_llamas_and_the_batch_has_four_million_tokens():
    assert worked_cluster.MODEL.parameters == PARAMETERS
    assert PARAMETERS == pytest.approx(6.74e9 - 32_000 * 4096, rel=1e-3)  # the second matrix is out
    assert {layout.batch * 4096 for layout in SPLITS.values()} == {TOKENS, 4 * TOKENS}


@pytest.mark.parametrize("name, weights, gradients, optimizer", [
    ("one copy each", 1, 1, 1),
    ("optimizer shared", 1, 1, 1 / 64),
    ("gradients too", 1, 1 / 64 + 1 / 32, 1 / 64),  # a layer at work is whole
    ("weights too", 1 / 64 + 2 / 32, 1 / 64 + 1 / 32, 1 / 64),  # and the next one's weights
])  # fmt: skip
def test_memory_by_hand(name, weights, gradients, optimizer):
    state = PARAMETERS * (2 * weights + 2 * gradients + 12 * optimizer)
    assert row(SPLITS[name])["GB a device"] == pytest.approx((state + KEPT) / 1e9)


@pytest.mark.parametrize("name, halves", [
    ("one copy each", 2), ("optimizer shared", 2),
    ("gradients too", 1 + 16),  # gradients of each of 16 micro-batches
    ("weights too", 3 * 16),
])  # fmt: skip
def test_bytes_between_copies_by_hand(name, halves):
    """Half of an all-reduce sends 63/64 of two bytes for each parameter."""
    assert row(SPLITS[name])[SENT] == pytest.approx(halves * 63 / 64 * 2 * PARAMETERS / 1e9)


def test_bytes_of_tensors_and_stages_by_hand():
    """A sequence of activations has 4,096 × 4,096 numbers; of 128, eight copies have 128 each."""
    copies = 2 * 7 / 8 * 2 * PARAMETERS / 8
    sums = 4 * 32 * 128 * 2 * 7 / 8 * 2 * 4096**2
    stages = 2 * 128 * 2 * 4096**2
    assert row(SPLITS["tensor, 8 in a server"])[SENT] == pytest.approx((sums + copies) / 1e9)
    assert row(SPLITS["pipeline, 8 in a server"])[SENT] == pytest.approx((stages + copies) / 1e9)


def test_sixty_four_devices_compute_what_one_does_and_messages_may_hide():
    one, copies, sharded = (row(SPLITS[n]) for n in ("one device", "one copy each", "weights too"))
    assert one["ms of messages"] == one[SENT] == 0
    optimizer = 1e3 * 30 * PARAMETERS / CLUSTER.memory  # each copy repeats it
    assert copies["ms of computing"] - optimizer == pytest.approx(
        (one["ms of computing"] - optimizer) / 64
    )
    products = 1e3 * 6 * PARAMETERS * TOKENS / 64 / CLUSTER.rate
    assert products < sharded["ms of computing"] < 1.4 * products
    for found in (copies, sharded):
        assert found["ms a step"] < 1.01 * found["ms of computing"]


def test_tokens_from_which_copies_pay_by_hand():
    by_hand = CLUSTER.rate * (7 / 8 / 450e9 + 7 / 8 / 8 / 50e9)
    for name in ("one copy each", "optimizer shared", "gradients too", "weights too"):
        assert row(SPLITS[name])[PAYS] == pytest.approx(by_hand)
    # An eighth of the weights, each between eight servers; and eight times the tokens for it.
    one_of_eight = CLUSTER.rate * 7 / 8 / 50e9 / 8
    for name in ("tensor, 8 in a server", "pipeline, 8 in a server"):
        assert row(SPLITS[name])[PAYS] == pytest.approx(one_of_eight)
    assert [round(balance(link)) for link in (CLUSTER.inside, CLUSTER.between)] == [1344, 12_092]


@pytest.mark.oracle
def test_published_rules_of_thumb():
    """The scaling-book's, "How to think about GPUs", from the data sheet's 990 TFLOP/s, with
    messages inside servers beside those between them: 2,200 tokens a GPU in one server, about 2,500
    beyond. The Ultra-Scale Playbook, measured with a million tokens: copies alone get inefficient
    from 512 GPUs on.
    """
    assert balance(CLUSTER.inside) * 990e12 / CLUSTER.rate == pytest.approx(2200)
    assert balance(CLUSTER.between) / 8 * 990e12 / CLUSTER.rate == pytest.approx(2475)
    pays = row(SPLITS["one copy each"])[PAYS]
    assert 2400 < pays < 2600
    assert 2**20 / 512 < pays < 2**20 / 256


def test_the_split_of_16384_devices_is_the_fastest_of_many():
    powers = (1, 2, 4, 8, 16)
    fastest = row(SPLITS["16,384 devices"])["ms a step"]
    for t, p, c, v, stage in itertools.product(powers[2:], powers, powers[:4], powers[:4], (0, 1)):
        try:
            layout = Layout(16_384, t, p, 1024, c, 1, v, stage, sequence=True, overlap=True)
            assert row(layout)["ms a step"] >= fastest
        except ValueError:  # does not come out even
            continue


def test_a_table_has_the_rows_that_are_asked_for_rounded():
    found = table("one device", "one copy each")
    assert list(found["split"]) == ["one device", "one copy each"]
    assert list(found.columns[1:]) == list(row(SPLITS["one device"]))
    assert list(found[PAYS]) == ["–", 2498] and list(found[SENT]) == [0, 26.0]
    assert len(table()) == len(SPLITS)
    with pytest.raises(ValueError, match="name is 'two copies'; wanted one of 'one device'"):
        table("two copies")
