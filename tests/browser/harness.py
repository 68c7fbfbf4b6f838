"""A bare page: a widget's ES module in Chromium without Jupyter, over a model whose kernel is a Python function.

The page has JupyterLab's own CSS variables, so colours are those of its themes. Nothing is served: the requests of the
page are answered from here, so no port is opened, and one that asks for anything else fails.

    def kernel(content, buffers):            # what the view says; the answers, each a message or (message, buffers)
        return [{"kind": "reply", "id": content["id"], "ok": True}] if "id" in content else []

    page = open_bare(esm, css, kernel)
    page.say({"kind": "state", ...}, [states])  # what the kernel says of its own accord
    page.heard("select")                     # what the view has said
    page.page                                # Playwright's page, for all else
"""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # the tests of a machine without Playwright skip, and have to be collected for that
    from playwright.sync_api import Browser, Page, Route

Theme = Literal["light", "dark"]
Content = dict[str, Any]
Message = Content | tuple[Content, Sequence[bytes]]
Kernel = Callable[[Content, list[bytes]], Iterable[Message]]

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Without a sandbox, since continuous integration is root; and without what asks the network of its own accord.
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)
ORIGIN = "http://bare.test"
THEMES = Path(sys.prefix) / "share/jupyter/lab/themes/@jupyterlab"

# The elements that stick out of the dashboard or are cut off, but for those within something that a person can scroll.
STICKING_OUT = """() => {
  const root = document.querySelector(".meshbook-dashboard");
  const right = Math.min(root.getBoundingClientRect().right, innerWidth) + 0.5;
  const scrolls = (element) => ["auto", "scroll"].includes(getComputedStyle(element).overflowX);
  const isWithin = (element) => element !== root && (scrolls(element) || isWithin(element.parentElement));
  const isCut = (element) =>
    ["BUTTON", "TABLE", "TD", "TH"].includes(element.tagName) && element.scrollWidth > element.clientWidth + 1;
  return [...root.querySelectorAll("*")]
    .filter((element) => element.checkVisibility() && !isWithin(element.parentElement))
    .filter((element) => element.getBoundingClientRect().right > right || isCut(element))
    .map((element) => `${element.tagName} ${element.className} ${element.textContent.slice(0, 30)}`);
}"""
TWO_FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"

# What anywidget gives a view: https://anywidget.dev/en/afm/
PAGE = """<!doctype html>
<html><head><meta charset="utf-8"><title>bare</title>
<link rel="stylesheet" href="/theme.css"><link rel="stylesheet" href="/widget.css">
<style>body {{ margin: 12px; overflow: auto; background: var(--jp-layout-color0); color: var(--jp-ui-font-color1);
  font-family: var(--jp-ui-font-family); font-size: var(--jp-ui-font-size1); }}</style></head>
<body data-jp-theme-light="{is_light}" data-jp-theme-name="JupyterLab {theme}"><div id="widget"></div>
<script type="module">
const listeners = new Map();
const emit = (name, ...values) => [...(listeners.get(name) ?? [])].forEach((each) => each(...values));
const decode = (text) => new DataView(Uint8Array.from(atob(text), (each) => each.charCodeAt(0)).buffer);
const encode = (buffer) => {{
  const bytes = new Uint8Array(buffer.buffer ?? buffer, buffer.byteOffset ?? 0, buffer.byteLength);
  return btoa(Array.from(bytes, (each) => String.fromCharCode(each)).join(""));
}};
const receive = ([content, buffers]) => emit("msg:custom", content, buffers.map(decode));
const traits = {traits};
const model = {{
  get: (name) => traits[name],
  set: (name, value) => {{ traits[name] = value; emit(`change:${{name}}`); }},
  save_changes: () => undefined,
  on: (name, callback) => listeners.set(name, [...(listeners.get(name) ?? []), callback]),
  off: (name, callback) =>
    listeners.set(name, callback ? (listeners.get(name) ?? []).filter((each) => each !== callback) : []),
  send: (content, callbacks, buffers = []) =>
    void window.tellKernel(content, buffers.map(encode)).then((answers) => answers.forEach(receive)),
  widget_manager: {{}},
}};
const {{ default: made }} = await import("/widget.js");
const widget = typeof made === "function" ? await made() : made;
let end;
window.bare = {{
  receive, listeners, model,
  async show() {{
    const el = document.getElementById("widget");
    end = await widget.render({{ model, el, signal: new AbortController().signal }});
  }},
  async leave() {{ await end?.(); document.getElementById("widget").replaceChildren(); }},
}};
await widget.initialize?.({{ model }});
await window.bare.show();
document.body.dataset.ready = "yes";
</script></body></html>"""


def find_chromium() -> str | None:
    """Where the system's browser is."""
    return next(filter(None, map(shutil.which, CHROMIUMS)), None)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """The system's browser, without a window."""
    from playwright.sync_api import sync_playwright  # not at the top: what skips without it has to be collected

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=[*ARGUMENTS])
        yield browser
        browser.close()


class BarePage:
    """A page with one view of the widget. Errors of the page are in `errors`."""

    def __init__(
        self, page: Page, esm: str, css: str, kernel: Kernel, *, theme: Theme = "light", traits: Content | None = None
    ) -> None:
        self.page = page
        self.said: list[Content] = []  # all that the view has said
        self._kernel = kernel
        self._files = {
            "/": ("text/html", PAGE.format(**_words(theme, traits or {}))),
            "/widget.js": ("text/javascript", esm),
            "/widget.css": ("text/css", css),
            "/theme.css": ("text/css", theme_css(theme)),
        }
        page.expose_function("tellKernel", self._take)
        page.route("**/*", self._serve)
        self.load()

    def load(self) -> None:
        """Open the page, or open it anew, as a reload does."""
        self.page.goto(f"{ORIGIN}/")
        self.page.wait_for_selector("body[data-ready]", state="attached")

    def say(self, content: Content, buffers: Sequence[bytes] = ()) -> None:
        """A message of the kernel's to the view."""
        self.page.evaluate("message => window.bare.receive(message)", _packed((content, buffers)))

    def heard(self, kind: str) -> list[Content]:
        """What the view has said of this kind."""
        return [each for each in self.said if each.get("kind") == kind]

    def narrow(self, width: int) -> None:
        """Make the window this wide, in CSS pixels; the view has been laid out anew."""
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.evaluate(TWO_FRAMES)

    def sticking_out(self) -> list[str]:
        """What of the dashboard cannot be seen at this width, not by scrolling either."""
        found: list[str] = self.page.evaluate(STICKING_OUT)
        return found

    def leave(self) -> None:
        """Dispose of the view; the page stays. `show` makes a new one over the same model."""
        self.page.evaluate("window.bare.leave()")

    def show(self) -> None:
        self.page.evaluate("window.bare.show()")

    def _take(self, content: Content, buffers: list[str]) -> list[list[Any]]:
        self.said.append(content)
        return [_packed(each) for each in self._kernel(content, [base64.b64decode(text) for text in buffers])]

    def _serve(self, route: Route) -> None:
        path = route.request.url.removeprefix(ORIGIN)
        if path in self._files:
            kind, text = self._files[path]
            route.fulfill(content_type=f"{kind}; charset=utf-8", body=text)
        elif path == "/favicon.ico":
            route.fulfill(status=204)
        else:
            route.abort()


def theme_css(theme: Theme) -> str:
    """The style sheet of JupyterLab's theme: its variables."""
    return (THEMES / f"theme-{theme}-extension" / "index.css").read_text()


def _words(theme: Theme, traits: Content) -> dict[str, str]:
    return {
        "theme": theme.capitalize(),
        "is_light": json.dumps(theme == "light"),
        "traits": json.dumps(traits),
    }


def _packed(message: Message) -> list[Any]:
    content, buffers = message if isinstance(message, tuple) else (message, ())
    return [content, [base64.b64encode(each).decode() for each in buffers]]
