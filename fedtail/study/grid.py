"""A table of text that fits a width and breaks no name: long names get a line of their own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.cells import cell_len, set_cell_size
from rich.text import Text

GAP = "  "


@dataclass(frozen=True)
class Row:
    """A name, the cells beside it, and notes that stand below.

    Attributes
    ----------
    cells
        What stands under the headings; what follows a line break may go below.
    notes
        Sentences, each with its style.
    bold
        The numbers of the cells that are bold.
    """

    name: str
    cells: Sequence[str]
    notes: Sequence[tuple[str, str]] = ()
    bold: Collection[int] = ()


def grid(headings: Sequence[str], rows: Sequence[Row], width: int, left: int = 0) -> Text:
    """Return the table: names beside their cells if that fits, else above them.

    Parameters
    ----------
    headings
        Of the names, and of each column of cells.
    rows
        What stands below.
    width
        How wide it may be. Where one line for all cells of a row is too wide, what they have after
        a line break stands below.
    left
        How many columns of cells hold words, which begin at the left; numbers end at the right.
    """
    for beside, broken in ((True, False), (True, True), (False, False), (False, True)):
        cells = [[_lines(cell, broken) for cell in row.cells] for row in rows]
        widths = [
            max(map(cell_len, (heading, *(part for row in cells for part in _cell(row, column)))))
            for column, heading in enumerate(headings[1:])
        ]
        names = [headings[0], *(row.name for row in rows)]
        first = max(map(cell_len, names)) if beside else 0
        if first + sum(len(GAP) + w for w in widths) <= width:
            break
    text = Text()

    def put(name: str, parts: Sequence[Sequence[str]], bold: Collection[int]) -> None:
        for cells_of_line in zip_longest(*parts, fillvalue=""):
            line = Text(set_cell_size(name, first))
            for column, cell in enumerate(cells_of_line):
                pad = " " * (widths[column] - cell_len(cell))
                line.append(GAP if column < left else GAP + pad)
                line.append(cell, "bold" if column in bold else "")
                line.append(pad if column < left else "")
            line.rstrip()
            text.append(line).append("\n")
            name = ""

    put(headings[0] if beside else "", [[heading] for heading in headings[1:]], range(len(widths)))
    for row, parts in zip(rows, cells, strict=True):
        if not beside:
            text.append("\n".join([*folded(row.name, ",", width), ""]))
        put(row.name if beside else "", parts, row.bold)
        for note, style in row.notes:
            for line in folded(note, " ", width - len(GAP)):
                text.append(f"{GAP}{line}\n", style)
    return text


def _cell(row: Sequence[list[str]], column: int) -> list[str]:
    return row[column] if column < len(row) else []  # what failed has fewer


def _lines(cell: str, broken: bool) -> list[str]:
    return cell.split("\n") if broken else [" ".join(cell.split("\n"))]


def folded(text: str, mark: str, width: int) -> list[str]:
    """Return text in lines that end after a mark, or in the middle of what alone is too wide."""
    lines, width = [""], max(width, 1)
    for part in text.replace(mark, f"{mark}\n").split("\n"):
        if lines[-1] and cell_len((lines[-1] + part).rstrip()) > width:
            lines.append("")
        lines[-1] += part
        while cell_len(lines[-1].rstrip()) > width:
            lines[-1:] = [lines[-1][:width], lines[-1][width:]]
    return lines
