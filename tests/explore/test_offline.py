"""The page as one file: all that it may ask is inside, and it asks nobody else."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from playwright._impl._driver import compute_driver_executable
from small_explorers import TEXT, small

from qkv.checkpoint.loaded_model import PoolingConfig
from qkv.errors import QkvError
from qkv.explore.app import to_json
from qkv.explore.bundle import as_function, bundle, data_block, joined
from qkv.explore.offline import PAGE, names_of, single_edits, write_page

HARD = "</script>zqx\u2028"


class Parts(HTMLParser):
    """Every tag with its attributes, and the text of scripts and styles."""

    def __init__(self):
        super().__init__()
        self.tags, self.inside, self.open = [], [], None

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open = (tag, dict(attrs)) if tag in ("script", "style") else None
        if self.open:
            self.inside.append([*self.open, ""])

    def handle_endtag(self, tag):
        self.open = None

    def handle_data(self, data):
        if self.open:
            self.inside[-1][2] += data


def parts_of(path):
    parts = Parts()
    parts.feed(path.read_text("utf-8"))
    return parts


@pytest.fixture(scope="module", params=["generator", "translator", "embedder"])
def written(request, tmp_path_factory):
    explorer = small(request.param, 20, pooling=PoolingConfig("mean", normalize=True))
    return explorer, write_page(
        explorer, [TEXT, HARD], tmp_path_factory.mktemp("page") / "page.html"
    )


def data_of(path):
    return next(
        json.loads(text)
        for tag, attrs, text in parts_of(path).inside
        if attrs.get("id") == "qkv-data"
    )


def test_every_answer_of_the_file_is_the_live_one(written):
    explorer, path = written
    data = data_of(path)
    assert [one["text"] for one in data["passes"]] == [TEXT, HARD]
    for text in (TEXT, HARD):
        story = explorer.open(text)
        names = [*names_of(explorer, story), "model", "waves", "waves/numbers"]
        names = [name for n, name in enumerate(names) if "change" not in name or n % 5 == 0]
        given = 0
        for name in names:
            path_of, _, query = name.partition("?")
            if name in data["answers"]:
                live = explorer.answer(path_of, dict([query.split("=", 1)]) if query else {})
                assert data["answers"][name] == json.loads(to_json(live)), name
            elif name in data["tensors"]:
                tensor = data["tensors"][name]
                numbers = np.frombuffer(
                    base64.b64decode(tensor["data"]),
                    {"float32": "<f4", "uint8": "u1"}[tensor["dtype"]],
                )
                live = explorer.answer(path_of)
                np.testing.assert_allclose(
                    numbers.reshape(tensor["shape"]),
                    live.to(torch.float32) if tensor["dtype"] == "float32" else live,
                    atol=1e-6,
                    err_msg=name,
                )
            else:
                continue
            given += 1
        assert given > 0.8 * len(names)  # the rest is what this family does not have


def test_all_that_the_page_asks_about_a_text_is_there(written):
    explorer, path = written
    data, family = data_of(path), explorer.subject.family
    this = f"pass/{data['passes'][0]['id']}"
    story = data["answers"][this]
    for step in story["steps"]:
        assert all(
            f"{this}/tensor/{tensor['name']}" in data["tensors"] for tensor in step["tensors"]
        )
    for kind in story["attention"]:
        assert f"{this}/attention/{kind['name']}/mean" in data["tensors"]
        for each in kind["layers"]:
            assert f"{this}/attention/{kind['name']}/{each['layer']}" in data["tensors"]
            assert f"{this}/thumbs/{kind['name']}/{each['layer']}" in data["tensors"]
    for place in range(story["positions"]):
        assert (
            f"{this}/logits/{place}" in data["tensors"]
            and f"{this}/top/{place}?k=200" in data["answers"]
        )
    assert (f"{this}/nearest" if family == "embedder" else f"{this}/beam") in data["answers"]
    for edit in single_edits(explorer):
        assert f"{this}/change?edits={edit}" in data["answers"]


def test_the_file_asks_nobody_for_anything(written):
    _, path = written
    parts, text = parts_of(path), path.read_text("utf-8")
    for tag, attrs in parts.tags:
        assert "src" not in attrs and not any(name.startswith("on") for name in attrs), (tag, attrs)
        assert attrs.get("href", "data:,").startswith("data:"), attrs
    links = set(re.findall(r"https?://[^\s\"'<)]+", text))
    assert links <= {"http://www.w3.org/2000/svg"}, links  # a name space, which nobody opens
    assert "@import" not in text and "url(" not in re.sub(r"url\(data:", "", text)


def test_the_policy_allows_this_script_and_style_alone(written):
    _, path = written
    parts = parts_of(path)
    policy = next(
        attrs["content"]
        for tag, attrs in parts.tags
        if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    assert "default-src 'none'" in policy and "unsafe" not in policy and "connect-src" not in policy
    for tag, attrs, inside in parts.inside:
        if attrs.get("type") != "application/json":
            mark = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
            assert f"{tag}-src 'sha256-{mark}'" in policy
    assert [tag for tag, _, _ in parts.inside].count("script") == 2  # the data and the page


def test_no_text_gets_out_of_the_data(written):
    _, path = written
    assert "zqx" not in path.read_text("utf-8").split('id="qkv-data"')[0]
    assert data_of(path)["passes"][1]["text"] == HARD
    assert (
        "<"
        not in data_block({"a": "<!--<script>"}).removeprefix(
            '<script type="application/json" id="qkv-data">'
        )[:-9]
    )


def test_the_script_is_a_script(written, tmp_path):
    node, _ = compute_driver_executable()  # the one that playwright brings along
    _, path = written
    script = next(
        text for tag, attrs, text in parts_of(path).inside if attrs.get("type") == "module"
    )
    (tmp_path / "page.mjs").write_text(script, "utf-8")
    done = subprocess.run([node, "--check", tmp_path / "page.mjs"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_module_becomes_a_function_that_gives_what_it_exports():
    source = 'import { a, b } from "./one.js";\nimport * as two from "./two.js";\nexport const c = a + b;\nexport function d() {\n}\n'
    assert as_function(source, "three.js") == (
        "const $three_js = (() => {\nconst { a, b } = $one_js;\nconst two = $two_js;\nconst c = a + b;\nfunction d() {\n}\n\n"
        "return { c, d };\n})();"
    )


@pytest.mark.parametrize(
    "line",
    ['import a from "./one.js";', "export default 3;", "export { a };", 'import "./one.js";'],
)
def test_what_the_bundler_does_not_know_is_refused(line):
    with pytest.raises(AssertionError, match="does not know"):
        as_function(line, "x.js")


def test_modules_come_after_those_they_need(tmp_path):
    files = {
        "main.js": 'import { b } from "./b.js";\nimport { a } from "./a.js";\nconsole.log(a + b);\n',
        "a.js": "export const a = 1;\n",
        "b.js": 'import { a } from "./a.js";\nexport const b = a + 1;\n',
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    text = joined(tmp_path, "main.js")
    assert (
        text.index("$a_js =") < text.index("$b_js =") < text.index("$main_js =")
        and text.count("$a_js =") == 1
    )
    if node := shutil.which("node"):
        assert subprocess.run([node, "-e", text], capture_output=True, text=True).stdout == "3\n"
    (tmp_path / "a.js").write_text('import { b } from "./b.js";\nexport const a = b;\n')
    with pytest.raises(AssertionError, match="imports itself"):
        joined(tmp_path, "main.js")


def test_every_module_of_the_page_is_in_the_file():
    text = bundle(PAGE, {})
    for path in PAGE.glob("*.js"):
        assert f"const ${path.stem}_js = " in text, path.name


def test_a_text_that_is_too_long_is_refused_in_one_line(tmp_path):
    with pytest.raises(QkvError) as error:
        write_page(small("generator"), ["x y" * 100], tmp_path / "page.html")
    assert (
        "tokens; at most 64 can be shown" in str(error.value)
        and not (tmp_path / "page.html").exists()
    )
