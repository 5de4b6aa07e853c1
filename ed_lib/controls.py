"""What a reader of a page can turn with no kernel behind it."""

import html

from ed_lib.figures import COLOURS


def slider(name: str, frames: dict[str, tuple[str, dict[str, float]]]) -> None:
    """Shows one of several pictures, which a reader chooses with a slider; no kernel is needed.

    frames: {place on the slider: (a sentence, {part: its share, which add up to 1})}; shares are drawn as a
    bar. ValueError when there are none.
    """
    from IPython.display import HTML, display

    if not frames:
        raise ValueError("frames is empty; wanted at least one")
    shown = []
    for number, (place, (sentence, shares)) in enumerate(frames.items()):
        hidden = "hidden" if number else ""
        text = f"<b>{html.escape(place)}</b>. {html.escape(sentence)}"
        shown.append(f"<div class='frame' {hidden}><p>{text}</p>{_bar(shares)}</div>")
    every = "[...closest('.slider').querySelectorAll('.frame')]"  # in the control's own scope
    turn = f"for (const [i, frame] of {every}.entries()) frame.hidden = i != value"
    label, last = html.escape(name, quote=True), len(frames) - 1
    control = (
        f'<label>{label} <input type="range" style="width: 60%" min="0" max="{last}" value="0" '
        f'aria-label="{label}" oninput="{turn}"></label>'
    )
    display(HTML(f'<div class="slider">{control}{"".join(shown)}</div>'))


def _bar(shares):
    """A bar in parts, and what each of them is."""
    parts, names = [], []
    for number, (name, share) in enumerate(shares.items()):
        colour, pale = COLOURS[number % len(COLOURS)], 1 if number < len(COLOURS) else 0.5
        style = f"background: {colour}; opacity: {pale}"
        parts.append(f'<span style="width: {100 * share:.2f}%; {style}"></span>')
        square = f'<span style="display: inline-block; width: 0.8em; height: 0.8em; {style}"></span>'
        names.append(f'<span style="white-space: nowrap">{square} {html.escape(name)} {share:.0%}</span>')
    bar = f'<div style="display: flex; height: 1.6em">{"".join(parts)}</div>'
    return f'{bar}<div style="display: flex; flex-wrap: wrap; gap: 0 1em">{"".join(names)}</div>'
