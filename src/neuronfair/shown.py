"""Names and values of strangers, made fit to be shown: they cannot give a terminal orders, nor hide."""

from __future__ import annotations

import re

# Control characters (C0, DEL, C1), what turns the direction of a text, what ends a line in some programs only, halves
# of characters, and what is there but not seen. Joiners and direction marks stay: names are written with them.
_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200b\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ufffe\uffff"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def visible(text: str, *, keep: str = "") -> str:
    r"""Return a text in which control characters are written out, but for those to `keep`.

    The signs are those of JSON and TOML, so that a string of theirs keeps its meaning.

    >>> print(visible("sex\x1b[31m"))
    sex\u001b[31m
    """

    def written(found: re.Match[str]) -> str:
        sign = found[0]
        if sign in keep:
            return sign
        return f"\\u{ord(sign):04x}" if ord(sign) < 0x10000 else f"\\U{ord(sign):08x}"

    return _HIDDEN.sub(written, text)
