"""Small pieces of HTML."""

import html
from collections.abc import Iterable, Sequence


def escaped(text: object) -> str:
    return html.escape(str(text))


def document(title: str, heading: str, content: str, style: str) -> str:
    """A page that needs no network. `heading` is text; `content` is HTML already."""
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width,initial-scale=1">'
        f"<title>{escaped(title)}</title><style>{style}</style></head><body><main>"
        f"<h1>{escaped(heading)}</h1>{content}</main></body></html>\n"
    )


def section(title: str, *content: str, note: str = "", wide: bool = False) -> str:
    """A titled part of the page. `wide`: it takes the full width."""
    subtitle = f"<p class=note>{escaped(note)}</p>" if note else ""
    return f"<section{' class=wide' if wide else ''}><h2>{escaped(title)}</h2>{subtitle}{''.join(content)}</section>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: int) -> str:
    """A table; the last `numbers` columns are aligned to the right. Cells are HTML already."""
    first_number = len(head) - numbers

    def row(cells: Sequence[str], tag: str) -> str:
        parts = [f"<{tag}{' class=n' if n >= first_number else ''}>{cell}</{tag}>" for n, cell in enumerate(cells)]
        return f"<tr>{''.join(parts)}</tr>"

    return (
        f"<table><thead>{row(head, 'th')}</thead><tbody>{''.join(row(cells, 'td') for cells in rows)}</tbody></table>"
    )


def bar(name: str, fraction: float, cause: str) -> str:
    """A name, and under it a horizontal bar in the color of a cause."""
    width = 100 * min(1.0, max(0.0, fraction))
    return f'{escaped(name)}<span class=bar><i class="c-{cause}" style="width:{width:.1f}%"></i></span>'


def legend(entries: Iterable[tuple[str, str]]) -> str:
    """Names with the colors of their causes: (cause, name)."""
    items = [f'<li><i class="c-{cause}"></i>{escaped(name)}</li>' for cause, name in entries]
    return f"<ul class=legend>{''.join(items)}</ul>"
