"""Regular expressions that users write, and the choice of names by `include` and `exclude`."""

from __future__ import annotations

import pickle

import pytest

from logkeep_engine.contract.parsing import SpecInvalid
from logkeep_engine.contract.patterns import MAX_STEPS, NamePatterns, Pattern, PatternInvalid, RenameRule
from logkeep_engine.contract.restore_spec import parse_restore
from logkeep_engine.contract.spec import parse_backup


@pytest.mark.parametrize(
    ("name", "chosen"),
    [("orders", True), ("orders-2", True), ("my-orders", False), ("orders.tmp", False), ("users", True), ("", False)],
)
def test_a_pattern_must_match_the_whole_name_and_exclude_wins(name: str, chosen: bool) -> None:
    assert NamePatterns(["orders.*", "users"], [r".*\.tmp"]).chooses(name) is chosen


def test_exclude_alone_tells_what_it_leaves_out() -> None:
    patterns = NamePatterns([], ["a.*"])
    assert [patterns.excludes(name) for name in ("ab", "ba")] == [True, False]


def test_patterns_that_match_no_name_are_found_by_their_places() -> None:
    assert NamePatterns(["a", "b.*", "a"], ["bc"]).unmatched(["bc", "c"]) == [0, 2]
    assert NamePatterns([".*", "a.*"]).unmatched([]) == [1], "what takes all there is names nothing that is missing"


def test_each_pattern_of_a_list_stands_for_itself() -> None:
    patterns = NamePatterns(["(?i)orders", "a|b", "users"], ["(?i)x", "y"])
    names = ("ORDERS", "a", "b", "USERS", "users", "ausers", "X", "Y")
    assert [patterns.chooses(name) for name in names] == [True, True, True, False, True, False, False, False]
    assert [patterns.excludes(name) for name in ("X", "y", "Y")] == [True, True, False]


@pytest.mark.parametrize("other", ["b", r"\Qb\E", r"b\Q"])
def test_a_quotation_without_an_end_ends_with_its_pattern(other: str) -> None:
    patterns = NamePatterns([r"\Qa", other], [r"\Qx", other])
    assert [patterns.chooses(name) for name in ("a", "c")] == [True, False]
    assert [patterns.excludes(name) for name in ("a", "b", "x")] == [False, True, True]


@pytest.mark.parametrize("times", ["{,3}", "{,}", "{03}", "{1,03}", "{00,3}"])
def test_a_number_of_times_that_re2_takes_for_text_is_refused(times: str) -> None:
    """`orders-[0-9]{,3}` would leave out orders-12 in silence."""
    for pattern in (f"orders-[0-9]{times}", f"a|{times}", rf"\\\\{times}", rf"\Qa\E{times}", rf"[]a]{times}"):
        with pytest.raises(PatternInvalid, match="RE2 does not repeat for") as caught:
            Pattern(pattern)
        assert times in str(caught.value)
    for pattern, name in (
        (rf"a\{times}", f"a{times}"),
        (rf"\Qa{times}", f"a{times}"),
        (f"[{times}]", "{"),
        (f"[]{times}]", "}"),
        (rf"[\]{times}]", "]"),
        (f"[[:digit:]{times}]", "}"),
        (r"a\x{062}", "ab"),
    ):
        assert Pattern(pattern).matches(name)


@pytest.mark.parametrize("name", ["from-secret\n", "\n", "a\nb", "größe", "\0", "half of a pair: \ud800"])
def test_a_dot_stands_for_any_character_of_a_group_id(name: str) -> None:
    assert NamePatterns([".*"]).chooses(name)
    assert NamePatterns([".*", "other"]).chooses(name)
    assert NamePatterns([".*"], [f".{{{len(name)}}}"]).excludes(name)


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|aa)*b", "(.*,)*x", "(a?){40}a{40}b"])
def test_no_pattern_needs_more_than_an_instant(pattern: str) -> None:
    """Backtracking would take longer than the universe is old for each."""
    long = "a" * 249
    assert not Pattern(pattern).matches(long)
    assert not NamePatterns([pattern, "other"], [pattern]).chooses(long)
    assert not Pattern(pattern).occurs_in("," * 20_000 + long)
    assert RenameRule(pattern, "x").new_name(long) is None


WRONG = [
    ("(", "missing )"),
    ("*", "no argument for repetition operator"),
    ("a{1001}", "invalid repetition size"),
    ("a{99999999999}", "a repetition is larger than 1000"),
    ("a{1,99999999999}", "a repetition is larger than 1000"),
    ("(a{1000}){1000}", "invalid repetition size"),
    (r"(\pL{10}){20}", "too large - compile failed (repeat less, or split the pattern)"),
    ("(?!__).*", "RE2 has no lookarounds, backreferences and possessive repetitions; `exclude` leaves names out"),
    ("(?=" * 200 + "a" + ")" * 200, "RE2 has no lookarounds"),
    (r"(a)\1", "RE2 has no lookarounds, backreferences"),
    ("(?P<a>x)(?P=a)", "invalid perl operator"),
    ("a++", "possessive repetitions"),
    ("(?>a)", "RE2 has no lookarounds"),
    ("(" * 300 + "a*" + ")*" * 300 + "(", "missing )"),
]


@pytest.mark.parametrize(("pattern", "what"), WRONG, ids=lambda value: value[:20])
def test_a_wrong_pattern_is_refused_by_field(pattern: str, what: str) -> None:
    with pytest.raises(PatternInvalid) as refused:
        Pattern(pattern)
    assert what in str(refused.value)
    topics = {"include": ["ok", pattern]}
    with pytest.raises(SpecInvalid) as invalid:
        parse_backup({**BACKUP, "topics": topics})
    ((field, said),) = invalid.value.problems
    assert field == "spec.topics.include[1]"
    assert said.startswith(f"{pattern!r} is not a regular expression: ")
    assert what in said
    rename = [{"from": "ok", "to": "x"}, {"from": pattern, "to": "y"}]
    with pytest.raises(SpecInvalid) as invalid:
        parse_restore({**RESTORE, "topics": {"rename": rename}})
    assert [path for path, _ in invalid.value.problems] == ["spec.topics.rename[1].from"]


def test_half_of_a_pair_is_no_pattern() -> None:
    with pytest.raises(PatternInvalid, match="it is not valid Unicode"):
        Pattern("\ud800")


def test_nested_groups_and_null_bytes_are_patterns_as_others() -> None:
    assert Pattern("(" * 500 + "a" + ")" * 500).matches("a")
    assert Pattern("a\0b").matches("a\0b")


def test_a_list_is_read_up_to_its_first_wrong_pattern() -> None:
    with pytest.raises(SpecInvalid) as refused:
        parse_backup({**BACKUP, "topics": {"include": ["("] * 400, "exclude": [")", "("]}})
    assert [path for path, _ in refused.value.problems] == ["spec.topics.include[0]", "spec.topics.exclude[0]"]


@pytest.mark.parametrize(
    ("spec", "field", "what"),
    [
        ({"topics": {"include": ["a"] * 501}}, "spec.topics.include", "must have at most 500 items"),
        ({"topics": {"include": ["a" * 1025]}}, "spec.topics.include[0]", "at most 1024 characters"),
        ({"consumerGroups": {"exclude": ["a"] * 501}}, "spec.consumerGroups.exclude", "must have at most 500 items"),
        ({"retention": {"hold": {"topics": ["a"] * 101}}}, "spec.retention.hold.topics", "must have at most 100"),
        ({"topics": {"include": [".{1000}"] * 20}}, "spec.topics.include[14]", f"steps of RE2, more than {MAX_STEPS}"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_list_has_a_bound_of_its_own(spec: dict[str, object], field: str, what: str) -> None:
    with pytest.raises(SpecInvalid) as refused:
        parse_backup({**BACKUP, **spec})
    ((path, said),) = refused.value.problems
    assert path == field
    assert what in said


def test_rules_of_new_names_have_a_bound_together() -> None:
    rules = [{"from": f"(.{{1000}}){at}", "to": "x"} for at in range(20)]
    with pytest.raises(SpecInvalid, match=r"spec.topics.rename\[14\].from: .* steps of RE2, more than"):
        parse_restore({**RESTORE, "topics": {"rename": rules}})


def test_as_many_patterns_as_a_list_may_have_choose_together() -> None:
    names = [f"topic-{at}-of-a-team" for at in range(500)]
    assert parse_backup({**BACKUP, "topics": {"include": names}}).topics.include == tuple(names)
    patterns = NamePatterns(names, ["topic-7-.*"])
    assert [at for at, name in enumerate(names) if not patterns.chooses(name)] == [7]
    large = NamePatterns([f".{{1000}}{at}|{name}" for at, name in enumerate(names)])
    assert all(large.chooses(name) for name in names[::50])
    assert not large.chooses("topic")


@pytest.mark.parametrize(
    ("pattern", "to", "new"),
    [
        ("(.*)", r"old.\1", "old.orders-eu"),
        (r"(?P<what>\w+)-(?P<where>\w+)", r"\g<where>.\g<what>", "eu.orders"),
        (r"(?P<what>\w+)-(\w+)", r"\2\g<1>\g<what>\g<0>", "euordersordersorders-eu"),
        ("orders-(eu|us)?(x)?", r"\1\2!", "eu!"),
        ("(orders).*", r"\10", None),
        ("orders.*", r"a\\b", r"a\b"),
        ("orders.*", "plain", "plain"),
        ("users", "x", None),
    ],
)
def test_a_new_name_uses_groups_of_the_pattern(pattern: str, to: str, new: str | None) -> None:
    if to == r"\10":
        with pytest.raises(ValueError, match="the pattern has no group 10"):
            RenameRule(pattern, to)
        return
    assert RenameRule(pattern, to).new_name("orders-eu") == new


@pytest.mark.parametrize(
    ("to", "what"),
    [
        (r"\2", "the pattern has no group 2"),
        (r"\g<2>", "the pattern has no group 2"),
        (r"\g<name>", "the pattern has no group name"),
        (r"\g<99999999999>", r"'\\g' must be \\1 to \\99, \\g<name> or \\\\"),
        (r"\n", r"'\\n' must be \\1 to"),
        ("\\", r"'\\' must be \\1 to"),
        (r"\0", r"'\\0' must be \\1 to"),
    ],
)
def test_a_new_name_that_does_not_fit_the_pattern_is_refused(to: str, what: str) -> None:
    with pytest.raises(SpecInvalid, match=r"^spec.topics.rename\[0\].to: ") as refused:
        parse_restore({**RESTORE, "topics": {"rename": [{"from": "(a)", "to": to}]}})
    assert what.replace("\\\\", "\\") in str(refused.value)
    assert "does not fit the groups of '(a)'" in str(refused.value)


def test_a_pattern_can_be_sent_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(Pattern("a.*"))).matches("a\n")


BACKUP = {
    "cluster": {"bootstrapServers": ["kafka:9092"]},
    "topics": {"include": [".*"]},
    "storage": {"uri": "s3://bucket/prefix"},
}
RESTORE = {"source": {"storage": {"uri": "s3://bucket/prefix"}}, "cluster": {"bootstrapServers": ["kafka:9092"]}}
