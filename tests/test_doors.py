"""Bad input at the doors, one table: what is called, the kind of error, and the words that its message holds.

A door is what a reader calls from a cell. Its error names the argument, what came and what was wanted.
"""

import pytest

# Each entry: (what it is, a function that makes the call, the error, words of the message, in their order)

GROUND = []

ED = []

PARALLEL = []

PRECISION = []

LSTM = []

TOOLS = []

DOORS = [*GROUND, *ED, *PARALLEL, *PRECISION, *LSTM, *TOOLS]


@pytest.mark.parametrize("what, call, error, words", DOORS, ids=[door[0] for door in DOORS])
def test_bad_input_is_named(what, call, error, words):
    with pytest.raises(error) as raised:
        call()
    message = str(raised.value)
    for word in [words] if isinstance(words, str) else words:
        assert word in message, f"{message!r} does not say {word!r}"
