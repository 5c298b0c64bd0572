"""Constrained decoding against other programs: what is generated must be valid for `jsonschema` and match for `re`, and
what is valid must be accepted.

build/grammar_driver (GRAMMAR_DRIVER names another) compiles a grammar, walks it at random with the tokens of a small
real tokenizer, and on the way compares masks with trying every token.
"""
import datetime
import ipaddress
import itertools
import json
import os
import random
import re
import subprocess
import uuid
from pathlib import Path

import jsonschema
import pytest

ROOT = Path(__file__).resolve().parents[2]
DRIVER = os.environ.get("GRAMMAR_DRIVER", str(ROOT / "build" / "grammar_driver"))
MODEL = ROOT / "tests/fixtures/models/qwen35-tiny"


class Text(str):
    """JSON that Python itself would not write."""


class Driver:
    def __init__(self):
        self.process = subprocess.Popen([DRIVER, str(MODEL)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request):
        spec = request.pop("spec", None)
        text = spec if isinstance(spec, Text) else json.dumps(spec)
        self.process.stdin.write(json.dumps(request)[:-1] + f', "spec": {text}' + "}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the driver died of {json.dumps(request)[:2000]}"
        return json.loads(line)


@pytest.fixture(scope="session")
def driver():
    d = Driver()
    yield d
    d.process.stdin.close()
    assert d.process.wait(10) == 0


def texts_of(driver, **request):
    answer = driver.ask(**{"walks": 3, "seed": 1, "steps": 40, **request})
    assert "error" not in answer, (answer["error"], request)
    assert "wrong" not in answer, (answer["wrong"], request)
    return answer["texts"]


def accepted(driver, texts, **request):
    answer = driver.ask(walks=0, accept=list(texts), **request)
    assert "error" not in answer, (answer["error"], request)
    return answer["accepted"]


def valid(schema, value):
    return jsonschema.Draft202012Validator(schema).is_valid(value)


def check_schema(driver, schema, seed=1, walks=4, options=None):
    """Everything generated is JSON and valid."""
    for text in texts_of(driver, kind="schema", spec=schema, seed=seed, walks=walks, options=options or {}):
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))


def written(value):
    """A value as people and programs write it."""
    for form in ({}, {"indent": 2}, {"indent": 4}, {"separators": (",", ":")}, {"indent": "\t"}):
        yield json.dumps(value, ensure_ascii=False, **form)


# --- schemas by hand: (schema, valid values that must be accepted, values that must not) ---------------------------

OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {"type": "boolean"}},
          "required": ["b"], "additionalProperties": False}
TREE = {"$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"},
                                                         "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
                           "required": ["v", "kids"], "additionalProperties": False}}, "$ref": "#/$defs/node"}
EXPRESSION = {"anyOf": [{"type": "integer"},
                        {"type": "object", "properties": {"op": {"enum": ["+", "*"]}, "l": {"$ref": "#"}, "r": {"$ref": "#"}},
                         "required": ["op", "l", "r"], "additionalProperties": False}]}

CORPUS = [
    # types
    ({"type": "string"}, ["", "x", "é😀", 'q"\\\n\u0001/', "</script>"], [1, None, [], {}]),
    ({"type": "integer"}, [0, -1, 12345678901234567890], [1.5, "1", True]),
    ({"type": "number"}, [0, -1, 0.5, -12.25, 1e5, 1e-7, 3.14e200], ["1", None]),
    ({"type": "boolean"}, [True, False], [0, "true", None]),
    ({"type": "null"}, [None], [0, False, ""]),
    ({"type": ["string", "null"]}, ["a", None], [1]),
    ({"type": ["integer", "boolean", "array"]}, [1, True, [], [1, "a"]], [1.5, "a", None, {}]),
    ({}, [1, "a", None, [], {}, {"a": [1, {"b": None}]}, [[[]]]], []),
    (True, [1, {"x": [True]}], []),
    ({"type": "object"}, [{}, {"a": 1}, {"": {"é": []}}], [[], 1]),
    ({"type": "array"}, [[], [1, "a", [None]]], [{}, "[]"]),
    # annotations and unknown words are no constraints
    ({"type": "integer", "title": "T", "description": "d", "default": "x", "examples": [None], "$schema": "s", "$id": "i",
      "$comment": "c", "x-order": 3, "deprecated": True, "readOnly": True, "nullable": True, "format": "int32"}, [1], ["x"]),
    # objects
    (OBJECT, [{"b": "x"}, {"a": 1, "b": "x"}, {"b": "", "c": True}, {"a": 1, "b": "x", "c": False}],
     [{}, {"a": 1}, {"b": 1}, {"b": "x", "d": 1}, {"b": "x", "c": None}]),
    ({"properties": {"a": {"type": "integer"}}}, [{}, {"a": 1}], [{"a": "x"}]),
    ({"type": "object", "properties": {}, "additionalProperties": False}, [{}], [{"a": 1}]),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, [{}, {"a": 1, "b": 2}], [{"a": "x"}]),
    ({"type": "object", "properties": {"id": {"type": "integer"}, "idx": {"type": "integer"}},
      "additionalProperties": {"type": "string"}, "required": ["id"]},
     [{"id": 1}, {"id": 1, "idx": 2, "i": "x", "": "y", "idy": "z", "é": "w"}, {"id": 1, "idxx": "x"}],
     [{"id": "x"}, {"id": 1, "other": 2}, {"other": "x"}]),
    ({"type": "object", "properties": {"a": {}}, "required": ["a", "z"]}, [{"a": 1, "z": [2]}], [{"a": 1}]),
    ({"type": "object", "required": ["z"], "additionalProperties": {"type": "null"}}, [{"z": None}, {"z": None, "k": None}],
     [{"k": None}, {"z": 1}]),
    ({"type": "object", "properties": {"never": False, "a": {"type": "integer"}}}, [{}, {"a": 1}], [{"never": 1}]),
    ({"type": "object", "patternProperties": {"^x-": {"type": "integer"}, "^y": {"type": "string"}},
      "additionalProperties": False}, [{}, {"x-a": 1}, {"x-": 2, "ya": "s", "x-b": 3}], [{"a": 1}, {"x-a": "s"}]),
    ({"type": "object", "propertyNames": {"pattern": "^[a-z]{1,3}$"}, "additionalProperties": {"type": "integer"}},
     [{}, {"abc": 1, "d": 2}], [{"abcd": 1}, {"A": 1}]),
    ({"type": "object", "propertyNames": {"enum": ["p", "q"]}}, [{}, {"p": 1}, {"q": [], "p": 2}], [{"r": 1}]),
    ({"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 2},
     [{"a": 1}, {"a": 1, "b": 2}], [{}, {"a": 1, "b": 2, "c": 3}]),
    ({"type": "object", "properties": {k: {"type": "integer"} for k in "abcd"}, "additionalProperties": False,
      "minProperties": 2, "maxProperties": 3}, [{"a": 1, "b": 2}, {"b": 1, "d": 2}, {"a": 1, "c": 1, "d": 1}],
     [{}, {"a": 1}, {"a": 1, "b": 1, "c": 1, "d": 1}]),
    ({"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "null"}, "minProperties": 1,
      "maxProperties": 3}, [{"a": 1}, {"x": None}, {"a": 1, "x": None, "y": None}],
     [{}, {"a": 1, "x": None, "y": None, "z": None}]),
    ({"type": "object", "properties": {'q"\\\n': {"type": "integer"}, "é😀": {"type": "integer"}}, "additionalProperties": False},
     [{'q"\\\n': 1, "é😀": 2}], [{"q": 1}]),
    ({"type": "object", "properties": {"a": {"type": "string"}}, "unevaluatedProperties": False}, [{}, {"a": ""}], [{"b": 1}]),
    # arrays
    ({"type": "array", "items": {"type": "integer"}}, [[], [1], [1, 2, 3]], [["a"], [1, None]]),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4}, [[1, 2], [1, 2, 3, 4]],
     [[], [1], [1, 2, 3, 4, 5]]),
    ({"type": "array", "items": {"type": "string"}, "minItems": 1}, [["a"], ["a"] * 30], [[]]),
    ({"type": "array", "items": {"type": "boolean"}, "maxItems": 100}, [[], [True] * 100], [[True] * 101]),
    ({"type": "array", "items": {"type": "boolean"}, "minItems": 70, "maxItems": 75}, [[True] * 70, [False] * 75],
     [[True] * 69, [True] * 76]),
    ({"type": "array", "maxItems": 0}, [[]], [[1]]),
    ({"type": "array", "items": False}, [[]], [[1]]),
    ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 2, "maxItems": 2}, [[1, "a"]],
     [[], [1], ["a", 1], [1, "a", 2]]),
    ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": {"type": "null"}},
     [[], [1], [1, "a"], [1, "a", None, None]], [["a"], [1, "a", 2]]),
    ({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": {"type": "null"}, "minItems": 1,
      "maxItems": 3}, [[1], [1, "a"], [1, "a", None]], [[], [1, "a", None, None]]),
    ({"type": "array", "prefixItems": [{"type": "integer"}], "items": False}, [[], [1]], [[1, 2]]),
    ({"type": "array", "items": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}},
     [[], [[]], [[[1], [2, 3]], [[]]]], [[1]]),
    # enum and const
    ({"enum": ["a", "b", 1, 1.5, None, True, {"k": [1, "x"]}, []]}, ["a", 1, 1.5, None, True, {"k": [1, "x"]}, []],
     ["c", 2, False, {}]),
    ({"const": 'say "hi"\n'}, ['say "hi"\n'], ["say"]),
    ({"type": "string", "enum": ["red", "green", 3]}, ["red", "green"], [3]),
    ({"type": "integer", "enum": [1, 5, 10, 20], "minimum": 4, "maximum": 15}, [5, 10], [1, 20]),
    ({"enum": ["abc", "ABC", "x"], "pattern": "^[a-z]+$", "minLength": 2, "type": "string"}, ["abc"], ["ABC", "x"]),
    ({"type": "object", "properties": {"kind": {"const": "cat"}, "n": {"type": "integer"}}, "required": ["kind"]},
     [{"kind": "cat"}, {"kind": "cat", "n": 1}], [{"kind": "dog"}]),
    # combinations
    ({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}]}, [1, "ab"], ["abc", None]),
    ({"oneOf": [{"type": "null"}, OBJECT]}, [None, {"b": "x"}], [{}]),
    ({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"],
      "anyOf": [{"properties": {"b": {"type": "string"}}, "required": ["b"]}, {"properties": {"c": {"type": "null"}}}]},
     [{"a": 1, "b": "x"}, {"a": 1}, {"a": 1, "c": None}], [{"b": "x"}, {"a": 1, "c": 2}]),
    ({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 7}, {"multipleOf": 2}]}, [4, 6], [3, 8, 2]),
    ({"allOf": [{"$ref": "#/$defs/base"}, {"properties": {"extra": {"type": "boolean"}}, "required": ["extra"]}],
      "$defs": {"base": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}}},
     [{"id": 1, "extra": True}], [{"id": 1}, {"extra": True}]),
    ({"allOf": [{"type": "string", "pattern": "^a"}, {"pattern": "z$"}, {"maxLength": 4}]}, ["az", "abz", "abcz"],
     ["a", "z", "abcdz"]),
    ({"allOf": [{"anyOf": [{"type": "string"}, {"type": "integer"}]}, {"anyOf": [{"type": "integer"}, {"type": "null"}]}]},
     [1, -5], ["a", None]),
    ({"allOf": [{"type": ["string", "number"]}, {"type": ["integer", "null"]}]}, [1], [1.5, "a", None]),
    ({"allOf": [{"enum": [1, 2, 3]}, {"enum": [2, 3, 4]}, {"const": 3}]}, [3], [2]),
    ({"allOf": [{"type": "array", "items": {"type": "integer"}}, {"items": {"minimum": 3}, "minItems": 1},
                {"prefixItems": [{"maximum": 5}]}]}, [[4], [3, 99]], [[], [6], [2]]),
    ({"allOf": [{"properties": {"a": {"type": "integer"}, "b": {}}, "additionalProperties": False, "type": "object"},
                {"properties": {"a": {"minimum": 5}, "c": {}}}]}, [{}, {"a": 5}, {"a": 6, "b": 1}], [{"a": 1}, {"c": 1}]),
    ({"$ref": "#/$defs/x", "minimum": 10, "$defs": {"x": {"type": "integer", "maximum": 12}}}, [10, 12], [9, 13]),
    ({"properties": {"p": {"$ref": "#/definitions/a~1b%20c"}}, "definitions": {"a/b c": {"type": "null"}}}, [{"p": None}],
     [{"p": 1}]),
    ({"anyOf": [{"anyOf": [{"const": 1}, {"const": 2}]}, {"oneOf": [{"const": 3}]}]}, [1, 2, 3], [4]),
    ({"type": "string", "anyOf": [{"minLength": 3}, {"maxLength": 1}]}, ["", "a", "abc"], ["ab", 1]),
    # recursion
    (TREE, [{"v": 1, "kids": []}, {"v": 1, "kids": [{"v": 2, "kids": [{"v": 3, "kids": []}]}]}], [{"v": 1}, {"kids": []}]),
    (EXPRESSION, [1, {"op": "+", "l": 1, "r": {"op": "*", "l": 2, "r": 3}}], [{"op": "-", "l": 1, "r": 1}]),
    ({"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"]},
     [{"next": None}, {"next": {"next": {"next": None}}}], [{}, {"next": 1}]),
    ({"type": "array", "items": {"$ref": "#"}}, [[], [[], [[]]]], [[1]]),
    # strings
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "é😀x"], ["a", "abcd"]),
    ({"type": "string", "minLength": 1}, ["a", "aaaa"], [""]),
    ({"type": "string", "minLength": 100}, ["a" * 100, "b" * 250], ["a" * 99]),
    ({"type": "string", "maxLength": 2000}, ["", "a" * 2000, "😀" * 2000, "\n" * 2000], ["a" * 2001, "😀" * 2001]),
    ({"type": "string", "maxLength": 0}, [""], ["a"]),
    ({"type": "string", "maxLength": 10 ** 12}, ["a"], []),
    ({"type": "string", "pattern": "^[A-Z]{3}-\\d{2,4}$"}, ["ABC-12", "XYZ-1234"], ["ABC-1", "abc-12", "xABC-12"]),
    ({"type": "string", "pattern": "foo"}, ["foo", "a foo b", "\nfoo\n"], ["fo", ""]),
    ({"type": "string", "pattern": "^foo|bar$"}, ["foo", "foox", "bar", "xbar"], ["xfoo", "barx"]),
    ({"type": "string", "pattern": "^\"\\\\\\n$"}, ["\"\\\n"], ["\""]),
    ({"type": "string", "pattern": "^[^a-z]*$", "minLength": 2, "maxLength": 4}, ["AB", "é\"\\", "1234"], ["A", "ab", "12345"]),
    ({"type": "string", "pattern": "^(ab)*$", "maxLength": 5}, ["", "ab", "abab"], ["a", "ababab"]),
    ({"type": "string", "pattern": "^[a-z]+$", "maxLength": 2000}, ["a", "z" * 2000], ["", "a" * 2001]),
    ({"type": "string", "format": "date"}, ["2024-02-29", "1999-12-31", "0001-01-01"], ["2023-02-29", "2024-13-01", "2024-04-31"]),
    ({"type": "string", "format": "date-time"}, ["2024-02-29T23:59:59Z", "1999-12-31T00:00:00.123+05:30"],
     ["2024-02-29", "2024-02-29T24:00:00Z", "2024-02-29T12:00:00"]),
    ({"type": "string", "format": "time"}, ["12:00:00Z", "23:59:59.5-01:00"], ["24:00:00Z", "12:00"]),
    ({"type": "string", "format": "duration"}, ["P1Y2M3DT4H5M6S", "PT1S", "P3W", "P1DT12H"], ["P", "PT", "1D", "P1S"]),
    ({"type": "string", "format": "email"}, ["a@b.co", "first.last+tag@sub.example.org"], ["a", "a@", "@b", "a b@c"]),
    ({"type": "string", "format": "uuid"}, ["123e4567-e89b-12d3-a456-426614174000"], ["123e4567e89b12d3a456426614174000", "x"]),
    ({"type": "string", "format": "ipv4"}, ["0.0.0.0", "255.249.99.1"], ["256.1.1.1", "1.1.1", "01.1.1.1"]),
    ({"type": "string", "format": "ipv6"}, ["::", "::1", "2001:db8::ff00:42:8329", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::"],
     [":", "1:2:3", "12345::", "1::2::3", "1:2:3:4:5:6:7:8:9"]),
    ({"type": "string", "format": "hostname"}, ["example.com", "a-b.c"], ["-a.com", "a..b", ""]),
    ({"type": "string", "format": "uri"}, ["https://user@example.com:8080/a/b?q=1&r=%20#frag", "mailto:a@b.c", "urn:isbn:123"],
     ["example.com", "http//x", "https://exa mple"]),
    ({"type": "string", "format": "uri-reference"}, ["/a/b?c#d", "a/b", "https://x.y/", "", "//host/p", "#f"], ["a b", "%zz"]),
    ({"type": "string", "format": "json-pointer"}, ["", "/a/b~1c/0"], ["a", "/~2"]),
    ({"type": "string", "format": "made-up"}, ["x", ""], [1]),
    # numbers
    ({"type": "integer", "minimum": 0}, [0, 7, 10 ** 30], [-1]),
    ({"type": "integer", "minimum": -5, "maximum": 123}, [-5, -1, 0, 9, 10, 99, 100, 123], [-6, 124, 1000]),
    ({"type": "integer", "exclusiveMinimum": 9, "exclusiveMaximum": 1000}, [10, 99, 100, 999], [9, 1000, 1]),
    ({"type": "integer", "maximum": -10}, [-10, -11, -99, -100], [-9, 0, 10]),
    ({"type": "integer", "minimum": 1.5, "maximum": 3.5}, [2, 3], [1, 4]),
    ({"type": "integer", "minimum": 9223372036854775807}, [9223372036854775807, 18446744073709551615], [5, 9223372036854775806]),
    ({"type": "integer", "minimum": 3, "maximum": 3}, [3], [2, 4]),
    ({"type": "integer", "multipleOf": 7}, [0, 7, -14, 700], [1, 8]),
    ({"type": "integer", "multipleOf": 1000, "minimum": 500, "maximum": 5000}, [1000, 5000], [0, 500, 1500, 6000]),
    ({"type": "number", "minimum": 0, "maximum": 1}, [0, 0.5, 1, 0.999], [-0.1, 1.1, 2]),
    ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.25}, [0.1, 0.001, 0.2499], [0, 0.25, 0.3]),
    ({"type": "number", "minimum": -1.5, "maximum": 20.25}, [-1.5, -1, 0, 20.25, 20, 3.75, 9.999], [-1.6, 20.26, 21]),
    ({"type": "number", "maximum": -0.5}, [-0.5, -1, -100.5], [-0.4, 0, 1]),
    ({"type": "number", "minimum": 1e3}, [1000, 1000.5, 99999], [999.9, 1]),
    ({"type": "number", "minimum": 2, "exclusiveMinimum": True, "maximum": 10}, [3, 2.5], [1, 11]),
    ({"minimum": 5}, [5, 6.5], [4]),
    # what people send
    ({"type": "object", "title": "CalendarEvent", "properties": {
        "name": {"title": "Name", "type": "string"}, "date": {"title": "Date", "type": "string"},
        "participants": {"items": {"type": "string"}, "title": "Participants", "type": "array"}},
      "required": ["name", "date", "participants"], "additionalProperties": False},
     [{"name": "n", "date": "d", "participants": ["Alice", "Bob"]}], [{"name": "n"}]),
    ({"$defs": {"Step": {"properties": {"explanation": {"type": "string"}, "output": {"type": "string"}},
                         "required": ["explanation", "output"], "type": "object", "additionalProperties": False}},
      "properties": {"steps": {"items": {"$ref": "#/$defs/Step"}, "type": "array"}, "final_answer": {"type": "string"}},
      "required": ["steps", "final_answer"], "type": "object", "additionalProperties": False},
     [{"steps": [{"explanation": "e", "output": "o"}], "final_answer": "42"}, {"steps": [], "final_answer": ""}],
     [{"steps": [{}], "final_answer": "x"}]),
    ({"type": "object", "properties": {"location": {"type": "string"}, "unit": {"type": ["string", "null"], "enum": ["c", "f", None]},
                                       "days": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}},
      "required": ["location"], "additionalProperties": False},
     [{"location": "Paris"}, {"location": "Paris", "unit": None}, {"location": "x", "unit": "c", "days": None}],
     [{"unit": "c"}, {"location": "x", "unit": "k"}]),
    ({"type": "object", "discriminator": {"propertyName": "t"}, "oneOf": [
        {"properties": {"t": {"const": "circle"}, "r": {"type": "number", "minimum": 0}}, "required": ["t", "r"]},
        {"properties": {"t": {"const": "square"}, "side": {"type": "number"}}, "required": ["t", "side"]}]},
     [{"t": "circle", "r": 1.5}, {"t": "square", "side": 2}], [{"t": "circle", "side": 2}, {"t": "x"}]),
]


@pytest.mark.parametrize("i", range(len(CORPUS)))
def test_corpus(driver, i):
    schema, yes, no = CORPUS[i]
    check = {k: v for k, v in schema.items() if k != "exclusiveMinimum" or v is not True} if isinstance(schema, dict) else schema
    for text in texts_of(driver, kind="schema", spec=schema, seed=i, walks=4):
        value = json.loads(text)
        if "multipleOf" not in json.dumps(schema) or isinstance(value, int):
            jsonschema.Draft202012Validator(check).validate(value)
    for value in yes:
        texts = list(written(value))
        assert accepted(driver, texts, kind="schema", spec=schema) == [True] * len(texts), value
    for value in no:
        assert not any(accepted(driver, written(value), kind="schema", spec=schema)), value


FORMATS = {
    "date": datetime.date.fromisoformat,
    "date-time": lambda s: datetime.datetime.fromisoformat(re.sub(r"\.\d+", "", s).replace("Z", "+00:00")),
    "time": lambda s: datetime.time.fromisoformat(re.sub(r"\.\d+", "", s).replace("Z", "+00:00")),
    "uuid": uuid.UUID,
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "email": lambda s: re.fullmatch(r"[^@\s]+@[^@\s]+", s)[0],
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats(driver, name):
    for text in texts_of(driver, kind="schema", spec={"type": "string", "format": name}, walks=40, seed=5):
        FORMATS[name](json.loads(text))


# --- schemas at random --------------------------------------------------------------------------------------------

WORDS = ["a", "b", "id", "name", "name2", "é", "x y", "value", "items", "n", ""]


class Maker:
    """Schemas at random, each with values that it allows (in the schema's order of properties)."""

    def __init__(self, seed):
        self.r = random.Random(seed)
        self.defs = {}

    def schema(self, depth=0):
        r = self.r
        kinds = ["string", "integer", "number", "boolean", "null", "enum", "pattern"]
        if depth < 4:
            kinds += ["object"] * 4 + ["array"] * 3 + ["anyOf", "map", "tuple", "ref", "union", "all"]
        return getattr(self, "make_" + r.choice(kinds))(depth)

    def make_string(self, depth):
        s = {"type": "string"}
        if self.r.random() < 0.5:
            s["minLength"] = self.r.randint(0, 4)
        if self.r.random() < 0.5:
            s["maxLength"] = s.get("minLength", 0) + self.r.choice([0, 1, 5, 40])
        n = s.get("minLength", 0)
        alphabet = "abc é😀\"\\\n"
        return s, ["".join(self.r.choice(alphabet) for _ in range(self.r.randint(n, s.get("maxLength", n + 6)))) for _ in range(3)]

    def make_pattern(self, depth):
        pattern, make = self.r.choice([
            ("^[a-z]{2,5}$", lambda: "abcd"), ("^\\d+(\\.\\d+)?$", lambda: "12.5"), ("x+y*", lambda: "a xxy b"),
            ("^(foo|bar)-[^-]*$", lambda: "foo-\"q\""), ("^[A-Z]", lambda: "Hello"), ("\\.json$", lambda: "a.json")])
        return {"type": "string", "pattern": pattern}, [make()]

    def make_integer(self, depth):
        s, lo, hi = {"type": "integer"}, -1000, 1000
        if self.r.random() < 0.5:
            s["minimum"] = lo = self.r.randint(-200, 200)
        if self.r.random() < 0.5:
            s["maximum"] = hi = lo + self.r.choice([0, 3, 50, 12345])
        hi = max(hi, lo + 5) if "maximum" not in s else hi
        return s, [self.r.randint(lo, hi) for _ in range(3)] + [lo, hi]

    def make_number(self, depth):
        s, lo, hi = {"type": "number"}, -10.0, 10.0
        if self.r.random() < 0.5:
            s[self.r.choice(["minimum", "exclusiveMinimum"])] = lo = self.r.randint(-999, 999) / self.r.choice([1, 8, 100])
            hi = lo + 20
        if self.r.random() < 0.5:
            s[self.r.choice(["maximum", "exclusiveMaximum"])] = hi = lo + self.r.choice([0.5, 3, 700])
        return s, [round(lo + (hi - lo) * t, 3) for t in (0.25, 0.5, 0.75)]

    def make_boolean(self, depth):
        return {"type": "boolean"}, [True, False]

    def make_null(self, depth):
        return {"type": "null"}, [None]

    def make_enum(self, depth):
        values = self.r.sample(["a", "ab", "b\"", 1, 10, 1.5, None, True, [1], {"k": "v"}], self.r.randint(1, 5))
        return ({"const": values[0]}, values[:1]) if self.r.random() < 0.3 else ({"enum": values}, values)

    def make_object(self, depth):
        r = self.r
        names = r.sample(WORDS, r.randint(0, 5))
        parts = {n: self.schema(depth + 1) for n in names}
        required = [n for n in names if r.random() < 0.5]
        s = {"type": "object", "properties": {n: p[0] for n, p in parts.items()}, "required": required}
        extra = None
        if r.random() < 0.7:
            s["additionalProperties"] = False
        elif r.random() < 0.7:
            extra = self.schema(depth + 2)
            s["additionalProperties"] = extra[0]
        values = []
        for _ in range(3):
            v = {n: r.choice(p[1]) for n, p in parts.items() if n in required or r.random() < 0.5}
            if extra and r.random() < 0.5:
                v["other"] = r.choice(extra[1])
            values.append(v)
        if extra is None and r.random() < 0.2:
            s["minProperties"] = r.randint(0, len(required))
            s["maxProperties"] = r.randint(len(required), len(names) + 1)
            values = [v for v in values if len(v) <= s["maxProperties"]]
            values.append({n: r.choice(parts[n][1]) for n in names if n in required})
        return s, values

    def make_map(self, depth):
        item = self.schema(depth + 1)
        s = {"type": "object", "additionalProperties": item[0]}
        if self.r.random() < 0.3:
            s["propertyNames"] = {"pattern": "^[a-z]+$"}
        if self.r.random() < 0.3:
            s["maxProperties"] = 3
        return s, [{}, {"k": self.r.choice(item[1])}, {"k": self.r.choice(item[1]), "l": self.r.choice(item[1])}]

    def make_array(self, depth):
        item = self.schema(depth + 1)
        s, lo = {"type": "array", "items": item[0]}, 0
        if self.r.random() < 0.5:
            s["minItems"] = lo = self.r.randint(0, 3)
        if self.r.random() < 0.5:
            s["maxItems"] = lo + self.r.choice([0, 1, 4, 60])
        return s, [[self.r.choice(item[1]) for _ in range(self.r.randint(lo, min(s.get("maxItems", lo + 3), lo + 9)))] for _ in range(3)]

    def make_tuple(self, depth):
        parts = [self.schema(depth + 1) for _ in range(self.r.randint(1, 3))]
        s = {"type": "array", "prefixItems": [p[0] for p in parts], "minItems": len(parts), "items": False}
        return s, [[self.r.choice(p[1]) for p in parts] for _ in range(2)]

    def make_anyOf(self, depth):
        ways = [self.schema(depth + 1) for _ in range(self.r.randint(1, 3))]
        return {"anyOf": [w[0] for w in ways]}, list(itertools.chain(*(w[1] for w in ways)))

    def make_union(self, depth):
        a, b = self.make_string(depth), self.make_integer(depth)
        return {**a[0], **b[0], "type": ["string", "integer", "null"]}, a[1] + b[1] + [None]

    def make_all(self, depth):
        base, value = self.schema(depth + 1)
        return {"allOf": [base, {"title": "both"}], "description": "d"}, value

    def make_ref(self, depth):
        name = f"d{len(self.defs)}"
        self.defs[name] = None
        self.defs[name], values = self.schema(depth + 1)
        if self.r.random() < 0.4:  # it may hold itself
            self.defs[name] = {"anyOf": [self.defs[name], {"type": "object", "properties": {"again": {"$ref": f"#/$defs/{name}"}},
                                                           "required": ["again"], "additionalProperties": False}]}
            values = values + [{"again": {"again": values[0]}}] if values else values
        return {"$ref": f"#/$defs/{name}"}, values

    def whole(self):
        s, values = self.schema()
        return ({**s, "$defs": self.defs} if self.defs else s), values


@pytest.mark.parametrize("block", range(20))
def test_random_schemas(driver, block):
    for seed in range(block * 30, block * 30 + 30):
        schema, values = Maker(seed).whole()
        compact = {"no_whitespace": True} if seed % 4 == 0 else {}
        check_schema(driver, schema, seed=seed, walks=4, options=compact)
        values = [v for v in values if valid(schema, v)]
        texts = [json.dumps(v, ensure_ascii=False, separators=(",", ":")) for v in values]
        if not compact:
            texts += [json.dumps(v, ensure_ascii=False, indent=seed % 5) for v in values]
        missed = [t for t, ok in zip(texts, accepted(driver, texts, kind="schema", spec=schema, options=compact)) if not ok]
        assert not missed, (schema, missed)


# --- whitespace and other options ---------------------------------------------------------------------------------


def test_whitespace(driver):
    spec = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}, "required": ["a"]}
    loose, tight = '{\n  "a" : [ 1 ,\t2 ]\r\n}', '{"a":[1,2]}'
    ask = lambda **options: accepted(driver, [loose, tight, '{"a": [1, 2]}'], kind="schema", spec=spec, options=options)
    assert ask() == [True, True, True]
    assert ask(no_whitespace=True) == [False, True, False]
    assert ask(whitespace_pattern=" ?") == [False, True, True]
    # it has an end, and there is none around the whole
    assert accepted(driver, ["{" + " " * 64 + '"a":[]}', "{" + " " * 65 + '"a":[]}', ' {"a":[]}', '{"a":[]} '], kind="schema",
                    spec=spec) == [True, False, False, False]


def test_open_objects(driver):
    spec = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert accepted(driver, ['{"b":1}', '{"a":1,"b":[]}'], kind="schema", spec=spec) == [False, False]
    assert accepted(driver, ['{"b":1}', '{"a":1,"b":[]}'], kind="schema", spec=spec, options={"open_objects": True}) == [True, True]
    for text in texts_of(driver, kind="schema", spec=spec, options={"open_objects": True}, walks=20):
        assert valid(spec, json.loads(text))


def test_json_object(driver):
    for text in texts_of(driver, kind="json_object", spec=None, walks=40):
        assert isinstance(json.loads(text), dict)
    texts = list(written({"a": [1, -2.5e3, "x\u0007", None, True, {"": {}}], "b": []}))
    assert all(accepted(driver, texts + ['{"\\ud83d\\ude00\\u00e9": "\\/"}', "{}"], kind="json_object", spec=None))
    bad = ["[]", "1", '{"a":01}', '{"a":1.}', '{"a":.5}', '{"a":+1}', '{"a":NaN}', '{"a":1,}', "{'a':1}", '{"a" 1}', '{"a":"\n"}',
           '{"a":"\\x"}', '{"a":"\\ud83d"}', '{"a":"\\udc00"}', '{"a":tru}', '{"a":1}}', '{"a":[1 2]}', "{", ""]
    assert not any(accepted(driver, bad, kind="json_object", spec=None))


# --- what is refused, and how ------------------------------------------------------------------------------------

REFUSED = [
    (3, "a schema must be an object"), (None, "a schema must be an object"), ([], "a schema must be an object"), ("x", "object"),
    ({"type": "strin"}, "the type \"strin\""), ({"type": 3}, "type must be"), ({"type": [3]}, "type must be"),
    ({"$ref": "#/$defs/none"}, "names nothing"), ({"$ref": "http://x/y"}, "not supported"), ({"$ref": 3}, "$ref"),
    ({"$ref": "#"}, "no text at all"), ({"allOf": [{"$ref": "#"}, {"title": "x"}, {"type": "object"}]}, "circle"),
    ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "no text at all"),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "no text at all"),
    ({"properties": {"x": {"not": {}}}}, "schema at #/properties/x: \"not\""),
    ({"properties": {"x/y": {"items": {"if": {}, "then": {}}}}}, "schema at #/properties/x~1y/items: \"if\""),
    ({"type": "array", "contains": {}}, "\"contains\""), ({"type": "array", "uniqueItems": True}, "\"uniqueItems\""),
    ({"type": "object", "dependentRequired": {}}, "\"dependentRequired\""), ({"dependentSchemas": {}}, "\"dependentSchemas\""),
    ({"$dynamicRef": "#x"}, "\"$dynamicRef\""),
    ({"type": "string", "pattern": "foo**"}, "nothing to repeat"), ({"properties": {"p": {"pattern": "("}}}, "schema at #/properties/p"),
    ({"type": "string", "pattern": "(?=a)"}, "look-ahead"), ({"type": "string", "pattern": 3}, "pattern must be"),
    ({"type": "string", "format": 3}, "format must be"), ({"type": "string", "minLength": 3, "maxLength": 2}, "less than"),
    ({"type": "string", "minLength": -1}, "minLength"), ({"type": "string", "minLength": 1.5}, "minLength"),
    ({"type": "string", "maxLength": "3"}, "maxLength"), ({"type": "array", "minItems": 2, "maxItems": 1}, "less than"),
    ({"type": "string", "pattern": "^a$", "minLength": 2}, "no text at all"),
    ({"type": "string", "pattern": "^(a|b){1,900}$", "maxLength": 20000}, "too large"),
    ({"type": "integer", "minimum": "x"}, "minimum must be"), ({"type": "integer", "minimum": 5, "maximum": 4}, "no text at all"),
    ({"type": "integer", "multipleOf": 0}, "multipleOf"), ({"type": "integer", "multipleOf": 999983}, "multipleOf"),
    ({"enum": 3}, "enum must be"), ({"enum": []}, "no text at all"), ({"type": "string", "enum": [1]}, "no text at all"),
    ({"anyOf": []}, "anyOf must be"), ({"anyOf": {}}, "anyOf must be"), ({"allOf": 1}, "allOf must be"), (False, "no text at all"),
    ({"anyOf": [{"type": "integer"}, {"properties": {"x": 3}}]}, "schema at #/anyOf/1/properties/x"),
    ({"properties": []}, "properties must be"), ({"required": "a"}, "required must be"), ({"required": [1]}, "required must be"),
    ({"patternProperties": {"^a": {}, "b$": {"type": "null"}}}, "a key can match"),
    ({"properties": {"ab": {}}, "patternProperties": {"^a": {"type": "null"}}}, "matches this pattern too"),
    ({"properties": {"ab": {}}, "propertyNames": {}}, "propertyNames"),
    ({"allOf": [{"format": "date"}, {"format": "time"}]}, "cannot be combined"),
    ({"$defs": {"x": {"type": "nope"}}, "properties": {"a": {"$ref": "#/$defs/x"}}}, "schema at #/$defs/x"),
]


@pytest.mark.parametrize("i", range(len(REFUSED)))
def test_refused_schemas(driver, i):
    schema, reason = REFUSED[i]
    answer = driver.ask(kind="schema", spec=schema)
    assert reason in answer.get("error", "accepted"), answer


def nested(depth, wrap, inside):
    for _ in range(depth):
        inside = wrap(inside)
    return inside


def nested_text(depth, before, inside, after):
    return Text(before * depth + inside + after * depth)


def doubling(n):
    defs = {f"d{i}": {"oneOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(n)}
    return {"$defs": {**defs, f"d{n}": {"type": "null"}}, "$ref": "#/$defs/d0"}


def one_of(n):
    return {"type": "null"} if n == 0 else {"oneOf": [one_of(n - 1), one_of(n - 1)]}


def heavy_one_of(n):
    return {"type": "object", "properties": {f"p{n}": {"type": "string"}}, **({"oneOf": [heavy_one_of(n - 1)] * 2} if n else {})}


HOSTILE = {
    "nested arrays": nested_text(2000, '{"type": "array", "items": ', "{}", "}"),
    "nested objects": nested_text(1000, '{"properties": {"a": ', "{}", "}}"),
    "nested allOf": nested_text(1000, '{"allOf": [', "{}", ', {"title": "x"}]}'),
    "nested enum": nested_text(1, '{"enum": ', "[" * 2000 + "]" * 2000, "}"),
    "unknown keyword, nested": nested_text(1, '{"x-unknown": ', "[" * 2000 + "]" * 2000, "}"),
    "what the reader of JSON refuses": nested_text(5000, '{"items": ', "{}", "}"),
    "oneOf, 16 deep": one_of(12),
    "oneOf of references, 60 deep": doubling(60),
    "oneOf with properties, 16 deep": heavy_one_of(14),
    "anyOf times anyOf": {"allOf": [{"anyOf": [{"properties": {f"p{i}{k}": {}}} for k in range(6)]} for i in range(8)]},
    "60,000 parentheses": {"type": "string", "pattern": "(" * 60000},
    "60,000 closed parentheses": {"type": "string", "pattern": "(" * 30000 + "a" + ")" * 30000},
    "exponential pattern": {"type": "string", "pattern": "^(a|b)*a(a|b){18}$"},
    "repetitions of repetitions": {"type": "string", "pattern": "((((a{1,99}){1,99}){1,99}){1,99}){1,99}"},
    "pattern and long": {"type": "string", "pattern": "^(\\w+\\s?)+$", "maxLength": 5000},
    "many optional properties": {"properties": {f"property_{i}": {"type": "string"} for i in range(1500)}},
    "many values": {"enum": [f"value {i}" for i in range(20000)]},
    "long maxItems": {"type": "array", "items": {"type": "array", "items": {"type": "string", "maxLength": 5000}, "maxItems": 5000},
                      "maxItems": 5000},
    "a long name": {"properties": {"x" * 100000: {"type": "nope"}}},
    "references in a row": {"$defs": {f"d{i}": {"properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(2000)}
                            | {"d2000": {}}, "$ref": "#/$defs/d0"},
    "minItems without end": {"type": "array", "minItems": 10 ** 9, "items": {"type": "null"}},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas(driver, name):
    """A clear error, or a grammar that works; either way within a second."""
    answer = driver.ask(kind="schema", spec=HOSTILE[name])
    assert answer.get("seconds", 0) < 1.0, answer["seconds"]
    if "error" in answer:
        assert 10 < len(answer["error"]) < 1000


def test_a_grammar_of_many_rules(driver):
    """Reading takes time by length alone: lines are not counted from the top for each rule."""
    rules = "".join(f'r{i} ::= "{i}" # {"x" * 40}\n' for i in range(15000))
    answer = driver.ask(kind="ebnf", spec=rules + "root ::= r1", accept=["1", "2"], walks=0)
    assert "error" not in answer and answer["accepted"] == [True, False], answer
    assert answer.get("seconds", 0) < 1.0, answer["seconds"]
    answer = driver.ask(kind="ebnf", spec=rules + "root ::= nope")
    assert "line 15001" in answer["error"]


# --- regular expressions -------------------------------------------------------------------------------------------


class Pattern:
    """Regular expressions at random, with texts that they match."""

    def __init__(self, seed):
        self.r = random.Random(seed)

    def make(self, depth=0):
        r = self.r
        kind = r.choice(["char", "char", "class", "seq", "seq", "alt", "repeat"] if depth < 4 else ["char", "class"])
        if kind == "char":
            c = r.choice("abcxé😀0- ")
            return c, [c]
        if kind == "class":
            return r.choice([("[a-c]", ["a", "c"]), ("[^a]", ["b", "é"]), ("\\d", ["7"]), (".", ["x", "😀"]), ("[\\w-]", ["-", "Z"])])
        if kind == "seq":
            parts = [self.make(depth + 1) for _ in range(r.randint(1, 4))]
            return "".join(f"(?:{p[0]})" if "|" in p[0] else p[0] for p in parts), ["".join(r.choice(p[1]) for p in parts) for _ in range(3)]
        if kind == "alt":
            parts = [self.make(depth + 1) for _ in range(r.randint(2, 3))]
            return "(?:" + "|".join(p[0] for p in parts) + ")", [r.choice(p[1]) for p in parts]
        # no repetition of a repetition: it is `re` that would take for ever
        inner, texts = self.make(4)
        if r.random() < 0.5:
            second = self.make(4)
            inner, texts = inner + second[0], [a + b for a, b in zip(texts, second[1])]
        low = r.randint(0, 3)
        high = low + r.choice([0, 1, 30])
        how = r.choice([("*", 0, 5), ("+", 1, 5), ("?", 0, 1), (f"{{{low},{high}}}", low, high), (f"{{{low},}}", low, low + 3)])
        return f"(?:{inner}){how[0]}", ["".join(r.choice(texts) for _ in range(r.randint(how[1], how[2]))) for _ in range(3)]


@pytest.mark.parametrize("block", range(6))
def test_random_patterns(driver, block):
    for seed in range(block * 50, block * 50 + 50):
        pattern, texts = Pattern(seed).make()
        for text in texts_of(driver, kind="regex", spec=pattern, seed=seed, walks=2, steps=15):
            assert re.fullmatch(pattern, text, re.ASCII), (pattern, text)
        probes = [t for t in texts + [t + "a" for t in texts] + [t[1:] for t in texts] + ["", "a", "é"] if "\r" not in t]
        want = [bool(re.fullmatch(pattern, t, re.ASCII)) for t in probes]
        assert accepted(driver, probes, kind="regex", spec=pattern) == want, (pattern, probes)


# --- structural tags ----------------------------------------------------------------------------------------------------

SEARCH = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"], "additionalProperties": False}


def test_triggers(driver):
    tag = {"type": "structural_tag", "structures": [
        {"begin": "<function=search>", "schema": SEARCH, "end": "</function>"},
        {"begin": "<function=now>", "schema": {"type": "object", "properties": {}}, "end": "</function>"}], "triggers": ["<function="]}
    yes = ["", "hello < you", '<function=search>{"q": "x"}</function>', 'a<function=now>{}</function>b<function=search>{"q":""}</function>']
    no = ["<function=", "<function=other>", '<function=search>{"q": 1}</function>', "<function=now>{}", "<function=now>{}</function"]
    assert accepted(driver, yes + no, kind="tag", spec=tag) == [True] * len(yes) + [False] * len(no)
    part = re.compile(r"<function=(search|now)>(.*?)</function>", re.S)
    for text in texts_of(driver, kind="tag", spec=tag, walks=10):
        for name, arguments in part.findall(text):
            assert valid(SEARCH if name == "search" else {"type": "object"}, json.loads(arguments))
        assert "<function=" not in part.sub("", text)


def test_formats_of_tags(driver):
    call = {"type": "tag", "begin": "<call>", "content": {"type": "json_schema", "json_schema": SEARCH}, "end": "</call>"}
    think = {"type": "tag", "begin": "<think>", "content": {"type": "any_text"}, "end": "</think>"}
    ask = lambda f, texts: accepted(driver, texts, kind="tag", spec={"type": "structural_tag", "format": f})
    good = '<call>{"q":""}</call>'
    assert ask({"type": "sequence", "elements": [think, {"type": "const_string", "value": "\n"}, call]},
               ["<think>a<b</think>\n" + good, "<think></think></think>\n" + good, "\n" + good]) == [True, False, False]
    assert ask({"type": "or", "elements": [call, {"type": "regex", "pattern": "no+"}]}, [good, "nooo", "n"]) == [True, True, False]
    tags = {"type": "tags_with_separator", "tags": [call], "separator": ",", "at_least_one": True}
    assert ask(tags, [good, good + "," + good, "", good + good]) == [True, True, False, False]
    one = {"type": "triggered_tags", "triggers": ["<c"], "tags": [call], "at_least_one": True, "stop_after_first": True}
    assert ask(one, [good, "hi " + good, "hi", good + "x", ""]) == [True, True, False, False, False]
    inside = {"type": "tag", "begin": "[", "end": "]", "content": {"type": "triggered_tags", "triggers": ["<c"], "tags": [call]}}
    assert ask(inside, ["[hi]", "[a" + good + "b]", "[a]b]", "[<c]"]) == [True, True, False, False]
    grammar = {"type": "grammar", "grammar": 'root ::= "x" root | "y"'}
    assert ask({"type": "plus", "content": grammar}, ["xyxxy", "", "x"]) == [True, False, False]


@pytest.mark.parametrize("spec, reason", [
    ({}, "missing"), (3, "object"), ({"format": {"type": "nope"}}, "nope"), ({"format": {"type": "tag"}}, "begin"),
    ({"structures": [], "triggers": ["x"]}, "at least one"), ({"structures": [{"begin": "a", "end": "b", "schema": {}}], "triggers": ["x"]}, "trigger"),
    ({"format": nested(40, lambda f: {"type": "star", "content": f}, {"type": "any_text"})}, "deeper"),
    ({"structures": [{"begin": "ab", "end": "b", "schema": {}}], "triggers": ["a", "ab"]}, "trigger"),
    ({"structures": [{"begin": "ab", "end": "b", "schema": 3}], "triggers": ["a"]}, "a schema must be"),
])
def test_refused_tags(driver, spec, reason):
    assert reason in driver.ask(kind="tag", spec=spec).get("error", "accepted")


def test_xml_parameters(driver):
    spec = {"type": "object", "properties": {
        "city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}, "unit": {"enum": ["c", "f"]},
        "when": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "opts": {"$ref": "#/$defs/o"}},
        "required": ["city"], "$defs": {"o": {"type": "object", "properties": {"x": {"type": "boolean"}}}}}
    p = lambda k, v: f"<parameter={k}>\n{v}\n</parameter>\n"
    yes = [p("city", "New\nYork <\"é\">"), p("city", "") + p("days", 3) + p("unit", "f") + p("when", "null") + p("opts", '{"x": true}')]
    no = ["", p("days", 3), p("city", "x") + p("days", "x"), p("city", "x") + p("unit", '"c"'), p("city", "x") + p("other", 1)]
    assert accepted(driver, yes + no, kind="xml_parameters", spec=spec) == [True] * len(yes) + [False] * len(no)
    texts_of(driver, kind="xml_parameters", spec=spec, walks=10)


@pytest.mark.parametrize("schema, yes, no", [
    ({"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]}, ["a", "null"], ["c", "", "nul"]),
    ({"anyOf": [{"$ref": "#/$defs/kind"}, {"type": "integer"}], "default": None}, ["x", "12"], ["z"]),
    ({"allOf": [{"$ref": "#/$defs/kind"}], "description": "d"}, ["x", "y"], ["z", '"x"']),
    ({"allOf": [{"type": "array"}, {"items": {"type": "integer"}}]}, ["[1, 2]"], ["one", '["a"]']),
    ({"type": ["string", "null"], "enum": ["u", None]}, ["u", "null"], ["v"]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "a\nb"], ["a", "abcd", "a<b"]),
    ({"type": ["string", "integer"], "maxLength": 2, "maximum": 9}, ["ab", "7"], ["abc"]),
    ({"type": "string", "pattern": "^[^x]+$"}, ["ab"], ["x", "a\n</parameter>\nb"]),
    ({"type": "string", "pattern": "^<b>$"}, ["<b>"], ["b"]),
    ({"type": "string", "const": "k", "enum": ["j", "k"]}, ["k"], ["j"]),
    ({"type": "string", "enum": ["k", 5]}, ["k"], ["5"]),
    ({"oneOf": [{"type": "string", "format": "date"}, {"type": "boolean"}]}, ["2024-02-29", "true"], ["today"]),
])
def test_strings_in_tags_keep_their_schema(driver, schema, yes, no):
    """What stands without quotes is held to its schema no less than JSON is."""
    spec = {"type": "object", "properties": {"p": schema}, "required": ["p"], "$defs": {"kind": {"enum": ["x", "y"]}}}
    frame = lambda v: f"<parameter=p>\n{v}\n</parameter>\n"
    assert accepted(driver, map(frame, yes + no), kind="xml_parameters", spec=spec) == [True] * len(yes) + [False] * len(no)
    texts_of(driver, kind="xml_parameters", spec=spec, walks=5)


def test_all_that_is_said_of_parameters(driver):
    """Required names that are not listed, references and allOf around the whole; what cannot be kept to is refused."""
    p = lambda k, v: f"<parameter={k}>\n{v}\n</parameter>\n"
    a, b = {"properties": {"a": {"type": "integer"}}}, {"required": ["a", "b"]}
    for spec in ({**a, **b}, {"allOf": [a, b]}, {"$ref": "#/$defs/x", "$defs": {"x": {**a, **b, "type": "object"}}}):
        assert accepted(driver, [p("a", 1) + p("b", "any"), p("a", 1), p("b", "x")], kind="xml_parameters", spec=spec) == [True, False, False]
    for spec, reason in (({**a, "required": [0]}, "required"), ({**a, "required": "a"}, "required"), ({"type": "array"}, "object"),
                         ({"anyOf": [a, b]}, "anyOf"), ({**a, "minProperties": 1}, "minProperties"), ({"properties": []}, "object"),
                         ({**a, **b, "additionalProperties": False}, "no text"), ({"$ref": "#/$defs/y"}, "names nothing"),
                         ({"$ref": "#"}, "circle")):
        assert reason in driver.ask(kind="xml_parameters", spec=spec)["error"], spec
