"""The best of a grid of rates, which grows until its best is at no edge: a best rate at an edge says only
that a better one was not tried.
"""

from benchmarks.harness import runs

LADDER = tuple(float(f"{digit}e{power}") for power in range(-5, 2) for digit in (1, 3))  # 1e-5 to 30


def search(function, cases, rates, seeds, *, score, tried="kept", best=max, ladder=LADDER, **common):
    """As :func:`harness.runs`, each case at its best rate, found by the ``score`` of one run at each with
    ``searching`` true, when the function keeps out data for it. It begins with ``rates``, neighbours on the
    ladder, and goes on along it while the best is the lowest or the highest.

    Results besides: the "rates" and what they reached, as ``tried``; "edge", whether the best is at the edge
    even of the whole ladder, so that it is none.
    """
    for case in cases:

        def reach(rate, case=case):
            (row,) = runs(function, [case | {"rate": rate}], 1, searching=True, **common)
            return row[score][0]

        scores = widened(reach, rates, best, ladder)
        rate, edge = inner(scores, best)
        (row,) = runs(function, [case | {"rate": rate}], seeds, searching=False, **common)
        yield row | {"rates": list(scores), tried: list(scores.values()), "edge": edge}


def widened(reach, rates, best=max, ladder=LADDER):
    """{rate: reach(rate)}, rising: of the rates, and of the ladder's beyond while an edge is the best."""
    scores = {rate: reach(rate) for rate in rates}
    while True:
        low, high = min(scores), max(scores)
        beyond = {low: ladder.index(low) - 1, high: ladder.index(high) + 1}
        new = [place for rate, place in beyond.items()
               if scores[rate] == best(scores.values()) and 0 <= place < len(ladder)]  # fmt: skip
        if not new:
            return dict(sorted(scores.items()))
        scores |= {ladder[place]: reach(ladder[place]) for place in new}


def inner(scores, best=max):
    """(the best rate of {rate: score}, of equals a middle one; whether the best is at an edge). A grid on
    which all are equal has no best, and so is all edge.
    """
    rates, top = sorted(scores), best(scores.values())
    equal = [rate for rate in rates if scores[rate] == top]
    return equal[(len(equal) - 1) // 2], len(rates) > 1 and not {rates[0], rates[-1]}.isdisjoint(equal)
