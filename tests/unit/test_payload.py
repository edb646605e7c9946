"""Payload rules (rows 1 to 38 of the bad-input table), canonical form, repair of results and errors."""

from __future__ import annotations

import json
import random

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ropeway.core import payload
from ropeway.core.errors import PayloadError
from ropeway.core.payload import (
    MAX_DEPTH,
    MAX_PAYLOAD_BYTES,
    CleanResult,
    JobError,
    canonical_json,
    check_payload,
    clean_error,
    clean_result,
    clean_text,
)

ACCEPTED = [
    b"{}",
    b"[]",
    b"null",
    b"true",
    b"false",
    b"5",
    b'"x"',
    b'""',
    b" \t\r\n{ } \n",
    b'{"a":[]}',
    b"9007199254740993",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"1000000000000000000",
    b"[-0,1.0,1.10,-0.0,1E5,1e+5,0e99999999]",
    b"1e308",
    b"1.7976931348623157e308",
    b"1e-400",
    b"0." + b"1" * 5000,
    b'"9223372036854775808"',
    b'"1e400 NaN {\\"a\\":1,\\"a\\":2}"',
    b'{"a:b":"c:d"}',
    b'{"a" : 1, "b" :2}',
    b'{"a":{"a":{"a":1}},"b":{"a":1}}',
    b'[{"a":1},{"a":1}]',
    b'"\\u0001\\u001f\\b\\f\\n\\r\\t\\/\\\\\\""',
    b'"\\\\u0000 \\\\ud800"',
    b'"\\ud83d\\ude00"',
    b'{"\\ud83d\\ude00":"\\uD83D\\uDE00"}',
    '"\U0001f600 \u202e \u200b \uffff \ufffe \x7f"'.encode(),
    ('"' + "e\u0301" * 10_000 + '"').encode(),
    b"[" * MAX_DEPTH + b"]" * MAX_DEPTH,
    b"[" * MAX_DEPTH + b"1" + b"]" * MAX_DEPTH,
    b'{"a":' * MAX_DEPTH + b'"x"' + b"}" * MAX_DEPTH,
    b'"' + b"[" * 1000 + b'"',
    b'["' + b"[" * 1000 + b'\\"' + b"{" * 1000 + b'\\\\"]',
    b"[" + b"[]," * 500 + b"{}]",
    b'{"id":12345678901234567,"at":"2026-01-01T00:00:00.000000Z"}',
]

REFUSED = [
    # syntax (rows 1 to 10)
    (b"", "malformed_json", None),
    (b"   ", "malformed_json", None),
    (b'{"type":"a"', "malformed_json", None),
    (b'{"type":"a",}', "malformed_json", None),
    (b"[1,]", "malformed_json", None),
    (b"[,1]", "malformed_json", None),
    (b"// comment\n{}", "malformed_json", None),
    (b"{} // comment", "malformed_json", None),
    (b"/* c */ 1", "malformed_json", None),
    (b'"\x01"', "malformed_json", None),
    (b'"\x00"', "malformed_json", None),
    (b'"a\nb"', "malformed_json", None),
    (b'{"a\x1f":1}', "malformed_json", None),
    (b"1\x00", "malformed_json", None),
    (b"\x0c1", "malformed_json", None),
    (b"\xef\xbb\xbf{}", "malformed_json", None),
    (b'{"payload":NaN}', "malformed_json", None),
    (b"[Infinity]", "malformed_json", None),
    (b"-Infinity", "malformed_json", None),
    (b"nan", "malformed_json", None),
    (b"01", "malformed_json", None),
    (b"-", "malformed_json", None),
    (b"1.", "malformed_json", None),
    (b".5", "malformed_json", None),
    (b"+1", "malformed_json", None),
    (b"1e", "malformed_json", None),
    (b"0x10", "malformed_json", None),
    (b"1 2", "malformed_json", None),
    (b"{} {}", "malformed_json", None),
    (b"{a:1}", "malformed_json", None),
    (b"{'a':1}", "malformed_json", None),
    (b"{1:1}", "malformed_json", None),
    (b'"', "malformed_json", None),
    (b'"\\x41"', "malformed_json", None),
    (b'"\\u12"', "malformed_json", None),
    (b"tru", "malformed_json", None),
    (b"True", "malformed_json", None),
    (b"]", "malformed_json", None),
    (b"]" * 1000, "malformed_json", None),
    (b"[}", "malformed_json", None),
    (b"\x80\x04\x95.", "invalid_utf8", None),
    (b'"\xff"', "invalid_utf8", None),
    (b'{"\xff":1}', "invalid_utf8", None),
    (b'"\xed\xa0\x80"', "invalid_utf8", None),
    (b'"\xc0\x80"', "invalid_utf8", None),
    (b'"\xf4\x90\x80\x80"', "invalid_utf8", None),
    # numbers (rows 11 to 15)
    (b"1e400", "number_range", ""),
    (b"-1e400", "number_range", ""),
    (b'{"a":[0,1e400]}', "number_range", "/a/1"),
    (b"[" + b"1e131071," * 100_000 + b"0]", "number_range", "/0"),
    (b"1.7976931348623159e308", "number_range", ""),
    (b"9" * 400 + b".0", "number_range", ""),
    (b"9" * 5000, "number_range", ""),
    (b"-" + b"9" * 5000, "number_range", ""),
    (b"9" * MAX_PAYLOAD_BYTES, "number_range", ""),
    (b"9223372036854775808", "number_range", ""),
    (b"-9223372036854775809", "number_range", ""),
    (b"18446744073709551615", "number_range", ""),
    (b'{"a/b":{"c~d":9223372036854775808}}', "number_range", "/a~1b/c~0d"),
    # objects (row 20)
    (b'{"a":1,"a":2}', "duplicate_key", "/a"),
    (b'{"a":1,"a":1}', "duplicate_key", "/a"),
    (b'{"a" :1,"a" :2,"b":"::"}', "duplicate_key", "/a"),
    (b'{"a":1,"\\u0061":2}', "duplicate_key", "/a"),
    (b'{"a":1,"a":2,"b":"\\u003a"}', "duplicate_key", "/a"),
    (b'{"/":1,"\\/":2}', "duplicate_key", "/~1"),
    (b'{"":1,"":2}', "duplicate_key", "/"),
    (b'[{"x":[{"k":1,"j":2,"k":3}]}]', "duplicate_key", "/0/x/0/k"),
    (b'{"a":{"b":1},"a":{"c":1}}', "duplicate_key", "/a"),
    # depth (rows 22, 23)
    (b"[" * 65 + b"]" * 65, "too_deep", None),
    (b'{"a":' * 65 + b"1" + b"}" * 65, "too_deep", None),
    (b'[{"a":' * 33 + b"1" + b"}]" * 33, "too_deep", None),
    (b'["]]]]]]",' + b"[" * 64 + b"]" * 65, "too_deep", None),
    (b"[" * 990 + b"]" * 990, "too_deep", None),
    (b"[" * 100_000, "too_deep", None),
    (b"[" * 500_000 + b"]" * 500_000, "too_deep", None),
    (b'{"a":' * 100_000, "too_deep", None),
    # text (rows 25, 30)
    (b'"\\u0000"', "nul_character", ""),
    (b'{"a":["x","\\u0000"]}', "nul_character", "/a/1"),
    (b'{"a/b":{"~":"x\\u0000y"}}', "nul_character", "/a~1b/~0"),
    (b'{"k\\u0000":1}', "nul_character", "/k\ufffd"),
    (b'{"":{"\\u0000":1}}', "nul_character", "//\ufffd"),
    (b'"\\ud800"', "invalid_unicode", ""),
    (b'"\\udc00"', "invalid_unicode", ""),
    (b'"\\ude00\\ud83d"', "invalid_unicode", ""),
    (b'["\\ud83d\\ude00","\\ud83d\\ud83d\\ude00"]', "invalid_unicode", "/1"),
    (b'{"a":{"\\uDFFF":1}}', "invalid_unicode", "/a/\ufffd"),
    # size (row 38)
    (b'"' + b"x" * MAX_PAYLOAD_BYTES + b'"', "payload_too_large", None),
    (b" " * (MAX_PAYLOAD_BYTES + 1), "payload_too_large", None),
]


def code_of(data: bytes, check=check_payload) -> str | None:
    try:
        check(data)
    except PayloadError as error:
        return error.code
    return None


def short(value: object) -> str:
    return repr(value)[:40]


@pytest.mark.parametrize("data", ACCEPTED, ids=short)
def test_accepted(data):
    check_payload(data)


@pytest.mark.parametrize("data", ACCEPTED, ids=short)
def test_the_exact_check_accepts_the_same(data):
    payload._check_exactly(data)


@pytest.mark.parametrize(("data", "code", "pointer"), REFUSED, ids=short)
def test_refused(data, code, pointer):
    with pytest.raises(PayloadError) as refused:
        check_payload(data)
    error = refused.value
    assert (error.code, error.pointer) == (code, pointer)
    assert len(str(error).encode() + (error.pointer or "").encode()) < 4_096


def test_ordinary_payloads_take_the_quick_way():
    """The exact check would accept them too: this is about speed, so only a look at the branch can tell."""
    for data in (
        b'{"user_id":7,"email":"a@example.com"}',
        b'{"args":[1,2.5],"kwargs":{"url":"https://example.com/?a=b","at":"2026-01-01T00:00:00Z"}}',
        b'[{"a":1},{"a":2}]',
        b"[" + b'{"a":[1,2]},' * 100 + b"{}]",
        b"[[]," + b"[" * (MAX_DEPTH - 1) + b"]" * MAX_DEPTH,
        '"héllo \\" \\n"'.encode(),
        b"null",
    ):
        assert payload._plainly_fine(data), data


def test_a_large_integer_is_to_be_sent_as_a_string():
    with pytest.raises(PayloadError) as refused:
        check_payload(b'{"id":9223372036854775808}')
    assert refused.value.hint == "send it as a string"


def test_the_limit_counts_bytes():
    check_payload(b'"12345678"', max_bytes=10)
    check_payload(b'"' + b"x" * (MAX_PAYLOAD_BYTES - 2) + b'"')
    assert code_of(b'"123456789"', lambda data: check_payload(data, max_bytes=10)) == "payload_too_large"
    assert code_of('"éééé"'.encode(), lambda data: check_payload(data, max_bytes=9)) == "payload_too_large"


def test_a_long_pointer_is_cut():
    with pytest.raises(PayloadError) as refused:
        check_payload(b'{"' + b"k" * 100_000 + b'":[1e999]}')
    assert refused.value.pointer is not None
    assert refused.value.pointer.startswith("/kkk")
    assert len(refused.value.pointer) <= 1_024


# Any JSON that every rule allows, and any way to write it.

storable_text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | storable_text
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(storable_text, inner, max_size=5)
)
spellings = st.fixed_dictionaries(
    {
        "ensure_ascii": st.booleans(),
        "separators": st.sampled_from([(",", ":"), (", ", ": "), (" , ", " : "), (",\n", "\t:")]),
        "sort_keys": st.booleans(),
    }
)

# Bytes that look like JSON with everything that can be wrong with it.

fragments = st.sampled_from(
    [
        *(b"[ ] { } [ ] { } , : , : 0 1 -0 1.5 -1 1e5 1e400 -1e999".split()),
        *(b"NaN Infinity -Infinity true false null".split()),
        b'"a"', b'"a":', b'"b":', b'"a:b":', b'{"a":1,', b'"a":2}', b'{"a":1,"a":2}', b'{"a":{"b":[', b"]}}",
        b'"', b"\\", b'"\\u0000"', b'"\\ud800"', b'"\\ud83d\\ude00"', b'"\\u0061":', b'"\\u003a"',
        b'"\\""', b'"\\\\"',
        b"\\u0000", b"\\udc00", b" ", b"\n", b"\x00", b"\x01", b"\xff", b"\xef\xbb\xbf", "é".encode(),
        "\U0001f600".encode(), b"9223372036854775807", b"9223372036854775808", b"9" * 4400,
        b"[" * 63, b"]" * 63,
        b'{"a":' * 40, b"}" * 40, b"//", b"0" * 20, b"01",
    ]
)  # fmt: skip
broken = st.lists(fragments, max_size=12).map(b"".join)
wrapped = st.builds(lambda items: b"[" + b",".join(items) + b"]", st.lists(broken, max_size=4))
flawed_scalars = (
    st.sampled_from(
        [
            b"NaN",
            b"1e400",
            b"9223372036854775808",
            b'"\\u0000"',
            b'"x\\ud800"',
            b'{"a":1,"a":2}',
            b'{"\\u0000":1}',
        ]
    )
    | scalars.map(lambda value: json.dumps(value).encode())
    | st.sampled_from([63, 64, 65, 66]).map(lambda depth: b"[" * depth + b"]" * depth)
)
flawed_keys = st.sampled_from([b'"a"', b'"b"', b'"\\u0062"', b'"c:"', b'"\\ud800"'])
flawed = st.recursive(
    flawed_scalars,
    lambda inner: st.lists(inner, max_size=4).map(lambda items: b"[" + b",".join(items) + b"]")
    | st.lists(st.tuples(flawed_keys, inner), max_size=4).map(
        lambda members: b"{" + b",".join(key + b":" + item for key, item in members) + b"}"
    ),
)  # fmt: skip
anything = st.binary(max_size=40) | broken | wrapped | flawed


@given(values, spellings)
def test_whatever_keeps_the_rules_is_accepted(value, spelling):
    data = json.dumps(value, **spelling).encode()
    check_payload(data)
    assert clean_result(data) == CleanResult(data)


@given(anything)
@example(b'{"a":1,"a":2,"b":"\\u003a"}')
@example(b"[" * 65 + b"]" * 65)
def test_the_quick_and_the_exact_check_agree(data):
    assert code_of(data) == code_of(data, payload._check_exactly)


@given(anything)
def test_what_is_accepted_is_json_to_other_parsers(data):
    if code_of(data) is None:
        assert json.dumps(json.loads(data)) == json.dumps(msgspec.json.decode(data))


@given(st.integers())
def test_integers_fit_64_bits(number):
    fits = -(2**63) <= number < 2**63
    assert code_of(str(number).encode()) == (None if fits else "number_range")


@given(st.integers(-2, 2).map(lambda step: 2**63 + step), st.sampled_from([1, -1]))
def test_integers_at_the_edge(number, sign):
    number *= sign
    fits = -(2**63) <= number < 2**63
    assert code_of(b'{"n":%d}' % number) == (None if fits else "number_range")


# Canonical form


@pytest.mark.parametrize(
    ("data", "canonical"),
    [
        (b' { "b" : 1 , "a" : [ ] } ', b'{"a":[],"b":1}'),
        (b'{"b":{"d":1,"c":2},"a":{}}', b'{"a":{},"b":{"c":2,"d":1}}'),
        (b"[3,1,2]", b"[3,1,2]"),
        (b"[-0, -0.0, 1.0, 1.10, 1E5, 1e+5, 10e-1]", b"[-0,-0.0,1.0,1.10,1E5,1e+5,10e-1]"),
        (b"-0", b"-0"),
        (b'{"a":-0}', b'{"a":-0}'),
        (b"[0.1000000000000000055511151231257827]", b"[0.1000000000000000055511151231257827]"),
        (b"9007199254740993", b"9007199254740993"),
        (b"-9223372036854775808", b"-9223372036854775808"),
        (b'"\\u0061\\/\\u00e9\\u001F\\u000a"', '"a/é\\u001f\\n"'.encode()),
        (b'"\\ud83d\\ude00"', '"\U0001f600"'.encode()),
        (
            '{"\U00010000":1,"\uffff":2,"z":3,"":4}'.encode(),
            '{"":4,"z":3,"\uffff":2,"\U00010000":1}'.encode(),
        ),
        (b'{"day":"2026-01-02","n":[1,-0]}', b'{"day":"2026-01-02","n":[1,-0]}'),
    ],
    ids=short,
)
def test_canonical(data, canonical):
    assert canonical_json(data) == canonical
    assert payload._canonical_exactly(data) == canonical


@given(anything | st.builds(lambda value, how: json.dumps(value, **how).encode(), values, spellings))
@example(b'["-0",-0,1]')
def test_the_quick_and_the_exact_canonical_form_agree(data):
    if code_of(data) is None:
        canonical = canonical_json(data)
        assert canonical == payload._canonical_exactly(data)
        assert canonical_json(canonical) == canonical
        check_payload(canonical)
        assert json.loads(canonical) == json.loads(data)


def reordered(value: object, shuffle: random.Random) -> object:
    if isinstance(value, dict):
        keys = list(value)
        shuffle.shuffle(keys)
        return {key: reordered(value[key], shuffle) for key in keys}
    return [reordered(item, shuffle) for item in value] if isinstance(value, list) else value


@given(values, spellings, spellings, st.integers(0, 99))
def test_spelling_and_order_do_not_matter(value, one, other, seed):
    twin = reordered(value, random.Random(seed))
    first, second = json.dumps(value, **one).encode(), json.dumps(twin, **other).encode()
    assert canonical_json(first) == canonical_json(second)


def test_the_order_of_arrays_and_the_spelling_of_numbers_matter():
    assert canonical_json(b"[1,2]") != canonical_json(b"[2,1]")
    assert canonical_json(b"[1]") != canonical_json(b"[1.0]")
    assert canonical_json(b"[0]") != canonical_json(b"[-0]")


# Results (G14)


@pytest.mark.parametrize(
    ("data", "repaired"),
    [
        (b'{"a":"x\\u0000y"}', '{"a":"x\ufffdy"}'),
        (b'{"k\\u0000":1}', '{"k\ufffd":1}'),
        (b'["\\ud800","\\udc00\\ud83d\\ude00"]', '["\ufffd","\ufffd\U0001f600"]'),
        (b'["\\\\u0000","\\u0000"]', '["\\\\u0000","\ufffd"]'),
        (b'{"a":NaN,"b":[Infinity,-Infinity],"c":1.50}', '{"a":null,"b":[null,null],"c":1.50}'),
        (b"[1e400,-1e400]", "[null,null]"),
        (b"[9223372036854775808,-0,7]", '["9223372036854775808",-0,7]'),
        (b"9" * 5000, '"' + "9" * 5000 + '"'),
        (b'{"a":1,"b":2,"a":3}', '{"a":3,"b":2}'),
        (b'{"b":1,"a":NaN}', '{"b":1,"a":null}'),
        (b'{"\\u0000":1,"\\ud800":2}', '{"\ufffd":2}'),
        (b"[" * 65 + b"]" * 65, "[" * 64 + "null" + "]" * 64),
        (b'[{"x":"]"},' + b"[" * 64 + b'"[",[1],{}' + b"]" * 64 + b",2]",
         '[{"x":"]"},' + "[" * 63 + "null" + "]" * 63 + ",2]"),
        (b"[" * 64 + b'[1],{"a":"}"},2,[]' + b"]" * 64, "[" * 64 + "null,null,2,null" + "]" * 64),
        (b"[" * 100, '"' + "[" * 100 + '"'),
        (b"", '""'),
        (b"hello", '"hello"'),
        (b"<Thing 'x' \"y\">\n", "\"<Thing 'x' \\\"y\\\">\\n\""),
        (b"a\x00b\x01", '"a\ufffdb\\u0001"'),
        (b'{"a":"caf\xe9"}', '"{\\"a\\":\\"caf\ufffd\\"}"'),
        (b"\xff\x00", '"\ufffd\ufffd"'),
        (b"\x80\x04\x95", '"\ufffd\\u0004\ufffd"'),
    ],
    ids=short,
)  # fmt: skip
def test_a_bad_result_is_repaired(data, repaired):
    assert clean_result(data) == CleanResult(repaired.encode(), sanitized=True)


def test_a_good_result_stays_as_it_is():
    assert clean_result(None) == CleanResult(None)
    for data in ACCEPTED:
        assert clean_result(data) == CleanResult(data)


def test_a_large_result_is_dropped():
    assert clean_result(b'"12345678"', max_bytes=10) == CleanResult(b'"12345678"')
    assert clean_result(b'"123456789"', max_bytes=10) == CleanResult(None, too_large=True)
    assert clean_result(b"x" * (MAX_PAYLOAD_BYTES + 1)) == CleanResult(None, too_large=True)


def test_a_result_that_the_repair_makes_too_large_is_dropped():
    assert clean_result(b"\xff" * 10, max_bytes=20) == CleanResult(None, too_large=True)


@pytest.mark.parametrize(("data", "code", "pointer"), REFUSED, ids=short)
def test_every_refused_payload_can_be_repaired_as_a_result(data, code, pointer):
    result = clean_result(data)
    assert result.sanitized != result.too_large
    if result.data is not None:
        check_payload(result.data)


@given(anything, st.sampled_from([0, 1, 2, 20, MAX_PAYLOAD_BYTES]))
def test_whatever_a_result_is_it_can_be_stored(data, limit):
    result = clean_result(data, max_bytes=limit)
    assert (result.data is None) == result.too_large
    assert not (result.sanitized and result.too_large)
    if result.data is not None:
        check_payload(result.data, max_bytes=limit)
        assert (result.data == data) == (not result.sanitized)


# Errors (rows 29, 32, 35)


def test_a_good_error_stays_as_it_is():
    assert clean_error("ValueError", "no", "Traceback ...") == JobError("ValueError", "no", "Traceback ...")
    assert clean_error("ValueError", "") == JobError("ValueError", "")
    assert clean_error("ValueError", "no", "") == JobError("ValueError", "no", "")


def test_an_error_has_a_type():
    assert clean_error("", "no") == JobError("Error", "no")
    assert clean_error(" \n", "no") == JobError("Error", "no")


@pytest.mark.parametrize("code_point", [0, 0xD800, 0xDC00, 0xDFFF], ids=hex)
def test_bad_characters_of_an_error_are_replaced(code_point):
    bad = chr(code_point)
    for fields in ((f"T{bad}", "m", "t"), ("T", f"{bad}m", "t"), ("T", "m", f"t{bad}t")):
        expected = [field.replace(bad, "\ufffd") for field in fields]
        assert clean_error(*fields) == JobError(*expected, sanitized=True)


def test_a_long_error_is_cut():
    error = clean_error("T" * 257, "m" * 10_000_000, "a" * 10_000_000 + "the cause")
    assert error.truncated
    assert not error.sanitized
    assert error.type == "T" * 256
    assert error.message == "m" * 4_096
    assert error.traceback == "a" * (16_384 - 9) + "the cause"


@pytest.mark.parametrize("fields", [("T" * 257, "m", "t"), ("T", "m" * 4_097, "t"), ("T", "m", "t" * 16_385)])
def test_each_cut_is_flagged(fields):
    assert clean_error(*fields).truncated


def test_an_error_at_its_limits_is_whole():
    fields = ("T" * 256, "é" * 4_096, "é" * 8_192)
    assert clean_error(*fields) == JobError(*fields)


def test_a_traceback_is_never_cut_inside_a_character():
    for lead in range(4):
        kept = clean_error("T", "m", "\U0001f600" * 5_000 + "x" * lead).traceback
        assert kept is not None
        assert kept == "\U0001f600" * ((16_384 - lead) // 4) + "x" * lead


def test_what_was_cut_off_is_not_called_sanitized():
    error = clean_error("T", "m" * 4_096 + "\0", "\0" + "t" * 16_384)
    assert error.truncated
    assert not error.sanitized


@given(st.text(st.characters()), st.text(st.characters()), st.none() | st.text(st.characters()))
def test_whatever_an_error_is_it_can_be_stored(kind, message, traceback):
    error = clean_error(kind, message, traceback)
    check_payload(msgspec.json.encode(error))
    assert error.type
    assert (error.traceback is None) == (traceback is None)


def test_clean_text():
    assert clean_text("a\0b\ud800c", 4) == "a\ufffdb\ufffd"
    assert clean_text("abc", 3) == "abc"
