"""Groups of sentences that mean the same: every way to write them down, kept on disk, and what is wrong with a file."""

import json

import numpy as np
import pytest

from qkv.data.group_plan import GroupPlan
from qkv.data.groups import Group, groups_of, keep_groups
from qkv.errors import QkvError


@pytest.fixture
def file(tmp_path, monkeypatch):
    """file("a.tsv", "x\\ty\\n") writes a file of the current folder and gives its name."""
    monkeypatch.chdir(tmp_path)

    def write(name, text):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return name

    return write


def test_a_tsv_has_as_many_sentences_of_one_meaning_as_it_has_columns(file):
    name = file("a.tsv", "a dog\ta hound\n一只猫\ta cat\tune chatte\n\n")
    assert list(groups_of(name)) == [
        Group(("a dog", "a hound")),
        Group(("一只猫", "a cat", "une chatte")),
    ]


def test_a_jsonl_has_texts_or_source_and_target(file):
    lines = [{"texts": ["a", "b", "c"]}, {"source": "你好", "target": "hello"}]
    name = file("a.jsonl", "\n".join(json.dumps(line) for line in lines) + "\n\n")
    assert list(groups_of(name)) == [Group(("a", "b", "c")), Group(("你好", "hello"))]


def test_aligned_files_give_their_lines_side_by_side(file):
    names = [file(f"train.{i}.en", f"one {i}\ntwo {i}\n") for i in (1, 2, 3)]
    expected = [Group(("one 1", "one 2", "one 3")), Group(("two 1", "two 2", "two 3"))]
    assert list(groups_of(*names)) == list(groups_of("train.*.en")) == expected


def test_the_third_column_is_a_hard_negative_if_asked(file):
    name = file("a.tsv", "a dog\ta hound\ta hot dog\na cat\ta kitten\t\n")
    assert list(groups_of(name, hard_negatives=True)) == [
        Group(("a dog", "a hound"), "a hot dog"),
        Group(("a cat", "a kitten")),
    ]
    jsonl = file(
        "b.jsonl",
        json.dumps({"source": "a dog", "target": "a hound", "negative": "a hot dog"}) + "\n",
    )
    assert list(groups_of(jsonl, hard_negatives=True)) == [Group(("a dog", "a hound"), "a hot dog")]


def test_a_field_named_negative_is_never_a_sentence_of_the_same_meaning(file):
    pair = {"source": "a dog", "target": "a hound"}
    for fields in (pair, {"texts": ["a dog", "a hound", "a puppy"]}):
        name = file(
            "a.jsonl",
            json.dumps(pair) + "\n" + json.dumps({**fields, "negative": "a hot dog"}) + "\n",
        )
        with pytest.raises(QkvError) as error:
            list(groups_of(name))
        assert str(error.value) == (
            "a.jsonl, line 2: has a 'negative', and hard_negatives is false; "
            "set hard_negatives=true, or leave the field out"
        )
        expected = Group(tuple(fields.get("texts", pair.values())), "a hot dog")
        assert list(groups_of(name, hard_negatives=True)) == [Group(("a dog", "a hound")), expected]
    empty = file(
        "b.jsonl",
        "".join(json.dumps({**pair, "negative": nothing}) + "\n" for nothing in ("", None)),
    )
    assert (
        list(groups_of(empty))
        == list(groups_of(empty, hard_negatives=True))
        == [Group(("a dog", "a hound"))] * 2
    )


def test_a_line_with_one_sentence_or_twice_the_same_teaches_nothing_and_is_left_out(file):
    name = file("a.tsv", "a dog\t\na cat\ta cat\n\ta bird\n x \t y \n")
    assert list(groups_of(name)) == [Group(("x", "y"))]


@pytest.mark.parametrize(
    ("name", "text", "hard", "message"),
    [
        (
            "a.tsv",
            "x\ty\nz\n",
            False,
            "a.tsv, line 2: 1 of 2 columns; write sentence<TAB>same meaning",
        ),
        (
            "a.tsv",
            "x\ty\tz\nx\ty\n",
            True,
            "a.tsv, line 2: 2 of 3 columns; write sentence<TAB>same meaning<TAB>another meaning",
        ),
        (
            "a.tsv",
            "x\ty\ty\n",
            True,
            "a.tsv, line 1: the hard negative is one of the sentences themselves; "
            "give one that means something else",
        ),
        (
            "a.tsv",
            "x\t\n\ty\n",
            False,
            "a.tsv: no line has two sentences; give two sentences of one meaning on each line",
        ),
        (
            "a.jsonl",
            '{"texts": ["a"]}\n',
            False,
            'a.jsonl, line 1: no two sentences; write {"texts": ["...", "..."]}, '
            '{"source": "...", "target": "..."}',
        ),
        (
            "a.jsonl",
            "hm\n",
            False,
            'a.jsonl, line 1: no two sentences; write {"texts": ["...", "..."]}, '
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
def test_what_is_wrong_with_a_file_is_said_in_one_line(file, name, text, hard, message):
    with pytest.raises(QkvError) as error:
        list(groups_of(file(name, text), hard_negatives=hard))
    assert str(error.value) == message


def test_a_file_that_ends_early_and_a_pattern_without_files_are_named(file):
    with pytest.raises(QkvError) as error:
        list(groups_of(file("a.zh", "一\n二\n"), file("a.en", "one\n")))
    assert (
        str(error.value)
        == "a.en: only 1 lines, others have more; line n of all files must mean the same"
    )
    with pytest.raises(QkvError) as error:
        groups_of("none.*.en")
    assert (
        str(error.value)
        == "none.*.en: the pattern names 0 files; it should name two or more, aligned line by line"
    )


def test_one_file_serves_for_training_and_validation(file):
    name = file("a.tsv", "".join(f"a {i}\tb {i}\n" for i in range(25)))
    train, valid = (list(groups_of(name).share(10, held_out)) for held_out in (False, True))
    assert [group.texts[0] for group in valid] == ["a 5", "a 15"]
    assert sorted(map(str, train + valid)) == sorted(map(str, groups_of(name)))


@pytest.mark.parametrize("between", ["\n", "alone\t\n", "\n\n \n"])
def test_lines_without_a_group_change_nothing_of_what_is_held_out(file, between):
    lines = [f"a {i}\tb {i}\n" for i in range(25)]
    dense, spaced = file("a.tsv", "".join(lines)), file("b.tsv", between.join(lines))
    for held_out in (False, True):
        assert list(groups_of(spaced).share(10, held_out)) == list(
            groups_of(dense).share(10, held_out)
        )


def test_kept_groups_are_the_groups_and_are_read_again_only_when_the_file_has_changed(
    file, tmp_path
):
    name = file("a.tsv", "a\tb\tc\nd\te\t\n")
    groups = groups_of(name, hard_negatives=True)
    kept = keep_groups(tmp_path / "kept", groups)
    found = [
        Group(tuple(kept.texts.take(kept.members[i])), *kept.texts.take(kept.negatives[i]))
        for i in range(len(kept))
    ]
    assert found == list(groups)
    header = tmp_path / "kept" / "texts" / "store.json"
    before = header.stat().st_mtime_ns
    keep_groups(tmp_path / "kept", groups)
    assert header.stat().st_mtime_ns == before
    assert (
        len(keep_groups(tmp_path / "kept", groups_of(name))) == 2
        and header.stat().st_mtime_ns != before
    )
    file("a.tsv", "a\tb\n")
    assert len(keep_groups(tmp_path / "kept", groups_of(name))) == 1


# ---- the order -----------------------------------------------------------------------------------------------------

SIZES = np.array([2, 5, 3, 2, 5, 5, 2, 4, 3, 2, 2])


def test_the_order_is_a_pure_function_of_seed_and_step():
    plan, again, other = GroupPlan(SIZES, 4, 1), GroupPlan(SIZES, 4, 1), GroupPlan(SIZES, 4, 2)
    asked = [7, 0, 3, 40, 3, 0, 7]
    told = [
        [tuple(map(np.ndarray.tolist, one.batch(step))) for step in asked]
        for one in (plan, again, other)
    ]
    assert told[0] == told[1] == told[0][::-1] and told[0] != told[2]


def test_an_epoch_reads_no_group_twice_and_every_group_comes_up():
    plan = GroupPlan(SIZES, 4, 1)
    epochs = [
        np.concatenate([plan.batch(epoch * len(plan) + step)[0] for step in range(len(plan))])
        for epoch in range(20)
    ]
    assert all(len(set(rows)) == len(rows) == 8 for rows in epochs)
    assert set(np.concatenate(epochs)) == set(range(len(SIZES)))


def test_processes_share_an_epoch_without_overlap():
    alone, two = GroupPlan(SIZES, 4, 1), GroupPlan(SIZES, 4, 1)
    one_by_one = [alone.batch(step)[0].tolist() for step in range(4)]
    assert one_by_one == [
        two.batch(step, rank, 2)[0].tolist() for step in range(2) for rank in range(2)
    ]


def test_every_two_places_of_a_group_come_up_equally_often_and_in_order():
    plan, seen = GroupPlan(SIZES, len(SIZES), 1), np.zeros((5, 5), int)
    for epoch in range(2_000):
        rows, places = plan.batch(epoch)
        assert (places[:, 0] < places[:, 1]).all() and (places[:, 1] < SIZES[rows]).all()
        np.add.at(seen, tuple(places[SIZES[rows] == 5].T), 1)
    counts = seen[np.triu_indices(5, 1)]
    assert seen.sum() == counts.sum() == 6_000 and (abs(counts - 600) < 5 * np.sqrt(600)).all()


def test_more_than_two_of_a_group_are_taken_where_there_are_more():
    rows, places = GroupPlan(SIZES, len(SIZES), 1, views=4).batch(3)
    for size, chosen in zip(SIZES[rows], places, strict=True):
        n = min(size, 4)
        assert (
            len(set(chosen[:n])) == n
            and chosen[:n].tolist() == sorted(chosen[:n])
            and 0 <= chosen[:n].min() <= chosen[:n].max() < size
        )
        assert (chosen[n:] == -1).all()


def test_fewer_groups_than_a_batch_make_one_batch_of_all():
    plan = GroupPlan(SIZES, 100, 1)
    assert len(plan) == 1 and sorted(plan.batch(3)[0]) == list(range(len(SIZES)))
