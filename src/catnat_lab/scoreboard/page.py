"""The scoreboard as a page, a picture and numbers."""

from collections import Counter
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path

from catnat_lab.files import write
from catnat_lab.report.page import as_csv
from catnat_lab.report.table import BASELINE, Key, escaped, grid
from catnat_lab.scoreboard.boards import Board, read
from catnat_lab.scoreboard.claims import CLAIMS, RULE
from catnat_lab.stats import ALPHA

# A mark's sign and colour: tints of Okabe and Ito's palette, and a sign for those who do not see them.
MARKS = {
    "agree": ("✓", "#9fdcc8"),
    "tied": ("=", "#e4e4e6"),
    "disagree": ("✗", "#f2b38a"),
    "not run": ("", "#ffffff"),
    "ahead": ("▲", "#d6f0e7"),
    "behind": ("▼", "#fae3d4"),
}
CELL_RULE = (
    f"Every head against softmax in the same cell, by Welch's test, p < {ALPHA} after Holm's correction over the "
    "table; runs of a seed are not paired. **agree**, **disagree**: ours differ significantly, and the paper's do (by "
    "Welch's test of the means and deviations it prints, not corrected), in the same direction or not. **ahead**, "
    "**behind**: ours are significantly better or worse than softmax, where the paper's do not differ or it has no "
    "number. **tied**: ours do not differ significantly, which does not show that they are equal. **not run**: no two "
    "runs of it or of softmax, or one diverged. Dashed: trained for less than in the paper, or with fewer seeds. "
    "`catnat` is the library's default."
)
WIDTH, BOX, ROW, LABEL, GAP, HEAD = 1270, 58, 27, 92, 14, 46  # pixels
BOLD, LETTER = 7, 5  # pixels of a letter in a title and in the line under it
FAINT = "#5a5b5e"
MIDDLE = {"text_anchor": "middle"}


def write_scoreboard(results: Path, output: Path) -> Path:
    boards = read(results)
    write(output / "scoreboard.csv", as_csv(record for board in boards.values() for record in _records(board)))
    write(output / "scoreboard.svg", picture(boards))
    return write(output / "scoreboard.md", markdown(boards))


def _records(board: Board) -> Iterator[dict[str, object]]:
    for key, cell in board.table.cells.items():
        ours, against = cell.summary, board.judgement.against.get(key)
        gap = board.paper_gap(key) if key[1] != BASELINE else None
        found = {"table": board.name, "group": key[0], "column": key[2], "head": key[1]} | {
            "ours": ours and ours.mean, "ours_std": ours and ours.std,
            "paper": cell.paper_mean, "paper_std": cell.paper_std,
            "difference": against and against.difference, "p": against and f"{against.p:.3g}",
            "paper_difference": gap and gap[0], "paper_p": gap and f"{gap[1]:.3g}", "mark": board.mark(key),
            "seeds": len(cell.values), "paper_seeds": board.table.paper_count or None,
            board.unit: board.lengths.get(key), f"paper_{board.unit}": board.paper_length or None,
        }  # fmt: skip
        yield {name: "" if value is None else value for name, value in found.items()}


def _about(board: Board) -> str:
    lost = ", ".join(f"{head} {count}" for head, count in board.lost.items())
    told = [f"{board.name}: {board.table.title}.", f"Ours: {board.told}."]
    told += [f"Runs more than {board.far:g} nats behind the best of their cell: {lost}."] if lost else []
    return " ".join([*told, *([f"Left out: {board.left_out}."] if board.left_out else [])])


def markdown(boards: Mapping[str, Board]) -> str:
    claims, counts, against = [["claim", "where", "mark", "statistic"]], [["table", "head", *MARKS]], []
    for claim, where, judge in CLAIMS:
        mark, statistic = judge(boards)
        claims.append([escaped(claim), where, f"**{mark}**", escaped(statistic)])
    for board in boards.values():
        for line in board.table.lines:
            marks = Counter(board.mark(key) for key in board.table.cells if key[1] == line)
            counts += [[board.name, line, *(str(marks[m] or "") for m in MARKS)]] if line != BASELINE else []
        for key, each in board.judgement.against.items():
            if board.mark(key) == "disagree" and (gap := board.paper_gap(key)):
                theirs = f"the paper's {gap[0]:+.2g} (p {gap[1]:.2g})"
                against.append(f"{board.name} {', '.join(key)}: ours {each.difference:+.2g} (p {each.p:.2g}), {theirs}")
    parts = [
        "# The paper's tables and claims, beside ours",
        "Written by `catnat scoreboard` from the runs. `scoreboard.csv` has every cell with its tests.",
        "![Every cell of the paper's tables, ours and theirs](scoreboard.svg)",
        CELL_RULE,
        "## Claims",
        RULE,
        grid(claims, names=1, words=3),
        "## Cells",
        "\n".join(f"- {_about(board)}" for board in boards.values()),
        grid(counts, names=2),
        "Cells that disagree, as differences from softmax:",
        "\n".join(f"- {escaped(text)}" for text in against) or "None.",
    ]
    return "\n\n".join(parts) + "\n"


# -- the picture -----------------------------------------------------------------------------------------------------


def picture(boards: Mapping[str, Board]) -> str:
    """All boards as rows of boxes, side by side where they fit."""
    drawn = [_text(GAP, 22, "Ours above, the paper's below", 13, font_weight=700)]
    for place, (mark, (sign, colour)) in enumerate(MARKS.items()):
        drawn.append(_box(270 + 86 * place, 9, 80, 18, colour))
        drawn.append(_text(310 + 86 * place, 22, f"{sign} {mark}", 10, **MIDDLE))
    drawn.append(_box(786, 9, 196, 18, dashed=True))
    drawn.append(_text(884, 22, "shorter or fewer seeds than the paper's", 9, **MIDDLE))
    drawn.append(_text(996, 22, "italic: not significant in the paper itself", 10, font_style="italic"))
    x, y, tallest = GAP, GAP + ROW, 0
    for board in boards.values():
        boxes, words = LABEL + BOX * len(list(board.table.contests)), LETTER * len(board.told)
        width = max(boxes, words, BOLD * len(board.table.title))
        if x > GAP and x + width > WIDTH:
            x, y, tallest = GAP, y + tallest + GAP, 0
        drawn += _board(board, x, y)
        x, tallest = x + width + GAP, max(tallest, HEAD + ROW * len(board.table.lines))
    size = f'width="{WIDTH}" height="{y + tallest + GAP}"'
    view = f'viewBox="0 0 {WIDTH} {y + tallest + GAP}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {view} font-family="sans-serif">'
    return "\n".join([head, f'<rect {size} fill="#ffffff"/>', *drawn, "</svg>\n"])


def _board(board: Board, x: int, y: int) -> Iterator[str]:
    """A title, two rows of headings, of which the fewer stand above, and a row of boxes a head."""
    table = board.table
    by_column = len(table.columns) < len(table.groups)
    contests = sorted(table.contests, key=lambda each: table.columns.index(each[1]) if by_column else 0)
    yield _text(x, y + 8, table.title[0].upper() + table.title[1:], 11, font_weight=700)
    yield _text(x, y + 20, board.told, 9, fill=FAINT)
    before = ""
    for place, (group, column) in enumerate(contests):
        left, headings = x + LABEL + BOX * place, (f"{table.group_name} {group}", column.heading)
        above, below = (column.heading, group) if by_column else headings
        if above != before:
            yield _text(left + 2, y + 31, above, 9, font_weight=700)
        before = above
        yield _text(left + BOX // 2, y + 42, below, 9 if len(below) < 12 else 7, **MIDDLE)  # a long name must fit, too
        for row, line in enumerate(table.lines):
            yield _cell(board, (group, line, column.key), column.digits, left, y + HEAD + ROW * row)
    for row, line in enumerate(table.lines):
        yield _text(x + LABEL - 4, y + HEAD + ROW * row + 17, line, 10, text_anchor="end")


def _cell(board: Board, key: Key, digits: int, x: int, y: int) -> str:
    cell, mark, gap = board.table.cells[key], board.mark(key), board.paper_gap(key)
    against, middle = board.judgement.against.get(key), x + BOX // 2 + 3
    sign, colour = MARKS.get(mark, ("", "#ffffff"))
    told = f"{', '.join(key)}: {mark or 'the baseline'}, {len(cell.values)} seeds"
    told += f"; against softmax {against.difference:+.3g}, p = {against.p:.2g}" if against else ""
    drawn = _box(x, y, BOX - 2, ROW - 2, colour, dashed=bool(cell.values) and board.is_short(key))
    if cell.summary is not None:
        drawn += _text(middle, y + 11, f"{cell.summary.mean:.{digits}f}", 10, font_weight=600, **MIDDLE)
        drawn += _text(x + 3, y + 11, sign, 9)
    if cell.paper_mean is not None:
        style = "italic" if gap and gap[1] >= ALPHA and key[1] != BASELINE else "normal"
        drawn += _text(middle, y + 21, f"{cell.paper_mean:.{digits}f}", 9, **MIDDLE, fill=FAINT, font_style=style)
    return f"<g><title>{escape(told)}</title>{drawn}</g>"


def _box(x: int, y: int, width: int, height: int, fill: str = "#ffffff", *, dashed: bool = False) -> str:
    edge = 'stroke="#1a1b1e" stroke-dasharray="3 2"' if dashed else 'stroke="#c9c9cc"'
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{fill}" {edge}/>'


def _text(x: int, y: int, text: str, size: int, **look: str | int) -> str:
    more = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in look.items())
    return f'<text x="{x}" y="{y}" font-size="{size}"{more}>{escape(text)}</text>'
