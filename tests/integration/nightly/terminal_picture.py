"""The screen of a terminal as SVG, which loads nothing from the network."""

import html
import re

#: The palette, by the codes of its colours.
COLOURS = {31: "#e0605c", 32: "#5cb860", 33: "#d6a52c"}
INK, PAPER = "#d8dee4", "#15191e"
CELL, LINE, SIZE, MARGIN = 8.4, 18, 14, 10  # pixels
FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
BOLD, FAINT, REVERSED, NO_COLOUR = 1, 2, 7, 39


def picture_of(screen: str, width: int) -> str:
    """Return a picture.

    Args:
        screen: Its lines, with the escape sequences of colours as tmux prints them.
        width: Its columns.
    """
    rows = screen.rstrip("\n").split("\n")
    size = round(width * CELL + 2 * MARGIN), len(rows) * LINE + 2 * MARGIN
    shapes = [f'<rect width="{size[0]}" height="{size[1]}" rx="6" fill="{PAPER}"/>']
    codes: set[int] = set()
    for number, row in enumerate(rows):
        column = 0
        for escape, text in re.findall(r"\x1b\[([0-9;]*)m|([^\x1b]+)", row):
            if text:
                shapes += _shapes(text, MARGIN + column * CELL, MARGIN + number * LINE, codes)
                column += len(text)
            else:
                codes = _next(codes, [int(code or 0) for code in escape.split(";")])
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" xml:space="preserve"'
    return "\n".join([f'{opening} font-family="{FONT}" font-size="{SIZE}">', *shapes, "</svg>\n"])


def _next(codes: set[int], given: list[int]) -> set[int]:
    for code in given:
        if code == 0:
            codes = set()
        elif code == NO_COLOUR or code in COLOURS:
            codes = codes - {*COLOURS} | {code}
        else:
            codes = codes | {code}
    return codes


def _shapes(text: str, x: float, y: float, codes: set[int]) -> list[str]:
    length = len(text) * CELL
    ink = next((COLOURS[code] for code in codes if code in COLOURS), INK)
    found = []
    if REVERSED in codes:
        found.append(f'<rect x="{x:.1f}" y="{y}" width="{length:.1f}" height="{LINE}" fill="{ink}"/>')
        ink = PAPER
    weight = ' font-weight="bold"' if BOLD in codes else ""
    opacity = ' opacity="0.65"' if FAINT in codes else ""
    for word in re.finditer(r"\S+(?: \S+)*", text):  # each in its column, with any font
        begin, columns = x + word.start() * CELL, len(word[0]) * CELL
        place = f'x="{begin:.1f}" y="{y + SIZE}" textLength="{columns:.1f}" fill="{ink}"'
        found.append(f"<text {place}{weight}{opacity}>{html.escape(word[0])}</text>")
    return found
