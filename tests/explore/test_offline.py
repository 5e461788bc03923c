"""The offline file contains every answer and makes no requests."""

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
from qkv.explore.bundle import as_function, bundle, data_block, join_modules
from qkv.explore.offline import PAGE, request_names, single_edits, write_page

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
def saved_page(request, tmp_path_factory):
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


def test_recorded_answers_equal_live_ones(saved_page):
    explorer, path = saved_page
    data = data_of(path)
    assert [entry["text"] for entry in data["passes"]] == [TEXT, HARD]
    for text in (TEXT, HARD):
        trace = explorer.open(text)
        names = [*request_names(explorer, trace), "model", "positions", "positions/values"]
        names = [name for n, name in enumerate(names) if "change" not in name or n % 5 == 0]
        count = 0
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
            count += 1
        assert count > 0.8 * len(names)  # the others are not supported by this family


def test_the_file_has_every_answer_about_a_text(saved_page):
    explorer, path = saved_page
    data, family = data_of(path), explorer.explored.family
    this = f"pass/{data['passes'][0]['id']}"
    trace = data["answers"][this]
    for step in trace["steps"]:
        assert all(
            f"{this}/tensor/{tensor['name']}" in data["tensors"] for tensor in step["tensors"]
        )
    for kind in trace["attention"]:
        assert f"{this}/attention/{kind['name']}/mean" in data["tensors"]
        for entry in kind["layers"]:
            assert f"{this}/attention/{kind['name']}/{entry['layer']}" in data["tensors"]
            assert f"{this}/thumbnails/{kind['name']}/{entry['layer']}" in data["tensors"]
    for position in range(trace["positions"]):
        assert (
            f"{this}/logits/{position}" in data["tensors"]
            and f"{this}/top/{position}?k=200" in data["answers"]
        )
    assert (f"{this}/nearest" if family == "embedder" else f"{this}/beam") in data["answers"]
    for edit in single_edits(explorer):
        assert f"{this}/change?edits={edit}" in data["answers"]


def test_the_file_has_no_external_references(saved_page):
    _, path = saved_page
    parts, text = parts_of(path), path.read_text("utf-8")
    for tag, attrs in parts.tags:
        assert "src" not in attrs and not any(name.startswith("on") for name in attrs), (tag, attrs)
        assert attrs.get("href", "data:,").startswith("data:"), attrs
    links = set(re.findall(r"https?://[^\s\"'<)]+", text))
    assert links <= {"http://www.w3.org/2000/svg"}, links  # a namespace, not a link
    assert "@import" not in text and "url(" not in re.sub(r"url\(data:", "", text)


def test_the_policy_allows_only_this_script_and_style(saved_page):
    _, path = saved_page
    parts = parts_of(path)
    policy = next(
        attrs["content"]
        for tag, attrs in parts.tags
        if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    assert "default-src 'none'" in policy and "unsafe" not in policy and "connect-src" not in policy
    for tag, attrs, inside in parts.inside:
        if attrs.get("type") != "application/json":
            digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
            assert f"{tag}-src 'sha256-{digest}'" in policy
    assert [tag for tag, _, _ in parts.inside].count("script") == 2  # the data and the page


def test_no_text_escapes_from_the_data_element(saved_page):
    _, path = saved_page
    assert "zqx" not in path.read_text("utf-8").split('id="qkv-data"')[0]
    assert data_of(path)["passes"][1]["text"] == HARD
    assert (
        "<"
        not in data_block({"a": "<!--<script>"}).removeprefix(
            '<script type="application/json" id="qkv-data">'
        )[:-9]
    )


def test_the_script_has_valid_syntax(saved_page, tmp_path):
    node, _ = compute_driver_executable()  # bundled with playwright
    _, path = saved_page
    script = next(
        text for tag, attrs, text in parts_of(path).inside if attrs.get("type") == "module"
    )
    (tmp_path / "page.mjs").write_text(script, "utf-8")
    done = subprocess.run([node, "--check", tmp_path / "page.mjs"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_module_becomes_a_function_that_returns_its_exports():
    source = (
        'import { a, b } from "./one.js";\nimport * as two from "./two.js";\n'
        "export const c = a + b;\nexport function d() {\n}\n"
    )
    assert as_function(source, "three.js") == (
        "const $three_js = (() => {\nconst { a, b } = $one_js;\nconst two = $two_js;\n"
        "const c = a + b;\nfunction d() {\n}\n\n"
        "return { c, d };\n})();"
    )


@pytest.mark.parametrize(
    "line",
    ['import a from "./one.js";', "export default 3;", "export { a };", 'import "./one.js";'],
)
def test_unsupported_import_and_export_statements_are_refused(line):
    with pytest.raises(AssertionError, match="unsupported statement"):
        as_function(line, "x.js")


def test_modules_are_in_dependency_order(tmp_path):
    files = {
        "main.js": 'import { b } from "./b.js";\nimport { a } from "./a.js";\n'
        "console.log(a + b);\n",
        "a.js": "export const a = 1;\n",
        "b.js": 'import { a } from "./a.js";\nexport const b = a + 1;\n',
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    text = join_modules(tmp_path, "main.js")
    assert (
        text.index("$a_js =") < text.index("$b_js =") < text.index("$main_js =")
        and text.count("$a_js =") == 1
    )
    if node := shutil.which("node"):
        assert subprocess.run([node, "-e", text], capture_output=True, text=True).stdout == "3\n"
    (tmp_path / "a.js").write_text('import { b } from "./b.js";\nexport const a = b;\n')
    with pytest.raises(AssertionError, match="circular import"):
        join_modules(tmp_path, "main.js")


def test_every_module_of_the_page_is_in_the_file():
    text = bundle(PAGE, {})
    for path in PAGE.glob("*.js"):
        assert f"const ${path.stem}_js = " in text, path.name


def test_a_text_that_is_too_long_is_refused(tmp_path):
    with pytest.raises(QkvError) as error:
        write_page(small("generator"), ["x y" * 100], tmp_path / "page.html")
    assert (
        "tokens; at most 64 can be shown" in str(error.value)
        and not (tmp_path / "page.html").exists()
    )
