"""The best of a grid of rates, which grows until its best is at no edge: a best rate at an edge
says only that a better one was not tried.
"""

import math

from benchmarks.shared.harness import runs

# 1e-5, 3e-5, 1e-4, … 30.
LADDER = tuple(float(f"{digit}e{power}") for power in range(-5, 2) for digit in (1, 3))


def search(function, cases, rates, size, *, score, tried="kept", best=max, ladder=LADDER, **common):
    """As :func:`harness.runs`, each case at its best rate, found by the ``score`` of one run at
    each with ``searching`` true, when the function keeps out data for it. It begins with ``rates``,
    neighbours on the ladder, and goes on along it while the best is the lowest or the highest.

    Results besides: the "rates" and what they reached, as ``tried``; "edge", whether the best is at
    the edge even of the whole ladder, so that it is none.
    """
    worst = -math.inf if best is max else math.inf
    for case in cases:

        def reach(rates, case=case):
            cases = [case | {"rate": rate} for rate in rates]
            rows = runs(function, cases, size, seeds=1, searching=True, **common)
            found = [row[score][0] for row in rows]
            # A run that diverged is the worst, so that the best is never sought beyond it.
            return [worst if math.isnan(one) else one for one in found]

        scores = widened(reach, rates, best, ladder)
        rate, edge = inner(scores, best)
        (row,) = runs(function, [case | {"rate": rate}], size, searching=False, **common)
        yield row | {"rates": list(scores), tried: list(scores.values()), "edge": edge}


def widened(reach, rates, best=max, ladder=LADDER):
    """{rate: what it reached}, rising: of the rates, and of the ladder's beyond while an edge is
    the best. reach: a list of rates → a list of what each reached.
    """
    scores = dict(zip(rates, reach(rates), strict=True))
    while True:
        low = min(scores)
        high = max(scores)
        top = best(scores.values())
        beyond = {low: ladder.index(low) - 1, high: ladder.index(high) + 1}
        places = [place for rate, place in beyond.items() if scores[rate] == top]
        rates = [ladder[place] for place in places if 0 <= place < len(ladder)]
        if not rates:
            return dict(sorted(scores.items()))
        scores |= dict(zip(rates, reach(rates), strict=True))


def inner(scores, best=max):
    """(the best rate of {rate: score}, of equals a middle one; whether the best is at an edge). A
    grid on which all are equal has no best, and so is all edge.
    """
    rates = sorted(scores)
    top = best(scores.values())
    equal = [rate for rate in rates if scores[rate] == top]
    middle = equal[(len(equal) - 1) // 2]
    at_edge = rates[0] in equal or rates[-1] in equal
    # A single rate is no grid, and has no edge.
    return middle, len(rates) > 1 and at_edge
