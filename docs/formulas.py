"""Formulas become MathML when the site is built, so that a page needs no script to show them."""

import re
from typing import Any

from latex2mathml.converter import convert

CODE_OR_FORMULA = re.compile(r"(```.*?```|`[^`\n]*`)|\$\$(.+?)\$\$", re.DOTALL)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace ``$$...$$`` outside code."""

    def replaced(match: re.Match[str]) -> str:
        return match[1] or f"<p>{convert(match[2], display='block')}</p>"

    return CODE_OR_FORMULA.sub(replaced, markdown)
