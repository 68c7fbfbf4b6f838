"""The bare page gives an ES module what anywidget gives it: messages, buffers, traits, an end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.browser.harness import BarePage

pytestmark = pytest.mark.browser

ESM = """
export default {
  initialize({ model }) { model.set("begun", true); },
  render({ model, el }) {
    const show = (content, buffers) => {
      el.textContent += `${content.word} ${buffers.map((each) => each.getUint8(0))} ${model.get("begun")};`;
    };
    model.on("msg:custom", show);
    model.send({ kind: "open" }, undefined, [new Uint8Array([7]).buffer]);
    return () => model.off("msg:custom", show);
  },
};
"""


def answer(content: dict[str, Any], buffers: list[bytes]) -> list[Any]:
    return [({"word": f"answered {content['kind']}"}, [bytes([buffers[0][0] + 1])])]


def test_a_view_and_its_kernel_talk_and_it_may_be_shown_anew(open_bare: Callable[..., BarePage]) -> None:
    bare = open_bare(ESM, "#widget { color: red; }", answer, theme="dark")
    widget = bare.page.locator("#widget")
    bare.page.wait_for_function("document.getElementById('widget').textContent === 'answered open 8 true;'")
    bare.say({"word": "told"}, [b"\x09"])
    assert widget.inner_text() == "answered open 8 true;told 9 true;"
    assert bare.heard("open") == [{"kind": "open"}]
    bare.leave()
    bare.say({"word": "unheard"})
    assert widget.inner_text() == ""
    bare.load()
    bare.page.wait_for_function("document.getElementById('widget').textContent === 'answered open 8 true;'")
    assert len(bare.heard("open")) == 2


def test_the_page_has_the_colours_of_the_theme(open_bare: Callable[..., BarePage]) -> None:
    background = "getComputedStyle(document.body).getPropertyValue('--jp-layout-color0').trim()"
    light = open_bare(ESM, kernel=answer)
    assert light.page.evaluate(background) == "white"
    dark = open_bare(ESM, kernel=answer, theme="dark")
    assert dark.page.evaluate(background) != "white"
