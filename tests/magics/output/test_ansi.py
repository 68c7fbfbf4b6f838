"""Text of workers as HTML: colours become styles, everything else is escaped."""

import pytest

from meshbook.magics.output.ansi import html_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<b>&</b>", "&lt;b&gt;&amp;&lt;/b&gt;"),
        ("\x1b[1;31m<\x1b[0m", '<span style="color:#d14d49;font-weight:bold">&lt;</span>'),
        ("\x1b[31ma\nb", '<span style="color:#d14d49">a</span>\nb'),
        ("\x1b[38;5;196;48;2;1;2;300mx\x1b[39;49my", '<span style="color:#ff0000;background:#0102ff">x</span>y'),
        (
            "\x1b[3;4;97mx\x1b[23;24mb",
            '<span style="color:#a1a6b2;font-style:italic;text-decoration:underline">x</span>'
            '<span style="color:#a1a6b2">b</span>',
        ),
        ("\x1b[38;5m\x1b[38;2;1mx\x1b[2Ky\x1b[;m", "xy"),
        ("\x1b]8;;http://x\x07link\x1b]8;;\x07", "link"),
    ],
)
def test_text_from_a_worker_is_harmless_in_html(text, expected):
    assert html_of(text) == expected


def test_a_colour_number_of_any_length_is_ignored() -> None:
    assert html_of(f"\x1b[{'9' * 5000}mtext\x1b[0m") == "text"
