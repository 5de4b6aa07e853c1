"""Sets of moments, as lists of (start, end) in one unit of time: how long something ran while
something else did not.
"""

Interval = tuple[float, float]


def merged(intervals: list[Interval]) -> list[Interval]:
    """The same moments in their order, none twice."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def length(intervals: list[Interval]) -> float:
    """How long all of them last, a moment that two of them have counted once."""
    return sum(end - start for start, end in merged(intervals))


def without(intervals: list[Interval], others: list[Interval]) -> float:
    """How long some of ``intervals`` and none of ``others`` lasts."""
    return length(intervals + others) - length(others)


def gaps(intervals: list[Interval]) -> list[Interval]:
    """The moments between the first and the last of them that belong to none."""
    row = merged(intervals)
    return [(left[1], right[0]) for left, right in zip(row, row[1:], strict=False)]
