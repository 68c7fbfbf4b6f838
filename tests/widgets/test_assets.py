"""The front end's modules become one: what is joined, and what is refused."""

from __future__ import annotations

import subprocess

import pytest

from meshbook.widgets import assets


def joined(**modules: str) -> str:
    texts = {name.replace("__", "/") + ".js": text for name, text in modules.items()}
    return assets.join_modules(texts.__getitem__, "entry.js")


def said(node: str, script: str) -> str:
    """The value of the default export, in node."""
    command = [
        node,
        "--input-type=module",
        "--eval",
        script.replace("export default", "globalThis.found =") + "\nconsole.log(found);",
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.process
def test_modules_see_what_they_import_and_nothing_else_of_each_other(node: str) -> None:
    script = joined(
        entry='import { twice } from "./a.js";\nimport {three as THREE, Box} from "./deep/b.js";\n'
        "const hidden = 1;\nexport default twice(THREE) + new Box().size + hidden;",
        a="const hidden = 2;\nexport function twice(x) { return hidden * x; }",
        deep__b='import {base} from "./a2.js";\nclass Box { size = base; }\nconst hidden = 3;\n'
        "export { Box, hidden as three };",
        deep__a2="export const base = 100;",
    )
    assert said(node, script) == "107"


@pytest.mark.process
def test_a_module_of_two_is_there_once(node: str) -> None:
    script = joined(
        entry='import {a} from "./a.js";\nimport {b} from "./b.js";\nexport default a.x + b.x;',
        a='import {box} from "./box.js";\nbox.x += 1;\nexport const a = box;',
        b='import {box} from "./box.js";\nbox.x += 1;\nexport const b = box;',
        box="export const box = {x: 0};",
    )
    assert said(node, script) == "4"


@pytest.mark.process
def test_comments_are_left_out_and_code_after_them_stays(node: str) -> None:
    script = joined(
        entry="// @ts-check\n/**\n * Adds. @import {X} */\n  /** Two lines\n   * of text. */\n"
        'const a =\n  /** @type {number} */ (1); // one\nconst b = "// not one";\n/** more */\nexport default b + a;'
    )
    assert "Two lines" not in script
    assert "@ts-check" not in script
    assert said(node, script) == "// not one1"


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        ({"entry": 'import * as a from "./a.js";'}, "cannot be joined"),
        ({"entry": 'import {a} from "./a.js";', "a": "export default 1;"}, "static/a.js"),
        (
            {"entry": 'import {a} from "./a.js";', "a": 'import {b} from "./entry.js";'},
            "circular import: entry.js -> a.js -> entry.js",
        ),
    ],
)
def test_what_cannot_be_joined_is_refused(modules: dict[str, str], words: str) -> None:
    with pytest.raises(assets.AssetError, match=words):
        joined(**modules)


def test_the_front_end_is_one_module_with_one_default_export() -> None:
    script = assets.script()
    assert script.count("\nexport default ") == 1
    assert "\nimport " not in script
    assert ".meshbook-dashboard" in assets.style()
