"""Groups of texts with the same meaning: formats, errors, stores, and batch plans."""

import json

import numpy as np
import pytest

from qkv.data.group_plan import GroupPlan
from qkv.data.groups import Group, read_groups, store_groups
from qkv.errors import QkvError


@pytest.fixture
def file(tmp_path, monkeypatch):
    """file("a.tsv", "x\\ty\\n") writes a file and returns its name."""
    monkeypatch.chdir(tmp_path)

    def write(name, text):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return name

    return write


def test_a_tsv_line_has_one_text_per_column(file):
    name = file("a.tsv", "a dog\ta hound\n一只猫\ta cat\tune chatte\n\n")
    assert list(read_groups(name)) == [
        Group(("a dog", "a hound")),
        Group(("一只猫", "a cat", "une chatte")),
    ]


def test_a_jsonl_has_texts_or_source_and_target(file):
    lines = [{"texts": ["a", "b", "c"]}, {"source": "你好", "target": "hello"}]
    name = file("a.jsonl", "\n".join(json.dumps(line) for line in lines) + "\n\n")
    assert list(read_groups(name)) == [Group(("a", "b", "c")), Group(("你好", "hello"))]


def test_aligned_files_give_one_group_per_line(file):
    names = [file(f"train.{i}.en", f"one {i}\ntwo {i}\n") for i in (1, 2, 3)]
    expected = [Group(("one 1", "one 2", "one 3")), Group(("two 1", "two 2", "two 3"))]
    assert list(read_groups(*names)) == list(read_groups("train.*.en")) == expected


def test_the_third_column_is_a_hard_negative_with_hard_negatives(file):
    name = file("a.tsv", "a dog\ta hound\ta hot dog\na cat\ta kitten\t\n")
    assert list(read_groups(name, hard_negatives=True)) == [
        Group(("a dog", "a hound"), "a hot dog"),
        Group(("a cat", "a kitten")),
    ]
    jsonl = file(
        "b.jsonl",
        json.dumps({"source": "a dog", "target": "a hound", "negative": "a hot dog"}) + "\n",
    )
    assert list(read_groups(jsonl, hard_negatives=True)) == [
        Group(("a dog", "a hound"), "a hot dog")
    ]


def test_a_negative_field_is_never_a_positive(file):
    pair = {"source": "a dog", "target": "a hound"}
    for fields in (pair, {"texts": ["a dog", "a hound", "a puppy"]}):
        name = file(
            "a.jsonl",
            json.dumps(pair) + "\n" + json.dumps({**fields, "negative": "a hot dog"}) + "\n",
        )
        with pytest.raises(QkvError) as error:
            list(read_groups(name))
        assert str(error.value) == (
            "a.jsonl, line 2: has a 'negative', but hard_negatives is false; "
            "set hard_negatives=true, or remove the field"
        )
        expected = Group(tuple(fields.get("texts", pair.values())), "a hot dog")
        assert list(read_groups(name, hard_negatives=True)) == [
            Group(("a dog", "a hound")),
            expected,
        ]
    empty = file(
        "b.jsonl",
        "".join(json.dumps({**pair, "negative": nothing}) + "\n" for nothing in ("", None)),
    )
    assert (
        list(read_groups(empty))
        == list(read_groups(empty, hard_negatives=True))
        == [Group(("a dog", "a hound"))] * 2
    )


def test_lines_with_fewer_than_two_distinct_texts_are_skipped(file):
    name = file("a.tsv", "a dog\t\na cat\ta cat\n\ta bird\n x \t y \n")
    assert list(read_groups(name)) == [Group(("x", "y"))]


@pytest.mark.parametrize(
    ("name", "text", "hard", "message"),
    [
        (
            "a.tsv",
            "x\ty\nz\n",
            False,
            "a.tsv, line 2: 1 of 2 columns; write sentence<TAB>paraphrase",
        ),
        (
            "a.tsv",
            "x\ty\tz\nx\ty\n",
            True,
            "a.tsv, line 2: 2 of 3 columns; write sentence<TAB>paraphrase<TAB>hard negative",
        ),
        (
            "a.tsv",
            "x\ty\ty\n",
            True,
            "a.tsv, line 1: the hard negative is one of the sentences; "
            "give one with a different meaning",
        ),
        (
            "a.tsv",
            "x\t\n\ty\n",
            False,
            "a.tsv: no line has two sentences; "
            "give two sentences with the same meaning on each line",
        ),
        (
            "a.jsonl",
            '{"texts": ["a"]}\n',
            False,
            'a.jsonl, line 1: fewer than two sentences; write {"texts": ["...", "..."]}, '
            '{"source": "...", "target": "..."}',
        ),
        (
            "a.jsonl",
            "hm\n",
            False,
            'a.jsonl, line 1: fewer than two sentences; write {"texts": ["...", "..."]}, '
            '{"source": "...", "target": "..."}',
        ),
        (
            "a.jsonl",
            '{"source": "a", "target": "b", "negative": ["c"]}\n',
            True,
            "a.jsonl, line 1: 'negative' is not text; write one sentence",
        ),
    ],
)
def test_each_bad_file_has_a_one_line_error(file, name, text, hard, message):
    with pytest.raises(QkvError) as error:
        list(read_groups(file(name, text), hard_negatives=hard))
    assert str(error.value) == message


def test_a_short_file_and_a_pattern_without_files_are_reported(file):
    with pytest.raises(QkvError) as error:
        list(read_groups(file("a.zh", "一\n二\n"), file("a.en", "one\n")))
    assert str(error.value) == (
        "a.en: only 1 lines, other files have more; line n of all files must have the same meaning"
    )
    with pytest.raises(QkvError) as error:
        read_groups("none.*.en")
    assert (
        str(error.value)
        == "none.*.en: the pattern matches 0 files; it should match two or more aligned files"
    )


def test_held_out_groups_and_the_others_partition_the_file(file):
    name = file("a.tsv", "".join(f"a {i}\tb {i}\n" for i in range(25)))
    rows = np.arange(25) % 10 == 5
    train, valid = (list(read_groups(name).subset(part)) for part in (~rows, rows))
    assert [group.texts[0] for group in valid] == ["a 5", "a 15"]
    assert sorted(map(str, train + valid)) == sorted(map(str, read_groups(name)))


@pytest.mark.parametrize("between", ["\n", "single\t\n", "\n\n \n"])
def test_skipped_lines_do_not_change_which_groups_are_held_out(file, between):
    lines = [f"a {i}\tb {i}\n" for i in range(25)]
    dense, spaced = file("a.tsv", "".join(lines)), file("b.tsv", between.join(lines))
    held_out = np.arange(25) % 10 == 5
    for rows in (held_out, ~held_out):
        assert list(read_groups(spaced).subset(rows)) == list(read_groups(dense).subset(rows))


def test_stored_groups_are_rebuilt_only_when_the_file_has_changed(file, tmp_path):
    name = file("a.tsv", "a\tb\tc\nd\te\t\n")
    groups = read_groups(name, hard_negatives=True)
    stored = store_groups(tmp_path / "stored", groups)
    found = [
        Group(tuple(stored.texts.take(stored.members[i])), *stored.texts.take(stored.negatives[i]))
        for i in range(len(stored))
    ]
    assert found == list(groups)
    header = tmp_path / "stored" / "texts" / "store.json"
    before = header.stat().st_mtime_ns
    store_groups(tmp_path / "stored", groups)
    assert header.stat().st_mtime_ns == before
    assert (
        len(store_groups(tmp_path / "stored", read_groups(name))) == 2
        and header.stat().st_mtime_ns != before
    )
    file("a.tsv", "a\tb\n")
    assert len(store_groups(tmp_path / "stored", read_groups(name))) == 1


# ── batch plans ──────────────────────────────────────────────────────────────────────────────

SIZES = np.array([2, 5, 3, 2, 5, 5, 2, 4, 3, 2, 2])


def test_the_order_is_a_pure_function_of_seed_and_step():
    plan, again, other = GroupPlan(SIZES, 4, 1), GroupPlan(SIZES, 4, 1), GroupPlan(SIZES, 4, 2)
    steps = [7, 0, 3, 40, 3, 0, 7]
    batches = [
        [tuple(map(np.ndarray.tolist, each.batch(step))) for step in steps]
        for each in (plan, again, other)
    ]
    assert batches[0] == batches[1] == batches[0][::-1] and batches[0] != batches[2]


def test_an_epoch_reads_no_group_twice_and_all_epochs_every_group():
    plan = GroupPlan(SIZES, 4, 1)
    epochs = [
        np.concatenate([plan.batch(epoch * len(plan) + step)[0] for step in range(len(plan))])
        for epoch in range(20)
    ]
    assert all(len(set(rows)) == len(rows) == 8 for rows in epochs)
    assert set(np.concatenate(epochs)) == set(range(len(SIZES)))


def test_processes_divide_an_epoch_without_overlap():
    single, parallel = GroupPlan(SIZES, 4, 1), GroupPlan(SIZES, 4, 1)
    expected = [single.batch(step)[0].tolist() for step in range(4)]
    assert expected == [
        parallel.batch(step, rank, 2)[0].tolist() for step in range(2) for rank in range(2)
    ]


def test_all_pairs_of_texts_of_a_group_are_equally_likely():
    plan, seen = GroupPlan(SIZES, len(SIZES), 1), np.zeros((5, 5), int)
    for epoch in range(2_000):
        rows, texts = plan.batch(epoch)
        assert (texts[:, 0] < texts[:, 1]).all() and (texts[:, 1] < SIZES[rows]).all()
        np.add.at(seen, tuple(texts[SIZES[rows] == 5].T), 1)
    counts = seen[np.triu_indices(5, 1)]
    assert seen.sum() == counts.sum() == 6_000 and (abs(counts - 600) < 5 * np.sqrt(600)).all()


def test_more_than_two_texts_are_sampled_from_larger_groups():
    rows, texts = GroupPlan(SIZES, len(SIZES), 1, texts_per_group=4).batch(3)
    for size, sampled in zip(SIZES[rows], texts, strict=True):
        n = min(size, 4)
        assert (
            len(set(sampled[:n])) == n
            and sampled[:n].tolist() == sorted(sampled[:n])
            and 0 <= sampled[:n].min() <= sampled[:n].max() < size
        )
        assert (sampled[n:] == -1).all()


def test_fewer_groups_than_a_batch_form_one_batch():
    plan = GroupPlan(SIZES, 100, 1)
    assert len(plan) == 1 and sorted(plan.batch(3)[0]) == list(range(len(SIZES)))
