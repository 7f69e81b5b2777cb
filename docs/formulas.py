"""When the site is built, formulas become MathML, which needs no script, and 1 ± 2 one word."""

import re
from typing import Any

from latex2mathml.converter import convert

CODE_OR_FORMULA = re.compile(r"(```.*?```|`[^`\n]*`)|\$\$(.+?)\$\$", re.DOTALL)
SPREAD = re.compile(r"(?<=\d) ± (?=\d)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace ``$$...$$`` outside code, and the spaces at which ``1 ± 2`` would break."""

    def replaced(match: re.Match[str]) -> str:
        return match[1] or f"<p>{convert(match[2], display='block')}</p>"

    return SPREAD.sub(
        "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}", CODE_OR_FORMULA.sub(replaced, markdown)
    )
