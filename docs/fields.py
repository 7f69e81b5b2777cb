"""The Python reference shows the fields of a description: name, default, meaning, from the code."""

import ast
import re
from typing import Any

from griffe import Class, Docstring, ExprCall, ExprKeyword, Extension

SECTION = re.compile(r"\n\n[A-Z][\w ]+\n-{3,}\n")
"""Where the first section of a NumPy docstring begins."""


class Fields(Extension):
    """Puts a table of a class's own fields before the sections of its docstring."""

    def on_class(self, *, cls: Class, **_: Any) -> None:
        """Add the table, if the class has fields of its own."""
        rows = [
            _row(name, attribute.value, cls)
            for name, attribute in cls.attributes.items()
            if isinstance(attribute.value, ExprCall) and str(attribute.value.function) == "Field"
        ]
        if not rows:
            return
        table = "\n".join(["| field | default | meaning |", "|---|---|---|", *rows])
        text = cls.docstring.value if cls.docstring else ""
        section = SECTION.search(text)
        at = section.start() if section else len(text)
        cls.docstring = Docstring(f"{text[:at]}\n\n{table}{text[at:]}", parent=cls)


def _row(name: str, call: ExprCall, cls: Class) -> str:
    words = {a.name: str(a.value) for a in call.arguments if isinstance(a, ExprKeyword)}
    plain = [str(a) for a in call.arguments if not isinstance(a, ExprKeyword)]
    default = words.get("default", plain[0] if plain else "...")
    shown = "" if default in ("...", "None", "''") else f"`{default}`"
    meaning = words.get("description", "''")
    if meaning.isidentifier():  # a text that several fields share
        meaning = str(cls.module[meaning].value)
    meaning = ast.literal_eval(meaning).replace("|", "\\|")
    return f"| `{name}` | {shown} | {meaning} |"
